"""Partitions that are marked done: nothing is added to them any more, say marks to their readers.

A partition is marked (`done_marks`) once it has been idle for `partition.idle-time-to-done` after
its newest file was created and after its own time has passed. It counts as done while its mark is
newer than its newest file of source APPEND; later rows have it marked again. As
flink/sink/listener/PartitionMarkDoneTrigger.java, which remembers in a job's state what is told
here from the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any

import structlog

from compactord.clock import epoch_ms
from compactord.errors import CompactordError, FormatError
from compactord.maintenance.done_marks import DoneMarks, DuePartition
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Round,
    RuledKind,
    ShownTable,
    TableValues,
    Told,
    UnderWay,
)
from compactord.maintenance.marks import Marks
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import PartitionSpec
from compactord.paimon.java_text import partition_time_ms
from compactord.state.columns import newest_files
from compactord.state.table_state import TableState
from compactord.text import count_text

_log = structlog.get_logger()
# Partitions whose marks are asked for in one round.
_READ_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePartitions:
    """What one round found or marked. `more`: it has not looked at all partitions."""

    due: Sequence[DuePartition] = ()
    more: bool = False


def due_partitions(
    table: TableValues, state: TableState, marks: Marks, *, now_ms: int, zone: tzinfo
) -> DonePartitions:
    """The partitions that are done and not marked; changes nothing but `marks`.

    `state` is the newest one, read at `now_ms` or later; `zone` is that of the writers. Of main
    alone: the folders of partitions are those of all branches. Raises what reading raises, and what
    the catalog does.
    """
    return _due(table, state, marks, DoneMarks(table, marks, now_ms), zone)


def mark_partitions(
    table: TableValues, state: TableState, marks: Marks, *, now_ms: int, zone: tzinfo
) -> DonePartitions:
    """Mark what `due_partitions` finds, with the time `now_ms`; returns what was marked.

    Raises what that raises before anything is marked, and `StorageError` if a file cannot be
    written or the catalog does not do its part: the next round continues there. What was marked is
    logged in any case.
    """
    ways = DoneMarks(table, marks, now_ms)
    found = _due(table, state, marks, ways, zone)
    done: list[DuePartition] = []
    try:
        for each in found.due:
            ways.make(each)
            done.append(each)
    finally:
        if done:
            folders = [each.folder for each in done]
            _log.info("partitions_marked_done", partitions=folders, actions=ways.actions)
    return replace(found, due=done)


def _due(
    table: TableValues, state: TableState, marks: Marks, ways: DoneMarks, zone: tzinfo
) -> DonePartitions:
    if not ways.actions or table.ref.branch != paths.MAIN_BRANCH:
        return DonePartitions()
    lookup = table.options.compaction.lookup
    newest = newest_files(state.files, waits=lookup is not None and lookup.readers_wait)
    seen = {} if state.appended is None else state.appended.created_ms
    for gone in marks.marked_ms.keys() - newest.keys():
        del marks.marked_ms[gone]
    appended: dict[bytes, int] = {}
    asked: list[DuePartition] = []
    more = False
    for partition, files in sorted(newest.items()):
        seen_ms = seen.get(partition, -1)
        if epoch_ms(seen_ms, zone) > ways.now_ms:
            # A clock that is ahead: no mark would be newer until then.
            seen_ms = -1
        appended_ms = max(files.appended_ms, seen_ms)
        appended[partition] = epoch_ms(appended_ms, zone) if appended_ms >= 0 else -1
        is_done = marks.marked_ms.get(partition, -1) > appended[partition]
        if is_done or files.waits or files.created_ms < 0:
            continue
        spec = _spec(table, partition)
        if not _has_passed(table, spec, epoch_ms(files.created_ms, zone), ways.now_ms, zone):
            continue
        if len(asked) == _READ_AT_ONCE:
            more = True
            break
        asked.append(DuePartition(partition=partition, folder=paths.spec_path(spec), spec=spec))
    due: list[DuePartition] = []
    for each, marked_ms in zip(asked, ways.made_ms(asked), strict=True):
        if marked_ms is not None:
            marks.marked_ms[each.partition] = marked_ms
        if marked_ms is None or marked_ms <= appended[each.partition]:
            due.append(each)
    return DonePartitions(due=due, more=more)


def _has_passed(
    table: TableValues, spec: PartitionSpec, created_ms: int, now_ms: int, zone: tzinfo
) -> bool:
    """Whether a partition's own time is over, and it has been idle since its newest file."""
    options = table.options.maintenance.mark_done
    assert options is not None, "asked before"
    start_ms = partition_time_ms(spec, options.pattern, options.formatter)
    if start_ms is None:
        return False
    end_ms = epoch_ms(start_ms, zone) + options.interval_ms
    return now_ms - max(end_ms, created_ms) > options.idle_ms


def _spec(table: TableValues, partition: bytes) -> PartitionSpec:
    """Empty for a damaged partition, whose buckets are quarantined: it is never done."""
    try:
        return table.partition_spec(partition)
    except FormatError:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDone(RuledKind[DonePartitions]):
    """Due every `interval_ms`, at any time of the week, where options ask for it."""

    name = choice = "done"
    rule = "mark_done"
    is_short = True
    unasked = "partition.idle-time-to-done is not set for partitions of the table"
    is_free = True
    at_any_time = True
    counters = (("partitions_marked_done", "Partitions that were marked done."),)

    def why_unasked(self, table: TableValues) -> str | None:
        why_not = table.options.maintenance.why_none_marked(table.entries, table.events)
        why_not = why_not or RuledKind.why_unasked(self, table)
        if why_not is None and table.ref.branch != paths.MAIN_BRANCH:
            return "its branches have the same folders"
        return why_not

    def preview(self, table: OpenedTable) -> Done[DonePartitions]:
        values, state, zone = table.table, table.newest_state(), table.clock.time_zone
        marks = Marks()
        rounds = [DonePartitions(more=True)]
        while rounds[-1].more and not table.is_stopping:
            now_ms = table.clock.now_ms()
            rounds.append(due_partitions(values, state, marks, now_ms=now_ms, zone=zone))
            # Nothing is marked, and the next round goes on behind these nevertheless.
            marks.marked_ms |= dict.fromkeys((each.partition for each in rounds[-1].due), now_ms)
        return Done(rounds=rounds)

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> DonePartitions:
        now_ms = table.clock.now_ms()
        state = table.newest_state()
        zone = table.clock.time_zone
        return mark_partitions(table.table, state, table.memory(Marks), now_ms=now_ms, zone=zone)

    def ended(self, result: DonePartitions | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("partitions_not_marked", error=str(result))
            return Round(has_failed=True)
        return Round(counts={"partitions_marked_done": len(result.due)}, more=result.more)

    def told(self, shown: ShownTable, done: Done[DonePartitions], *others: Done[Any]) -> Told:
        folders = [each.folder for round_ in done.rounds for each in round_.due]
        verb = "would be marked" if shown.is_dry else "marked"
        reason = "" if done.why_not is None else f", because {done.why_not}"
        lines = [f"{shown.name}: no partition {verb} done{reason}"]
        options = None if shown.table is None else shown.table.options.maintenance.mark_done
        if folders and options is not None:
            actions = ", ".join(sorted(options.actions))
            count = count_text(len(folders), "partition")
            lines = [f"{shown.name}: {verb} done: {count} ({actions})"]
            lines += [f"  {folder}" for folder in folders]
        return Told(lines=lines, found={"partitions": folders, "why_not": done.why_not})
