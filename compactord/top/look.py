"""What one look at a daemon or a warehouse has found: plain values that a frame is drawn from.

Times are milliseconds since the epoch, 0 where there is none; sizes are bytes. None stands for what
only a daemon knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from compactord.service.page.need import Need, Standing, need_of, urgency


class NoAnswer(Exception):
    """There was nothing to look at this time; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTable:
    """A table in a line. `note` says why it is left alone. Triggers 0: it has no sorted runs."""

    name: str
    status: str
    sorted_runs: int = 0
    compaction_trigger: int = 0
    stop_trigger: int = 0
    level0_files: int = 0
    files: int = 0
    size_bytes: int = 0
    backlog_bytes: int = 0
    oldest_ms: int = 0
    max_backlog_age_ms: int = 0
    last_commit_ms: int = 0
    is_failing: bool = False
    note: str = ""
    input_bytes: int = 0
    output_bytes: int = 0

    def standing(self, now_ms: int) -> Standing:
        return Standing(
            status=self.status,
            sorted_runs=self.sorted_runs,
            compaction_trigger=self.compaction_trigger,
            stop_trigger=self.stop_trigger,
            backlog_bytes=self.backlog_bytes,
            backlog_age_ms=max(0, now_ms - self.oldest_ms) if self.oldest_ms else 0,
            max_backlog_age_ms=self.max_backlog_age_ms,
            is_failing=self.is_failing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTask:
    """A compaction that runs."""

    table: str
    place: str
    why: str
    files: int
    size_bytes: int
    started_ms: int
    parts: int
    parts_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopCommit:
    """A compaction that ended; what a warehouse does not tell about it is None.

    `outcome` is a word, `detail` its snapshot or why there is none.
    """

    table: str
    place: str = ""
    why: str = ""
    outcome: str
    detail: str
    files_in: int | None = None
    files_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopService:
    """The daemon itself. `troubles` are sentences."""

    is_draining: bool
    slots: int
    running: int
    memory_reserved_bytes: int
    memory_budget_bytes: int
    queued: int
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look. `service` is None for a warehouse: then nothing is known of running work."""

    source: str
    now_ms: int
    service: TopService | None
    tables: tuple[TopTable, ...]
    running: tuple[TopTask, ...]
    recent: tuple[TopCommit, ...]

    def by_need(self) -> list[TopTable]:
        """Trouble first, as on the page."""
        return sorted(self.tables, key=lambda t: urgency(t.standing(self.now_ms), t.name))

    def need(self, table: TopTable) -> Need:
        return need_of(table.standing(self.now_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second of committed compactions, in and out."""

    input_bytes: float
    output_bytes: float


class Source(Protocol):
    """Where looks come from."""

    def look(self) -> Look:
        """Raises `NoAnswer` when there is none for now, `CompactordError` when there never is."""
        ...


def rates_between(before: Look | None, now: Look) -> Rates | None:
    """Speed since the look before; None where that cannot be told.

    Tables that came or went between the looks, and counters that began anew, count as nothing.
    """
    if before is None or now.service is None or before.service is None:
        return None
    seconds = (now.now_ms - before.now_ms) / 1000
    if seconds <= 0:
        return None
    known = {table.name: table for table in before.tables}
    pairs = [(known[table.name], table) for table in now.tables if table.name in known]
    return Rates(
        input_bytes=_growth((a.input_bytes, b.input_bytes) for a, b in pairs) / seconds,
        output_bytes=_growth((a.output_bytes, b.output_bytes) for a, b in pairs) / seconds,
    )


def _growth(pairs: Iterable[tuple[int, int]]) -> int:
    return sum(max(0, after - before) for before, after in pairs)
