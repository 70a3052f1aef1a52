"""The tables of a warehouse as a view for `top`, without a service."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from compactord.catalog.base import Catalog
from compactord.clock import Clock
from compactord.config.load import LoadedConfig
from compactord.config.policy import NAMELESS, policy_for
from compactord.errors import CompactordError, UnsupportedTable
from compactord.model import TableName
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.scheduler.compaction import EndedCompaction, Outcome
from compactord.service.codec import decode
from compactord.service.view import (
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
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner, with_waiting_rows
from compactord.top.daemon import NoAnswer

# Snapshots of a table that are searched for compactions.
_SNAPSHOTS_READ = 8
_RECENT_KEPT = 32


class WarehouseSource:
    """All tables of a catalog, `NAMELESS` in `loaded`, as a service with this configuration.

    `stop` interrupts `view` between two tables.
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
        self.name = catalog.warehouse
        self._catalog = catalog
        self._loaded = loaded
        self._clock = clock
        self._stop = stop
        self._registries = registries
        self._watched: dict[TableRef, _WatchedTable] = {}

    def view(self) -> ServiceView:
        """Read all tables. Raises `NoAnswer` on `stop`, and the errors of listing any database."""
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
        commits = (each for watched in self._watched.values() for each in reversed(watched.commits))
        return replace(
            decode(ServiceView, {}),
            now_ms=self._clock.now_ms(),
            tables=tuple(tables),
            recent=tuple(sorted(commits, key=lambda each: -each.finished_ms)[:_RECENT_KEPT]),
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
        # Only their snapshots are known.
        self.commits: deque[EndedCompaction] = deque(maxlen=_SNAPSHOTS_READ)
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
        """The table's view; errors of the table are shown in it, not raised."""
        found, refused, error = None, list[str](), ""
        try:
            found = self._read()
        except UnsupportedTable as unsupported:
            refused += unsupported.reasons
        except CompactordError as failure:
            error = str(failure)
        table = self._table
        # A table that cannot be read counts as write-only.
        write_only = table is None or table.options.write_only
        name, branch = self._name._replace(catalog=NAMELESS), self._ref.branch
        unmanaged = unmanaged_reason(
            self._loaded, name, branch, self._policy, write_only=write_only
        )
        if found is None:
            found = unread_view(self._name, self._ref, table, self._loaded)
            found = replace(found, error=error)
            self._forget()
        return offline_view(found, unmanaged, refused)

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
        context = PlanContext.now(
            CompactRequest.of(self._policy, self._loaded.config), clock, clock.time_zone
        )
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
            last_commit_ms=max((each.finished_ms for each in self.commits), default=0),
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
                found = decode(EndedCompaction, {"snapshot_id": snapshot.id})
                self.commits.append(
                    replace(
                        found,
                        name=self._name,
                        outcome=Outcome.COMMITTED,
                        finished_ms=snapshot.time_ms,
                    )
                )

    def _forget(self) -> None:
        self._table = self._state = self._backlog = None
