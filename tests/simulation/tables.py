"""Modelled tables: sizes and times instead of files, answering as a table's compactor would.

A bucket has small files on level 0 and one sorted run below them. A compaction takes what is on
level 0, and sometimes the run too; when it is published its inputs become (part of) the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compactord.commit.changes import (
    BucketChange,
    CommitOutcome,
    Committed,
    DroppedChange,
    LossOutcome,
    LostCommit,
    NothingCommitted,
)
from compactord.errors import CompactordError
from compactord.model import (
    Compaction,
    CompactReason,
    Concat,
    ConcatSpec,
    Conflict,
    InputFile,
    Subcompaction,
    WorkKind,
)
from compactord.paimon.data_file import BucketId
from compactord.table.backlog import OFFERED_MAX, DispatchFilter, PendingCompaction, total_due
from compactord.table.jobs import CycleResult, InFlight, Planned
from tests.views import planned

MIB = 1 << 20
TRIGGER, STOP = 5, 8
SUBCOMPACTION_BYTES_MAX = 2 << 30


@dataclass(slots=True)
class File:
    size: int
    created_ms: int


@dataclass(slots=True, kw_only=True)
class Bucket:
    """`is_poison`: no merge of it ever succeeds."""

    level0: list[File] = field(default_factory=list)
    run: int = 0
    is_poison: bool = False


@dataclass(slots=True, kw_only=True)
class InFlightCompaction:
    bucket: int
    files: list[File]
    takes_run: bool
    size: int


def lost_commit(outcome: LossOutcome) -> LostCommit:
    """A writer's snapshot 3 that 4 was built without."""
    is_healed = outcome is LossOutcome.HEALED
    return LostCommit(
        snapshot_id=3,
        above_id=4,
        commit_user="writer",
        commit_identifier=7,
        commit_kind="APPEND",
        time_ms=0,
        files=1,
        file_names=("data-1.parquet",),
        rows=10,
        outcome=outcome,
        again_id=5 if is_healed else None,
        why="" if is_healed else "it has a changelog",
    )


def subcompaction_of(number: int, index: int, *paths: str) -> Subcompaction:
    """Only its numbers and its files matter; a file has one row."""
    files = tuple(
        InputFile(
            path=path,
            file_format="parquet",
            size_bytes=1,
            row_count=1,
            min_sequence_number=0,
            max_sequence_number=0,
        )
        for path in paths or (str(index),)
    )
    source = ConcatSpec(files=files, first_sequence_number=0, continues_across_outputs=False)
    made = object.__new__(Subcompaction)
    for name, value in (
        ("table", "db.t"),
        ("compaction_id", number),
        ("index", index),
        ("source", source),
    ):
        object.__setattr__(made, name, value)
    return made


class SimTable:
    """`is_keyed`: a bucket is worked on by one compaction at a time, else by several.

    After a commit nothing is planned for `settle_ms`. `readers_wait`: for every file.
    """

    def __init__(
        self,
        buckets: Iterable[Bucket],
        *,
        is_keyed: bool = True,
        settle_ms: int = 0,
        readers_wait: bool = False,
    ) -> None:
        self.readers_wait = readers_wait
        self._replaced = 0
        self._settle_ms = settle_ms
        self.buckets = dict(enumerate(buckets))
        self.is_keyed = is_keyed
        self.snapshot_id = 1
        self.planned_snapshot_id = 0
        self.planned_on: dict[int, list[File]] = {}
        self.expired_to = 0
        self.in_flight: dict[int, InFlightCompaction] = {}
        self._is_changed = True
        self._skip = DispatchFilter()

    def commit(self, sizes: Mapping[int, int], now_ms: int) -> None:
        """A writer's snapshot: one file in each of these buckets."""
        for bucket, size in sizes.items():
            self.buckets[bucket].level0.append(File(size, now_ms))
        self.snapshot_id += 1
        self._is_changed = True

    def restarted(self) -> None:
        """Nothing is known any more, as after an error."""
        self._is_changed = True

    def release(self, ended: Sequence[InFlight]) -> None:
        for each in ended:
            if self.in_flight.pop(each.compaction_id, None) is not None:
                self._is_changed = True

    def cycle(
        self,
        ended: Sequence[InFlight],
        skip: DispatchFilter,
        *,
        error: CompactordError | None,
        conflicts: frozenset[int] = frozenset(),
        lost: bool = False,
        late: LossOutcome | None = None,
    ) -> CycleResult:
        """`error` ends it: the commit if something has finished. `conflicts` are not published.

        `late`: what becomes of a writer's commit that this cycle finds lost, if it may commit.
        """
        finished = [each for each in ended if isinstance(each.result, BucketChange)]
        commit = None
        if error is None and finished:
            commit = self._publish(finished, conflicts)
        self.release(ended)
        planned, wait_ms = None, 0
        if error is not None:
            self._is_changed = True
        elif self._settle_ms and isinstance(commit, Committed):
            self._is_changed, wait_ms = True, self._settle_ms
        elif self._is_changed or skip != self._skip:
            planned = self._plan(skip)
            self._is_changed, self._skip = False, skip
        self._replaced += bool(lost and commit)
        return CycleResult(
            commit=commit,
            commit_seconds=0.1,
            planned=planned,
            lost_snapshots=("a snapshot of ours is gone",) if lost and commit else (),
            replaced_snapshots=self._replaced,
            error=error,
            in_commit=error is not None and bool(finished),
            lost_commits=(lost_commit(late),) if late and skip.may_commit else (),
            wait_ms=wait_ms,
        )

    def _publish(self, finished: Sequence[InFlight], conflicts: frozenset[int]) -> CommitOutcome:
        published, dropped = [], []
        for each in finished:
            assert isinstance(each.result, BucketChange)
            in_flight = self.in_flight[each.compaction_id]
            if each.compaction_id in conflicts:
                why, conflict = "a file is gone", Conflict.FILE_REMOVED
                dropped.append(DroppedChange(change=each.result, conflict=conflict, why=why))
                continue
            bucket = self.buckets[in_flight.bucket]
            gone = {id(file) for file in in_flight.files}
            bucket.level0 = [file for file in bucket.level0 if id(file) not in gone]
            bucket.run = in_flight.size if in_flight.takes_run else bucket.run + in_flight.size
            published.append(each.result)
        if not published:
            return NothingCommitted(dropped=tuple(dropped))
        self.snapshot_id += 1
        return Committed(
            snapshot_id=self.snapshot_id,
            base=("base",),
            published=tuple(published),
            dropped=tuple(dropped),
            attempts=1,
        )

    def _plan(self, skip: DispatchFilter) -> Planned:
        self.planned_snapshot_id = self.snapshot_id
        self.planned_on = {b: list(bucket.level0) for b, bucket in self.buckets.items()}
        waiting = [pending for b in self.buckets if (pending := self.pending(b)) is not None]
        able = [pending for pending in waiting if not skip.covers(pending)]
        able.sort(key=lambda pending: (not pending.is_forced, -pending.benefit, pending.since_ms))
        offered, oldest = (
            able[:OFFERED_MAX],
            min(able, key=lambda pending: pending.since_ms, default=None),
        )
        if oldest is not None and oldest not in offered:
            offered[-1] = oldest
        return planned(
            self.snapshot_id,
            offered=tuple(offered),
            backlog=total_due(waiting),
            workable=total_due([each for each in waiting if each.bucket not in skip.buckets]),
            blocked=total_due([each for each in waiting if each.bucket in skip.buckets]),
        )

    def dispatch(self, bucket: int, *, compaction_id: int, free_slots: int) -> InFlight | None:
        files = self._free(bucket)[: None if self.is_keyed else TRIGGER]
        if len(files) < self._wanted(bucket):
            return None
        size, takes_run = self._size(bucket, files)
        in_flight = InFlightCompaction(bucket=bucket, files=files, takes_run=takes_run, size=size)
        self.in_flight[compaction_id] = in_flight
        self._is_changed = True
        count = 1
        if size > 64 * MIB:
            count = max(1, free_slots, -(-size // SUBCOMPACTION_BYTES_MAX))
        return InFlight(
            compaction_id,
            Compaction(
                bucket=BucketId(b"", bucket),
                total_buckets=len(self.buckets),
                reason=CompactReason.SIZE_RATIO,
                actions=(Concat(files=(), ordered=False),),
            ),
            [subcompaction_of(compaction_id, part) for part in range(count)],
            neighbours=(),
            snapshot_id=self.planned_snapshot_id,
        )

    @property
    def has_work(self) -> bool:
        """Whether a bucket that can be merged has something to do or under way."""
        return any(
            not self.buckets[each.bucket].is_poison for each in self.in_flight.values()
        ) or any(
            len(bucket.level0) >= self._wanted(b) and not bucket.is_poison
            for b, bucket in self.buckets.items()
        )

    def _wanted(self, bucket: int) -> int:
        if self.readers_wait:
            return 1
        return TRIGGER - (1 if self.is_keyed and self.buckets[bucket].run else 0)

    def _free(self, bucket: int) -> list[File]:
        """What was there when it was planned, is there now, and is not being read."""
        in_flight = [each for each in self.in_flight.values() if each.bucket == bucket]
        if not in_flight:
            return self.planned_on[bucket]
        if self.is_keyed:
            return []
        busy = {id(file) for each in in_flight for file in each.files}
        return [file for file in self.planned_on[bucket] if id(file) not in busy]

    def _size(self, bucket: int, files: list[File]) -> tuple[int, bool]:
        new, run = sum(file.size for file in files), self.buckets[bucket].run
        takes_run = self.is_keyed and 2 * new > run
        return new + (run if takes_run else 0), takes_run

    def pending(self, bucket: int) -> PendingCompaction | None:
        wanted = self._wanted(bucket)
        if len(self.planned_on[bucket]) < wanted:
            return None
        files = self._free(bucket)
        if len(files) < wanted:
            return None
        size, takes_run = self._size(bucket, files)
        runs = len(files) + (1 if self.buckets[bucket].run else 0)
        kind = WorkKind.FULL if takes_run and self.buckets[bucket].run else WorkKind.MINOR
        return PendingCompaction(
            bucket=BucketId(b"", bucket),
            partition="",
            kind=kind if self.is_keyed else WorkKind.APPEND,
            reason=CompactReason.SIZE_RATIO,
            tasks=1 if self.is_keyed else len(files) // TRIGGER,
            files=len(files),
            size_bytes=size,
            files_saved=len(files) - 1,
            sorted_runs=runs if self.is_keyed else 0,
            is_near_stop=self.is_keyed and runs >= STOP - 1,
            since_ms=files[wanted - 1].created_ms,
            waiting_since_ms=files[0].created_ms if self.readers_wait else 0,
        )
