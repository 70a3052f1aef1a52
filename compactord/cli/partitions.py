"""Partitions expire as the tables' options say, as the service expires them."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import MaintenanceRun, because, looked_back, off_by_rule
from compactord.maintenance.partition_entries import has_entries
from compactord.maintenance.partition_expiry import (
    ExpiredPartitions,
    ExpirePartitions,
    due_partitions,
    expire_partitions,
)
from compactord.paimon.options.maintenance import EXPIRATION_TIME
from compactord.table.followed import FollowedTable
from compactord.table.opening import OpenTable
from compactord.table.report import count_text


def partition_expiry(run: MaintenanceRun, target: Target) -> Result:
    """Expires the partitions of one table. Its result has the fields of `ExpiredPartitions`."""
    why_not = off_by_rule(run, target, ExpirePartitions.rule)
    if why_not is None:
        followed = looked_back(target, run.clock, run.stop)
        why_not = _why_not(followed.table)
        if why_not is None:
            done = _round(run, followed)
            return _result(run, target, done, in_catalog=has_entries(followed.table))
    return _result(run, target, ExpiredPartitions(why_not=why_not), in_catalog=False)


def _why_not(table: OpenTable) -> str | None:
    options = table.options.maintenance
    why_not = options.why_none_expires(table.entries)
    if why_not is None and options.expire_partitions is None:
        return f"{EXPIRATION_TIME} is not set for partitions of the table"
    return why_not


def _round(run: MaintenanceRun, followed: FollowedTable) -> ExpiredPartitions:
    table, state = followed.table, followed.state
    now_ms, zone = run.clock.now_ms(), run.clock.time_zone
    if not run.is_dry:
        return expire_partitions(
            table,
            state,
            partial(followed.drop_partitions, busy=()),
            now_ms=now_ms,
            zone=zone,
            goes_on=lambda: not run.stop.is_set(),
        )
    expiry = table.options.maintenance.expire_partitions
    assert expiry is not None, "asked before"
    found = due_partitions(table, state, now_ms=now_ms, zone=zone).due
    due = frozenset(found[: expiry.most])
    buckets = [each for each in state.files.bucket_ids() if each.partition in due]
    summaries = [state.files.summary(bucket) for bucket in buckets if bucket.bucket >= 0]
    return ExpiredPartitions(
        partitions=[table.partition_path(each) for each in found[: expiry.most]],
        files=sum(each.file_count for each in summaries),
        rows=sum(each.row_count for each in summaries),
        left=len(found) - len(due),
    )


def _result(
    run: MaintenanceRun, target: Target, done: ExpiredPartitions, *, in_catalog: bool
) -> Result:
    name, verb = run.choice.shown_name(target), run.expired
    if done.partitions:
        counts = count_text(done.files, "data file"), count_text(done.rows, "row")
        partitions = count_text(len(done.partitions), "partition")
        lines = [f"{name}: {verb} {partitions}: {', '.join(counts)}"]
        lines += [f"  {folder}" for folder in done.partitions]
        lines += ["  with their entries in the catalog"] if in_catalog else []
    else:
        lines = [f"{name}: no partition {verb}"]
    lines += because(done.why_not, has_some=done.partitions)
    if done.left:
        lines.append(f"  {count_text(done.left, 'partition')} more by the next check")
    return Result(lines=lines, found=asdict(done))
