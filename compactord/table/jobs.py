"""Jobs of one table: requests, results and totals, and compactions in flight."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import structlog

from compactord.commit.changes import BucketChange, CommitOutcome, LostCommit
from compactord.errors import CompactordError, DataFileDamaged, DataFileMissing, FormatError
from compactord.maintenance.holds import Hold
from compactord.model import (
    Compaction,
    FailureKind,
    Output,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
    TableName,
)
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.table.backlog import DamagedBucket, PendingCompaction
from compactord.table.opening import OpenTable
from compactord.table.status import Backlog, BucketView, RestingPartition, TableInfo, TableShape


class Phase(enum.Enum):
    """What a table's job does, for heartbeats."""

    PLAN = "planner"
    COMMIT = "committer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The table's status and what is due. `appended_bytes` were added since the last plan.

    `workable` is the backlog without the buckets that were to be skipped.
    """

    snapshot_id: int
    info: TableInfo
    shape: TableShape
    offered: tuple[PendingCompaction, ...]
    backlog: Backlog
    workable: Backlog
    top: tuple[BucketView, ...]
    discovery_interval_ms: int
    appended_bytes: int
    # Buckets that have no files any more.
    gone: frozenset[BucketId] = frozenset()
    manifests_read: int
    entries_read: int
    entries_skipped: int
    seconds: float
    resting: tuple[RestingPartition, ...] = ()
    # Buckets that cannot be planned; the others are.
    damaged: tuple[DamagedBucket, ...] = ()

    @property
    def offers_all(self) -> bool:
        """Whether every due bucket is among the offered ones."""
        return self.backlog.tasks <= sum(pending.tasks for pending in self.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommit:
    """A commit of compactord, by whichever process; `ended_ms` is steady."""

    snapshot_id: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsReplaced:
    """A decision that others made void: they replaced and expired an input before it was read."""

    why: str


# That others had replaced and expired an input, or which live file is gone or damaged.
Cause: TypeAlias = InputsReplaced | DataFileMissing | DataFileDamaged


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """The outcome of a cycle. `planned` is None when nothing is new since the last one.

    `error` ended it: in the commit when `in_commit`, else in polling the table. No compaction
    passed in is under way any more.
    """

    commit: CommitOutcome | None = None
    commit_seconds: float = 0.0
    planned: Planned | None = None
    lost_snapshots: tuple[str, ...] = ()
    replaced_snapshots: int = 0
    error: CompactordError | None = None
    in_commit: bool = False
    # Why manifests that wait for no compaction could not be merged; the plan holds all the same.
    merge_error: CompactordError | None = None
    # What the table is; None where nothing new was read of it.
    info: TableInfo | None = None
    # Of compactions that failed because an input was not found or is damaged, as far as is known.
    causes: Mapping[int, Cause | None] = field(default_factory=dict)
    # What writers lost to late renames, committed again or not.
    lost_commits: tuple[LostCommit, ...] = ()
    # The last commit of ours that the table itself tells of; only after a start.
    last_commit: OwnCommit | None = None
    # How long nothing may be built on our newest snapshot; `planned` is None meanwhile.
    wait_ms: int = 0
    # Why nothing of the table is deleted, as it was known last.
    hold: Hold | None = None


_log = structlog.get_logger()


class InFlight:
    """A compaction from its cutting into subcompactions until a cycle has dealt with its result.

    The caller takes from `waiting` what it submits, and hands in each outcome. `neighbours` are the
    files of a merge's bucket at planning time, `vectors` the deletion vectors of the bucket,
    `snapshot_id` is that of the state that was planned.
    """

    def __init__(
        self,
        compaction_id: int,
        compaction: Compaction,
        subcompactions: Sequence[Subcompaction],
        *,
        neighbours: Iterable[DataFile],
        vectors: Mapping[str, VectorRef] = NO_VECTORS,
        snapshot_id: int = 0,
        partition: str = "",
    ) -> None:
        level = 1 if compaction.looks_up else compaction.output_level
        self.compaction_id = compaction_id
        self.compaction = compaction
        self.subcompactions = tuple(subcompactions)
        self.snapshot_id = snapshot_id
        self.partition = partition
        self.waiting = deque(subcompactions)
        # The change to publish, or a failure for good; None while outcomes are outstanding.
        self.result: BucketChange | SubcompactionFailure | None = None
        self._files_above = frozenset(f.file_name for f in neighbours if f.level >= level)
        self.vectors = vectors
        self._results: dict[int, SubcompactionResult] = {}
        self._attempts: Counter[int] = Counter()
        self._failure: SubcompactionFailure | None = None
        self._outstanding = len(subcompactions)

    @property
    def done(self) -> int:
        """How many subcompactions have succeeded."""
        return len(self._results)

    @property
    def stats(self) -> tuple[RewriteStats, ...]:
        """Statistics of the subcompactions that have succeeded."""
        return tuple(each.stats for each in self._results.values())

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The new files of what has succeeded: they must go unless they are published."""
        return tuple(output for each in self._results.values() for output in each.outputs)

    def ended(self) -> BucketChange | SubcompactionFailure | None:
        """`result`, found now if nothing is outstanding any more.

        One without subcompactions, which only moves files to another level, has finished at once.
        """
        if not self._outstanding and self.result is None:
            self.result = self._failure or self._miscounted() or self._change()
        return self.result

    def record_outcome(
        self, outcome: SubcompactionOutcome, table: TableName, *, attempts_max: int
    ) -> BucketChange | SubcompactionFailure | None:
        """Take in an outcome of the `table`; the answer is as that of `ended`.

        A subcompaction that fails in a way that may pass waits again, up to `attempts_max` attempts
        in all. Once one has failed for good, those that wait would run for nothing.
        """
        match outcome:
            case SubcompactionResult(index=index):
                self._results[index] = outcome
                self._outstanding -= 1
            case SubcompactionFailure(index=index, kind=kind):
                self._attempts[index] += 1
                may_pass = kind is not FailureKind.POISON and self._attempts[index] < attempts_max
                if may_pass and self._failure is None:
                    again = self.subcompactions[index]
                    _log.warning(
                        "compaction_retry",
                        **table.log_fields,
                        compaction_id=self.compaction_id,
                        error=outcome.message,
                    )
                    self.waiting.append(again)
                    return None
                self._failure = self._failure or outcome
                self._outstanding -= 1 + len(self.waiting)
                self.waiting.clear()
        return self.ended()

    def abandon(self, failure: SubcompactionFailure) -> None:
        """End the compaction; later outcomes must not be passed to `record_outcome`."""
        self.waiting.clear()
        self.result = failure

    def _miscounted(self) -> SubcompactionFailure | None:
        """Each row of the inputs must have been read by exactly one of several subcompactions.

        One that reads a range of keys passes over row groups by their bounds, which no checksum
        covers. Where a single one reads whole files, it counts their rows itself.
        """
        if len(self.subcompactions) < 2:
            return None
        inputs = {
            file.path: file.row_count for each in self.subcompactions for file in each.source.files
        }
        rows = sum(inputs.values())
        read = sum(each.stats.input_records for each in self._results.values())
        if read == rows:
            return None
        return SubcompactionFailure(
            compaction_id=self.compaction_id,
            index=0,
            kind=FailureKind.POISON,
            error=FormatError.__name__,
            message=f"its subcompactions read {read:,} rows, its files have {rows:,}: bounds of"
            " keys in the footer of one of them do not hold",
        )

    def _change(self) -> BucketChange:
        compaction = self.compaction
        results = [self._results[index] for index in range(len(self.subcompactions))]
        level = compaction.output_level
        upgraded = [replace(file, level=level) for file in compaction.upgraded]
        only_read = frozenset(file.file_name for file in compaction.looked_up)
        # What only changes its level keeps its vector, whatever that is by then.
        rewritten = {f.file_name for f in compaction.inputs} - {f.file_name for f in upgraded}
        return BucketChange(
            bucket=compaction.bucket,
            total_buckets=compaction.total_buckets,
            output_level=level,
            before=compaction.inputs,
            upgraded=tuple(upgraded),
            outputs=tuple(output for result in results for output in result.outputs),
            files_above=self._files_above,
            only_read=only_read,
            looks_up=compaction.looks_up,
            vectors={
                name: ref
                for name, ref in self.vectors.items()
                if name in rewritten or name in only_read
            },
            marks=tuple(mark for result in results for mark in result.marks),
            compaction_id=self.compaction_id,
        )


@dataclass(slots=True)
class CompactTotals:
    """What was published so far, and what was lost on the way. Sizes in bytes."""

    snapshots: list[int] = field(default_factory=list)
    compactions: int = 0
    files_in: int = 0
    files_out: int = 0
    upgraded_files: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows_in: int = 0
    rows_out: int = 0
    dropped: int = 0
    wasted_bytes: int = 0
    worker_cpu_s: float = 0.0
    peak_worker_rss_bytes: int = 0
    # From the first plan to the last snapshot, without the start of the engine.
    seconds: float = 0.0
    start_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    # Failures for lack of permission.
    denied: int = 0
    lost_snapshots: list[str] = field(default_factory=list)
    # Commits of writers that a late rename had lost, and that were committed again, as texts.
    lost_commits: list[str] = field(default_factory=list)
    orphans_removed: int = 0
    # Requested partitions that have no live files.
    absent_partitions: list[str] = field(default_factory=list)
    # Partitions with something to do that were skipped, and why.
    resting: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


class Progress(Protocol):
    """Receives the events of a run; must not block."""

    def planned(self, table: OpenTable, compaction: Compaction) -> None: ...

    def finished(self, in_flight: InFlight) -> None: ...

    def committed(self, snapshot_id: int) -> None: ...

    def waiting(self, wait_ms: int) -> None:
        """Our last snapshot stands for so long before anything is built on it."""
        ...
