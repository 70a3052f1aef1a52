"""Tables beyond `metrics.max_tables`, summed up in one table per catalog called `__other__`.

A sum of counters would fall whenever a table leaves it, and Prometheus takes a counter that falls
for restarted: the whole sum would count again, and alerts on single events would fire. So the
sum keeps what a table added when the table leaves it, and leaves out what it had counted before.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compactord.model import TableName, WorkKind
from compactord.plan.table import TableKind
from compactord.scheduler.status import HaltReason, TableCounters
from compactord.service.view import TableStatus, TableView
from compactord.table.status import Backlog, RunState, TableInfo, TableShape

OTHER = "__other__"
_OWN_BONUS = 2


def has_sorted_runs(table: TableView) -> bool:
    """Whether runs, levels and triggers apply to the table."""
    return table.info.kind == TableKind.PRIMARY_KEY.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Tables with series of their own, and one table per catalog for the `aggregated` others."""

    tables: tuple[TableView, ...]
    others: tuple[TableView, ...]
    aggregated: int
    # As many of the excluded tables as there is still room for.
    excluded: tuple[TableView, ...] = ()


class Overflow:
    """Decides which tables keep their own series: halted ones, and the largest backlogs.

    One that has them keeps them until another's backlog is twice as large, so that series do not
    come and go with every compaction. Any thread may call.
    """

    def __init__(self, max_tables: int) -> None:
        self.max_tables = max_tables
        self._lock = threading.Lock()
        self._own: frozenset[TableName] = frozenset()
        self._inside: dict[TableName, TableCounters] = {}
        self._carried: dict[str, TableCounters] = {}

    def split(self, tables: Sequence[TableView]) -> Split:
        with self._lock:
            excluded = [table for table in tables if table.status is TableStatus.EXCLUDED]
            own, inside = self._choose(
                [table for table in tables if table.status is not TableStatus.EXCLUDED]
            )
            self._carry(inside)
            self._own = frozenset(table.name for table in own)
            self._inside = {table.name: table.counters for table in inside}
            catalogs = sorted({table.name.catalog for table in inside})
            others = (self._other(catalog, inside) for catalog in catalogs)
            return Split(
                tables=tuple(own),
                others=tuple(others),
                aggregated=len(inside),
                excluded=tuple(excluded[: self.max_tables - len(own)]),
            )

    def _choose(self, tables: Sequence[TableView]) -> tuple[list[TableView], list[TableView]]:
        if len(tables) <= self.max_tables:
            return list(tables), []

        def rank(table: TableView) -> tuple[bool, int, int, TableName]:
            is_own = table.name in self._own
            weight = table.backlog.size_bytes * (_OWN_BONUS if is_own else 1)
            # A halted table has no backlog, and an alert that names it.
            return table.status is not TableStatus.HALTED, -weight, not is_own, table.name

        ranked = sorted(tables, key=rank)
        return ranked[: self.max_tables], ranked[self.max_tables :]

    def _carry(self, inside: Iterable[TableView]) -> None:
        names = {table.name for table in inside}
        for name, counters in self._inside.items():
            if name not in names:
                self._add_carried(name.catalog, counters, 1)
        for table in inside:
            if table.name in self._own:
                self._add_carried(table.name.catalog, table.counters, -1)

    def _add_carried(self, catalog: str, counters: TableCounters, sign: int) -> None:
        before = self._carried.get(catalog, TableCounters())
        self._carried[catalog] = _sum_counters((before, 1), (counters, sign))

    def _other(self, catalog: str, inside: Iterable[TableView]) -> TableView:
        tables = [table for table in inside if table.name.catalog == catalog]
        carried = self._carried.get(catalog, TableCounters())
        counters = _sum_counters((carried, 1), *((table.counters, 1) for table in tables))
        return _summed_up(catalog, tables, counters)


def _sum_counters(*signed: tuple[TableCounters, int]) -> TableCounters:
    values: dict[str, object] = {}
    for field in dataclasses.fields(TableCounters):
        column = [(getattr(counters, field.name), sign) for counters, sign in signed]
        if isinstance(column[0][0], Mapping):
            total: Counter[object] = Counter()
            for counts, sign in column:
                for key, count in counts.items():
                    total[key] += sign * count
            values[field.name] = dict(total)
        else:
            values[field.name] = sum(value * sign for value, sign in column)
    return TableCounters(**values)  # type: ignore[arg-type]  # the fields' own values, summed


def _summed_up(catalog: str, tables: Sequence[TableView], counters: TableCounters) -> TableView:
    """One table for several: values that alerts compare come from the same, worst table."""
    scheduled = [t for t in tables if t.status in (TableStatus.ACTIVE, TableStatus.ERROR)]
    # On paused and halted tables nothing is expected to succeed.
    waiting = [t for t in scheduled if t.backlog.tasks and t.window_open]
    stalest = min(waiting or tables, key=_last_success_ms)
    # What is paused is left alone on purpose: it is nobody's backlog and over no trigger.
    meant = [t for t in tables if t.status is not TableStatus.PAUSED]
    pending = [t for t in meant if t.backlog.oldest_ms]
    latest = min(pending or tables, key=lambda t: t.backlog.oldest_ms + t.max_backlog_age_ms)
    halts = [t.halt for t in tables if t.halt is not None]
    return TableView(
        name=TableName(catalog, OTHER, OTHER),
        location="",
        status=TableStatus.ACTIVE if scheduled else TableStatus.PAUSED,
        why="",
        # A halted table that was served before is worse than one that never could be.
        halt=min(halts, key=lambda h: h.reason is HaltReason.UNSUPPORTED_FEATURE, default=None),
        error="",
        priority=max(t.priority for t in tables),
        info=_info(meant),
        shape=_shape(tables, _with_runs(meant)),
        backlog=Backlog(
            tasks=sum(t.backlog.tasks for t in meant),
            files=sum(t.backlog.files for t in meant),
            size_bytes=sum(t.backlog.size_bytes for t in meant),
            oldest_ms=latest.backlog.oldest_ms if pending else 0,
        ),
        counters=counters,
        quarantined=(),
        quarantined_count=sum(t.quarantined_count for t in tables),
        running_tasks=sum(t.running_tasks for t in tables),
        discovery_interval_ms=max(t.discovery_interval_ms for t in tables),
        max_backlog_age_ms=latest.max_backlog_age_ms,
        window_open=bool(waiting),
        next_window_ms=0,
        first_poll_ms=max(t.first_poll_ms for t in tables),
        last_poll_ms=min((t.last_poll_ms for t in scheduled), default=0),
        planned_snapshot_id=0,
        last_commit_snapshot_id=0,
        last_commit_ms=max(t.last_commit_ms for t in tables),
        last_success_ms=successes(stalest),
        consecutive_failures=max(t.consecutive_failures for t in tables),
        last_expire_ms=max(t.last_expire_ms for t in tables),
    )


def successes(table: TableView) -> Mapping[WorkKind, int]:
    """The last compaction of each kind; before the first one the first poll.

    An alert must also fire for a table on which nothing ever succeeds.
    """
    succeeded = table.last_success_ms.items()
    # Expiry does not count: it would hide that no compaction succeeds.
    found: dict[WorkKind, int] = {k: ms for k, ms in succeeded if k is not WorkKind.EXPIRE}
    return found or {table.info.usual_kind: table.first_poll_ms}


def _last_success_ms(table: TableView) -> int:
    """The newest compaction of any kind."""
    return max(successes(table).values())


def _with_runs(tables: Iterable[TableView]) -> list[TableView]:
    return [table for table in tables if has_sorted_runs(table)]


def _info(tables: Sequence[TableView]) -> TableInfo:
    """The triggers of the table with the most runs, since its runs are what is shown."""
    with_runs = _with_runs(tables)
    if not with_runs:
        return TableInfo()
    worst = max(with_runs, key=lambda table: table.shape.sorted_runs_max)
    return TableInfo(
        kind=worst.info.kind,
        compaction_trigger=worst.info.compaction_trigger,
        stop_trigger=worst.info.stop_trigger,
    )


def _shape(tables: Sequence[TableView], with_runs: Sequence[TableView]) -> TableShape:
    all_shapes = [table.shape for table in tables]
    lsm_shapes = [table.shape for table in with_runs]
    bands: Counter[RunState] = Counter()
    for shape in lsm_shapes:
        bands.update(shape.buckets_by_run_state)
    return TableShape(
        snapshots=sum(shape.snapshots for shape in all_shapes),
        buckets=sum(shape.buckets for shape in all_shapes),
        files=sum(shape.files for shape in all_shapes),
        small_files=sum(shape.small_files for shape in all_shapes),
        size_bytes=sum(shape.size_bytes for shape in all_shapes),
        rows=sum(shape.rows for shape in all_shapes),
        sorted_runs_max=max((shape.sorted_runs_max for shape in lsm_shapes), default=0),
        sorted_runs_avg=_average(lsm_shapes, lambda shape: shape.sorted_runs_avg),
        level0_files=sum(shape.level0_files for shape in all_shapes),
        level0_files_max=max(shape.level0_files_max for shape in all_shapes),
        level0_files_avg=_average(lsm_shapes, lambda shape: shape.level0_files_avg),
        bucket_size_bytes_max=max(shape.bucket_size_bytes_max for shape in all_shapes),
        bucket_size_bytes_avg=_average(all_shapes, lambda shape: shape.bucket_size_bytes_avg),
        avg_file_size_bytes_min=min(
            (shape.avg_file_size_bytes_min for shape in all_shapes if shape.files), default=0.0
        ),
        size_amplification_max=max(shape.size_amplification_max for shape in all_shapes),
        buckets_by_run_state=dict(bands),
        last_full_compaction_ms=min(
            (shape.last_full_compaction_ms for shape in lsm_shapes if shape.buckets), default=0
        ),
    )


def _average(shapes: Iterable[TableShape], value: Callable[[TableShape], float]) -> float:
    """Averages over buckets, weighted with their numbers."""
    weighted = [(shape.buckets, value(shape)) for shape in shapes]
    buckets = sum(count for count, _ in weighted)
    return sum(count * average for count, average in weighted) / buckets if buckets else 0.0
