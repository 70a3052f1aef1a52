"""The marks of partitions that are done, in the ways that a table's options ask for.

`success-file` is the file `_SUCCESS` in the partition's folder, `done-partition` an entry in the
catalog (`done_spec`), and `mark-event` an event there. A catalog knows of events only whether there
was one: they count as made when they are first asked about, unless another way says it better. As
partition/actions/*.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compactord.maintenance.kind import TableValues
from compactord.maintenance.marks import Marks
from compactord.maintenance.success_files import SuccessTimes, read_success
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import (
    PartitionEntries,
    PartitionEvents,
    PartitionSpec,
    done_spec,
)
from compactord.paimon.options.maintenance import DONE_PARTITION, MARK_EVENT, SUCCESS_FILE

SUCCESS = "_SUCCESS"


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePartition:
    """A partition that is to be marked; `folder` is that of the table's location."""

    partition: bytes
    folder: str
    spec: PartitionSpec


class DoneMarks:
    """Those of one table, in one round that began at `now_ms`.

    `actions` are the ways, in which order they are gone; none where partitions are not marked.
    Events come first and files last: what a kill leaves out is made by the next round, which goes
    by the times of the others.
    """

    def __init__(self, table: TableValues, marks: Marks, now_ms: int) -> None:
        options = table.options.maintenance
        self.now_ms = now_ms
        self._marks = marks
        ways: dict[str, _Way] = {}
        if table.events is not None:
            ways[MARK_EVENT] = _Events(table.events, marks, now_ms)
        if table.entries is not None:
            ways[DONE_PARTITION] = _Entries(table.entries)
        ways[SUCCESS_FILE] = _Files(table)
        asked = frozenset[str]() if options.mark_done is None else options.mark_done.actions
        is_kept = options.why_none_marked(table.entries, table.events) is not None
        self._ways = {name: way for name, way in ways.items() if name in asked and not is_kept}

    @property
    def actions(self) -> Sequence[str]:
        return [*self._ways]

    def made_ms(self, asked: Sequence[DuePartition]) -> Sequence[int | None]:
        """When the oldest mark of each was made last; None: one is not there.

        Raises what reading raises, and what the catalog does.
        """
        timed = [way for name, way in self._ways.items() if name != MARK_EVENT]
        found = [way.made_ms(asked) for way in timed or self._ways.values()]
        return [_oldest(times) for times in zip(*found, strict=True)]

    def make(self, due: DuePartition) -> None:
        """Mark it in all ways. Raises what writing raises, and what the catalog does."""
        for way in self._ways.values():
            way.make(due, self.now_ms)
        self._marks.marked_ms[due.partition] = self.now_ms


def _oldest(times: Sequence[int | None]) -> int | None:
    known = [made_ms for made_ms in times if made_ms is not None]
    return min(known) if len(known) == len(times) else None


class _Way(Protocol):
    def made_ms(self, asked: Sequence[DuePartition]) -> Sequence[int | None]: ...

    def make(self, due: DuePartition, now_ms: int) -> None:
        """Make the mark; of one that was asked about before."""
        ...


class _Files(_Way):
    """A file that does not say when it was made is replaced: an overwrite may have been cut short.

    The time of the first mark stays.
    """

    def __init__(self, table: TableValues) -> None:
        self._table = table
        self._known: dict[bytes, SuccessTimes | None] = {}

    def made_ms(self, asked: Sequence[DuePartition]) -> Sequence[int | None]:
        found = [read_success(self._table.storage, self._path(each)) for each in asked]
        self._known |= zip((each.partition for each in asked), found, strict=True)
        return [None if times is None else times.changed_ms for times in found]

    def make(self, due: DuePartition, now_ms: int) -> None:
        known = self._known.get(due.partition)
        first_ms = now_ms if known is None else known.created_ms
        times = SuccessTimes(created_ms=first_ms, changed_ms=now_ms)
        self._table.storage.overwrite(self._path(due), times.to_json())

    def _path(self, due: DuePartition) -> str:
        return paths.join(self._table.ref.location, due.folder, SUCCESS)


class _Entries(_Way):
    """An entry that is there keeps its time when it is added: one that is too old is replaced."""

    def __init__(self, entries: PartitionEntries) -> None:
        self._entries = entries
        self._known: dict[bytes, int | None] = {}

    def made_ms(self, asked: Sequence[DuePartition]) -> Sequence[int | None]:
        found = [self._entries.added_ms(done_spec(each.spec)) for each in asked]
        self._known |= zip((each.partition for each in asked), found, strict=True)
        return found

    def make(self, due: DuePartition, now_ms: int) -> None:
        spec = done_spec(due.spec)
        if self._known.get(due.partition) is not None:
            self._entries.drop([spec])
        self._entries.add([spec])


class _Events(_Way):
    def __init__(self, events: PartitionEvents, marks: Marks, now_ms: int) -> None:
        self._events = events
        self._marks = marks
        self._now_ms = now_ms

    def made_ms(self, asked: Sequence[DuePartition]) -> Sequence[int | None]:
        known = dict(self._marks.marked_ms)
        new = [each for each in asked if each.partition not in known]
        done = self._events.are_done([each.spec for each in new]) if new else ()
        known |= {
            each.partition: self._now_ms for each, is_done in zip(new, done, strict=True) if is_done
        }
        return [known.get(each.partition) for each in asked]

    def make(self, due: DuePartition, now_ms: int) -> None:
        self._events.mark_done(due.spec)
