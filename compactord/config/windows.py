"""Windows: the times of the week at which kinds of work may start. Pure.

A kind of work is restricted if a window lists it; it may then start while one of these windows is
open. A window is a range of wall-clock times. If its end is not after its start, it runs over
midnight and belongs to the day on which it starts. On the day of a time change the wall clock still
decides: a time that occurs twice is inside both times, a skipped one does not occur.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from compactord.config.section import Section
from compactord.config.values import ZoneName, zone_named
from compactord.model import WorkKind

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_WHOLE_DAY = 24 * 60
# A weekly window whose only occurrence is in a skipped hour occurs again a week later.
_HORIZON_DAYS = 15
_STEP_MS = 6 * 3_600_000


def _read_days(value: object) -> tuple[int, ...]:
    """`mon-fri,sun` → weekdays from 0 (Monday), ascending; ranges may run over Sunday."""
    expected = ValueError("days such as mon-fri or sat,sun")
    parts = value if isinstance(value, list | tuple) else [value]
    days: set[int] = set()
    for part in parts:
        if isinstance(part, int) and part in range(7):
            days.add(part)
            continue
        if not isinstance(part, str):
            raise expected
        for item in part.lower().split(","):
            first, dash, last = (text.strip() for text in item.partition("-"))
            if first not in _DAYS or (dash and last not in _DAYS):
                raise expected
            start, end = _DAYS.index(first), _DAYS.index(last or first)
            days.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    if not days:
        raise expected
    return tuple(sorted(days))


def _days_text(days: Sequence[int]) -> str:
    if len(days) > 2 and days[-1] - days[0] == len(days) - 1:
        return f"{_DAYS[days[0]]}-{_DAYS[days[-1]]}"
    return ",".join(_DAYS[day] for day in days)


def _read_time(value: object) -> int:
    """Minutes since midnight, 24:00 included."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    minute = int(found[1]) * 60 + int(found[2]) if found and int(found[2]) < 60 else -1
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError('a time of day in quotes such as "06:30"')
    if not 0 <= minute <= _WHOLE_DAY:
        raise ValueError('a time of day from "00:00" to "24:00"')
    return minute


def _time_text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


_Days = Annotated[
    tuple[int, ...],
    BeforeValidator(_read_days),
    PlainSerializer(_days_text, return_type=str),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]
_TimeOfDay = Annotated[
    int,
    BeforeValidator(_read_time),
    PlainSerializer(_time_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,2}:[0-9]{2}$"}),
]


class Window(Section):
    """A range of wall-clock times on some days of the week, and the kinds of work it lists.

    Days count from 0 (Monday); times are minutes since midnight, the end exclusive.
    """

    days: _Days = tuple(range(7))
    """mon-fri, or sat,sun"""
    from_minute: _TimeOfDay = Field(default=0, alias="from")
    """start, inclusive"""
    to_minute: _TimeOfDay = Field(default=_WHOLE_DAY, alias="to")
    """end, exclusive; not after the start: on the next day"""
    tz: ZoneName | None = None
    """null: the service's time zone"""
    allow: tuple[WorkKind, ...] = tuple(WorkKind)
    """kinds of work that may start; absent: all"""

    @field_validator("allow")
    @classmethod
    def _allows_something(cls, allow: tuple[WorkKind, ...]) -> tuple[WorkKind, ...]:
        if not allow:
            raise ValueError("one kind of work or more")
        return allow

    @model_validator(mode="after")
    def _is_a_stretch(self) -> Window:
        if self.from_minute == _WHOLE_DAY:
            raise ValueError("a start before 24:00")
        if self.from_minute == self.to_minute:
            raise ValueError("an end that differs from the start (a whole day: 00:00 to 24:00)")
        return self

    def is_open(self, now_ms: int, zone: tzinfo) -> bool:
        """Whether the wall clock at `now_ms` is inside; `zone` applies if `tz` is None."""
        reading = _reading(now_ms, self._zone(zone))
        minute, today = reading.hour * 60 + reading.minute, reading.weekday()
        if self.from_minute < self.to_minute:
            return today in self.days and self.from_minute <= minute < self.to_minute
        yesterday = (today - 1) % 7
        return (today in self.days and minute >= self.from_minute) or (
            yesterday in self.days and minute < self.to_minute
        )

    def edges_ms(self, now_ms: int, zone: tzinfo) -> Iterator[int]:
        """Every instant around and after `now_ms` at which the window may open or close."""
        own = self._zone(zone)
        midnight = _reading(now_ms, own).replace(hour=0, minute=0, second=0, microsecond=0)
        for day in range(-1, _HORIZON_DAYS):
            for minute in (self.from_minute, self.to_minute):
                wall = midnight.replace(tzinfo=None) + timedelta(days=day, minutes=minute)
                for fold in (0, 1):
                    yield int(wall.replace(tzinfo=own, fold=fold).timestamp()) * 1000
        yield from _time_changes_ms(now_ms, own)

    def _zone(self, zone: tzinfo) -> tzinfo:
        return zone if self.tz is None else zone_named(self.tz)


def may_start(windows: Sequence[Window], kind: WorkKind, now_ms: int, zone: tzinfo) -> bool:
    """Whether work of this kind may start now; `now_ms` is since the epoch."""
    listing = [window for window in windows if kind in window.allow]
    return not listing or any(window.is_open(now_ms, zone) for window in listing)


def next_change_ms(
    windows: Sequence[Window], kind: WorkKind, now_ms: int, zone: tzinfo
) -> int | None:
    """The first instant after now at which the result of `may_start` changes, or None."""
    now = may_start(windows, kind, now_ms, zone)
    edges = {
        edge
        for window in windows
        if kind in window.allow
        for edge in window.edges_ms(now_ms, zone)
        if edge > now_ms
    }
    return next(
        (edge for edge in sorted(edges) if may_start(windows, kind, edge, zone) != now), None
    )


def _reading(at_ms: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, timezone.utc).astimezone(zone)


def _time_changes_ms(now_ms: int, zone: tzinfo) -> Iterator[int]:
    """Changes of the zone's offset within the horizon, where the wall clock jumps."""
    for step in range(_HORIZON_DAYS * 4):
        before, after = now_ms + step * _STEP_MS, now_ms + (step + 1) * _STEP_MS
        old = _reading(before, zone).utcoffset()
        if old == _reading(after, zone).utcoffset():
            continue
        before, after = before // 1000, after // 1000
        while after - before > 1:
            middle = (before + after) // 2
            if _reading(middle * 1000, zone).utcoffset() == old:
                before = middle
            else:
                after = middle
        yield after * 1000
