"""Geometry of the drawing of a bucket's LSM tree: a row for each sorted run, the newest on top.

The left column is the run's size, the right one its range of keys, in percent of the width. Rows
continue up to the triggers, which are marked between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from compactord.table.status import BucketDetail, RunView
from compactord.text import size_text

# Heights of rows in pixels.
_HEIGHTS = {"run": 30, "room": 12, "stop": 18, "trigger": 18, "missing": 18}
_HEAD = 20
# Where the columns begin and how wide they are, in percent.
_SIZE_X, _SIZE_WIDTH, _KEY_X, _KEY_WIDTH = 8.0, 44.0, 56.0, 44.0
# The narrowest bar and span: one byte or one key must be visible.
_BAR_MIN, _SPAN_MIN = 0.4, 0.6
# Empty rows are drawn up to a trigger that is at most this many runs away.
_ROOM_MAX = 8
_NUMBER = re.compile(r"-?\d{1,60}(\.\d{1,60})?")

# The position of a key among all keys of the bucket, 0 to 1.
_Position = Callable[[str], float]


class Bar(NamedTuple):
    x: float
    width: float
    colour: str


class Row(NamedTuple):
    """`kind` is `run`, `room`, `stop`, `trigger` or `missing`; only runs have the other fields."""

    kind: str
    y: int
    run: RunView | None = None
    size: Bar | None = None
    keys: Bar | None = None


class Drawing(NamedTuple):
    rows: Sequence[Row]
    height: int
    sorted_runs: int
    has_keys: bool
    # Older runs that the view does not list.
    missing: int


def drawing_of(bucket: BucketDetail, compaction_trigger: int, stop_trigger: int) -> Drawing:
    """The drawing of a bucket. Triggers are 0 if the bucket has no sorted runs to count."""
    runs = bucket.runs
    total = max(bucket.sorted_runs, len(runs))
    missing = total - len(runs)
    triggers = {"stop": stop_trigger, "trigger": compaction_trigger}
    marked = {kind: at for kind, at in triggers.items() if missing < at <= total + _ROOM_MAX}
    position = key_positions(runs)
    largest = max((run.size_bytes for run in runs), default=0) or 1
    rows: list[Row] = []
    y = _HEAD

    def add(
        kind: str, run: RunView | None = None, size: Bar | None = None, keys: Bar | None = None
    ) -> None:
        nonlocal y
        rows.append(Row(kind, y, run, size, keys))
        y += _HEIGHTS[kind]

    for slot in range(max([total, *marked.values()]), missing, -1):
        for kind, at in marked.items():
            if at == slot:
                add(kind)
        if slot > total:
            add("room")
            continue
        run = runs[total - slot]
        colour = "level0" if run.level == 0 else "oldest" if slot == missing + 1 else "level"
        width = max(_BAR_MIN, _SIZE_WIDTH * run.size_bytes / largest)
        add("run", run, Bar(_SIZE_X, width, colour), _key_span(run, position))
    if missing:
        add("missing")
    return Drawing(rows, y + 2, total, position is not None, missing)


def _key_span(run: RunView, position: _Position | None) -> Bar | None:
    if position is None or not (run.min_key and run.max_key):
        return None
    start = _KEY_X + _KEY_WIDTH * position(run.min_key)
    width = max(_KEY_X + _KEY_WIDTH * position(run.max_key) - start, _SPAN_MIN)
    return Bar(min(start, 100 - width), width, "span")


def scale_text(runs: Sequence[RunView]) -> str:
    """Both scales of the drawing in words."""
    sizes = [run.size_bytes for run in runs]
    text = f"Bars: size, from 0 to {size_text(max(sizes))}." if sizes else "No files."
    if not _keys(runs):
        return text
    if _are_numbers(_keys(runs)):
        return f"{text} Spans: keys from smallest to largest by value."
    return f"{text} Spans: keys by their rank among all bounds, ordered as text."


def key_positions(runs: Sequence[RunView]) -> _Position | None:
    """Places numbers by value and other keys by rank among all bounds; None without keys."""
    keys = _keys(runs)
    if not keys:
        return None
    if _are_numbers(keys):
        values = [Fraction(key) for key in keys]
        low, width = min(values), max(values) - min(values)
        return lambda key: float((Fraction(key) - low) / width) if width else 0.0
    rank = {key: index for index, key in enumerate(sorted(keys))}
    last = max(1, len(rank) - 1)
    return lambda key: rank[key] / last


def _keys(runs: Sequence[RunView]) -> set[str]:
    return {key for run in runs for key in (run.min_key, run.max_key) if key}


def _are_numbers(keys: set[str]) -> bool:
    return all(_NUMBER.fullmatch(key) for key in keys)
