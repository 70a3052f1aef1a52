"""Makes the view of the service from the loop's state.

Converts the loop's steady time to wall-clock time, which operators and metrics use.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compactord.clock import WallTime
from compactord.config.choices import Mode
from compactord.config.windows import may_start, next_change_ms
from compactord.model import TableName, WorkKind
from compactord.scheduler.compaction import IN_FLIGHT, CompactionRecord, Halt, PriorityClass, Status
from compactord.scheduler.halts import advice, quarantine_text
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.scheduler import Scheduler
from compactord.service.view import (
    ActiveCompaction,
    CatalogView,
    ConfigView,
    EngineView,
    LoopView,
    MaintenanceView,
    QuarantineView,
    ServiceView,
    TableStatus,
    TableView,
    status_and_why,
    total_queued,
    unreachable_view,
)
from compactord.table.backlog import PendingCompaction, total_due
from compactord.table.status import Backlog, BucketView, TableInfo, TableShape

_QUARANTINED_MAX = _RESTING_MAX = 20
_QUEUE_MAX = 50
_WORK = (WorkKind.MINOR, WorkKind.FULL, WorkKind.APPEND)


@dataclass(slots=True, kw_only=True)
class ServiceState:
    """The loop's state besides its scheduler, in steady time; mutable, owned by the loop."""

    instance: str
    version: str
    started_ms: int
    config: ConfigView
    engine: EngineView
    is_started: bool = False
    catalogs: dict[str, CatalogView] = field(default_factory=dict)
    # By catalog: since when its store or server has not answered.
    silent_since_ms: dict[str, int] = field(default_factory=dict)
    # Patterns that match no table, by their keys.
    unmatched: dict[str, str] = field(default_factory=dict)
    # By loop: its last heartbeat, and the age in ms at which it counts as stalled.
    beats: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Jobs that probably hang, by their work.
    hung_jobs: dict[str, int] = field(default_factory=dict)
    overruns: Counter[str] = field(default_factory=Counter)


class StatusKeeper:
    """Makes views of all tables; reuses the views of unchanged tables."""

    def __init__(self, scheduler: Scheduler, top_n: int) -> None:
        self.top_n = top_n
        self._scheduler = scheduler
        self._wall = scheduler.wall
        # Cached by (index at which the table was added, its version, lead of the wall clock): a new
        # table may reuse a name.
        self._tables: dict[TableName, tuple[tuple[int, int, int], TableView]] = {}
        self._top: tuple[BucketView, ...] = ()
        self._top_of: tuple[int, tuple[int, ...], int] = (0, (), 0)

    def update(
        self, facts: ServiceState, unserved: Mapping[TableName, TableView], now_ms: int
    ) -> ServiceView:
        """The whole view.

        `unserved` are tables that the scheduler does not have, because a pattern excludes them or
        their catalog was never listed.
        """
        scheduler, wall = self._scheduler, self._wall
        scheduled_tables = scheduler.tables.values()
        tables = (
            *(
                _if_reachable(self._table(scheduled, now_ms), facts)
                for scheduled in scheduled_tables
            ),
            # Running work of a table that was just excluded is still shown.
            *(table for name, table in unserved.items() if name not in scheduler.tables),
        )
        if len(self._tables) > 2 * len(scheduler.tables) + 100:
            self._tables = {name: v for name, v in self._tables.items() if name in scheduler.tables}
        queued_by_table, first = queued(scheduler, now_ms)
        statuses = Counter((view.name.catalog, view.status) for view in tables)
        held = [ms for each in scheduled_tables if (ms := each.expiry_held_since_ms)]
        return ServiceView(
            instance=facts.instance,
            version=facts.version,
            started_ms=wall.at(facts.started_ms),
            now_ms=wall.at(now_ms),
            steady_ms=now_ms,
            is_started=facts.is_started,
            is_draining=scheduler.is_draining,
            catalogs=_catalogs(facts, wall),
            config=replace(
                facts.config,
                last_reload_success_ms=wall.shown(facts.config.last_reload_success_ms),
            ),
            engine=facts.engine,
            loops=_loops(facts, wall),
            tables=tables,
            tables_by_status=dict(statuses),
            queued=total_queued(queued_by_table.values()),
            queued_by_table=queued_by_table,
            queue=first,
            running=running(scheduled_tables, wall),
            recent=tuple(
                replace(ended, finished_ms=wall.at(ended.finished_ms)) for ended in scheduler.recent
            ),
            top_buckets=self._top_buckets(
                [scheduled for scheduled in scheduled_tables if scheduled.is_worked_on]
            ),
            picks=dict(scheduler.picks),
            hung_jobs=dict(facts.hung_jobs),
            expiry_held_since_ms=wall.shown(min(held, default=0)),
            unmatched_patterns=tuple(facts.unmatched.values()),
        )

    def _top_buckets(self, tables: Sequence[ScheduledTable]) -> tuple[BucketView, ...]:
        """The worst buckets; they change only with plans and with the set of managed tables."""
        version_of = (self._scheduler.plans, tuple(table.index for table in tables), self.top_n)
        if version_of != self._top_of:
            self._top, self._top_of = top_buckets(tables, self.top_n), version_of
        return self._top

    def _table(self, scheduled: ScheduledTable, now_ms: int) -> TableView:
        known = self._tables.get(scheduled.name)
        # Windows open and close without a new version of the table's state.
        version = (scheduled.index, scheduled.version, self._wall.lead_ms)
        if known is not None and known[0] == version and not scheduled.policy.windows:
            return known[1]
        view = table_view(scheduled, now_ms, self._wall)
        self._tables[scheduled.name] = (version, view)
        return view


def _if_reachable(table: TableView, facts: ServiceState) -> TableView:
    """The table, with the reason if its store was silent before it was read."""
    is_silent = bool(facts.silent_since_ms.get(table.name.catalog))
    if not is_silent or table.is_read or table.status is not TableStatus.ACTIVE:
        return table
    return unreachable_view(table, "its store or server does not answer")


def _catalogs(facts: ServiceState, wall: WallTime) -> tuple[CatalogView, ...]:
    return tuple(
        replace(
            catalog,
            last_success_ms=wall.shown(catalog.last_success_ms),
            store_silent_since_ms=wall.shown(facts.silent_since_ms.get(catalog.name, 0)),
        )
        for catalog in facts.catalogs.values()
    )


def _loops(facts: ServiceState, wall: WallTime) -> tuple[LoopView, ...]:
    return tuple(
        LoopView(
            name=name,
            heartbeat_ms=wall.at(beat_ms),
            stale_after_ms=stale_after_ms,
            overruns=facts.overruns[name],
        )
        for name, (beat_ms, stale_after_ms) in facts.beats.items()
    )


def _unmanaged(scheduled: ScheduledTable) -> tuple[TableStatus, str] | None:
    """Why the configuration stops work on the table, or None."""
    if scheduled.is_excluded:
        return TableStatus.EXCLUDED, scheduled.unmanaged_reason
    if scheduled.policy.mode is Mode.PAUSED:
        return TableStatus.PAUSED, scheduled.unmanaged_reason
    return None


def table_view(scheduled: ScheduledTable, now_ms: int, wall: WallTime) -> TableView:
    """One table."""
    planned, policy = scheduled.planned, scheduled.policy
    halt, error = _halt(scheduled, wall), scheduled.error
    quarantined = quarantine_text(tuple(scheduled.quarantined.items()))
    status, why = status_and_why(_unmanaged(scheduled), halt, error, quarantined)
    # Hides errors of excluded tables.
    if status is TableStatus.EXCLUDED:
        halt, error = None, ""
    backlog, blocked = _backlogs(scheduled, wall)
    return TableView(
        name=scheduled.name,
        location=scheduled.ref.location,
        status=status,
        why=why,
        halt=halt,
        error=error,
        priority=policy.priority,
        info=scheduled.info or TableInfo(),
        shape=planned.shape if planned else TableShape(),
        backlog=backlog,
        blocked=blocked,
        counters=scheduled.counters.copy(),
        quarantined=tuple(
            QuarantineView(
                partition=quarantined.partition,
                bucket=bucket.bucket,
                failures=quarantined.failures,
                message=quarantined.message,
                until_ms=wall.shown(quarantined.until_ms),
                action=advice(quarantined.error),
            )
            for bucket, quarantined in list(scheduled.quarantined.items())[:_QUARANTINED_MAX]
        ),
        quarantined_count=len(scheduled.quarantined),
        running_tasks=sum(record.started_ms > 0 for record in scheduled.in_flight),
        discovery_interval_ms=scheduled.interval_ms,
        max_backlog_age_ms=policy.max_backlog_age_ms,
        max_freshness_lag_ms=policy.max_freshness_lag_ms or 0,
        window_open=any(
            may_start(policy.windows, kind, wall.at(now_ms), wall.zone) for kind in _WORK
        ),
        next_window_ms=_next_window_ms(scheduled, now_ms, wall),
        first_poll_ms=wall.shown(scheduled.first_poll_ms),
        last_poll_ms=wall.shown(scheduled.last_poll_ms),
        planned_snapshot_id=planned.snapshot_id if planned else 0,
        last_commit_snapshot_id=scheduled.last_commit_snapshot_id,
        last_commit_ms=wall.shown(scheduled.last_commit_ms),
        last_success_ms={
            kind: wall.shown(at_ms) for kind, at_ms in scheduled.last_success_ms.items()
        },
        consecutive_failures=max(scheduled.failures, scheduled.poll_failures),
        last_expire_ms=wall.shown(scheduled.last_expired_ms),
        last_expire_failed=scheduled.last_expiry_failed,
        maintenance=_maintenance(scheduled, wall),
        resting=planned.cooling_down[:_RESTING_MAX] if planned else (),
        resting_count=len(planned.cooling_down) if planned else 0,
    )


def _maintenance(scheduled: ScheduledTable, wall: WallTime) -> dict[str, MaintenanceView]:
    return {
        name: MaintenanceView(
            began_ms=wall.shown(record.began_ms),
            succeeded_ms=wall.shown(record.succeeded_ms),
            counts={counter: number for counter, number in record.counts.items() if number},
            why_not=record.why_not,
        )
        for name, record in scheduled.rounds.items()
    }


def top_buckets(tables: Iterable[ScheduledTable], count: int) -> tuple[BucketView, ...]:
    """The buckets with the most sorted runs over all tables."""
    found = (
        (top, scheduled.name)
        for scheduled in tables
        if scheduled.planned is not None
        for top in scheduled.planned.top
    )
    largest = heapq.nlargest(count, found, key=lambda each: each[0].sorted_runs)
    return tuple(replace(top, name=name) for top, name in largest)


def running(tables: Iterable[ScheduledTable], wall: WallTime) -> tuple[ActiveCompaction, ...]:
    """Compactions between dispatch and end, oldest first."""
    views = [
        _compaction(
            scheduled, record.pending, record.priority_class, record.queued_ms, wall, record=record
        )
        for scheduled in tables
        for record in scheduled.with_status(*IN_FLIGHT, Status.COMMITTING)
        if record.outcome is None
    ]
    return tuple(sorted(views, key=lambda view: (view.started_ms or 1 << 62, view.queued_ms)))


def queued(
    scheduler: Scheduler, now_ms: int
) -> tuple[Mapping[TableName, Mapping[PriorityClass, int]], tuple[ActiveCompaction, ...]]:
    """Waiting compactions: their number by table and class, and the first of all tables.

    Work of paused, excluded and halted tables and of quarantined buckets does not count: a free
    slot would not start it.
    """
    by_table: dict[TableName, Counter[PriorityClass]] = {}
    first: list[ActiveCompaction] = []
    for scheduled in scheduler.tables.values():
        if not scheduled.is_worked_on:
            continue
        waiting = [
            pending
            for bucket, pending in scheduled.offered.items()
            if scheduled.is_waiting(bucket, now_ms)
        ]
        if not waiting:
            continue
        counts = by_table[scheduled.name] = Counter()
        for pending in waiting:
            counts[scheduled.urgency(pending, now_ms)] += pending.tasks
        for pending in heapq.nsmallest(3, waiting, key=lambda pending: pending.since_ms):
            urgency = scheduled.urgency(pending, now_ms)
            queued_ms = scheduled.queued_ms.get(pending.bucket, now_ms)
            first.append(_compaction(scheduled, pending, urgency, queued_ms, scheduler.wall))
    order = list(PriorityClass)
    first.sort(key=lambda view: (order.index(view.priority_class), view.queued_ms))
    return by_table, tuple(first[:_QUEUE_MAX])


def _compaction(
    scheduled: ScheduledTable,
    pending: PendingCompaction,
    urgency: PriorityClass,
    queued_ms: int,
    wall: WallTime,
    *,
    record: CompactionRecord | None = None,
) -> ActiveCompaction:
    return ActiveCompaction(
        compaction_id=record.compaction_id if record else 0,
        status=record.status if record else None,
        name=scheduled.name,
        partition=pending.partition,
        bucket=pending.bucket.bucket,
        kind=pending.kind,
        reason=pending.reason,
        priority_class=urgency,
        files=pending.files,
        size_bytes=pending.size_bytes,
        sorted_runs=pending.sorted_runs,
        queued_ms=wall.at(queued_ms),
        started_ms=wall.shown(record.started_ms) if record else 0,
        subcompactions=len(record.in_flight.subcompactions) if record else 0,
        subcompactions_done=record.in_flight.done if record else 0,
    )


def _halt(scheduled: ScheduledTable, wall: WallTime) -> Halt | None:
    halt = scheduled.shown_halt
    if halt is None:
        return None
    return replace(halt, since_ms=wall.at(halt.since_ms), next_try_ms=wall.shown(halt.next_try_ms))


def _backlogs(scheduled: ScheduledTable, wall: WallTime) -> tuple[Backlog, Backlog]:
    """The backlog, and the due work that waits for the end of the halt or of quarantines.

    The backlog is due work of the plan and the compactions in flight when it was made.
    """
    workable, blocked = Backlog(), Backlog()
    if scheduled.planned is not None:
        workable, blocked = scheduled.planned.workable, scheduled.planned.blocked
    if scheduled.halt is not None:
        workable, blocked = Backlog(), Backlog.total((workable, blocked))
    under_way = [each.pending for each in scheduled.compactions.values() if each.started_after_plan]
    running = replace(total_due(under_way), tasks=len(under_way))
    backlog = Backlog.total((workable, running))
    return _shown(backlog, wall), _shown(blocked, wall)


def _shown(backlog: Backlog, wall: WallTime) -> Backlog:
    return replace(backlog, oldest_ms=wall.shown(backlog.oldest_ms))


def _next_window_ms(scheduled: ScheduledTable, now_ms: int, wall: WallTime) -> int:
    if not scheduled.policy.windows:
        return 0
    windows, wall_ms = scheduled.policy.windows, wall.at(now_ms)
    changes = (next_change_ms(windows, kind, wall_ms, wall.zone) for kind in _WORK)
    return min((change for change in changes if change is not None), default=0)
