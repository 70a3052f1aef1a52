"""Partitions that are marked done: nothing is added to them any more, says a file to their readers.

A partition is marked, with the file `_SUCCESS` in its folder, once it has been idle for
`partition.idle-time-to-done` after its newest file was created and after its own time has passed.
It counts as done while `_SUCCESS` is newer than its newest file of source APPEND; later rows have
it marked again. As flink/sink/listener/PartitionMarkDoneTrigger.java, which remembers in a job's
state what is told here from the table, and partition/actions/SuccessFileMarkDoneAction.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import tzinfo

import structlog

from compactord.clock import WallTime, epoch_ms
from compactord.errors import CompactordError, FormatError
from compactord.maintenance.kind import (
    DueTable,
    MaintenanceRecord,
    OpenedTable,
    Round,
    RuledKind,
    TableValues,
    UnderWay,
)
from compactord.maintenance.marks import Marks
from compactord.maintenance.newest_files import newest_files
from compactord.maintenance.success_files import SuccessTimes, read_success
from compactord.paimon import paths
from compactord.paimon.partition_time import partition_time_ms
from compactord.state.table_state import TableState

_log = structlog.get_logger()
SUCCESS = "_SUCCESS"
# Files of partitions that are asked for in one round.
_READ_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePartition:
    """A partition that is to be marked, by the file at `path`.

    `folder` is that of the table's location. `created_ms`: when it was marked first.
    """

    partition: bytes
    folder: str
    path: str
    created_ms: int | None


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
    alone: the folders of partitions are those of all branches. Raises what reading raises.
    """
    options = table.options.maintenance.mark_done
    if options is None or table.ref.branch != paths.MAIN_BRANCH:
        return DonePartitions()
    lookup = table.options.compaction.lookup
    newest = newest_files(state.files, waits=lookup is not None and lookup.readers_wait)
    for known in (marks.marked_ms, marks.appended_ms):
        for partition in known.keys() - newest.keys():
            del known[partition]
    due: list[DuePartition] = []
    asked = 0
    for partition, files in sorted(newest.items()):
        if files.appended_ms >= 0:
            seen_ms = marks.appended_ms.get(partition, -1)
            marks.appended_ms[partition] = max(seen_ms, epoch_ms(files.appended_ms, zone))
        if _is_done(marks, partition) or files.waits or files.created_ms < 0:
            continue
        spec = _spec(table, partition)
        start_ms = partition_time_ms(spec, options.pattern, options.formatter)
        if start_ms is None:
            continue
        end_ms = epoch_ms(start_ms, zone) + options.interval_ms
        if now_ms - max(end_ms, epoch_ms(files.created_ms, zone)) <= options.idle_ms:
            continue
        if asked == _READ_AT_ONCE:
            return DonePartitions(due=due, more=True)
        asked += 1
        found = _unmarked(table, partition, marks)
        if found is not None:
            due.append(found)
    return DonePartitions(due=due)


def mark_partitions(
    table: TableValues, state: TableState, marks: Marks, *, now_ms: int, zone: tzinfo
) -> DonePartitions:
    """Mark what `due_partitions` finds, with the time `now_ms`; returns what was marked.

    Raises what that raises before anything is marked, and `StorageError` if a file cannot be
    written: the next round continues there. What was marked is logged in any case.
    """
    found = due_partitions(table, state, marks, now_ms=now_ms, zone=zone)
    done: list[DuePartition] = []
    try:
        for each in found.due:
            first_ms = now_ms if each.created_ms is None else each.created_ms
            times = SuccessTimes(created_ms=first_ms, changed_ms=now_ms)
            table.storage.overwrite(each.path, times.to_json())
            marks.marked_ms[each.partition] = now_ms
            done.append(each)
    finally:
        if done:
            _log.info("partitions_marked_done", partitions=[each.folder for each in done])
    return replace(found, due=done)


def _is_done(marks: Marks, partition: bytes) -> bool:
    marked_ms = marks.marked_ms.get(partition)
    return marked_ms is not None and marked_ms > marks.appended_ms.get(partition, -1)


def _unmarked(table: TableValues, partition: bytes, marks: Marks) -> DuePartition | None:
    """The partition with its first mark; None if its file says that it is done.

    A file that does not say when it was made is replaced: an overwrite may have been cut short.
    """
    folder = table.partition_path(partition)
    path = paths.join(table.ref.location, folder, SUCCESS)
    found = read_success(table.storage, path)
    if found is not None:
        marks.marked_ms[partition] = found.changed_ms
        if _is_done(marks, partition):
            return None
    created_ms = None if found is None else found.created_ms
    return DuePartition(partition=partition, folder=folder, path=path, created_ms=created_ms)


def _spec(table: TableValues, partition: bytes) -> Mapping[str, str]:
    """Empty for a damaged partition, whose buckets are quarantined: it is never done."""
    try:
        return paths.partition_spec(
            partition,
            table.schema.partition_fields,
            default_name=table.options.partition_default_name,
            legacy_name=table.options.partition_legacy_name,
        )
    except FormatError:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDone(RuledKind[DonePartitions]):
    """Due every `interval_ms`, at any time of the week, where options ask for it."""

    name = "done"
    rule = "mark_done"
    counters = (("partitions_marked_done", "Partitions that were marked done."),)

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return self.is_wanted(table, record, now_ms)

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> DonePartitions:
        now_ms = table.clock.now_ms()
        state = table.newest_state()
        zone = table.clock.time_zone
        return mark_partitions(table.table, state, table.marks, now_ms=now_ms, zone=zone)

    def ended(self, result: DonePartitions | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("partitions_not_marked", error=str(result))
            return Round(has_failed=True)
        return Round(counts={"partitions_marked_done": len(result.due)}, more=result.more)
