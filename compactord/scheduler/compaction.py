"""The lifecycle of one compaction, and status values for views.

The page, the metrics, the log and the API read it from here. What has ended lives on as an
`EndedCompaction`, with its outcome and the reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from compactord.commit.changes import BucketChange, Conflict
from compactord.model import CompactReason, FailureKind, SubcompactionFailure, TableName, WorkKind
from compactord.table.backlog import PendingCompaction
from compactord.table.jobs import InFlight

if TYPE_CHECKING:
    from compactord.scheduler.scheduled_table import ScheduledTable


class HaltReason(enum.Enum):
    UNSUPPORTED_FEATURE = "unsupported_feature"
    CORRUPT_METADATA = "corrupt_metadata"
    SCHEMA_UNREADABLE = "schema_unreadable"
    REPEATED_FAILURES = "repeated_failures"
    UNSAFE_COMMIT = "unsafe_commit"
    DATA_CHECK_FAILED = "data_check_failed"
    # Or the index file of its deletion vectors. Of a bucket: the table's others go on.
    DATA_FILE_MISSING = "data_file_missing"


class PriorityClass(enum.Enum):
    """The class of work in the queue, the most urgent first."""

    FRESHNESS = "freshness"
    FORCED = "forced"
    BREACH = "breach"
    BENEFIT = "benefit"


class Outcome(enum.Enum):
    """How a compaction ended."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Why a table is halted; `message` says what is wrong, `action` what to do.

    `since_ms` 0: nobody works on it.
    """

    reason: HaltReason
    message: str
    action: str = ""
    since_ms: int = 0
    next_try_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCompaction:
    """A compaction that ended. `snapshot_id` 0: it was not committed, `message` says why."""

    compaction_id: int
    name: TableName
    partition: str
    bucket: int
    kind: WorkKind
    reason: CompactReason
    outcome: Outcome
    message: str
    snapshot_id: int
    files_in: int
    files_out: int
    upgraded_files: int
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_out: int
    seconds: float
    cpu_seconds: float = 0.0
    finished_ms: int


@dataclass(slots=True, kw_only=True)
class TableCounters:
    """Counters that only grow while the table is served. Bytes and records are those of commits."""

    compactions: dict[tuple[WorkKind, Outcome], int] = field(default_factory=dict)
    commits_committed: int = 0
    commits_gave_up: int = 0
    commits_error: int = 0
    commit_attempts: int = 0
    conflicts: dict[Conflict, int] = field(default_factory=dict)
    lost_snapshots: int = 0
    # Commits of writers that late renames lost: committed again, or not.
    lost_commits_healed: int = 0
    lost_commits_halted: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    input_files: int = 0
    output_files: int = 0
    upgraded_files: int = 0
    input_records: int = 0
    output_records: int = 0
    wasted_bytes: int = 0
    ingested_bytes: int = 0
    compaction_seconds_sum: float = 0.0
    compaction_seconds_count: int = 0
    # Of workers, for merges that succeeded, whatever became of them then.
    worker_cpu_seconds: float = 0.0
    expired_snapshots: int = 0
    expired_files: int = 0
    expire_failures: int = 0

    def copy(self) -> TableCounters:
        """The counters of now, for views."""
        return replace(self, compactions=self.compactions.copy(), conflicts=self.conflicts.copy())


# What `SubcompactionFailure.error` says of a subcompaction whose time limit has passed.
TIMED_OUT = "TimeLimitPassed"


class Status(enum.Enum):
    """How far a compaction is; each status follows the one before it."""

    PLANNED = "planned"  # chosen; a thread cuts it into subcompactions
    DISPATCHED = "dispatched"  # cut; no subcompaction has been submitted
    RUNNING = "running"
    FINISHED = "finished"  # succeeded or failed at the workers; waits for the table's next cycle
    COMMITTING = "committing"  # a cycle publishes it, or removes its files


IN_FLIGHT = frozenset({Status.DISPATCHED, Status.RUNNING, Status.FINISHED})


@dataclass(slots=True, kw_only=True, eq=False)
class CompactionRecord:
    """Mutable, owned by the loop. Times are steady (`Clock.steady_ms`); 0 means not yet."""

    table: ScheduledTable
    compaction_id: int
    pending: PendingCompaction
    priority_class: PriorityClass
    # Since when its bucket had waited, and when it was chosen.
    queued_ms: int
    chosen_ms: int
    status: Status = Status.PLANNED
    # When its first subcompaction was submitted to the engine.
    started_ms: int = 0
    finished_ms: int = 0
    # Whether the table's plan was made beside it, and so does not count it.
    started_after_plan: bool = False
    # How it ended, as soon as that is known; its files may still have to be removed.
    outcome: Outcome | None = None
    # What its dispatch has made of it; None before.
    dispatched: InFlight | None = None

    def begun(self, now_ms: int) -> bool:
        """A subcompaction is submitted; whether it is the first."""
        self.status = Status.RUNNING
        is_first = not self.started_ms
        self.started_ms = self.started_ms or now_ms
        return is_first

    def finished(self, now_ms: int) -> None:
        """Nothing of it is at the engine any more."""
        self.status, self.finished_ms = Status.FINISHED, now_ms

    @property
    def in_flight(self) -> InFlight:
        assert self.dispatched is not None, "it has been dispatched"
        return self.dispatched

    @property
    def failure(self) -> SubcompactionFailure | None:
        """Why it failed for good."""
        result = self.in_flight.result
        return result if isinstance(result, SubcompactionFailure) else None

    @property
    def has_result(self) -> bool:
        """Whether its workers have finished."""
        return self.dispatched is not None and isinstance(self.dispatched.result, BucketChange)

    @property
    def is_under_way(self) -> bool:
        """Whether it waits for slots or has some."""
        return self.status in (Status.DISPATCHED, Status.RUNNING)

    @property
    def has_waiting(self) -> bool:
        """Whether a subcompaction waits for a slot."""
        return self.is_under_way and bool(self.in_flight.waiting)

    @property
    def subcompaction_bytes(self) -> int:
        """About how much each of its subcompactions reads, as planned or as chosen at last."""
        chosen = self.in_flight.compaction.input_bytes
        return max(self.pending.size_bytes, chosen) // len(self.in_flight.subcompactions)

    def timed_out(self, index: int, *, size_bytes: int, seconds: int) -> None:
        """End it, because a subcompaction had no outcome within its time limit."""
        partition = self.in_flight.partition
        where = f"bucket {self.pending.bucket.bucket}" + (f" of {partition}" if partition else "")
        part = f"subcompaction {index + 1} of {len(self.in_flight.subcompactions)}"
        self.in_flight.abandon(
            SubcompactionFailure(
                compaction_id=self.compaction_id,
                index=index,
                kind=FailureKind.POISON,
                error=TIMED_OUT,
                message=f"{where}: {part}, about {size_bytes:,} bytes, had no outcome within its"
                f" time limit of {seconds:,} s and was cancelled",
            )
        )
