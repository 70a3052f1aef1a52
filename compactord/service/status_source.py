"""Paints the picture of the service out of what the loop knows.

This is the border between steady time, which the loop goes by, and the wall clock, which people and
metrics do.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compactord.clock import WallTime
from compactord.config.model import Mode
from compactord.config.windows import may_start, next_change_ms
from compactord.model import TableName, WorkKind
from compactord.scheduler.priority import priority_class
from compactord.scheduler.scheduled_table import Flight, Served
from compactord.scheduler.scheduler import Fleet
from compactord.scheduler.status import Halt, PriorityClass
from compactord.service.view import (
    BucketView,
    CatalogView,
    ConfigView,
    EngineView,
    FleetView,
    LoopView,
    ParkedBucket,
    TableStatus,
    TableView,
    TaskView,
)
from compactord.table.backlog import Due
from compactord.table.status import Backlog, TableInfo, TableShape

_PARKED_MAX = _RESTING_MAX = 20
_QUEUE_MAX = 50
_NO_INFO, _NO_SHAPE, _NO_BACKLOG = TableInfo(), TableShape(), Backlog()
_WORK = (WorkKind.MINOR, WorkKind.FULL, WorkKind.APPEND)


@dataclass(slots=True, kw_only=True)
class Facts:
    """What the loop knows besides its fleet, in steady time; mutable, owned by the loop."""

    instance: str
    version: str
    started_ms: int
    config: ConfigView
    engine: EngineView
    is_started: bool = False
    catalogs: dict[str, CatalogView] = field(default_factory=dict)
    # Of each loop: its last sign of life, and the age at which it counts as stalled.
    beats: dict[str, tuple[int, int]] = field(default_factory=dict)
    overruns: Counter[str] = field(default_factory=Counter)


class Painter:
    """Paints pictures of one fleet; tables that are as they were are not painted again."""

    def __init__(self, fleet: Fleet, top_n: int) -> None:
        self.top_n = top_n
        self._fleet = fleet
        self._wall = fleet.wall
        # By the table as it was added, its version, and the lead of the wall clock: a name may come
        # back as another table.
        self._tables: dict[TableName, tuple[tuple[int, int, int], TableView]] = {}
        self._top: tuple[BucketView, ...] = ()
        self._top_of: tuple[int, int, int] = (0, 0, 0)

    def paint(self, facts: Facts, intervals_ms: Mapping[TableName, int], now_ms: int) -> FleetView:
        """The whole picture. `intervals_ms` is how often each table is polled."""
        fleet, wall = self._fleet, self._wall
        shown = [served for served in fleet.tables.values() if not served.is_excluded]
        tables = tuple(self._table(served, intervals_ms, now_ms) for served in shown)
        if len(self._tables) > 2 * len(shown) + 100:
            self._tables = {name: v for name, v in self._tables.items() if name in fleet.tables}
        queue_sizes, first = queued(fleet, now_ms)
        statuses = Counter((view.name.catalog, view.status) for view in tables)
        for served in fleet.tables.values():
            statuses[served.name.catalog, TableStatus.EXCLUDED] += served.is_excluded
        for catalog in facts.catalogs.values():
            statuses[catalog.name, TableStatus.EXCLUDED] += catalog.excluded_tables
        return FleetView(
            instance=facts.instance,
            version=facts.version,
            started_ms=wall.at(facts.started_ms),
            now_ms=wall.at(now_ms),
            steady_ms=now_ms,
            is_started=facts.is_started,
            is_draining=fleet.is_draining,
            catalogs=tuple(
                replace(catalog, last_success_ms=wall.shown(catalog.last_success_ms))
                for catalog in facts.catalogs.values()
            ),
            config=replace(
                facts.config,
                last_reload_success_ms=wall.shown(facts.config.last_reload_success_ms),
            ),
            engine=facts.engine,
            loops=tuple(
                LoopView(
                    name=name,
                    heartbeat_ms=wall.at(beat_ms),
                    stale_after_ms=stale_after_ms,
                    overruns=facts.overruns[name],
                )
                for name, (beat_ms, stale_after_ms) in facts.beats.items()
            ),
            tables=tables,
            tables_by_status=dict(statuses),
            queued=queue_sizes,
            queue=first,
            running=running(fleet.tables.values(), wall),
            recent=tuple(
                replace(ended, finished_ms=wall.at(ended.finished_ms)) for ended in fleet.recent
            ),
            top_buckets=self._top_buckets(shown),
            picks=dict(fleet.picks),
        )

    def _top_buckets(self, shown: Sequence[Served]) -> tuple[BucketView, ...]:
        """They change with plans and with what is shown only."""
        painted_of = (self._fleet.plans, len(shown), self.top_n)
        if painted_of != self._top_of:
            self._top, self._top_of = top_buckets(shown, self.top_n), painted_of
        return self._top

    def _table(
        self, served: Served, intervals_ms: Mapping[TableName, int], now_ms: int
    ) -> TableView:
        known = self._tables.get(served.name)
        # Windows open and close without anything happening to the table.
        version = (served.index, served.version, self._wall.lead_ms)
        if known is not None and known[0] == version and not served.policy.windows:
            return known[1]
        interval_ms = intervals_ms.get(served.name, 0)
        view = table_view(served, interval_ms=interval_ms, now_ms=now_ms, wall=self._wall)
        self._tables[served.name] = (version, view)
        return view


def status_of(served: Served) -> TableStatus:
    """What a person would say of the table; troubles first."""
    if served.is_excluded:
        return TableStatus.EXCLUDED
    if served.halt is not None:
        is_refused = served.halt.reason.value == "unsupported_feature"
        return TableStatus.UNSUPPORTED if is_refused else TableStatus.HALTED
    if served.error:
        return TableStatus.ERROR
    return TableStatus.PAUSED if served.policy.mode is Mode.PAUSED else TableStatus.ACTIVE


def table_view(served: Served, *, interval_ms: int, now_ms: int, wall: WallTime) -> TableView:
    """One table. `interval_ms` is how often it is polled."""
    planned, policy = served.planned, served.policy
    info = planned.info if planned else _NO_INFO
    return TableView(
        name=served.name,
        location=served.ref.location,
        status=status_of(served),
        halt=_halt(served, wall),
        error=served.error,
        priority=policy.priority,
        info=info,
        shape=planned.shape if planned else _NO_SHAPE,
        backlog=_backlog(served, wall),
        counters=served.counts.frozen(),
        parked=tuple(
            ParkedBucket(
                partition=parked.partition,
                bucket=bucket.bucket,
                failures=parked.failures,
                message=parked.message,
                until_ms=wall.at(parked.until_ms),
            )
            for bucket, parked in list(served.parked.items())[:_PARKED_MAX]
        ),
        parked_count=len(served.parked),
        running_tasks=sum(flight.started_ms > 0 for flight in served.flights.values()),
        discovery_interval_ms=interval_ms,
        max_backlog_age_ms=policy.max_backlog_age_ms,
        window_open=any(
            may_start(policy.windows, kind, wall.at(now_ms), wall.zone) for kind in _WORK
        ),
        next_window_ms=_next_window_ms(served, now_ms, wall),
        first_poll_ms=wall.shown(served.first_poll_ms),
        last_poll_ms=wall.shown(served.last_poll_ms),
        planned_snapshot_id=planned.snapshot_id if planned else 0,
        last_commit_snapshot_id=served.last_commit_snapshot_id,
        last_commit_ms=wall.shown(served.last_commit_ms),
        last_success_ms={
            kind: wall.shown(at_ms)
            for kind, at_ms in (
                (info.usual_kind, served.first_poll_ms),
                *served.last_success_ms.items(),
            )
        },
        consecutive_failures=max(served.failures, served.look_failures),
        last_expire_ms=wall.shown(served.last_expire_ms),
        resting=planned.resting[:_RESTING_MAX] if planned else (),
        resting_count=len(planned.resting) if planned else 0,
    )


def top_buckets(tables: Iterable[Served], count: int) -> tuple[BucketView, ...]:
    """The buckets with the most sorted runs over all tables."""
    found = (
        (top, served, served.planned.info)
        for served in tables
        if served.planned is not None
        for top in served.planned.top
    )
    largest = heapq.nlargest(count, found, key=lambda each: each[0].sorted_runs)
    return tuple(
        BucketView(
            name=served.name,
            partition=top.partition,
            bucket=top.bucket.bucket,
            sorted_runs=top.sorted_runs,
            level0_files=top.level0_files,
            size_bytes=top.size_bytes,
            compaction_trigger=info.compaction_trigger,
            stop_trigger=info.stop_trigger,
        )
        for top, served, info in largest
    )


def running(tables: Iterable[Served], wall: WallTime) -> tuple[TaskView, ...]:
    """Compactions under way, the oldest first."""
    views = [
        _task(served, flight.due, flight.priority_class, flight.queued_ms, wall, flight=flight)
        for served in tables
        for flight in served.flights.values()
    ]
    return tuple(sorted(views, key=lambda view: (view.started_ms or 1 << 62, view.queued_ms)))


def queued(fleet: Fleet, now_ms: int) -> tuple[Mapping[PriorityClass, int], tuple[TaskView, ...]]:
    """How much waits in each class, and the first of it."""
    counts: Counter[PriorityClass] = Counter(dict.fromkeys(PriorityClass, 0))
    first: list[TaskView] = []
    for served in fleet.tables.values():
        if served.is_excluded:
            continue
        max_age_ms = served.policy.max_backlog_age_ms
        for due in served.dues.values():
            urgency = priority_class(due, max_age_ms=max_age_ms, now_ms=now_ms)
            counts[urgency] += due.tasks
        heads = heapq.nsmallest(3, served.dues.values(), key=lambda due: due.since_ms)
        for due in heads:
            urgency = priority_class(due, max_age_ms=max_age_ms, now_ms=now_ms)
            queued_ms = served.queued_ms.get(due.bucket, now_ms)
            first.append(_task(served, due, urgency, queued_ms, fleet.wall))
    order = list(PriorityClass)
    first.sort(key=lambda view: (order.index(view.priority_class), view.queued_ms))
    return dict(counts), tuple(first[:_QUEUE_MAX])


def _task(
    served: Served,
    due: Due,
    urgency: PriorityClass,
    queued_ms: int,
    wall: WallTime,
    *,
    flight: Flight | None = None,
) -> TaskView:
    return TaskView(
        name=served.name,
        partition=due.partition,
        bucket=due.bucket.bucket,
        kind=due.kind,
        reason=due.reason,
        priority_class=urgency,
        files=due.files,
        size_bytes=due.size_bytes,
        sorted_runs=due.sorted_runs,
        queued_ms=wall.at(queued_ms),
        started_ms=wall.shown(flight.started_ms) if flight else 0,
        parts=len(flight.take_off.parts) if flight else 0,
        parts_done=flight.parts_done if flight else 0,
    )


def _halt(served: Served, wall: WallTime) -> Halt | None:
    halt = served.halt
    if halt is None:
        return None
    return replace(halt, since_ms=wall.at(halt.since_ms), next_try_ms=wall.shown(halt.next_try_ms))


def _backlog(served: Served, wall: WallTime) -> Backlog:
    """What the plan counted, and what was under way when it was made."""
    planned = served.planned.backlog if served.planned else _NO_BACKLOG
    settling = {number: flight for number, (flight, _) in served.settling.items()}
    under_way = [
        flight.due
        for number, flight in {**served.flights, **settling}.items()
        if number in served.flying_at_plan
    ]
    oldest = [due.since_ms for due in under_way]
    if planned.oldest_ms:
        oldest.append(planned.oldest_ms)
    return Backlog(
        tasks=planned.tasks + len(under_way),
        files=planned.files + sum(due.files for due in under_way),
        size_bytes=planned.size_bytes + sum(due.size_bytes for due in under_way),
        oldest_ms=wall.shown(min(oldest, default=0)),
    )


def _next_window_ms(served: Served, now_ms: int, wall: WallTime) -> int:
    if not served.policy.windows:
        return 0
    windows, wall_ms = served.policy.windows, wall.at(now_ms)
    changes = (next_change_ms(windows, kind, wall_ms, wall.zone) for kind in _WORK)
    return min((change for change in changes if change is not None), default=0)
