"""`compactord plan`: what `compact` would do, and why, without doing it.

`compactord inspect`: tables' LSM trees against their triggers, supported or not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from compactord.catalog.access import TableAccess
from compactord.cli.argument_values import check_overrides, engine_config, partitions_of
from compactord.cli.compact import check_arguments, request_of
from compactord.cli.select import (
    Result,
    SelectedTable,
    TableSelection,
    choose,
    over_tables,
    table_overrides,
)
from compactord.clock import Clock, SystemClock
from compactord.errors import CompactordError, UsageError
from compactord.maintenance.orphan_search import Orphan, find_orphans
from compactord.maintenance.orphans import orphans_json, orphans_text, owner_rule
from compactord.paimon.data_file import BucketId
from compactord.scheduler.halts import halt_of_hold
from compactord.state.table_state import TableState
from compactord.table import report
from compactord.table.opening import (
    OpenTable,
    describe_table,
    open_table,
    reasons_before_planning,
    refuse_live_state,
)
from compactord.table.planning import (
    CompactRequest,
    PartitionTest,
    PlanContext,
    StatePlanner,
    plan_state,
    remember_rewrites,
    with_waiting_rows,
)
from compactord.verify.holds import stored_hold


def plan(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; returns the exit code. `clock` defaults to the system's."""
    check_arguments(args)
    choice = choose(args)
    grace_ms = engine_config(args, choice.loaded.config).recovery.orphan_grace_ms
    now = clock or SystemClock(choice.zone)

    def work(target: SelectedTable) -> Result:
        request = request_of(args, choice, target)
        return _planned(choice, target, request, now, grace_ms)

    return over_tables(args, choice, work, passes_over=True)


def planner_now(
    table: OpenTable, state: TableState, request: CompactRequest, clock: Clock
) -> StatePlanner:
    """Plans the state with its rewrites and waiting rows, without knowledge of earlier plans."""
    state = remember_rewrites(
        table,
        with_waiting_rows(table, state, clock),
        quiet_for_ms=request.quiet_for_ms,
        now_ms=clock.now_ms(),
    )
    return StatePlanner(table, state, PlanContext.now(request, clock, clock.time_zone))


def _planned(
    choice: TableSelection,
    target: SelectedTable,
    request: CompactRequest,
    clock: Clock,
    grace_ms: int,
) -> Result:
    access = target.open()
    table = open_table(access, request.overrides, target.registries)
    state = access.newest_state().state
    refuse_live_state(table, state)
    plans = list(plan_state(planner_now(table, state, request, clock)))
    compactions = [compaction for plan in plans for compaction in plan.compactions]
    notes = [note for plan in plans for note in report.plan_notes(table, plan)]
    live = (bucket.partition for bucket in state.files.bucket_ids())
    absent = PartitionTest(table, request.partitions).absent(live)
    notes += [report.absent_text(partition) for partition in absent]
    orphans, trouble = _orphans(table, clock, grace_ms)
    notes += [*trouble, *_hold_notes(access)]
    lines = [report.compaction_text(table, compaction) for compaction in compactions]
    if not choice.is_single:
        lines = [f"{choice.shown_name(target)}: {line}" for line in lines]
    lines += [f"note: {text}" for text in (*notes, *table.warnings)]
    if orphans:
        lines.append(f"{choice.shown_name(target)}: would remove {orphans_text(orphans)}")
    if not compactions:
        lines.append(f"{choice.shown_name(target)}: nothing to do")
    found = {
        "table": target.full_name,
        "snapshot": state.snapshot.id if state.snapshot else None,
        "strategy": request.strategy.value,
        "compactions": [report.compaction_json(table, c) for c in compactions],
        "absent_partitions": absent,
        "resting": report.cooling_down(table, plans),
        "orphans": orphans_json(orphans),
        "notes": notes,
        "warnings": list(table.warnings),
    }
    return Result(lines=lines, found=found)


def _hold_notes(access: TableAccess) -> Sequence[str]:
    """The stored hold in the words of `why`, if there is one. Raises `StorageError`."""
    hold = stored_hold(access.storage, access.ref.location)
    if hold is None:
        return ()
    halt = halt_of_hold(hold, hold.since_ms)
    return (f"halted: {halt.message}. What to do: {halt.action}",)


def _orphans(
    table: OpenTable, clock: Clock, grace_ms: int
) -> tuple[Sequence[Orphan], Sequence[str]]:
    """The files that compact would remove first, and reasons if they cannot be determined."""
    depth = len(table.schema.partition_keys)
    rule = owner_rule(clock, grace_ms)
    location = table.ref.location
    try:
        sweep = find_orphans(table.storage, location, partition_depth=depth, rule=rule)
        return sweep.orphans, () if sweep.error is None else (str(sweep.error),)
    except CompactordError as error:
        return (), (f"left-over files of earlier runs would be kept: {error}",)


def inspect(args: argparse.Namespace) -> int:
    """Run the command; the exit code. Raises `UsageError` for arguments."""
    if args.worst is not None and args.worst < 1:
        raise UsageError(f"--worst {args.worst}: expected 1 or more")
    check_overrides(args)
    partitions_of(args)
    clock = SystemClock()
    choice = choose(args)
    return over_tables(
        args, choice, lambda target: _inspected(args, target, clock), passes_over=False
    )


def _inspected(args: argparse.Namespace, target: SelectedTable, clock: Clock) -> Result:
    access = target.open()
    overrides = table_overrides(args, target)
    table = describe_table(access, access.newest_schema(), overrides, target.registries)
    state = remember_rewrites(
        table, access.newest_state().state, quiet_for_ms=0, now_ms=clock.now_ms()
    )
    reasons = (*table.refusals, *reasons_before_planning(table, state))
    wanted = PartitionTest(table, partitions_of(args))

    def is_wanted(bucket: BucketId) -> bool:
        return wanted(bucket.partition)

    shapes = report.bucket_shapes(table, state, wanted=is_wanted, worst=args.worst)
    absent = wanted.absent(bucket.partition for bucket in state.files.bucket_ids())
    lines = list(report.inspect_text(table, state, shapes, reasons))
    damaged = [*_hold_notes(access), *report.damage_notes(table, state, shapes)]
    lines += [f"note: {text}" for text in damaged]
    lines += [f"note: {report.absent_text(partition)}" for partition in absent]
    total = sum(wanted(bucket.partition) for bucket in state.files.bucket_ids())
    if len(shapes) < total:
        lines.append(f"({len(shapes)} of {total:,} buckets, most work first)")
    found = report.inspect_json(table, state, shapes, reasons)
    found |= {"absent_partitions": absent, "bucket_count": total, "damaged": damaged}
    return Result(lines=lines, found=found)
