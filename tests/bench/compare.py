"""Figures beside those of an earlier run: what got slower."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

Cases = Mapping[str, Mapping[str, Any]]


class Kind(Enum):
    """Only CPU is judged: wall depends on what else the machine does, memory has its targets."""

    CPU = "CPU"
    WALL = "wall"
    MEMORY = "memory"


# Of all of them, less is better.
_FIGURES: Mapping[str, Kind] = {
    "worker_cpu_s": Kind.CPU,
    "cpu_s": Kind.CPU,
    "cpu_ms_per_poll": Kind.CPU,
    "wall_s": Kind.WALL,
    "keys_ns": Kind.WALL,
    "rows_ns": Kind.WALL,
    "first_scan_s": Kind.WALL,
    "refresh_unchanged_ms": Kind.WALL,
    "refresh_10_files_ms": Kind.WALL,
    "peak_rss_mib": Kind.MEMORY,
    "peak_rss_mb": Kind.MEMORY,
    "driver_mib": Kind.MEMORY,
    "kib_per_bucket": Kind.MEMORY,
}
# They tell the lines of one bench apart; runs of other sizes are not compared.
_NAMES = ("case", "sequences", "files")
_SIZES = ("rows_in", "window_rows", "seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of one case, `before` and `now` in the unit that its name tells."""

    case: str
    figure: str
    before: float
    now: float

    @property
    def kind(self) -> Kind:
        return _FIGURES[self.figure]

    @property
    def ratio(self) -> float:
        return self.now / self.before


def read_cases(path: Path) -> Cases:
    """The cases that an earlier run wrote; ValueError (or OSError) when it is no such file."""
    document = json.loads(path.read_text())
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, dict):
        raise ValueError(f"{path} holds no figures of an earlier run")
    return cases


def compare(before: Cases, now: Cases) -> list[Compared]:
    """The figures that both runs have, of cases of the same size."""
    earlier = dict(_parts(before))
    return [
        Compared(case=name, figure=figure, before=earlier[name][figure], now=figures[figure])
        for name, figures in _parts(now)
        if name in earlier and _size(earlier[name]) == _size(figures)
        for figure in _FIGURES
        if figure in figures and earlier[name].get(figure, 0) > 0
    ]


def slower(compared: Sequence[Compared], tolerance: float) -> list[Compared]:
    """Those whose CPU grew by more than `tolerance`, a share of what it was."""
    return [one for one in compared if one.kind is Kind.CPU and one.ratio > 1 + tolerance]


def is_as_quick(compared: Sequence[Compared], tolerance: float) -> bool:
    """Whether CPU has not grown; False also when nothing could be compared."""
    return bool(compared) and not slower(compared, tolerance)


def comparison_text(compared: Sequence[Compared], now: Cases, tolerance: float) -> str:
    """A line for each figure, then what got slower, and which cases could not be compared."""
    too_slow = slower(compared, tolerance)
    lines = [f"{'now / before':62}{'before':>12}{'now':>12}{'ratio':>8}"]
    lines += [
        f"  {one.case:36}{one.kind.value:8}{one.figure:16}{one.before:12,.3f}{one.now:12,.3f}"
        f"{one.ratio:8.3f}{'  SLOWER' if one in too_slow else ''}"
        for one in compared
    ]
    known = {one.case.split(" ")[0] for one in compared}
    lines += [
        f"  {case}: not compared, the earlier run has no figures of its size"
        for case in now
        if case not in known
    ]
    names = ", ".join(f"{one.case} {one.figure} ({one.ratio - 1:+.0%})" for one in too_slow)
    lines.append(f"CPU grew by more than {tolerance:.0%}: {names or 'nowhere'}")
    return "\n".join(lines)


def _parts(cases: Cases) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Figures by name: those of a case, and those of its lines that have a name of their own."""
    for case, found in cases.items():
        yield case, found
        for line in found.get("lines", ()):
            name = " ".join(str(line[key]) for key in _NAMES if key in line)
            if name:
                yield f"{case} {name}", line


def _size(figures: Mapping[str, Any]) -> list[Any]:
    return [figures.get(key) for key in _SIZES]
