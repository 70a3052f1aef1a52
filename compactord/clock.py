"""Clocks, passed as arguments, and conversions of times."""

from __future__ import annotations

import time
from datetime import datetime, timezone, tzinfo
from typing import Protocol


class Clock(Protocol):
    """Wall clock, monotonic clock, waiting, and the zone of wall-clock times.

    The wall clock may be changed at any moment, so code that waits uses the steady or the monotonic
    clock.
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
    """The machine's clocks. `time_zone` must be the writers' zone; it defaults to the machine's.

    Paimon stores creation times as local wall-clock times and compares off-peak hours with local
    time.
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
    """Converts steady time to readings of the wall clock. Used by one thread.

    `lead_ms` is how far the wall clock was ahead of steady time at its last change.
    """

    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self.lead_ms = 0
        self._set_ms = 0
        self._lowest_lead_ms = 0

    def set(self, lead_ms: int, steady_ms: int) -> None:
        """Record that the wall clock was changed."""
        self.lead_ms, self._set_ms = lead_ms, steady_ms
        self._lowest_lead_ms = min(self._lowest_lead_ms, lead_ms)

    def at(self, steady_ms: int) -> int:
        """Milliseconds since the epoch, by the clock's current setting."""
        return steady_ms + self.lead_ms

    def shown(self, steady_ms: int) -> int:
        """The same as `at`, except that 0, which means never, stays 0."""
        return self.at(steady_ms) if steady_ms else 0

    def lowest_since(self, steady_ms: int) -> int:
        """A lower bound of all readings since then; exact if the clock was not changed."""
        was_set = self._set_ms > steady_ms
        return steady_ms + (self._lowest_lead_ms if was_set else self.lead_ms)


def local_ms(epoch_ms: int, zone: tzinfo) -> int:
    """The wall-clock reading in `zone` at `epoch_ms`, in milliseconds as if it were UTC.

    `_CREATION_TIME` is stored this way (io/DataFileMeta.java: a timestamp without zone).
    """
    reading = datetime.fromtimestamp(epoch_ms // 1000, zone).replace(tzinfo=timezone.utc)
    return int(reading.timestamp()) * 1000 + epoch_ms % 1000


def epoch_ms(local_ms: int, zone: tzinfo) -> int:
    """The moment at which clocks in `zone` show `local_ms`; the inverse of `local_ms()`."""
    reading = datetime.fromtimestamp(local_ms // 1000, timezone.utc).replace(tzinfo=zone)
    return int(reading.timestamp()) * 1000 + local_ms % 1000


def iso_text(epoch_ms: int) -> str:
    """`2026-11-01T12:00:00Z`; the number itself if no calendar date fits."""
    try:
        moment = datetime.fromtimestamp(epoch_ms // 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{epoch_ms} ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
