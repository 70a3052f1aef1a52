"""`compactord inspect`: tables' LSM trees against their triggers, supported or not."""

from __future__ import annotations

import argparse

from compactord.cli.argument_values import check_overrides, partitions_of
from compactord.cli.choice import Target, choose
from compactord.cli.each_table import Result, over_tables, table_overrides
from compactord.clock import Clock, SystemClock
from compactord.errors import UsageError
from compactord.paimon.data_file import BucketId
from compactord.table import report
from compactord.table.opening import describe_table, live_reasons
from compactord.table.planning import PartitionTest, remember_rewrites


def inspect(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    if args.worst is not None and args.worst < 1:
        raise UsageError(f"--worst {args.worst}: expected 1 or more")
    check_overrides(args)
    partitions_of(args)
    clock = SystemClock()
    choice = choose(args)
    return over_tables(
        args, choice, lambda target: _inspected(args, target, clock), passes_over=False
    )


def _inspected(args: argparse.Namespace, target: Target, clock: Clock) -> Result:
    access = target.open()
    table = describe_table(access, access.newest_schema(), table_overrides(args, target))
    state = remember_rewrites(
        table, access.newest_state().state, quiet_for_ms=0, now_ms=clock.now_ms()
    )
    reasons = (*table.refusals, *live_reasons(table, state))
    wanted = PartitionTest(table, partitions_of(args))

    def is_wanted(bucket: BucketId) -> bool:
        return wanted(bucket.partition)

    shapes = report.bucket_shapes(table, state, wanted=is_wanted, worst=args.worst)
    absent = wanted.absent(bucket.partition for bucket in state.files.bucket_ids())
    lines = list(report.inspect_text(table, state, shapes, reasons))
    damaged = list(report.damage_notes(table, state, shapes))
    lines += [f"note: {text}" for text in damaged]
    lines += [f"note: {report.absent_text(partition)}" for partition in absent]
    total = sum(wanted(bucket.partition) for bucket in state.files.bucket_ids())
    if len(shapes) < total:
        lines.append(f"({len(shapes)} of {total:,} buckets: those with the most to do)")
    found = report.inspect_json(table, state, shapes, reasons)
    found |= {"absent_partitions": absent, "bucket_count": total, "damaged": damaged}
    return Result(lines=lines, found=found)
