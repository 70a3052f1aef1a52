"""Time as a seam: everything that asks for the time is given a clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone, tzinfo
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock, waiting, and the zone in which wall-clock facts are read."""

    @property
    def time_zone(self) -> tzinfo: ...

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks. The zone is the machine's unless given: it must be the writers' zone.

    Paimon stores creation times as local wall-clock and compares off-peak hours with local time.
    """

    def __init__(self, time_zone: tzinfo | None = None) -> None:
        self._time_zone = time_zone or datetime.now().astimezone().tzinfo or timezone.utc

    @property
    def time_zone(self) -> tzinfo:
        return self._time_zone

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def local_ms(epoch_ms: int, zone: tzinfo) -> int:
    """The wall-clock reading in `zone` at `epoch_ms`, as milliseconds as if it were UTC.

    This is how `_CREATION_TIME` is stored (io/DataFileMeta.java: a timestamp without zone).
    """
    reading = datetime.fromtimestamp(epoch_ms // 1000, zone).replace(tzinfo=timezone.utc)
    return int(reading.timestamp()) * 1000 + epoch_ms % 1000


def age_text(milliseconds: int) -> str:
    """The two largest units of a span of time: `3 d 4 h`, `2 min 5 s`, `0 s`."""
    seconds = max(0, milliseconds) // 1000
    for unit, inner, unit_s, inner_s in (
        ("d", "h", 86_400, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if seconds >= unit_s:
            whole, rest = divmod(seconds, unit_s)
            return (
                f"{whole} {unit} {rest // inner_s} {inner}"
                if rest // inner_s
                else (f"{whole} {unit}")
            )
    return f"{seconds} s"


def iso_text(epoch_ms: int) -> str:
    """`2026-11-01T12:00:00Z`; what no calendar has, as its number."""
    try:
        moment = datetime.fromtimestamp(epoch_ms // 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
