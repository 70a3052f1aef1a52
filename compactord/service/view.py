"""The view of the service at one moment, with or without a running service.

The loop makes one about once a second, from memory, and publishes it; readers never wait for the
loop and never touch a store. Everything here is an immutable value with bounded size: buckets are
summed up, only the worst are named. Times are milliseconds since the epoch, 0 where there is none;
sizes are bytes. All times are by the wall clock as it was set when the view was made, even those
from before it was set, so that ages are right.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from compactord.config.choices import Mode
from compactord.config.load import LoadedConfig
from compactord.config.policy import TablePolicy, exclusion, not_write_only, paused
from compactord.maintenance.holds import Hold
from compactord.model import CompactReason, TableName, WorkKind
from compactord.paimon.schema import TableRef
from compactord.plan.table import TableKind
from compactord.scheduler.compaction import (
    EndedCompaction,
    Halt,
    HaltReason,
    PriorityClass,
    Status,
    TableCounters,
)
from compactord.scheduler.halts import halt_of_hold
from compactord.table.explain import table_info
from compactord.table.opening import OpenTable
from compactord.table.status import (
    Backlog,
    BucketDetail,
    BucketView,
    RestingPartition,
    RunState,
    TableInfo,
    TableShape,
    run_state,
)


class TableStatus(enum.Enum):
    """What the service does about a table, or why it does nothing.

    `paused` and `excluded` by the configuration (excluded by a pattern, or not write-only), refused
    as `unsupported`, `halted` after failures; `error`: it is tried again soon.
    """

    ACTIVE = "active"
    PAUSED = "paused"
    HALTED = "halted"
    UNSUPPORTED = "unsupported"
    EXCLUDED = "excluded"
    ERROR = "error"


def status_and_why(
    alone: tuple[TableStatus, str] | None, halt: Halt | None, error: str
) -> tuple[TableStatus, str]:
    """A table's status and the reason for it, empty for active tables.

    `alone` is why the configuration leaves it alone: excluded, which comes before all, or paused,
    which comes after failures. `error` is that of the last attempt.
    """
    if alone is not None and alone[0] is TableStatus.EXCLUDED:
        return alone
    if halt is not None:
        refused = halt.reason is HaltReason.UNSUPPORTED_FEATURE
        return TableStatus.UNSUPPORTED if refused else TableStatus.HALTED, halt.message
    if error:
        return TableStatus.ERROR, error
    return alone or (TableStatus.ACTIVE, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedBucket:
    """A bucket quarantined after failures, tried again at `until_ms`.

    0: its files are damaged, and it is tried again when they change.
    """

    partition: str
    bucket: int
    failures: int
    message: str
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceView:
    """The rounds of one kind for a table, since the service started.

    Times are of the last one's begin, and of the last end without an error, 0 for none. `counts`
    say what they came to, by the names of counters.
    """

    began_ms: int = 0
    succeeded_ms: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One table that was discovered, whether it is worked on or not.

    `why` is the reason for its status, empty for active tables. `first_poll_ms` 0: its files have
    not been read, so its numbers say nothing. `last_success_ms` has the kinds of compactions that
    succeeded. `max_freshness_lag_ms` 0: not bounded. The defaults are those of a table of which no
    more is known.
    """

    name: TableName
    location: str
    status: TableStatus
    why: str
    halt: Halt | None = None
    error: str = ""
    priority: int = 0
    info: TableInfo = field(default_factory=TableInfo)
    shape: TableShape = field(default_factory=TableShape)
    backlog: Backlog = field(default_factory=Backlog)
    counters: TableCounters = field(default_factory=TableCounters)
    quarantined: tuple[QuarantinedBucket, ...] = ()
    quarantined_count: int = 0
    running_tasks: int = 0
    discovery_interval_ms: int = 0
    max_backlog_age_ms: int = 0
    max_freshness_lag_ms: int = 0
    window_open: bool = False
    next_window_ms: int = 0
    first_poll_ms: int = 0
    last_poll_ms: int = 0
    planned_snapshot_id: int = 0
    last_commit_snapshot_id: int = 0
    last_commit_ms: int = 0
    last_success_ms: Mapping[WorkKind, int] = field(default_factory=dict)
    consecutive_failures: int = 0
    last_expire_ms: int = 0
    # By kind, those that had a round.
    maintenance: Mapping[str, MaintenanceView] = field(default_factory=dict)
    # The first partitions skipped because they were rewritten lately, and how many there are.
    resting: tuple[RestingPartition, ...] = ()
    resting_count: int = 0

    @property
    def is_read(self) -> bool:
        return self.first_poll_ms > 0

    @property
    def run_state(self) -> RunState:
        """The band of its worst bucket."""
        info = self.info
        return run_state(self.shape.sorted_runs_max, info.compaction_trigger, info.stop_trigger)

    @property
    def has_sorted_runs(self) -> bool:
        """Whether runs, levels and triggers apply to the table."""
        return self.info.kind == TableKind.PRIMARY_KEY.value


def excluded_view(name: TableName, location: str, why: str) -> TableView:
    """A table that a pattern excludes: nothing is known of it but its name and place."""
    return TableView(name=name, location=location, status=TableStatus.EXCLUDED, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveCompaction:
    """A compaction that waits or is under way: `status` says how far it is, None: on offer.

    `started_ms` 0: it has waited since `queued_ms`.

    `compaction_id` 0: it is not decided yet.
    """

    compaction_id: int
    status: Status | None
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
    subcompactions: int
    subcompactions_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """One catalog's listing of tables; `error` is empty when the last one succeeded.

    `store_silent_since_ms`: since when its store or server has not answered: its tables wait.
    """

    name: str
    warehouse: str
    last_success_ms: int
    failures: int
    error: str
    store_silent_since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopView:
    """A loop's heartbeat; the loop is stale when it is older than `stale_after_ms`."""

    name: str
    heartbeat_ms: int
    stale_after_ms: int
    overruns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """Reloads of the configuration. `restart_required`: changed keys that need a restart."""

    path: str
    last_reload_successful: bool = True
    last_reload_success_ms: int
    error: str = ""
    restart_required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """Where merges run. Slots and memory are what it may use (`service/settings.py`).

    `lost_slots` are held by subcompactions that did not answer within their time limit.
    """

    is_up: bool = True
    master: str
    restarts: int
    error: str
    slots: int
    running: int
    lost_slots: int
    memory_budget_bytes: int
    memory_reserved_bytes: int
    task_peak_memory_bytes: int
    slot_busy_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
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
    queue: tuple[ActiveCompaction, ...]
    running: tuple[ActiveCompaction, ...]
    recent: tuple[EndedCompaction, ...]
    top_buckets: tuple[BucketView, ...]
    picks: Mapping[tuple[WorkKind, CompactReason], int]
    # Cycles, dispatches, sweeps and expiries that take too long to be at work, by what they do.
    hung_jobs: Mapping[str, int]
    # When the oldest work under way began that keeps snapshots from expiring.
    expiry_held_since_ms: int
    # Patterns of the configuration that match no table, each with its key and place.
    unmatched_patterns: tuple[str, ...] = ()
    # What `queued` counts, for each table that has any.
    queued_by_table: Mapping[TableName, Mapping[PriorityClass, int]] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        """Whether a service made it; `top` makes views of warehouses, of tables and commits."""
        return self.started_ms > 0

    def reading_ms(self, steady_ms: int) -> int:
        """The view's clock at a steady time; it runs on even when the wall clock is set."""
        return self.now_ms + steady_ms - self.steady_ms


class Setting(NamedTuple):
    """A setting's or an option's value, and the rule, default or table it comes from."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail:
    """One table with its worst buckets, by run count and size, and why it is treated so.

    A service has at most `BUCKETS_MAX` buckets. `rules` match the table; `closed_windows` are the
    kinds of work that may not start now, each with when they may; `poll` is how often it is polled.
    """

    view: TableView
    buckets: tuple[BucketDetail, ...]
    bucket_count: int
    rules: tuple[str, ...] = ()
    closed_windows: Mapping[WorkKind, str] = field(default_factory=dict)
    poll: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    options: Mapping[str, Setting] = field(default_factory=dict)


def total_queued(tables: Iterable[Mapping[PriorityClass, int]]) -> Mapping[PriorityClass, int]:
    """How many compactions of all these tables wait in each class."""
    total: Counter[PriorityClass] = Counter(dict.fromkeys(PriorityClass, 0))
    for counts in tables:
        total.update(counts)
    return dict(total)


class StatusSource(Protocol):
    """The readers' interface; both methods answer from memory and may be called by any thread."""

    def view(self) -> ServiceView:
        """The newest view."""
        ...

    def detail(self, name: TableName) -> TableDetail | None:
        """One table with its worst buckets, None when it is not served."""
        ...


def unmanaged_reason(
    loaded: LoadedConfig, name: TableName, branch: str, policy: TablePolicy, *, write_only: bool
) -> tuple[TableStatus, str] | None:
    """Why the service does not work on a table that it could; None: it does."""
    excluded = exclusion(loaded, name, branch)
    if excluded is not None:
        return TableStatus.EXCLUDED, excluded
    if policy.only_write_only and not write_only:
        return TableStatus.EXCLUDED, not_write_only(loaded, name)
    if policy.mode is Mode.PAUSED:
        return TableStatus.PAUSED, paused(loaded, name)
    return None


def unread_view(
    name: TableName, ref: TableRef, table: OpenTable | None, loaded: LoadedConfig
) -> TableView:
    """What is known of a table before its files are read; `table` None: not even its schema."""
    info = TableInfo()
    if table is not None:
        fallback = loaded.config.alerts.stop_trigger_fallback
        info = table_info(table, stop_trigger_fallback=fallback)
    return TableView(name=name, location=ref.location, status=TableStatus.ACTIVE, why="", info=info)


def offline_view(
    read: TableView,
    alone: tuple[TableStatus, str] | None,
    refused: Sequence[str],
    hold: Hold | None = None,
) -> TableView:
    """The table with its status and the reason; `read` has what could be read, and the error.

    `alone` as of `unmanaged_reason`; `refused` are reasons to refuse the table, `hold` is that in
    its folder.
    """
    halt = None if hold is None else halt_of_hold(hold, hold.since_ms)
    if refused:
        halt = Halt(reason=HaltReason.UNSUPPORTED_FEATURE, message="; ".join(refused))
    status, why = status_and_why(alone, halt, read.error)
    return replace(read, status=status, why=why, halt=halt)
