"""Jobs of one table: requests, results and totals, and compactions in flight."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import structlog

from compactord.commit.changes import BucketChange, CommitOutcome, LostCommit
from compactord.errors import CompactordError, DataFileDamaged, DataFileMissing, ErrorKind
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
from compactord.table.status import Backlog, BucketView, CoolingPartition, TableInfo, TableShape
from compactord.verify.holds import Hold


class Phase(enum.Enum):
    """The phase of a table's job, for heartbeats."""

    PLAN = "planner"
    COMMIT = "committer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The table's status and what is due. `appended_bytes` were added since the last plan.

    `workable` is the part of the backlog that may begin, `blocked` the part in skipped buckets.
    """

    snapshot_id: int
    info: TableInfo
    shape: TableShape
    offered: tuple[PendingCompaction, ...]
    backlog: Backlog
    workable: Backlog
    blocked: Backlog
    top: tuple[BucketView, ...]
    discovery_interval_ms: int
    appended_bytes: int
    # Buckets that no longer have files.
    emptied: frozenset[BucketId] = frozenset()
    manifests_read: int
    entries_read: int
    entries_skipped: int
    seconds: float
    cooling_down: tuple[CoolingPartition, ...] = ()
    # Buckets that cannot be planned; all other buckets are.
    damaged: tuple[DamagedBucket, ...] = ()

    @property
    def offers_all(self) -> bool:
        """Whether every due bucket is among the offered ones."""
        return self.backlog.tasks <= sum(pending.tasks for pending in self.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommit:
    """A commit of any compactord process; `ended_ms` is steady."""

    snapshot_id: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsReplaced:
    """Another writer replaced and expired an input before it was read."""

    why: str


# Another writer replaced and expired an input, or a live file is missing or damaged.
Cause: TypeAlias = InputsReplaced | DataFileMissing | DataFileDamaged


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """The outcome of a cycle. `planned` is None without news since the last one.

    `error` ended it: in the commit when `in_commit`, else in polling the table. None of the
    compactions passed in is running any more.
    """

    commit: CommitOutcome | None = None
    commit_seconds: float = 0.0
    planned: Planned | None = None
    lost_snapshots: tuple[str, ...] = ()
    replaced_snapshots: int = 0
    error: CompactordError | None = None
    in_commit: bool = False
    # Why manifests that wait for no compaction could not be merged; the plan is still valid.
    merge_error: CompactordError | None = None
    # The table's facts, or None if nothing new was read.
    info: TableInfo | None = None
    # Known causes of compactions that failed because an input was missing or damaged.
    causes: Mapping[int, Cause | None] = field(default_factory=dict)
    # Commits that writers lost to late renames, restored or not.
    lost_commits: tuple[LostCommit, ...] = ()
    # Our last commit according to the table's snapshots; only after a start.
    last_commit: OwnCommit | None = None
    # Milliseconds until our newest snapshot is safe to build on; `planned` is None meanwhile.
    wait_ms: int = 0
    # The last known reason why no file of the table is deleted.
    hold: Hold | None = None


_log = structlog.get_logger()


class InFlight:
    """A compaction from its cutting into subcompactions until a cycle has dealt with its result.

    The caller takes from `waiting` what it submits, and records each outcome. `neighbours` are the
    files of a merge's bucket at planning time, `vectors` the deletion vectors of the bucket,
    `snapshot_id` is the planned snapshot's.
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
        # The change to publish, or a final failure; None while outcomes are outstanding.
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
        """The new files of subcompactions that succeeded; delete them unless they are published."""
        return tuple(output for each in self._results.values() for output in each.outputs)

    def ended(self) -> BucketChange | SubcompactionFailure | None:
        """`result`, computed once no outcome is outstanding.

        One without subcompactions, which only moves files to another level, has finished at once.
        """
        if not self._outstanding and self.result is None:
            self.result = self._failure or self._miscounted() or self._change()
        return self.result

    def record_outcome(
        self, outcome: SubcompactionOutcome, table: TableName, *, attempts_max: int
    ) -> BucketChange | SubcompactionFailure | None:
        """Records an outcome and returns what `ended` returns.

        A subcompaction with a temporary failure waits again, up to `attempts_max` attempts in all.
        After a final failure the waiting subcompactions are cancelled.
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

        A subcompaction of a key range skips row groups by their bounds, which no checksum
        covers. A single one that reads whole files counts their rows itself.
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
            error=ErrorKind.FORMAT_ERROR,
            message=f"its subcompactions read {read:,} rows, its files have {rows:,}: bounds of"
            " keys in the footer of one of them do not hold",
        )

    def _change(self) -> BucketChange:
        compaction = self.compaction
        results = [self._results[index] for index in range(len(self.subcompactions))]
        level = compaction.output_level
        upgraded = [replace(file, level=level) for file in compaction.upgraded]
        only_read = frozenset(file.file_name for file in compaction.looked_up)
        # A file that only changes its level keeps its vector, even a newer one.
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
    """Published work of a run so far, and its losses. Sizes in bytes."""

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
        """Called when our last snapshot must settle for `wait_ms` before more is built on it."""
        ...
