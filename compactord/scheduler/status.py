"""Outcomes of compactions, and why a table is halted."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from compactord.commit.changes import Conflict
from compactord.model import CompactReason, TableName, WorkKind


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounters:
    """Counters that only grow while the table is served. Bytes and records are those of commits."""

    compactions: Mapping[tuple[WorkKind, Outcome], int] = field(default_factory=dict)
    commits_committed: int = 0
    commits_gave_up: int = 0
    commits_error: int = 0
    commit_attempts: int = 0
    conflicts: Mapping[Conflict, int] = field(default_factory=dict)
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
