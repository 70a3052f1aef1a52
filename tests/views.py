"""Views of a service for tests of what shows them: a calm table by default, and a busy night."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from compactord.model import CompactReason, Conflict, TableName, WorkKind
from compactord.scheduler.compaction import (
    EndedCompaction,
    Halt,
    HaltReason,
    Outcome,
    PriorityClass,
    Status,
    TableCounters,
)
from compactord.service.view import (
    ActiveCompaction,
    CatalogView,
    ConfigView,
    EngineView,
    LoopView,
    QuarantineView,
    ServiceView,
    Setting,
    TableDetail,
    TableStatus,
    TableView,
    excluded_view,
    status_and_why,
)
from compactord.table.jobs import Planned
from compactord.table.status import (
    Backlog,
    BucketDetail,
    BucketView,
    RunState,
    RunView,
    TableInfo,
    TableShape,
)
from compactord.text import bucket_text

NOW_MS = 1_795_000_000_000
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class FixedClock:
    """A clock that stands at `now`."""

    time_zone = None

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def steady_ms(self) -> int:
        return self.now

    def monotonic_s(self) -> float:
        return self.now / 1000

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits for a page")


class FixedStatus:
    """A status source whose view tests may exchange, with the details of some tables."""

    def __init__(self, view: ServiceView, *details: TableDetail) -> None:
        self.shown = view
        self.details = {detail.view.name: detail for detail in details}

    def view(self) -> ServiceView:
        return self.shown

    def detail(self, name: TableName) -> TableDetail | None:
        return self.details.get(name)


def planned(snapshot_id: int, **changes: Any) -> Planned:
    """A plan of a table that has nothing to do."""
    nothing = Planned(
        snapshot_id=snapshot_id,
        info=TableInfo(),
        shape=TableShape(),
        offered=(),
        backlog=Backlog(),
        workable=Backlog(),
        blocked=Backlog(),
        top=(),
        discovery_interval_ms=2_000,
        appended_bytes=0,
        manifests_read=0,
        entries_read=0,
        entries_skipped=0,
        seconds=0.0,
    )
    return replace(nothing, **changes)


def table_name(table: str = "sales.orders", catalog: str = "lake") -> TableName:
    database, _, name = table.partition(".")
    return TableName(catalog, database, name)


def table_view(table: str = "sales.orders", *, runs: int = 2, **changes: Any) -> TableView:
    """An active table with primary key, trigger 5 and stop trigger 8, without backlog."""
    name = table_name(table)
    calm = TableView(
        name=name,
        location=f"/data/wh/{name.database}.db/{name.table}",
        status=TableStatus.ACTIVE,
        why="",
        halt=None,
        error="",
        priority=0,
        info=TableInfo(
            kind="primary-key",
            bucket_mode="fixed",
            merge_engine="deduplicate",
            changelog_producer="none",
            write_only=True,
            compaction_trigger=5,
            stop_trigger=8,
        ),
        shape=TableShape(
            snapshot_id=812,
            snapshots=40,
            buckets=16,
            files=64,
            small_files=12,
            size_bytes=18 * GIB,
            rows=91_000_000,
            sorted_runs_max=runs,
            sorted_runs_avg=runs * 0.6,
            level0_files=runs - 1,
            level0_files_max=runs - 1,
            bucket_size_bytes_max=2 * GIB,
            size_amplification_max=0.18,
            buckets_by_run_state={
                RunState.IDLE: 14,
                RunState.DUE: 1,
                RunState.NEAR_STOP: 1,
                RunState.OVER_STOP: 0,
            },
            last_full_compaction_ms=NOW_MS - 7 * HOUR,
        ),
        backlog=Backlog(),
        counters=TableCounters(),
        quarantined=(),
        quarantined_count=0,
        running_tasks=0,
        discovery_interval_ms=10 * SECOND,
        max_backlog_age_ms=30 * MINUTE,
        window_open=True,
        next_window_ms=0,
        first_poll_ms=NOW_MS - 9 * HOUR,
        last_poll_ms=NOW_MS - 4 * SECOND,
        planned_snapshot_id=812,
        last_commit_snapshot_id=811,
        last_commit_ms=NOW_MS - 95 * SECOND,
        last_success_ms={WorkKind.MINOR: NOW_MS - 95 * SECOND},
        consecutive_failures=0,
        last_expire_ms=0,
    )
    halted, error = changes.get("halt"), changes.get("error", "")
    quarantine = ""
    for first in changes.get("quarantined", ())[:1]:
        quarantine = f"{bucket_text(first.partition, first.bucket)}: {first.message}"
    status, why = status_and_why(None, halted, error, quarantine)
    return replace(calm, **{"status": status, "why": why, **changes})


def pattern_excluded_view(table: str = "ops.tmp_7") -> TableView:
    """A table of which nothing is known, because a pattern excludes it."""
    name = table_name(table)
    location = f"/data/wh/{name.database}.db/{name.table}"
    why = "discovery.excluding_tables (c.yaml:9) is .*tmp_.*"
    return excluded_view(name, location, why)


def append_view(table: str = "logs.clicks", **changes: Any) -> TableView:
    """An active append table without buckets."""
    keyed = table_view(table, runs=1)
    info = replace(
        keyed.info,
        kind="append-unaware",
        bucket_mode="unaware",
        merge_engine="",
        changelog_producer="",
        compaction_trigger=0,
        stop_trigger=0,
    )
    shape = TableShape(
        snapshot_id=5210, snapshots=96, files=311, small_files=41, size_bytes=61 * GIB, buckets=31
    )
    return replace(keyed, **{"info": info, "shape": shape, **changes})


def halt(reason: HaltReason = HaltReason.UNSUPPORTED_FEATURE, **changes: Any) -> Halt:
    texts: dict[str, Any] = {
        "message": "merge-engine = aggregation is not supported yet",
        "action": "leave its compaction to its writers, or exclude it in the configuration",
        "since_ms": NOW_MS - 3 * HOUR,
        "next_try_ms": NOW_MS + 20 * MINUTE,
    }
    return Halt(reason=reason, **{**texts, **changes})


def task_view(table: str = "sales.orders", **changes: Any) -> ActiveCompaction:
    """A merge that has been running for 40 s, with two of five subcompactions done."""
    facts: dict[str, Any] = {
        "compaction_id": 4711,
        "name": table_name(table),
        "partition": "dt=2026-11-18",
        "bucket": 3,
        "kind": WorkKind.MINOR,
        "reason": CompactReason.SIZE_RATIO,
        "priority_class": PriorityClass.BENEFIT,
        "files": 12,
        "size_bytes": 1_500 * MIB,
        "sorted_runs": 6,
        "queued_ms": NOW_MS - 70 * SECOND,
        "started_ms": NOW_MS - 40 * SECOND,
        "subcompactions": 5,
        "status": Status.RUNNING,
        "subcompactions_done": 2,
    }
    return ActiveCompaction(**{**facts, **changes})


def compaction_view(table: str = "sales.orders", **changes: Any) -> EndedCompaction:
    """A compaction that was committed 95 s ago."""
    facts: dict[str, Any] = {
        "compaction_id": 4711,
        "name": table_name(table),
        "partition": "dt=2026-11-18",
        "bucket": 7,
        "kind": WorkKind.MINOR,
        "reason": CompactReason.SIZE_RATIO,
        "outcome": Outcome.COMMITTED,
        "message": "",
        "snapshot_id": 811,
        "files_in": 9,
        "files_out": 3,
        "upgraded_files": 0,
        "bytes_in": 700 * MIB,
        "bytes_out": 512 * MIB,
        "rows_in": 4_100_000,
        "rows_out": 3_020_117,
        "seconds": 12.4,
        "finished_ms": NOW_MS - 95 * SECOND,
    }
    return EndedCompaction(**{**facts, **changes})


def service_view(*tables: TableView, **changes: Any) -> ServiceView:
    """A service that runs well, with these tables."""
    by_status: dict[tuple[str, TableStatus], int] = {}
    for table in tables:
        key = (table.name.catalog, table.status)
        by_status[key] = by_status.get(key, 0) + 1
    calm = ServiceView(
        instance="compactord-0",
        version="1.4.0",
        started_ms=NOW_MS - 9 * HOUR,
        now_ms=NOW_MS,
        steady_ms=NOW_MS,
        is_started=True,
        is_draining=False,
        catalogs=(
            CatalogView(
                name="lake",
                warehouse="/data/wh",
                last_success_ms=NOW_MS - 20 * SECOND,
                failures=0,
                error="",
            ),
        ),
        config=ConfigView(
            path="/etc/compactord.yaml",
            last_reload_successful=True,
            last_reload_success_ms=NOW_MS - 9 * HOUR,
            error="",
            restart_required=(),
        ),
        engine=EngineView(
            is_up=True,
            master="local[4]",
            restarts=0,
            error="",
            slots=4,
            running=0,
            lost_slots=0,
            memory_budget_bytes=4 * GIB,
            memory_reserved_bytes=0,
            task_peak_memory_bytes=410 * MIB,
            slot_busy_seconds=8123.0,
        ),
        loops=(
            LoopView(
                name="service",
                heartbeat_ms=NOW_MS - SECOND,
                stale_after_ms=30 * SECOND,
                overruns=0,
            ),
        ),
        tables=tables,
        tables_by_status=by_status,
        queued={},
        queue=(),
        running=(),
        recent=(),
        top_buckets=(),
        picks={},
        hung_jobs={"planner": 0, "committer": 0, "maintenance": 0},
        expiry_held_since_ms=0,
    )
    return replace(calm, **changes)


def run_view(level: int, size_bytes: int, keys: str, *, files: int = 1) -> RunView:
    """A sorted run; `keys` is `smallest..largest`."""
    low, _, high = keys.partition("..")
    return RunView(
        level=level,
        files=files,
        rows=size_bytes // 190,
        size_bytes=size_bytes,
        min_key=low,
        max_key=high,
    )


def bucket_detail(*runs: RunView, bucket: int = 3, **changes: Any) -> BucketDetail:
    facts: dict[str, Any] = {
        "partition": "dt=2026-11-18",
        "bucket": bucket,
        "sorted_runs": len(runs),
        "files": sum(run.files for run in runs),
        "size_bytes": sum(run.size_bytes for run in runs),
        "runs": runs,
        "plan": "",
    }
    return BucketDetail(**{**facts, **changes})


def busy_detail(view: TableView) -> TableDetail:
    """Three buckets: over the stop trigger, due, and at rest."""
    over = bucket_detail(
        run_view(0, 3 * MIB, "88120..9120334"),
        run_view(0, 4 * MIB, "1204..8120003"),
        run_view(0, 2 * MIB, "5000121..9990001"),
        run_view(0, 7 * MIB, "4100..4410000"),
        run_view(0, 5 * MIB, "2300000..9800120"),
        run_view(0, 6 * MIB, "120..6100999"),
        run_view(3, 64 * MIB, "1001..9700100", files=2),
        run_view(4, 410 * MIB, "87..9981203", files=4),
        run_view(5, 2_900 * MIB, "3..9999871", files=23),
        plan="size_ratio: rewrite 8 files (27.0 MiB) to level 4",
        kind=WorkKind.MINOR,
        reason=CompactReason.SIZE_RATIO,
        what="size_ratio, rewrite 8 files (27.0 MiB) to level 4",
        why="9 sorted runs, 5 or more (num-sorted-run.compaction-trigger)",
        later="within 10 s, when a slot is free, before other work: 9 runs, stop trigger 8",
    )
    pending = bucket_detail(
        run_view(0, 9 * MIB, "410223..9930120"),
        run_view(0, 11 * MIB, "91..7700120"),
        run_view(0, 3 * MIB, "8000000..8100000"),
        run_view(4, 220 * MIB, "44..9981203", files=2),
        run_view(5, 2_100 * MIB, "8..9999002", files=17),
        bucket=11,
        plan="size_ratio: rewrite 3 files (23.0 MiB) to level 3",
    )
    calm = bucket_detail(
        run_view(0, 8 * MIB, "1400..9000000"),
        run_view(5, 1_900 * MIB, "12..9999870", files=15),
        bucket=0,
        why="2 sorted runs; sizes are compared from 5 on (num-sorted-run.compaction-trigger)",
        later="with 3 more runs",
    )
    return TableDetail(
        view=view,
        buckets=(over, pending, calm),
        bucket_count=48,
        rules=("rules.3 (c.yaml:40)",),
        closed_windows={WorkKind.FULL: "opens at 2026-11-18T22:00:00Z"},
        poll="10 s (continuous.discovery-interval)",
        settings={"priority": Setting("50", "defaults.priority (default)")},
        options={"write-only": Setting("true", "the table")},
    )


def busy_night() -> FixedStatus:
    """Everything that a page can have to show."""
    orders = table_view(
        "sales.orders",
        runs=9,
        backlog=Backlog(tasks=4, files=61, size_bytes=5_300 * MIB, oldest_ms=NOW_MS - 41 * MINUTE),
        blocked=Backlog(tasks=2, files=14, size_bytes=720 * MIB, oldest_ms=NOW_MS - 3 * HOUR),
        running_tasks=2,
        quarantined=(
            QuarantineView(
                partition="dt=2026-11-17",
                bucket=5,
                failures=3,
                message="data-2f1c.parquet: column amount: corrupt page header at offset 4194307",
                until_ms=NOW_MS + 14 * MINUTE,
                action="Restore the file.",
            ),
        ),
        quarantined_count=1,
        counters=_busy_counters(),
        info=replace(
            table_view().info,
            warnings=("snapshot.num-retained.min is smaller than a day of commits needs",),
        ),
    )
    return FixedStatus(_busy_view(orders), busy_detail(orders))


def _busy_counters() -> TableCounters:
    return TableCounters(
        compactions={
            (WorkKind.MINOR, Outcome.COMMITTED): 812,
            (WorkKind.MINOR, Outcome.CONFLICT): 3,
            (WorkKind.FULL, Outcome.COMMITTED): 12,
        },
        commits_committed=640,
        commit_attempts=655,
        conflicts={Conflict.SNAPSHOT_RACE: 15, Conflict.FILE_REMOVED: 3},
        input_bytes=812 * GIB,
        output_bytes=640 * GIB,
        input_files=41_222,
        output_files=9_120,
        upgraded_files=388,
        input_records=3_100_000_000,
        output_records=2_910_000_000,
        wasted_bytes=900 * MIB,
        ingested_bytes=201 * GIB,
        compaction_seconds_sum=9_912.0,
        compaction_seconds_count=824,
    )


def _busy_view(orders: TableView) -> ServiceView:
    payments = table_view("sales.payments", runs=7)
    customers = table_view(
        "crm.customers",
        runs=6,
        backlog=Backlog(tasks=1, files=6, size_bytes=310 * MIB, oldest_ms=NOW_MS - 50 * SECOND),
        running_tasks=1,
    )
    clicks = append_view(
        backlog=Backlog(tasks=2, files=41, size_bytes=940 * MIB, oldest_ms=NOW_MS - 3 * MINUTE)
    )
    refunds = table_view(
        "sales.refunds",
        status=TableStatus.HALTED,
        blocked=Backlog(tasks=3, files=21, size_bytes=2 * GIB, oldest_ms=NOW_MS - 4 * HOUR),
        halt=halt(
            HaltReason.CORRUPT_METADATA,
            message="manifest-list-71c0-0: not an Avro file",
            action="restore the file, or roll the table back to a snapshot before 802",
        ),
    )
    profiles = table_view("crm.profiles", status=TableStatus.UNSUPPORTED, halt=halt(next_try_ms=0))
    audit = table_view(
        "ops.audit", runs=12, status=TableStatus.PAUSED, why="by rules.0.set.mode (c.yaml:31)"
    )
    staged = pattern_excluded_view()
    calm = [table_view(f"mart.daily_{name}", runs=1 + i % 4) for i, name in enumerate(_MARTS)]
    tables = (orders, payments, customers, clicks, refunds, profiles, audit, staged, *calm)
    return service_view(
        *tables,
        engine=replace(
            service_view().engine, running=3, memory_reserved_bytes=1_536 * MIB, restarts=1
        ),
        queued={PriorityClass.FORCED: 2, PriorityClass.BENEFIT: 3},
        queued_by_table={
            orders.name: {PriorityClass.FORCED: 2, PriorityClass.BENEFIT: 2},
            clicks.name: {PriorityClass.BENEFIT: 1},
        },
        queue=(
            task_view(
                bucket=9,
                priority_class=PriorityClass.FORCED,
                started_ms=0,
                status=None,
                subcompactions_done=0,
            ),
            task_view(
                bucket=14,
                priority_class=PriorityClass.FORCED,
                started_ms=0,
                status=None,
                subcompactions_done=0,
            ),
            task_view(
                "logs.clicks",
                kind=WorkKind.APPEND,
                reason=CompactReason.APPEND_SMALL_FILES,
                partition="day=2026-11-18",
                bucket=0,
                sorted_runs=0,
                started_ms=0,
                queued_ms=NOW_MS - 21 * SECOND,
            ),
        ),
        running=(
            task_view(),
            task_view(
                bucket=4, reason=CompactReason.RUN_COUNT, subcompactions=2, subcompactions_done=1
            ),
            task_view(
                "crm.customers",
                partition="",
                bucket=0,
                size_bytes=310 * MIB,
                subcompactions=1,
                subcompactions_done=0,
            ),
        ),
        recent=_busy_recent(),
        top_buckets=(
            _bucket_view("sales.orders", 3, 9),
            _bucket_view("sales.payments", 1, 7),
            _bucket_view("crm.customers", 0, 6),
        ),
    )


def all_of_one() -> FixedStatus:
    """A service in which everything that is counted is there once, for plurals."""
    keyed = table_view(runs=1)
    once = {
        field.name: 1
        for field in fields(TableShape)
        if isinstance(getattr(keyed.shape, field.name), int)
    }
    table = replace(
        keyed,
        shape=replace(keyed.shape, **once),
        info=replace(keyed.info, compaction_trigger=1, stop_trigger=1),
        backlog=Backlog(tasks=1, files=1, size_bytes=1, oldest_ms=NOW_MS),
        running_tasks=1,
        counters=TableCounters(compactions={(WorkKind.MINOR, Outcome.COMMITTED): 1}),
    )
    task = task_view(files=1, size_bytes=1, sorted_runs=1, subcompactions=1, subcompactions_done=0)
    engine = replace(service_view().engine, restarts=1, slots=1, running=1, lost_slots=1)
    ended = {f"{what}_{way}": 1 for what in ("files", "bytes", "rows") for way in ("in", "out")}
    view = service_view(
        table,
        engine=engine,
        queued={PriorityClass.FORCED: 1},
        queue=(replace(task, started_ms=0),),
        running=(task,),
        recent=(compaction_view(upgraded_files=1, **ended),),
        top_buckets=(_bucket_view("sales.orders", 1, 1),),
    )
    bucket = bucket_detail(replace(run_view(0, 1, "1..1"), rows=1), files=1, size_bytes=1)
    return FixedStatus(view, TableDetail(view=table, buckets=(bucket,), bucket_count=1))


def plurals_of_one(text: str) -> list[str]:
    """`1 files` and the like in a text, with the words around."""
    return re.findall(r"(?<![\w.,:/-])1 (?!(?:is|has|ms|s)\b)(?:more )?[a-z-]+s\b.{0,20}", text)


_MARTS = ("revenue", "stock", "visits", "returns", "carts", "coupons", "shipping", "margins")


def _bucket_view(table: str, bucket: int, runs: int) -> BucketView:
    return BucketView(
        name=table_name(table),
        partition="dt=2026-11-18",
        bucket=bucket,
        sorted_runs=runs,
        level0_files=runs - 3,
        size_bytes=3_400 * MIB,
        compaction_trigger=5,
        stop_trigger=8,
    )


def _busy_recent() -> tuple[EndedCompaction, ...]:
    return (
        compaction_view(bucket=7),
        compaction_view(
            "logs.clicks",
            kind=WorkKind.APPEND,
            reason=CompactReason.APPEND_SMALL_FILES,
            partition="day=2026-11-18",
            bucket=0,
            files_in=22,
            files_out=1,
            bytes_in=140 * MIB,
            bytes_out=131 * MIB,
            finished_ms=NOW_MS - 130 * SECOND,
        ),
        compaction_view(
            bucket=2,
            outcome=Outcome.CONFLICT,
            snapshot_id=0,
            message="data-77ab.parquet is no longer live: another writer compacted this bucket",
            finished_ms=NOW_MS - 4 * MINUTE,
        ),
        compaction_view(
            "sales.payments",
            kind=WorkKind.FULL,
            reason=CompactReason.EARLY_FULL_INTERVAL,
            upgraded_files=4,
            seconds=141.8,
            finished_ms=NOW_MS - 11 * MINUTE,
        ),
    )
