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
