"""The status of a service or a warehouse at one moment: the values from which a frame is drawn.

And the same as plain data, for `--json`, under names of its own, which scripts read. Times are
milliseconds since the epoch, 0 for none; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from compactord.clock import age_text
from compactord.model import TableName
from compactord.scheduler.status import EndedCompaction
from compactord.service.codec import plain_fields
from compactord.service.page.attention import attention_of, is_failing, urgency, why_text
from compactord.service.view import ActiveCompaction, ServiceView, TableView


class NoAnswer(Exception):
    """The status could not be read this time; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCompaction:
    """A compaction of which no more is known than its snapshot."""

    name: TableName
    snapshot_id: int
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopStatus:
    """One status. `service` is None for a warehouse: then nothing is known of running work.

    Of a warehouse `seen` has the last compactions; the catalog's name is empty in those of tables.
    """

    source: str
    now_ms: int
    tables: tuple[TableView, ...]
    service: ServiceView | None
    seen: tuple[SeenCompaction, ...] = ()

    def by_need(self) -> list[TableView]:
        """Tables with problems first, as on the page."""
        return sorted(self.tables, key=lambda table: urgency(table, self.now_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second of committed compactions, in and out."""

    input_bytes: float
    output_bytes: float


class Source(Protocol):
    """What is asked for the status."""

    def status(self) -> TopStatus:
        """Raises `NoAnswer` if it may work later, `CompactordError` if it never will."""
        ...


def shown_name(name: TableName) -> str:
    """A table's name, without that of a catalog which has none."""
    return ".".join(part for part in name if part)


def place_text(partition: str, bucket: int) -> str:
    """The bucket first: a long partition may be cut short."""
    return f"b{bucket} {partition}".rstrip()


def service_troubles(view: ServiceView) -> Iterator[str]:
    """Sentences about the service itself."""
    if not view.engine.is_up and view.engine.error:
        yield f"the engine is down: {view.engine.error}"
    for catalog in view.catalogs:
        if catalog.error:
            yield f"catalog {catalog.name} cannot be listed: {catalog.error}"
    for catalog in view.catalogs:
        if catalog.store_silent_since_ms:
            yield f"the store or server of catalog {catalog.name} does not answer; its tables wait"
    if not view.config.last_reload_successful:
        yield f"the configuration could not be reloaded: {view.config.error}"
    for loop in view.loops:
        silent_ms = view.now_ms - loop.heartbeat_ms
        if silent_ms > loop.stale_after_ms:
            yield f"the loop {loop.name} is silent for {age_text(silent_ms)}"


def rates_between(before: TopStatus | None, now: TopStatus) -> Rates | None:
    """Speed since the previous status; None if it is unknown.

    Tables that are only in one of the two, and counters that were reset, count as 0.
    """
    if before is None or now.service is None or before.service is None:
        return None
    seconds = (now.now_ms - before.now_ms) / 1000
    if seconds <= 0:
        return None
    known = {table.name: table.counters for table in before.tables}
    pairs = [(known[t.name], t.counters) for t in now.tables if t.name in known]
    return Rates(
        input_bytes=_growth((a.input_bytes, b.input_bytes) for a, b in pairs) / seconds,
        output_bytes=_growth((a.output_bytes, b.output_bytes) for a, b in pairs) / seconds,
    )


def _growth(pairs: Iterable[tuple[int, int]]) -> int:
    return sum(max(0, after - before) for before, after in pairs)


_SIZES = ("files_in", "files_out", "bytes_in", "bytes_out")


def frame_json(status: TopStatus, rates: Rates | None, *, trouble: str) -> dict[str, Any]:
    """The status as plain data; `need` of a table is the frame's word for it, or `nothing`.

    `trouble` is why the newest status is an older one, empty otherwise. None: it is not known.
    """
    service = status.service
    return {
        "source": status.source,
        "now_ms": status.now_ms,
        "service": None if service is None else _service_json(service),
        "tables": [_table_json(table, status.now_ms) for table in status.by_need()],
        "running": [] if service is None else [_running_json(task) for task in service.running],
        "recent": [_seen_json(each) for each in status.seen]
        if service is None
        else [_ended_json(each) for each in service.recent],
        "rates": None if rates is None else asdict(rates),
        "trouble": trouble,
    }


def _service_json(view: ServiceView) -> dict[str, Any]:
    engine = view.engine
    shown = ("slots", "running", "memory_reserved_bytes", "memory_budget_bytes")
    return {
        "is_starting": not engine.is_up and not engine.error,
        "is_draining": view.is_draining,
        **plain_fields(shown, engine),
        "queued": sum(view.queued.values()),
        "troubles": list(service_troubles(view)),
    }


def _table_json(table: TableView, now_ms: int) -> dict[str, Any]:
    info = ("kind", "merge_engine", "write_only", "compaction_trigger", "stop_trigger")
    return {
        "name": shown_name(table.name),
        "status": table.status.value,
        "catalog": table.name.catalog,
        "location": table.location,
        **plain_fields(info, table.info),
        "is_read": table.is_read,
        "sorted_runs": table.shape.sorted_runs_max,
        **plain_fields(("level0_files", "files", "small_files", "size_bytes"), table.shape),
        "backlog_bytes": table.backlog.size_bytes,
        "oldest_ms": table.backlog.oldest_ms,
        "max_backlog_age_ms": table.max_backlog_age_ms,
        "waiting_since_ms": table.shape.waiting_since_ms,
        "max_freshness_lag_ms": table.max_freshness_lag_ms,
        "last_commit_ms": table.last_commit_ms,
        "is_failing": is_failing(table),
        "note": why_text(table, now_ms),
        **plain_fields(("input_bytes", "output_bytes"), table.counters),
        "need": attention_of(table, now_ms).name.lower(),
    }


def _running_json(task: ActiveCompaction) -> dict[str, Any]:
    shown = ("files", "size_bytes", "started_ms", "subcompactions", "subcompactions_done")
    return {
        "table": shown_name(task.name),
        "place": place_text(task.partition, task.bucket),
        "why": task.reason.value,
        **plain_fields(shown, task),
    }


def _ended_json(ended: EndedCompaction) -> dict[str, Any]:
    snapshot = f"snapshot {ended.snapshot_id}" if ended.snapshot_id else ""
    return {
        "table": shown_name(ended.name),
        "place": place_text(ended.partition, ended.bucket),
        "why": ended.reason.value,
        "outcome": ended.outcome.value,
        "detail": snapshot or ended.message,
        **plain_fields((*_SIZES, "finished_ms"), ended),
    }


def _seen_json(seen: SeenCompaction) -> dict[str, Any]:
    return {
        "table": shown_name(seen.name),
        **dict.fromkeys(("place", "why"), ""),
        "outcome": "committed",
        "detail": f"snapshot {seen.snapshot_id}",
        **dict.fromkeys(_SIZES),
        "finished_ms": seen.finished_ms,
    }
