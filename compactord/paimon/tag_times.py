"""When a tag was made and how long it is retained, by its file (tag/Tag.java)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple

from compactord.errors import FormatError


class TagTimes(NamedTuple):
    """Creation by the writer's wall clock as if that were UTC, and retention; in milliseconds."""

    made_ms: int
    retained_ms: int


def tag_times(found: Mapping[str, Any], path: str) -> TagTimes | None:
    """The times in a tag's file, None for one that is retained for good: it has none.

    Raises `FormatError` for values that are no times.
    """
    made, retained = found.get("tagCreateTime"), found.get("tagTimeRetained")
    if made is None or retained is None:
        return None
    try:
        if type(made) is not list or type(retained) not in (int, float):
            raise ValueError("a list and a number are expected")
        # Java leaves out seconds and nanoseconds of 0.
        year, month, day, hour, minute, second, nanos = [*made, 0, 0][:7]
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
        made_ms = int(moment.timestamp()) * 1000 + nanos // 1_000_000
        return TagTimes(made_ms, int(retained * 1000))
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(path, f"tagCreateTime {made!r}, tagTimeRetained {retained!r}") from error
