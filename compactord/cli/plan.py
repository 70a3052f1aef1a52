"""`compactord plan`: what `compact` would do, and why, without doing it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from compactord.cli.argument_values import engine_config
from compactord.cli.choice import Choice, Target, choose
from compactord.cli.compact import check_arguments, request_of
from compactord.cli.each_table import Result, over_tables
from compactord.cli.maintenance import orphans_json, orphans_text, owner_rule
from compactord.clock import Clock, SystemClock
from compactord.errors import CompactordError
from compactord.maintenance.orphan_files import Orphan, find_orphans
from compactord.state.table_state import TableState
from compactord.table import report
from compactord.table.opening import OpenTable, open_table, refuse_live_state
from compactord.table.planning import (
    PartitionTest,
    PlanContext,
    StatePlanner,
    plan_state,
    remember_rewrites,
    with_waiting_rows,
)
from compactord.table.request import CompactRequest


def plan(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Run the command; the exit code. `clock` None: the machine's."""
    check_arguments(args)
    choice = choose(args)
    grace_ms = engine_config(args, choice.loaded.config).recovery.orphan_grace_ms
    now = clock or SystemClock(choice.zone)

    def work(target: Target) -> Result:
        request = request_of(args, choice, target)
        return _planned(choice, target, request, now, grace_ms)

    return over_tables(args, choice, work, passes_over=True)


def planner_now(
    table: OpenTable, state: TableState, request: CompactRequest, clock: Clock
) -> StatePlanner:
    """Plans the state with its rewrites and waiting rows; nothing of earlier plans is known."""
    state = remember_rewrites(
        table,
        with_waiting_rows(table, state, clock),
        quiet_for_ms=request.quiet_for_ms,
        now_ms=clock.now_ms(),
    )
    return StatePlanner(table, state, PlanContext.now(request, clock, clock.time_zone))


def _planned(
    choice: Choice, target: Target, request: CompactRequest, clock: Clock, grace_ms: int
) -> Result:
    access = target.open()
    table, state = open_table(access, request.overrides), access.newest_state().state
    refuse_live_state(table, state)
    plans = list(plan_state(planner_now(table, state, request, clock)))
    compactions = [compaction for plan in plans for compaction in plan.compactions]
    notes = [note for plan in plans for note in report.plan_notes(table, plan)]
    live = (bucket.partition for bucket in state.files.bucket_ids())
    absent = PartitionTest(table, request.partitions).absent(live)
    notes += [report.absent_text(partition) for partition in absent]
    orphans, trouble = _orphans(table, clock, grace_ms)
    notes += trouble
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
        "resting": report.resting(table, plans),
        "orphans": orphans_json(orphans),
        "notes": notes,
        "warnings": list(table.warnings),
    }
    return Result(lines=lines, found=found)


def _orphans(
    table: OpenTable, clock: Clock, grace_ms: int
) -> tuple[Sequence[Orphan], Sequence[str]]:
    """What compact would remove before it begins, and why not, if that cannot be found out."""
    depth = len(table.schema.partition_keys)
    rule = owner_rule(clock, grace_ms)
    location = table.ref.location
    try:
        return find_orphans(table.storage, location, partition_depth=depth, rule=rule), ()
    except CompactordError as error:
        return (), (f"left-over files of earlier runs would be kept: {error}",)
