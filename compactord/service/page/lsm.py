"""A bucket's LSM tree drawn as SVG: a row for each sorted run, the newest on top.

Left is the size of the run, right its range of keys. Rows continue up to the triggers, which are
marked between them. Positions are in percent of the width, so that bars stretch and letters do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from compactord.service.page.figures import count
from compactord.service.page.markup import Markup, element, join
from compactord.table.status import BucketDetail, RunView
from compactord.text import count_text, size_text

_LANE, _ROOM, _MARK, _HEAD = 30, 12, 18, 20
# Where the columns begin and end, in percent.
_SIZE_X, _SIZE_W, _KEY_X, _KEY_W = 8.0, 44.0, 56.0, 44.0
# The narrowest bar.
_LEAST_W = 0.4
_KEY_TEXT_MAX = 22
# Empty rows are drawn up to a trigger that is at most this many runs away.
_ROOM_MAX = 8
_NUMBER = re.compile(r"-?\d{1,60}(\.\d{1,60})?")

# The position of a key among all keys of the bucket, 0 to 1.
_Position = Callable[[str], float]


def lsm_svg(bucket: BucketDetail, *, compaction_trigger: int, stop_trigger: int) -> Markup:
    """The drawing. Triggers of 0 mean that the bucket has no sorted runs to count."""
    total = max(bucket.sorted_runs, len(bucket.runs))
    largest = max((run.size_bytes for run in bucket.runs), default=0)
    # Bars begin at zero, and the smallest are still to be seen.
    widths = [max(_LEAST_W, _SIZE_W * run.size_bytes / max(1, largest)) for run in bucket.runs]
    position = key_positions(bucket.runs)
    marks = {
        slot: kind
        for slot, kind in ((compaction_trigger, "trigger"), (stop_trigger, "stop"))
        if total - len(bucket.runs) < slot <= total + _ROOM_MAX
    }
    parts = [_text(0, 12, "level", kind="head"), _text(_SIZE_X, 12, "size", kind="head")]
    if position is not None:
        parts.append(_text(_KEY_X, 12, "keys", kind="head keys"))
    y = _HEAD
    for slot in range(max([total, *marks]), total - len(bucket.runs), -1):
        if slot == stop_trigger and slot in marks:
            parts.append(_mark(y, "stop", f"stop trigger {count(slot)}"))
            y += _MARK
        if slot == compaction_trigger and slot in marks:
            parts.append(_mark(y, "trigger", f"compaction trigger {count(slot)}"))
            y += _MARK
        if slot > total:
            parts.append(_room(y))
            y += _ROOM
        else:
            index = total - slot
            parts.append(_lane(y, bucket.runs[index], widths[index], position, index == total - 1))
            y += _LANE
    if missing := total - len(bucket.runs):
        parts.append(_text(0, y + 13, f"{count_text(missing, 'older run')} not drawn", kind="soft"))
        y += _MARK
    return element(
        "svg",
        *parts,
        class_="lsm",
        height=y + 2,
        role="img",
        aria_label=f"{count_text(total, 'sorted run')}, newest first; "
        "the table below has the numbers",
    )


def scale_text(runs: Sequence[RunView]) -> str:
    """How the drawing is to be read: both scales in words."""
    sizes = [run.size_bytes for run in runs]
    text = f"Bars: size, from 0 to {size_text(max(sizes))}." if sizes else "No files."
    if not _keys(runs):
        return text
    if _are_numbers(_keys(runs)):
        return f"{text} Spans: keys from smallest to largest by value."
    return f"{text} Spans: keys by their rank among all bounds, ordered as text."


def key_positions(runs: Sequence[RunView]) -> _Position | None:
    """Numbers are placed by value, other keys by rank among all bounds; None without keys."""
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


def _lane(
    y: int, run: RunView, width: float, position: _Position | None, is_oldest: bool
) -> Markup:
    files = count_text(run.files, "file")
    kind = "level0" if run.level == 0 else "oldest" if is_oldest else "level"
    keys = f", keys {run.min_key} … {run.max_key}" if run.min_key or run.max_key else ""
    return element(
        "g",
        element(
            "title",
            f"level {run.level}: {files}, {count_text(run.rows, 'row')}, "
            f"{count_text(run.size_bytes, 'byte')}{keys}",
        ),
        _text(0, y + 22, f"L{run.level}"),
        _text(_SIZE_X, y + 11, f"{size_text(run.size_bytes)} · {files}"),
        _bar(_SIZE_X, y + 15, width, kind),
        *(_key_span(y, run, position) if position and run.min_key and run.max_key else ()),
        class_="run",
    )


def _key_span(y: int, run: RunView, position: _Position) -> Iterator[Markup]:
    start = _KEY_X + _KEY_W * position(run.min_key)
    end = _KEY_X + _KEY_W * position(run.max_key)
    # A span of one key must be visible and stay within the drawing.
    width = max(end - start, 0.6)
    yield element("rect", x=f"{_KEY_X}%", y=y + 19, width=f"{_KEY_W}%", height="1", class_="rule")
    yield _bar(min(start, 100 - width), y + 15, width, "span")
    yield _text(_KEY_X, y + 11, _short(run.min_key), kind="soft keys")
    yield _text(100, y + 11, _short(run.max_key), kind="soft keys", anchor="end")


def _mark(y: int, kind: str, text: str) -> Markup:
    return join(
        _text(100, y + 10, text, kind=f"{kind}-text", anchor="end"),
        element("rect", x="0", y=y + 13, width="100%", height="2", class_=kind),
    )


def _room(y: int) -> Markup:
    """A run that the bucket does not have yet."""
    return element(
        "rect",
        x=f"{_SIZE_X}%",
        y=y + 3,
        width=f"{_SIZE_W / 3:.2f}%",
        height="6",
        rx="2",
        class_="room",
    )


def _bar(x: float, y: int, width: float, kind: str) -> Markup:
    return element(
        "rect", x=f"{x:.2f}%", y=y, width=f"{width:.2f}%", height="10", rx="2", class_=kind
    )


def _text(
    x: float, y: int, text: str, *, kind: str | None = None, anchor: str | None = None
) -> Markup:
    return element("text", text, x=f"{x}%", y=y, class_=kind, text_anchor=anchor)


def _short(text: str) -> str:
    return text if len(text) <= _KEY_TEXT_MAX else text[: _KEY_TEXT_MAX - 1] + "…"
