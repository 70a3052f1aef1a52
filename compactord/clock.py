"""Time as a seam: everything that asks for the time is given a clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone, tzinfo
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock, waiting, and the zone in which wall-clock facts are read.

    The wall clock may be set at any moment, so everything that waits uses the steady or the
    monotonic one.
    """

    @property
    def time_zone(self) -> tzinfo: ...

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the wall clock."""
        ...

    def steady_ms(self) -> int:
        """The wall clock's reading at the start plus the monotonic time since."""
        ...

    def monotonic_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks. The zone is the machine's unless given: it must be the writers' zone.

    Paimon stores creation times as local wall-clock and compares off-peak hours with local time.
    """

    def __init__(self, time_zone: tzinfo | None = None) -> None:
        self._time_zone = time_zone or datetime.now().astimezone().tzinfo or timezone.utc
        self._start_ms = self.now_ms() - int(self.monotonic_s() * 1000)

    @property
    def time_zone(self) -> tzinfo:
        return self._time_zone

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return self._start_ms + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class WallTime:
    """The wall clock's reading at moments of steady time; used by one thread.

    `lead_ms` is how far the wall clock is ahead of steady time, as it was set last.
    """

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self.lead_ms = 0
        self._set_ms = 0
        self._lowest_lead_ms = 0

    def set(self, lead_ms: int, steady_ms: int) -> None:
        """Record that the wall clock has been set."""
        self.lead_ms, self._set_ms = lead_ms, steady_ms
        self._lowest_lead_ms = min(self._lowest_lead_ms, lead_ms)

    def at(self, steady_ms: int) -> int:
        """Milliseconds since the epoch, as the clock is set now."""
        return steady_ms + self.lead_ms

    def shown(self, steady_ms: int) -> int:
        """As `at`; 0, which stands for never, stays 0."""
        return self.at(steady_ms) if steady_ms else 0

    def lowest_since(self, steady_ms: int) -> int:
        """No later than any reading from that moment on; exact if the clock was not set since."""
        was_set = self._set_ms > steady_ms
        return steady_ms + (self._lowest_lead_ms if was_set else self.lead_ms)


def local_ms(epoch_ms: int, zone: tzinfo) -> int:
    """The wall-clock reading in `zone` at `epoch_ms`, as milliseconds as if it were UTC.

    This is how `_CREATION_TIME` is stored (io/DataFileMeta.java: a timestamp without zone).
    """
    reading = datetime.fromtimestamp(epoch_ms // 1000, zone).replace(tzinfo=timezone.utc)
    return int(reading.timestamp()) * 1000 + epoch_ms % 1000


def epoch_ms(local_ms: int, zone: tzinfo) -> int:
    """The moment at which clocks in `zone` read so; the inverse of `local_ms`."""
    reading = datetime.fromtimestamp(local_ms // 1000, timezone.utc).replace(tzinfo=zone)
    return int(reading.timestamp()) * 1000 + local_ms % 1000


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
    """`2026-11-01T12:00:00Z`; the number itself if no calendar date fits."""
    try:
        moment = datetime.fromtimestamp(epoch_ms // 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
