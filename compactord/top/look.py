"""The status of a daemon or a warehouse at one moment: plain values from which a frame is drawn.

Times are milliseconds since the epoch, 0 for none; sizes are bytes. None: only a daemon knows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from compactord.service.page.need import Need, Standing, need_of, urgency


class NoAnswer(Exception):
    """The status could not be read this time; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTable:
    """A table in a line. `note` says why it is not compacted. Triggers 0: it has no sorted runs.

    `kind` is empty where the schema could not be read. Not `is_read`: neither could the files, and
    their numbers say nothing.
    """

    name: str
    status: str
    catalog: str = ""
    location: str = ""
    kind: str = ""
    merge_engine: str = ""
    write_only: bool = False
    is_read: bool = True
    sorted_runs: int = 0
    compaction_trigger: int = 0
    stop_trigger: int = 0
    level0_files: int = 0
    files: int = 0
    small_files: int = 0
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
    subcompactions: int
    subcompactions_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopCommit:
    """A compaction that ended; None for facts that a warehouse does not have.

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
    """The daemon itself. `is_starting`: its engine is not up yet. `troubles` are sentences."""

    is_starting: bool
    is_draining: bool
    slots: int
    running: int
    memory_reserved_bytes: int
    memory_budget_bytes: int
    queued: int
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One status. `service` is None for a warehouse: then nothing is known of running work."""

    source: str
    now_ms: int
    service: TopService | None
    tables: tuple[TopTable, ...]
    running: tuple[TopTask, ...]
    recent: tuple[TopCommit, ...]

    def by_need(self) -> list[TopTable]:
        """Tables with problems first, as on the page."""
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
        """Raises `NoAnswer` if it may work later, `CompactordError` if it never will."""
        ...


def look_json(look: Look, rates: Rates | None, *, trouble: str) -> dict[str, Any]:
    """The status as plain data; `need` of a table is the frame's word for it, or `nothing`.

    `trouble` is why the newest status is an older one, empty otherwise.
    """
    found = asdict(look)
    found["tables"] = [
        asdict(table) | {"need": look.need(table).name.lower()} for table in look.by_need()
    ]
    return found | {"rates": None if rates is None else asdict(rates), "trouble": trouble}


def rates_between(before: Look | None, now: Look) -> Rates | None:
    """Speed since the previous status; None if it is unknown.

    Tables that are only in one of the two, and counters that were reset, count as 0.
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
