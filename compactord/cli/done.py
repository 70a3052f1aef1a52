"""Partitions are marked done as the tables' options say, as the service marks them."""

from __future__ import annotations

from compactord.cli.choice import Target
from compactord.cli.each_table import Result
from compactord.cli.maintenance import MaintenanceRun, off_by_rule, open_supported
from compactord.maintenance.done_marks import DuePartition
from compactord.maintenance.done_partitions import MarkDone, due_partitions, mark_partitions
from compactord.maintenance.marks import Marks
from compactord.paimon.paths import MAIN_BRANCH
from compactord.state.table_state import TableState
from compactord.table.opening import OpenTable
from compactord.table.report import count_text


def marking(run: MaintenanceRun, target: Target) -> Result:
    """Marks the partitions of one table; `why_not` of its result says why it marked none."""
    table, state = open_supported(target)
    why_not = _why_not(run, target, table)
    done = [] if why_not is not None else _rounds(run, table, state)
    name = run.choice.shown_name(target)
    verb = "would be marked" if run.is_dry else "marked"
    options = table.options.maintenance.mark_done
    actions = ", ".join(sorted(options.actions)) if options is not None else ""
    if done:
        lines = [f"{name}: {verb} done: {count_text(len(done), 'partition')} ({actions})"]
        lines += [f"  {each.folder}" for each in done]
    else:
        because = "" if why_not is None else f", because {why_not}"
        lines = [f"{name}: no partition {verb} done{because}"]
    found = {"partitions": [each.folder for each in done], "why_not": why_not}
    return Result(lines=lines, found=found)


def _why_not(run: MaintenanceRun, target: Target, table: OpenTable) -> str | None:
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


def _rounds(run: MaintenanceRun, table: OpenTable, state: TableState) -> list[DuePartition]:
    """Rounds until all partitions have been looked at, unless it is to stop."""
    take, marks = (due_partitions if run.is_dry else mark_partitions), Marks()
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
