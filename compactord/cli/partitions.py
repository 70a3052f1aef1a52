"""Partitions expire and are marked done as the tables' options say, as by the service."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from compactord.amounts import count_text
from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import (
    MaintenanceRun,
    looked_back,
    off_by_rule,
    open_supported,
)
from compactord.maintenance.done_marks import DuePartition
from compactord.maintenance.done_partitions import MarkDone, mark_partitions
from compactord.maintenance.done_partitions import due_partitions as done_due
from compactord.maintenance.kind import because
from compactord.maintenance.marks import Marks
from compactord.maintenance.partition_entries import has_entries
from compactord.maintenance.partition_expiry import (
    ExpiredPartitions,
    ExpirePartitions,
    due_partitions,
    expire_partitions,
)
from compactord.paimon.options.maintenance import EXPIRATION_TIME
from compactord.paimon.paths import MAIN_BRANCH
from compactord.state.table_state import TableState
from compactord.table.followed import FollowedTable
from compactord.table.opening import OpenTable


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


def marking(run: MaintenanceRun, target: Target) -> Result:
    """Marks the partitions of one table; `why_not` of its result says why it marked none."""
    table, state = open_supported(target)
    why_not = _why_unmarked(run, target, table)
    done = [] if why_not is not None else _mark_rounds(run, table, state)
    name = run.choice.shown_name(target)
    verb = "would be marked" if run.is_dry else "marked"
    options = table.options.maintenance.mark_done
    actions = ", ".join(sorted(options.actions)) if options is not None else ""
    if done:
        lines = [f"{name}: {verb} done: {count_text(len(done), 'partition')} ({actions})"]
        lines += [f"  {each.folder}" for each in done]
    else:
        reason = "" if why_not is None else f", because {why_not}"
        lines = [f"{name}: no partition {verb} done{reason}"]
    found = {"partitions": [each.folder for each in done], "why_not": why_not}
    return Result(lines=lines, found=found)


def _why_unmarked(run: MaintenanceRun, target: Target, table: OpenTable) -> str | None:
    options, why_not = table.options.maintenance, off_by_rule(run, target, MarkDone.rule)
    if why_not is not None:
        return why_not
    why_not = options.why_none_marked(table.entries, table.events)
    if why_not is not None:
        return why_not
    if options.mark_done is None:
        return "partition.idle-time-to-done is not set for partitions of the table"
    if table.ref.branch != MAIN_BRANCH:
        return "its branches have the same folders"
    return None


def _mark_rounds(run: MaintenanceRun, table: OpenTable, state: TableState) -> list[DuePartition]:
    """Rounds until all partitions have been looked at, unless it is to stop."""
    take, marks = (done_due if run.is_dry else mark_partitions), Marks()
    found: list[DuePartition] = []
    more = True
    while more and not run.stop.is_set():
        now_ms = run.clock.now_ms()
        done = take(table, state, marks, now_ms=now_ms, zone=run.clock.time_zone)
        found += done.due
        # A dry run marks nothing, and has to go on behind these nevertheless.
        marks.marked_ms |= dict.fromkeys((each.partition for each in done.due), now_ms)
        more = done.more
    return found
