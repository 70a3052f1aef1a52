"""The lifecycle of one compaction, and status values for views.

The page, the metrics, the log and the API read it here. An ended compaction is kept as an
`EndedCompaction`, with its outcome and the reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from compactord.errors import ErrorKind
from compactord.model import (
    CompactReason,
    Conflict,
    FailureKind,
    SubcompactionFailure,
    TableName,
    WorkKind,
)
from compactord.text import age_text

if TYPE_CHECKING:
    from compactord.scheduler.scheduled_table import ScheduledTable
    from compactord.table.backlog import PendingCompaction
    from compactord.table.jobs import InFlight


class HaltReason(enum.Enum):
    UNSUPPORTED_FEATURE = "unsupported_feature"
    CORRUPT_METADATA = "corrupt_metadata"
    SCHEMA_UNREADABLE = "schema_unreadable"
    REPEATED_FAILURES = "repeated_failures"
    UNSAFE_COMMIT = "unsafe_commit"
    DATA_CHECK_FAILED = "data_check_failed"
    # Also the index file of its deletion vectors. For a bucket: the table's other buckets go on.
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
    """Why a table is halted; `message` is the cause, `action` what to do.

    `since_ms` is 0 if no process works on the table.
    """

    reason: HaltReason
    message: str
    action: str = ""
    since_ms: int = 0
    next_try_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCompaction:
    """A compaction that ended. `snapshot_id` is 0 if it failed; `message` has the reason."""

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
    """Counters that only grow while the table is served. Bytes and records count commits."""

    compactions: dict[tuple[WorkKind, Outcome], int] = field(default_factory=dict)
    commits_committed: int = 0
    commits_gave_up: int = 0
    commits_error: int = 0
    commit_attempts: int = 0
    conflicts: dict[Conflict, int] = field(default_factory=dict)
    lost_snapshots: int = 0
    # Commits of writers that late renames lost: restored, or not.
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
    # CPU time of workers, for all merges that succeeded, published or not.
    worker_cpu_seconds: float = 0.0
    expired_snapshots: int = 0
    expired_files: int = 0
    expire_failures: int = 0

    def copy(self) -> TableCounters:
        """A copy of the counters, for views."""
        return replace(self, compactions=self.compactions.copy(), conflicts=self.conflicts.copy())


class Status(enum.Enum):
    """The progress of a compaction; each status follows the one before it."""

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
    # The start of its bucket's wait, and when it was chosen.
    queued_ms: int
    chosen_ms: int
    status: Status = Status.PLANNED
    # When its first subcompaction was submitted to the engine.
    started_ms: int = 0
    finished_ms: int = 0
    # Whether it started after the table's plan, which then does not count it.
    started_after_plan: bool = False
    # Its outcome, as soon as that is known; its files may still await removal.
    outcome: Outcome | None = None
    # The result of its dispatch, None before.
    dispatched: InFlight | None = None

    def mark_submitted(self, now_ms: int) -> bool:
        """Records that a subcompaction was submitted; returns whether it is the first."""
        self.status = Status.RUNNING
        is_first = not self.started_ms
        self.started_ms = self.started_ms or now_ms
        return is_first

    def finished(self, now_ms: int) -> None:
        """Records that all its subcompactions have ended at the engine."""
        self.status, self.finished_ms = Status.FINISHED, now_ms

    @property
    def in_flight(self) -> InFlight:
        assert self.dispatched is not None, "it has been dispatched"
        return self.dispatched

    @property
    def failure(self) -> SubcompactionFailure | None:
        """The final failure, or None."""
        result = self.in_flight.result
        return result if isinstance(result, SubcompactionFailure) else None

    @property
    def has_result(self) -> bool:
        """Whether its workers have finished."""
        result = None if self.dispatched is None else self.dispatched.result
        return result is not None and not isinstance(result, SubcompactionFailure)

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
        """About how much each of its subcompactions reads, as planned or as last chosen."""
        chosen = self.in_flight.compaction.input_bytes
        return max(self.pending.size_bytes, chosen) // len(self.in_flight.subcompactions)

    def timed_out(self, index: int, *, size_bytes: int, seconds: int) -> None:
        """Ends it, because a subcompaction had no outcome within its time limit."""
        partition = self.in_flight.partition
        where = f"bucket {self.pending.bucket.bucket}" + (f" of {partition}" if partition else "")
        part = f"subcompaction {index + 1} of {len(self.in_flight.subcompactions)}"
        self.in_flight.abandon(
            SubcompactionFailure(
                compaction_id=self.compaction_id,
                index=index,
                kind=FailureKind.POISON,
                error=ErrorKind.TIME_LIMIT_PASSED,
                message=f"{where}: {part}, about {size_bytes:,} bytes, had no outcome within its"
                f" time limit of {age_text(1000 * seconds)} and was cancelled",
            )
        )
