"""Reads the tables of a warehouse without a daemon, each from its state in the previous poll."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from compactord.catalog.base import Catalog
from compactord.clock import Clock
from compactord.config.load import LoadedConfig
from compactord.config.policy import policy_for
from compactord.config.warehouse import NAMELESS
from compactord.errors import CompactordError, ObjectNotFound, UnsupportedTable
from compactord.paimon.schema import latest_schema
from compactord.paimon.snapshot import CommitKind, Snapshot, read_snapshot
from compactord.paimon.support import reasons_to_refuse
from compactord.paimon.table import TableRef
from compactord.plan.table import Strategy
from compactord.service.unserved import left_alone, state_of
from compactord.service.view import TableStatus
from compactord.state.table_state import TableState, load_state, refresh_state
from compactord.storage.base import Storage
from compactord.table.backlog import TableBacklog
from compactord.table.opening import OpenTable, describe_table, refuse_live_state
from compactord.table.planning import PlanContext, StatePlanner
from compactord.table.status import Backlog, TableShape
from compactord.top.look import Look, NoAnswer, TopCommit, TopTable

# How far back the newest compaction of a table is searched for.
_SNAPSHOTS_READ = 8
_RECENT_KEPT = 32


class WarehouseSource:
    """All tables of a catalog, `NAMELESS` in `loaded`, as a service with that would have them.

    `stop` interrupts `look` between two tables.
    """

    def __init__(
        self, catalog: Catalog, loaded: LoadedConfig, *, clock: Clock, stop: threading.Event
    ) -> None:
        self._catalog = catalog
        self._loaded = loaded
        self._clock = clock
        self._stop = stop
        self._watched: dict[TableRef, _WatchedTable] = {}

    def look(self) -> Look:
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
                self._catalog.storage, ref, self._loaded, self._clock
            )
            self._watched[ref] = watched
            tables.append(watched.look())
        commits = (
            commit for watched in self._watched.values() for commit in reversed(watched.commits)
        )
        return Look(
            source=self._catalog.warehouse,
            now_ms=self._clock.now_ms(),
            service=None,
            tables=tuple(tables),
            running=(),
            recent=tuple(sorted(commits, key=lambda commit: -commit.finished_ms)[:_RECENT_KEPT]),
        )


class _WatchedTable:
    """One table's state and plan between polls."""

    def __init__(self, storage: Storage, ref: TableRef, loaded: LoadedConfig, clock: Clock) -> None:
        self.commits: deque[TopCommit] = deque(maxlen=_SNAPSHOTS_READ)
        self._storage = storage
        self._ref = ref
        self._loaded = loaded
        self._policy = policy_for(loaded.config, NAMELESS, ref.database, ref.name)
        self._clock = clock
        self._table: OpenTable | None = None
        self._state: TableState | None = None
        self._backlog: TableBacklog | None = None
        self._known: Snapshot | None = None

    def look(self) -> TopTable:
        """Never raises because of the table: its line shows the error."""
        line, refused, trouble = None, list[str](), ""
        try:
            line = self._surveyed()
        except UnsupportedTable as error:
            refused += error.reasons
        except CompactordError as error:
            trouble = str(error)
        # Of a table that cannot be read nobody knows whether it is write-only.
        write_only = self._table is None or self._table.options.write_only
        alone = left_alone(self._loaded, NAMELESS, self._ref, self._policy, write_only=write_only)
        status, why = state_of(alone, refused, trouble)
        if line is None:
            kind = self._table.kind.value if self._table is not None else ""
            line = TopTable(name=self._ref.full_name, status="", kind=kind, is_read=False)
            self._forget()
        return replace(line, status=status.value, note=why)

    def _surveyed(self) -> TopTable:
        schema = latest_schema(self._storage, self._ref.location)
        if self._table is None or self._table.schema.id != schema.id or self._state is None:
            self._forget()
            self._table = describe_table(self._storage, self._ref, schema, {})
            if reasons := reasons_to_refuse(schema, self._table.options):
                raise UnsupportedTable(self._ref.full_name, reasons)
            state, changed = load_state(self._storage, self._ref), None
        else:
            refreshed = refresh_state(self._storage, self._state)
            state, changed = refreshed.state, refreshed.changed
        table = self._table
        if state.snapshot != self._known:
            refuse_live_state(table, state)
            self._note_commits(state)
        self._state = state
        options = table.options.compaction
        context = _context(self._clock)
        planner = StatePlanner(self._storage, table, state, context)
        if self._backlog is None:
            self._backlog = TableBacklog(stop_trigger=options.stop_trigger)
        self._backlog.update(planner, state, changed, {}, context)
        shape = self._backlog.shape(table.kind, options, context, snapshots=0)
        return self._line(table, shape, self._backlog.backlog(), context)

    def _line(
        self, table: OpenTable, shape: TableShape, backlog: Backlog, context: PlanContext
    ) -> TopTable:
        has_runs = table.key_of is not None
        options = table.options.compaction
        lead_ms = context.now_ms - context.steady_ms
        return TopTable(
            name=self._ref.full_name,
            status=TableStatus.ACTIVE.value,
            kind=table.kind.value,
            sorted_runs=shape.sorted_runs_max,
            compaction_trigger=options.compaction_trigger if has_runs else 0,
            stop_trigger=options.stop_trigger if has_runs else 0,
            level0_files=shape.level0_files,
            files=shape.files,
            size_bytes=shape.size_bytes,
            backlog_bytes=backlog.size_bytes,
            oldest_ms=backlog.oldest_ms + lead_ms if backlog.oldest_ms else 0,
            last_commit_ms=max((commit.finished_ms for commit in self.commits), default=0),
        )

    def _note_commits(self, state: TableState) -> None:
        """Remember the newest few compactions among the snapshots since the last poll."""
        newest, known = state.snapshot, self._known
        self._known = newest
        if newest is None:
            return
        known_id = known.id if known is not None and known.id < newest.id else 0
        first = max(known_id, newest.id - _SNAPSHOTS_READ) + 1
        for snapshot_id in range(first, newest.id + 1):
            try:
                snapshot = read_snapshot(self._storage, self._ref.location, snapshot_id)
            except ObjectNotFound:
                continue  # expired, or expiring at this moment
            if snapshot.commit_kind is CommitKind.COMPACT:
                self.commits.append(_commit(self._ref, snapshot))

    def _forget(self) -> None:
        self._table = self._state = self._backlog = None


def _commit(ref: TableRef, snapshot: Snapshot) -> TopCommit:
    return TopCommit(
        table=ref.full_name,
        outcome="committed",
        detail=f"snapshot {snapshot.id}",
        finished_ms=snapshot.time_ms,
    )


def _context(clock: Clock) -> PlanContext:
    """What the table's own triggers ask for now, planned as `compactord plan` does."""
    return PlanContext(
        strategy=Strategy.MINOR,
        partitions=(),
        append_wait_ms=None,
        now_ms=clock.now_ms(),
        steady_ms=clock.steady_ms(),
        zone=clock.time_zone,
        last_full_ms={},
        final=frozenset(),
    )
