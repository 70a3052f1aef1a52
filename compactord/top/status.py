"""The status of a service or a warehouse, from which `top` draws a frame.

And the same as plain data, for `--json`, under names of its own, which scripts read. Times are
milliseconds since the epoch, 0 for none; sizes are bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from compactord.catalog.base import Catalog
from compactord.clock import Clock, age_text
from compactord.config.load import LoadedConfig
from compactord.config.policy import NAMELESS, policy_for
from compactord.errors import CompactordError, UnsupportedTable
from compactord.model import TableName
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.scheduler.compaction import EndedCompaction
from compactord.service.codec import plain_fields
from compactord.service.page.attention import attention_of, is_failing, urgency, why_text
from compactord.service.view import (
    ActiveCompaction,
    ServiceView,
    TableView,
    offline_view,
    unmanaged_reason,
    unread_view,
)
from compactord.state.loading import snapshot_if_there
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.table.backlog import TableBacklog
from compactord.table.opening import (
    OWN,
    OpenTable,
    TableRegistries,
    describe_table,
    refuse_live_state,
)
from compactord.table.planning import PlanContext, StatePlanner, with_waiting_rows
from compactord.table.request import CompactRequest


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


# How far back the newest compaction of a table is searched for.
_SNAPSHOTS_READ = 8
_RECENT_KEPT = 32


class WarehouseSource:
    """All tables of a catalog, `NAMELESS` in `loaded`, as a service with that would have them.

    `stop` interrupts `status` between two tables.
    """

    def __init__(
        self,
        catalog: Catalog,
        loaded: LoadedConfig,
        *,
        clock: Clock,
        stop: threading.Event,
        registries: TableRegistries = OWN,
    ) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._clock = clock
        self._stop = stop
        self._registries = registries
        self._watched: dict[TableRef, _WatchedTable] = {}

    def status(self) -> TopStatus:
        """Raises what listing raises, of one database, too, and `NoAnswer` when told to stop."""
        listed = self._catalog.list_tables()
        for trouble in listed.unreadable.values():
            raise trouble
        known, self._watched = self._watched, {}
        tables = []
        for ref in sorted(listed.tables, key=lambda ref: ref.full_name):
            if self._stop.is_set():
                raise NoAnswer("stopped")
            watched = known.get(ref) or _WatchedTable(
                self._catalog, ref, self._loaded, self._clock, self._registries
            )
            self._watched[ref] = watched
            tables.append(watched.view())
        seen = (each for watched in self._watched.values() for each in reversed(watched.seen))
        return TopStatus(
            source=self._catalog.warehouse,
            now_ms=self._clock.now_ms(),
            service=None,
            tables=tuple(tables),
            seen=tuple(sorted(seen, key=lambda each: -each.finished_ms)[:_RECENT_KEPT]),
        )


class _WatchedTable:
    """One table's state and plan between polls."""

    def __init__(
        self,
        catalog: Catalog,
        ref: TableRef,
        loaded: LoadedConfig,
        clock: Clock,
        registries: TableRegistries,
    ) -> None:
        self.seen: deque[SeenCompaction] = deque(maxlen=_SNAPSHOTS_READ)
        self._catalog = catalog
        self._ref = ref
        # A warehouse without a configuration has no name.
        self._name = TableName("", ref.database, ref.name)
        self._loaded = loaded
        self._policy = policy_for(loaded.config, self._name._replace(catalog=NAMELESS))
        self._clock = clock
        self._registries = registries
        self._table: OpenTable | None = None
        self._state: TableState | None = None
        self._backlog: TableBacklog | None = None
        self._known: Snapshot | None = None

    def view(self) -> TableView:
        """Never raises because of the table: its line shows the error."""
        found, refused, error = None, list[str](), ""
        try:
            found = self._read()
        except UnsupportedTable as unsupported:
            refused += unsupported.reasons
        except CompactordError as failure:
            error = str(failure)
        table = self._table
        # Of a table that cannot be read nobody knows whether it is write-only.
        write_only = table is None or table.options.write_only
        name, branch = self._name._replace(catalog=NAMELESS), self._ref.branch
        alone = unmanaged_reason(self._loaded, name, branch, self._policy, write_only=write_only)
        if found is None:
            found = unread_view(self._name, self._ref, table, self._loaded)
            found = replace(found, error=error)
            self._forget()
        return offline_view(found, alone, refused)

    def _read(self) -> TableView:
        access = self._table.access if self._table else self._catalog.open(self._ref)
        schema = access.newest_schema(self._table.schema if self._table else None)
        if self._table is None or self._table.schema.id != schema.id or self._state is None:
            self._forget()
            self._table = describe_table(access, schema, {}, self._registries)
            if self._table.refusals:
                raise UnsupportedTable(self._ref.full_name, self._table.refusals)
            refreshed = access.newest_state()
        else:
            refreshed = access.refreshed_state(self._state)
        table, state = self._table, refreshed.state
        if state.snapshot != self._known:
            refuse_live_state(table, state)
            self._note_compactions(access.storage, state)
        state = self._state = with_waiting_rows(table, state, self._clock)
        # The table's own triggers, as `compactord plan` does.
        clock = self._clock
        context = PlanContext.now(CompactRequest(), clock, clock.time_zone)
        if self._backlog is None:
            self._backlog = TableBacklog(stop_trigger=table.options.compaction.stop_trigger)
        self._backlog.update(StatePlanner(table, state, context), refreshed.changed, {})
        backlog = self._backlog.backlog()
        lead_ms = context.now_ms - context.steady_ms
        oldest_ms = backlog.oldest_ms + lead_ms if backlog.oldest_ms else 0
        return replace(
            unread_view(self._name, self._ref, table, self._loaded),
            shape=self._backlog.shape(snapshots=0),
            backlog=replace(backlog, oldest_ms=oldest_ms),
            max_freshness_lag_ms=self._policy.max_freshness_lag_ms or 0,
            first_poll_ms=context.now_ms,
            last_commit_ms=max((each.finished_ms for each in self.seen), default=0),
        )

    def _note_compactions(self, storage: Storage, state: TableState) -> None:
        """Remember the newest few compactions among the snapshots since the last poll."""
        newest, known = state.snapshot, self._known
        self._known = newest
        if newest is None:
            return
        known_id = known.id if known is not None and known.id < newest.id else 0
        first = max(known_id, newest.id - _SNAPSHOTS_READ) + 1
        for snapshot_id in range(first, newest.id + 1):
            snapshot = snapshot_if_there(storage, self._ref.root, snapshot_id)
            if snapshot is not None and snapshot.commit_kind is CommitKind.COMPACT:
                self.seen.append(
                    SeenCompaction(
                        name=self._name, snapshot_id=snapshot.id, finished_ms=snapshot.time_ms
                    )
                )

    def _forget(self) -> None:
        self._table = self._state = self._backlog = None
