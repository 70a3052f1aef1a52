"""The view of the service at one moment, with or without a running service.

The loop makes one about once a second, from memory, and publishes it; readers never wait for the
loop and never touch a store. All values are immutable and bounded in size: buckets are summed up,
only the worst are named. Times are milliseconds since the epoch, 0 for none; sizes are bytes. All
times, even earlier ones, follow the wall clock as set when the view was made, so ages are right.

Only a service knows which tables it has halted and which buckets it has quarantined.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from compactord.model import CompactReason, TableKind, TableName, WorkKind
from compactord.scheduler.compaction import (
    EndedCompaction,
    Halt,
    HaltReason,
    PriorityClass,
    Status,
    TableCounters,
)
from compactord.table.status import (
    Backlog,
    BucketDetail,
    BucketView,
    CoolingPartition,
    RunState,
    TableInfo,
    TableShape,
    run_state,
)

# Slow to import, and only views without a service need them.
if TYPE_CHECKING:
    from compactord.config.load import LoadedConfig
    from compactord.config.policy import TablePolicy
    from compactord.paimon.schema import TableRef
    from compactord.table.opening import OpenTable
    from compactord.verify.holds import Hold


class TableStatus(enum.Enum):
    """The state of a table in the service.

    The configuration pauses or excludes a table (by a pattern, or because it is not write-only).
    `unsupported` tables are refused, `halted` ones failed. After an `error` the service retries
    soon. A `degraded` table has quarantined buckets; only its other buckets are compacted.
    """

    ACTIVE = "active"
    PAUSED = "paused"
    HALTED = "halted"
    UNSUPPORTED = "unsupported"
    EXCLUDED = "excluded"
    ERROR = "error"
    DEGRADED = "degraded"


def status_and_why(
    unmanaged: tuple[TableStatus, str] | None, halt: Halt | None, error: str, quarantine: str = ""
) -> tuple[TableStatus, str]:
    """A table's status and the reason for it, empty for active tables.

    `unmanaged` is why the configuration stops work on it: excluded, which outranks all, or paused,
    which ranks below failures. `error` is the last attempt's, `quarantine` names the quarantined
    buckets. A paused table with quarantined buckets stays paused, as no other bucket is compacted
    either, and has both reasons.
    """
    if unmanaged is not None and unmanaged[0] is TableStatus.EXCLUDED:
        return unmanaged
    if halt is not None:
        refused = halt.reason is HaltReason.UNSUPPORTED_FEATURE
        return TableStatus.UNSUPPORTED if refused else TableStatus.HALTED, halt.message
    if error:
        return TableStatus.ERROR, error
    status, why = unmanaged or (TableStatus.ACTIVE, "")
    if quarantine:
        return (TableStatus.DEGRADED, quarantine) if not why else (status, f"{why}; {quarantine}")
    return status, why


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineView:
    """A bucket quarantined after failures, retried at `until_ms`.

    `until_ms` is 0 if its files are damaged; then it is retried when they change. `action` is what
    an operator can do.
    """

    partition: str
    bucket: int
    failures: int
    message: str
    until_ms: int
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceView:
    """The rounds of one kind for a table, since the service started.

    Times are the last start and the last end without an error, 0 for none. `counts` are the totals
    of all rounds, by the names of counters. `why_not` is why the last round failed or ended early,
    empty if it did neither.
    """

    began_ms: int = 0
    succeeded_ms: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One discovered table, managed or not.

    `why` is the reason for its status, empty for active tables. Until `first_poll_ms` is set, its
    files have not been read and its numbers mean nothing. `blocked` is due work that waits for the
    end of a halt or quarantine; the backlog does not count it. `last_success_ms` has the kinds of
    compactions that succeeded. `max_freshness_lag_ms` is 0 without a bound. The defaults describe
    an unread table.
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
    blocked: Backlog = field(default_factory=Backlog)
    counters: TableCounters = field(default_factory=TableCounters)
    quarantined: tuple[QuarantineView, ...] = ()
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
    last_expire_failed: bool = False
    # By kind; only kinds that had a round.
    maintenance: Mapping[str, MaintenanceView] = field(default_factory=dict)
    # The first partitions skipped because they were rewritten recently, and the number of all.
    resting: tuple[CoolingPartition, ...] = ()
    resting_count: int = 0

    @property
    def is_read(self) -> bool:
        return self.first_poll_ms > 0

    @property
    def is_managed(self) -> bool:
        """Whether the configuration neither pauses nor excludes it."""
        return self.status not in (TableStatus.PAUSED, TableStatus.EXCLUDED)

    @property
    def run_state(self) -> RunState:
        """The band of the worst bucket's run count."""
        info = self.info
        return run_state(self.shape.sorted_runs_max, info.compaction_trigger, info.stop_trigger)

    @property
    def has_sorted_runs(self) -> bool:
        """Whether runs, levels and triggers apply to the table."""
        return self.info.kind == TableKind.PRIMARY_KEY.value


def excluded_view(name: TableName, location: str, why: str) -> TableView:
    """A table that a pattern excludes: only its name and location are known."""
    return TableView(name=name, location=location, status=TableStatus.EXCLUDED, why=why)


def unreachable_view(table: TableView, error: str) -> TableView:
    """A table that was not read since the start, because its catalog or store does not answer."""
    why = f"unreachable: {error}"
    return replace(table, status=TableStatus.ERROR, why=why, error=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveCompaction:
    """A waiting or running compaction; `status` is None while it is only offered.

    `started_ms` is 0 while it waits, since `queued_ms`. `compaction_id` is 0 until it is decided.
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
    """One catalog's listing of tables; `error` is empty if the last one succeeded.

    Its tables wait while `store_silent_since_ms` is set: since then its store or server has not
    answered.
    """

    name: str
    warehouse: str
    last_success_ms: int
    failures: int
    error: str
    store_silent_since_ms: int = 0

    @property
    def trouble(self) -> str:
        """Why its tables may be incomplete, empty if its last listing succeeded."""
        if self.last_success_ms:
            return self.error
        return f"never listed since the start{': ' if self.error else ''}{self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopView:
    """A loop's heartbeat; the loop is stale if it is older than `stale_after_ms`."""

    name: str
    heartbeat_ms: int
    stale_after_ms: int
    overruns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigView:
    """Reloads of the configuration. `restart_required` has changed keys that need a restart."""

    path: str
    last_reload_successful: bool = True
    last_reload_success_ms: int
    error: str = ""
    restart_required: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """Where merges run. Slots and memory are its limits (`service/settings.py`).

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
    """The whole view. `queue` has the first waiting compactions; `queued` counts all by class.

    `now_ms` and `steady_ms` are its creation by the wall clock and in steady time.
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
    # Cycles, dispatches, sweeps and expiries that probably hang, by their work.
    hung_jobs: Mapping[str, int]
    # Start of the oldest running work that keeps snapshots from expiring.
    expiry_held_since_ms: int
    # Patterns of the configuration that match no table, each with its key and place.
    unmatched_patterns: tuple[str, ...] = ()
    # The counts of `queued` per table with waiting compactions.
    queued_by_table: Mapping[TableName, Mapping[PriorityClass, int]] = field(default_factory=dict)

    @property
    def is_served(self) -> bool:
        """Whether a service made it; `top` makes views of warehouses itself, from their tables."""
        return self.started_ms > 0

    @property
    def managed(self) -> list[TableView]:
        """The tables whose work counts as backlog of the service."""
        return [table for table in self.tables if table.is_managed]

    def reading_ms(self, steady_ms: int) -> int:
        """The view's clock at a steady time; setting the wall clock does not affect it."""
        return self.now_ms + steady_ms - self.steady_ms


class Setting(NamedTuple):
    """A setting's or an option's value, and the rule, default or table it comes from."""

    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail:
    """One table with its worst buckets, by run count and size, and why it is treated so.

    A service has at most `BUCKETS_MAX` buckets. `rules` match the table; `similar_rules` nearly
    have its name while no rule matches; `closed_windows` are the
    kinds of work that may not start now, each with when they may; `poll` is how often it is polled.
    """

    view: TableView
    buckets: tuple[BucketDetail, ...]
    bucket_count: int
    rules: tuple[str, ...] = ()
    similar_rules: tuple[str, ...] = ()
    closed_windows: Mapping[WorkKind, str] = field(default_factory=dict)
    poll: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    options: Mapping[str, Setting] = field(default_factory=dict)


def total_queued(tables: Iterable[Mapping[PriorityClass, int]]) -> Mapping[PriorityClass, int]:
    """The number of waiting compactions of all these tables by class."""
    total: Counter[PriorityClass] = Counter(dict.fromkeys(PriorityClass, 0))
    for counts in tables:
        total.update(counts)
    return dict(total)


class StatusSource(Protocol):
    """The readers' interface; both methods answer from memory and are thread-safe."""

    def view(self) -> ServiceView:
        """The newest view."""
        ...

    def detail(self, name: TableName) -> TableDetail | None:
        """One table with its worst buckets, or None if it is not served."""
        ...


def unmanaged_reason(
    loaded: LoadedConfig, name: TableName, branch: str, policy: TablePolicy, *, write_only: bool
) -> tuple[TableStatus, str] | None:
    """Why the configuration stops work on a supported table, or None."""
    from compactord.config.choices import Mode
    from compactord.config.policy import exclusion, not_write_only, paused

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
    """A table's view before its files are read; `table` is None if its schema is unknown too."""
    info = TableInfo()
    if table is not None:
        from compactord.table.explain import table_info

        fallback = loaded.config.alerts.stop_trigger_fallback
        info = table_info(table, stop_trigger_fallback=fallback)
    return TableView(name=name, location=ref.location, status=TableStatus.ACTIVE, why="", info=info)


def offline_view(
    read: TableView,
    unmanaged: tuple[TableStatus, str] | None,
    refused: Sequence[str],
    hold: Hold | None = None,
) -> TableView:
    """The table with its status and the reason; `read` has its readable facts and the error.

    `unmanaged` is from `unmanaged_reason`; `refused` are reasons to refuse the table, `hold` is the
    hold in its folder.
    """
    from compactord.scheduler.halts import halt_of_hold

    halt = None if hold is None else halt_of_hold(hold, hold.since_ms)
    if refused:
        halt = Halt(reason=HaltReason.UNSUPPORTED_FEATURE, message="; ".join(refused))
    status, why = status_and_why(unmanaged, halt, read.error)
    return replace(read, status=status, why=why, halt=halt)
