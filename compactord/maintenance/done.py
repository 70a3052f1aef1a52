"""Marks partitions done when their time has passed.

A partition is marked once it has been idle for `partition.idle-time-to-done` after its newest file
was created and after its own time has passed. It counts as done while its mark is newer than its
newest file of source APPEND; later rows cause a new mark. As
flink/sink/listener/PartitionMarkDoneTrigger.java, which keeps in a job's state what compactord
reads from the table.

Actions, as in partition/actions/*.java: `success-file` writes the file `_SUCCESS` in the
partition's folder (partition/file/SuccessFile.java), `done-partition` adds an entry to the catalog
(`done_spec`), and `mark-event` sends an event to it. A catalog stores no times of events: the time
of an event is its first query, unless another action gives a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, Protocol

from compactord.clock import epoch_ms
from compactord.errors import FormatError, ObjectNotFound
from compactord.maintenance.kind import Done, OpenedTable, RuledKind, UnderWay
from compactord.maintenance.rounds import Plan, PlannedKind, RoundResult
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import (
    PartitionEntries,
    PartitionEvents,
    PartitionSpec,
    done_spec,
)
from compactord.paimon.java_text import partition_time_ms
from compactord.paimon.options.maintenance import DONE_PARTITION, MARK_EVENT, SUCCESS_FILE
from compactord.paimon.schema import parse_json
from compactord.state.columns import newest_files
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable


@dataclass(slots=True, kw_only=True)
class Marks:
    """Known times of marks by partition, in ms since the epoch; kept between rounds."""

    marked_ms: dict[bytes, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessTimes:
    """First and last write of a success file, in ms since the epoch."""

    created_ms: int
    changed_ms: int

    def to_json(self) -> bytes:
        times = {"creationTime": self.created_ms, "modificationTime": self.changed_ms}
        return json.dumps(times).encode()


def read_success(storage: Storage, path: str) -> SuccessTimes | None:
    """The times in the file, or None if it is absent or incomplete."""
    try:
        found = parse_json(storage.read(path))
    except (ObjectNotFound, ValueError):
        found = None
    times = found if isinstance(found, dict) else {}
    created_ms, changed_ms = times.get("creationTime"), times.get("modificationTime")
    if type(created_ms) is not int or type(changed_ms) is not int:
        return None
    return SuccessTimes(created_ms=created_ms, changed_ms=changed_ms)


SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePartition:
    """A partition without a current mark; `folder` is relative to the table's location."""

    partition: bytes
    folder: str
    spec: PartitionSpec

    def __str__(self) -> str:
        return self.folder


class DoneMarks:
    """Reads and makes the marks of one table, in a round that began at `now_ms`.

    `actions` are the configured ones in the order in which they run; empty if partitions are not
    marked. Events come first and files last: a round reads the times of the later actions, so it
    repeats all of them after a kill.
    """

    def __init__(self, table: OpenTable, marks: Marks, now_ms: int) -> None:
        options = table.options.maintenance
        self.now_ms = now_ms
        self._marks = marks
        actions: dict[str, _Action] = {}
        if table.events is not None:
            actions[MARK_EVENT] = _Events(table.events, marks, now_ms)
        if table.entries is not None:
            actions[DONE_PARTITION] = _Entries(table.entries)
        actions[SUCCESS_FILE] = _Files(table)
        names = frozenset[str]() if options.mark_done is None else options.mark_done.actions
        if options.why_none_marked(table.entries, table.events) is not None:
            names = frozenset()
        self._actions = {name: action for name, action in actions.items() if name in names}

    @property
    def actions(self) -> Sequence[str]:
        return [*self._actions]

    def made_ms(self, partitions: Sequence[DuePartition]) -> Sequence[int | None]:
        """The time of the oldest mark of each partition, or None if a mark is missing.

        Raises what reading raises, and errors of the catalog.
        """
        timed = [action for name, action in self._actions.items() if name != MARK_EVENT]
        found = [action.made_ms(partitions) for action in timed or self._actions.values()]
        return [_oldest(times) for times in zip(*found, strict=True)]

    def make(self, due: DuePartition) -> None:
        """Run all actions. Raises what writing raises, and errors of the catalog."""
        for action in self._actions.values():
            action.make(due, self.now_ms)
        self._marks.marked_ms[due.partition] = self.now_ms


def _oldest(times: Sequence[int | None]) -> int | None:
    known = [made_ms for made_ms in times if made_ms is not None]
    return min(known) if len(known) == len(times) else None


class _Action(Protocol):
    def made_ms(self, partitions: Sequence[DuePartition]) -> Sequence[int | None]: ...

    def make(self, due: DuePartition, now_ms: int) -> None:
        """Make the mark; `made_ms` has read this partition before."""
        ...


class _Files(_Action):
    """Replaces files without times: an overwrite may have been interrupted.

    The time of the first mark stays.
    """

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._known: dict[bytes, SuccessTimes | None] = {}

    def made_ms(self, partitions: Sequence[DuePartition]) -> Sequence[int | None]:
        found = [read_success(self._table.storage, self._path(each)) for each in partitions]
        self._known |= zip((each.partition for each in partitions), found, strict=True)
        return [None if times is None else times.changed_ms for times in found]

    def make(self, due: DuePartition, now_ms: int) -> None:
        known = self._known.get(due.partition)
        first_ms = now_ms if known is None else known.created_ms
        times = SuccessTimes(created_ms=first_ms, changed_ms=now_ms)
        self._table.storage.overwrite(self._path(due), times.to_json())

    def _path(self, due: DuePartition) -> str:
        return paths.join(self._table.ref.location, due.folder, SUCCESS)


class _Entries(_Action):
    """Replaces outdated entries: adding an existing entry would not change its time."""

    def __init__(self, entries: PartitionEntries) -> None:
        self._entries = entries
        self._known: dict[bytes, int | None] = {}

    def made_ms(self, partitions: Sequence[DuePartition]) -> Sequence[int | None]:
        found = [self._entries.added_ms(done_spec(each.spec)) for each in partitions]
        self._known |= zip((each.partition for each in partitions), found, strict=True)
        return found

    def make(self, due: DuePartition, now_ms: int) -> None:
        spec = done_spec(due.spec)
        if self._known.get(due.partition) is not None:
            self._entries.drop([spec])
        self._entries.add([spec])


class _Events(_Action):
    def __init__(self, events: PartitionEvents, marks: Marks, now_ms: int) -> None:
        self._events = events
        self._marks = marks
        self._now_ms = now_ms

    def made_ms(self, partitions: Sequence[DuePartition]) -> Sequence[int | None]:
        known = dict(self._marks.marked_ms)
        new = [each for each in partitions if each.partition not in known]
        done = self._events.are_done([each.spec for each in new]) if new else ()
        known |= {
            each.partition: self._now_ms for each, is_done in zip(new, done, strict=True) if is_done
        }
        return [known.get(each.partition) for each in partitions]

    def make(self, due: DuePartition, now_ms: int) -> None:
        self._events.mark_done(due.spec)


# Partitions whose marks one round reads.
_READ_AT_ONCE = 1_000


def _due(
    table: OpenTable, state: TableState, marks: Marks, done_marks: DoneMarks, zone: tzinfo
) -> Plan[DuePartition]:
    """The partitions that are done and not marked; changes only `marks`.

    `state` was read when `done_marks` began, or later; `zone` is the writers' time zone. Only main
    has such partitions: all branches share the partition folders.
    """
    if not done_marks.actions or table.ref.branch != paths.MAIN_BRANCH:
        return Plan()
    lookup = table.options.compaction.lookup
    newest = newest_files(state.files, waits=lookup is not None and lookup.readers_wait)
    created_ms = {} if state.appended is None else state.appended.created_ms
    for removed in marks.marked_ms.keys() - newest.keys():
        del marks.marked_ms[removed]
    appended: dict[bytes, int] = {}
    candidates: list[DuePartition] = []
    more = False
    for partition, files in sorted(newest.items()):
        known_ms = created_ms.get(partition, -1)
        if epoch_ms(known_ms, zone) > done_marks.now_ms:
            # The writer's clock is ahead: no mark would be newer until then.
            known_ms = -1
        appended_ms = max(files.appended_ms, known_ms)
        appended[partition] = epoch_ms(appended_ms, zone) if appended_ms >= 0 else -1
        is_done = marks.marked_ms.get(partition, -1) > appended[partition]
        if is_done or files.waits or files.created_ms < 0:
            continue
        spec = _spec(table, partition)
        if not _has_passed(table, spec, epoch_ms(files.created_ms, zone), done_marks.now_ms, zone):
            continue
        if len(candidates) == _READ_AT_ONCE:
            more = True
            break
        candidates.append(
            DuePartition(partition=partition, folder=paths.spec_path(spec), spec=spec)
        )
    due: list[DuePartition] = []
    for each, marked_ms in zip(candidates, done_marks.made_ms(candidates), strict=True):
        if marked_ms is not None:
            marks.marked_ms[each.partition] = marked_ms
        if marked_ms is None or marked_ms <= appended[each.partition]:
            due.append(each)
    return Plan(items=due, more=more, context=done_marks)


def _has_passed(
    table: OpenTable, spec: PartitionSpec, created_ms: int, now_ms: int, zone: tzinfo
) -> bool:
    """Whether a partition has been idle long enough, after its own time and its newest file."""
    options = table.options.maintenance.mark_done
    assert options is not None, "checked by the caller"
    start_ms = partition_time_ms(spec, options.pattern, options.formatter)
    if start_ms is None:
        return False
    end_ms = epoch_ms(start_ms, zone) + options.interval_ms
    return now_ms - max(end_ms, created_ms) > options.idle_ms


def _spec(table: OpenTable, partition: bytes) -> PartitionSpec:
    """Spec of the partition; empty for a damaged one, which is quarantined and never done."""
    try:
        return table.partition_spec(partition)
    except FormatError:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDone(RuledKind[RoundResult[DuePartition]], PlannedKind[DuePartition]):
    """Due every `interval_ms`, at any time of the week, if options request it."""

    name = choice = "done"
    key = "partitions"
    noun = "partition"
    verb = ("mark done", "marked done")
    finished = "partitions_marked_done"
    rule = "mark_done"
    is_short = True
    not_requested = "partition.idle-time-to-done is not set for partitions of the table"
    is_free = True
    at_any_time = True
    counters = (("partitions_marked_done", "Partitions marked done."),)

    def not_configured(self, table: OpenTable) -> str | None:
        why_not = table.options.maintenance.why_none_marked(table.entries, table.events)
        why_not = why_not or RuledKind.not_configured(self, table)
        if why_not is None and table.ref.branch != paths.MAIN_BRANCH:
            return "branches share the partition folders of main"
        return why_not

    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[DuePartition]:
        """Raises what reading raises, and errors of the catalog."""
        now_ms, marks = table.clock.now_ms(), table.memory(Marks)
        state, zone = table.newest_state(), table.clock.time_zone
        return _due(table.table, state, marks, DoneMarks(table.table, marks, now_ms), zone)

    def apply(
        self, table: OpenedTable, plan: Plan[DuePartition], result: RoundResult[DuePartition]
    ) -> None:
        """Raises `StorageError` if a file cannot be written or the catalog fails."""
        for each in plan.items:
            plan.context.make(each)
            result.items.append(each)

    def preview(self, table: OpenedTable) -> Done[RoundResult[DuePartition]]:
        result = RoundResult[DuePartition](more=True)
        while result.more and not table.is_stopping:
            plan = self.plan(table, None)
            result.items += plan.items
            result.more = plan.more
            # The next round continues after these.
            now_ms = table.clock.now_ms()
            table.memory(Marks).marked_ms |= {each.partition: now_ms for each in plan.items}
        return Done(rounds=[result])

    def fields(self, result: RoundResult[DuePartition], seconds: float) -> Mapping[str, Any]:
        folders = [each.folder for each in result.items]
        return {"partitions": folders, "actions": result.context.actions}

    def note(self, table: OpenTable) -> str | None:
        options = table.options.maintenance.mark_done
        return None if options is None else f"by {', '.join(sorted(options.actions))}"
