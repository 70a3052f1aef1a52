"""The picture of the whole service at one moment: what metrics, HTTP, page and `top` show.

The loop makes one about once a second, out of memory, and publishes it; readers never wait for the
loop and never touch a store. Everything here is an immutable value with bounded size: buckets are
summed up, only the worst are named. Times are milliseconds since the epoch, 0 where there is none;
sizes are bytes. Should the wall clock have been set since, times are as if it had always been as it
was when the picture was made, so that ages are right.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from compactord.config.windows import WorkKind as WorkKind
from compactord.model import CompactReason
from compactord.model import Conflict as Conflict
from compactord.plan.table import TableKind
from compactord.state.rewrites import Rewrite


class TableName(NamedTuple):
    """What tells a table from all others of the service."""

    catalog: str
    database: str
    table: str

    def __str__(self) -> str:
        return ".".join(self)


class TableStatus(enum.Enum):
    """`excluded` tables are counted only: they have no view."""

    ACTIVE = "active"
    PAUSED = "paused"
    HALTED = "halted"
    UNSUPPORTED = "unsupported"
    EXCLUDED = "excluded"
    ERROR = "error"


class HaltReason(enum.Enum):
    UNSUPPORTED_FEATURE = "unsupported_feature"
    CORRUPT_METADATA = "corrupt_metadata"
    SCHEMA_UNREADABLE = "schema_unreadable"
    REPEATED_FAILURES = "repeated_failures"
    UNSAFE_COMMIT = "unsafe_commit"
    DATA_CHECK_FAILED = "data_check_failed"
    MANUAL = "manual"
    OTHER = "other"


class RunState(enum.Enum):
    """How a bucket's run count r stands against its triggers; the bands are disjoint."""

    IDLE = "idle"  # r < compaction-trigger
    DUE = "due"  # trigger <= r < stop - 1
    NEAR_STOP = "near_stop"  # stop - 1 <= r <= stop
    OVER_STOP = "over_stop"  # r > stop


class PriorityClass(enum.Enum):
    """Why work is where it is in the queue, the most urgent first."""

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
    """Why a table is left alone; `message` says what is wrong, `action` what to do."""

    reason: HaltReason
    message: str
    action: str
    since_ms: int
    next_try_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedBucket:
    """A bucket set aside after failures, tried again at `until_ms`."""

    partition: str
    bucket: int
    failures: int
    message: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestingPartition:
    """A partition with something to do that is left alone until `until_ms` after a rewrite."""

    partition: str
    rewrite: Rewrite
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What the table is; `warnings` are what it asks for and does not get.

    `rewrite` is the last commit by somebody whose next one may fail because of a compaction.

    `stop_trigger` is what its runs are measured against: where the table sets none,
    `alerts.stop_trigger_fallback` above its compaction trigger.
    """

    kind: str = ""
    bucket_mode: str = ""
    merge_engine: str = ""
    changelog_producer: str = ""
    write_only: bool = False
    compaction_trigger: int = 0
    stop_trigger: int = 0
    warnings: tuple[str, ...] = ()
    rewrite: Rewrite | None = None

    @property
    def usual_kind(self) -> WorkKind:
        """The kind of compactions that every table of its kind has."""
        return WorkKind.MINOR if self.kind == TableKind.PRIMARY_KEY.value else WorkKind.APPEND


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The live files in numbers. Runs and bands speak of primary-key tables only.

    `size_amplification_max` is (all runs but the oldest) / oldest of the worst bucket.
    """

    snapshot_id: int = 0
    snapshots: int = 0
    buckets: int = 0
    files: int = 0
    small_files: int = 0
    size_bytes: int = 0
    rows: int = 0
    sorted_runs_max: int = 0
    sorted_runs_avg: float = 0.0
    level0_files: int = 0
    level0_files_max: int = 0
    level0_files_avg: float = 0.0
    bucket_size_bytes_max: int = 0
    bucket_size_bytes_avg: float = 0.0
    avg_file_size_bytes_min: float = 0.0
    size_amplification_max: float = 0.0
    buckets_by_run_state: Mapping[RunState, int] = field(default_factory=dict)
    # Of the worst bucket as its files tell it, 0 where one never had any.
    last_full_compaction_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is due and not committed, running work included. `oldest_ms` 0: nothing is."""

    tasks: int = 0
    files: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCounters:
    """Everything that only grows while the table is served. Bytes and records of commits only."""

    compactions: Mapping[tuple[WorkKind, Outcome], int] = field(default_factory=dict)
    commits_committed: int = 0
    commits_gave_up: int = 0
    commits_error: int = 0
    commit_attempts: int = 0
    conflicts: Mapping[Conflict, int] = field(default_factory=dict)
    lost_snapshots: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    input_files: int = 0
    output_files: int = 0
    upgraded_files: int = 0
    input_records: int = 0
    output_records: int = 0
    wasted_bytes: int = 0
    ingested_bytes: int = 0
    changelog_files: int = 0
    changelog_records: int = 0
    compaction_seconds_sum: float = 0.0
    compaction_seconds_count: int = 0
    expired_snapshots: int = 0
    expired_files: int = 0
    expire_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One served table.

    `last_success_ms` has the kinds of compactions that succeeded, and from the first poll on the
    usual one, so that "never" alerts.
    """

    name: TableName
    location: str
    status: TableStatus
    halt: Halt | None
    error: str
    priority: int
    info: TableInfo
    shape: TableShape
    backlog: Backlog
    counters: TableCounters
    parked: tuple[ParkedBucket, ...]
    parked_count: int
    running_tasks: int
    discovery_interval_ms: int
    max_backlog_age_ms: int
    window_open: bool
    next_window_ms: int
    first_poll_ms: int
    last_poll_ms: int
    planned_snapshot_id: int
    last_commit_snapshot_id: int
    last_commit_ms: int
    last_success_ms: Mapping[WorkKind, int]
    consecutive_failures: int
    last_expire_ms: int
    # The first of them that are left alone, and how many there are.
    resting: tuple[RestingPartition, ...] = ()
    resting_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketView:
    """One of the buckets with the most sorted runs over all tables."""

    name: TableName
    partition: str
    bucket: int
    sorted_runs: int
    level0_files: int
    size_bytes: int
    compaction_trigger: int
    stop_trigger: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A compaction that waits or runs. `started_ms` 0: it waits since `queued_ms`."""

    name: TableName
    partition: str
    bucket: int
    kind: WorkKind
    reason: CompactReason
    priority_class: PriorityClass
    files: int
    size_bytes: int
    sorted_runs: int
    queued_ms: int
    started_ms: int
    parts: int
    parts_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionView:
    """A compaction that ended. `snapshot_id` 0: it was not committed, `message` says why."""

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
    finished_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """One catalog's listing of tables; `error` is empty when the last one succeeded."""

    name: str
    warehouse: str
    last_success_ms: int
    failures: int
    error: str
    excluded_tables: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopView:
    """A loop's sign of life; it is stale when older than `stale_after_ms`."""

    name: str
    heartbeat_ms: int
    stale_after_ms: int
    overruns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """Reloads of the configuration. `restart_required` are changed keys that wait for a restart."""

    path: str
    last_reload_successful: bool
    last_reload_success_ms: int
    error: str
    restart_required: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """Where merges run. Slots and memory are those of admission."""

    is_up: bool
    master: str
    restarts: int
    error: str
    slots: int
    running: int
    memory_budget_bytes: int
    memory_reserved_bytes: int
    task_peak_memory_bytes: int
    slot_busy_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All of it. `queue` names the first waiting ones; `queued` counts all by class.

    `now_ms` and `steady_ms` are when it was made, by the wall clock and in steady time.
    """

    instance: str
    version: str
    started_ms: int
    now_ms: int
    steady_ms: int
    is_started: bool
    is_draining: bool
    catalogs: tuple[CatalogView, ...]
    config: ConfigView
    engine: EngineView
    loops: tuple[LoopView, ...]
    tables: tuple[TableView, ...]
    tables_by_status: Mapping[tuple[str, TableStatus], int]
    queued: Mapping[PriorityClass, int]
    queue: tuple[TaskView, ...]
    running: tuple[TaskView, ...]
    recent: tuple[CompactionView, ...]
    top_buckets: tuple[BucketView, ...]
    picks: Mapping[tuple[WorkKind, CompactReason], int]

    def reading_ms(self, steady_ms: int) -> int:
        """What its clock shows then: it goes on, whether anybody sets the wall clock or not."""
        return self.now_ms + steady_ms - self.steady_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A sorted run; keys are texts, empty for files without keys."""

    level: int
    files: int
    rows: int
    size_bytes: int
    min_key: str
    max_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketDetail:
    """One bucket's LSM tree, newest run first. `runs` holds at most the newest 200 of them.

    `plan` says in a line what would be picked now and why, or that the partition rests; empty when
    nothing would be.
    """

    partition: str
    bucket: int
    sorted_runs: int
    files: int
    size_bytes: int
    runs: tuple[RunView, ...]
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail:
    """A look into one table: its worst buckets, by run count and size, at most `BUCKETS_MAX`."""

    view: TableView
    buckets: tuple[BucketDetail, ...]
    bucket_count: int


BUCKETS_MAX = 16


class Picture(Protocol):
    """What readers are given; both methods answer from memory and may be called by any thread."""

    def view(self) -> FleetView:
        """The newest picture."""
        ...

    def detail(self, name: TableName) -> TableDetail | None:
        """One table looked into, None when it is not served."""
        ...
