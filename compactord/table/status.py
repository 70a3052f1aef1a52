"""The status of one table: immutable values of bounded size. Quick to import, for clients.

Times are milliseconds since the epoch, 0 where there is none; sizes are bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from compactord.model import CompactReason, TableKind, TableName, WorkKind
from compactord.state.rewrites import Rewrite


class RunState(enum.Enum):
    """A bucket's run count r compared with its triggers; the bands are disjoint."""

    IDLE = "idle"  # r < compaction-trigger
    DUE = "due"  # trigger <= r < stop - 1
    NEAR_STOP = "near_stop"  # stop - 1 <= r <= stop
    OVER_STOP = "over_stop"  # r > stop

    @property
    def mark(self) -> str:
        """The mark after a run count in tables of text."""
        return {RunState.IDLE: "", RunState.OVER_STOP: " !!"}.get(self, " *")


def is_near_stop(runs: int, stop_trigger: int) -> bool:
    """Whether a run count is about to reach the stop trigger, or above it."""
    return runs >= stop_trigger - 1


def run_state(runs: int, compaction_trigger: int, stop_trigger: int) -> RunState:
    """The band of a run count; `IDLE` if triggers are 0, for tables without sorted runs."""
    if not compaction_trigger or runs < min(compaction_trigger, stop_trigger - 1):
        return RunState.IDLE
    if runs > stop_trigger:
        return RunState.OVER_STOP
    return RunState.NEAR_STOP if is_near_stop(runs, stop_trigger) else RunState.DUE


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolingPartition:
    """A partition with something to do that is skipped until `until_ms`, after a rewrite."""

    partition: str
    rewrite: Rewrite
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """Facts about the table; `warnings` name its options that have no effect here.

    `rewrite` is the last rewrite by a user whose next one may fail because of a compaction.
    `readers_wait`: readers do not see rows before a compaction (`CompactionOptions.waiting_level`).
    `maintenance` are the kinds that its options request (`MaintenanceOptions.requested`).

    `stop_trigger` is the bound for its runs: if the table sets none,
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
    readers_wait: bool = False
    maintenance: Mapping[str, int] = field(default_factory=dict)

    @property
    def usual_kind(self) -> WorkKind:
        """The kind of compactions that every table of its kind has."""
        return WorkKind.MINOR if self.kind == TableKind.PRIMARY_KEY.value else WorkKind.APPEND


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The live files in numbers. Runs and bands count primary-key tables only.

    `size_amplification_max` is (all runs but the oldest) / oldest of the worst bucket,
    `deleted_rows_ratio_max` the known rows deleted by deletion vectors / rows.
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
    deleted_rows_ratio_max: float = 0.0
    buckets_by_run_state: Mapping[RunState, int] = field(default_factory=dict)
    # The worst bucket's value, estimated from its files; 0 if a bucket never had one.
    last_full_compaction_ms: int = 0
    # Write time of the oldest row that readers cannot see before a compaction.
    waiting_since_ms: int = 0
    # The creation of the newest live file that a compaction wrote or moved up, and of the oldest
    # uncompacted one that needs a compaction: on level 0, or small in tables without keys.
    last_compacted_file_ms: int = 0
    earliest_uncompacted_file_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Uncommitted due work, running work included. `oldest_ms` is 0 if no work is due."""

    tasks: int = 0
    files: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0

    @classmethod
    def total(cls, parts: Collection[Backlog]) -> Backlog:
        """The sum of backlogs, as old as the oldest."""
        return cls(
            tasks=sum(part.tasks for part in parts),
            files=sum(part.files for part in parts),
            size_bytes=sum(part.size_bytes for part in parts),
            oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms), default=0),
        )


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
    """One bucket's LSM tree, newest run first, and its plan.

    `runs` holds at most the newest 200 runs. `plan` is a line about the current pick, or about a
    skipped partition; it is empty without a pick. `what`, `kind` and `reason` describe the first
    pick; without one they are empty and None. `later` is the change or time that would make a
    compaction due. `readers_wait`: readers wait for rows that the pick would show.
    """

    partition: str
    bucket: int
    sorted_runs: int
    files: int
    size_bytes: int
    runs: tuple[RunView, ...] = ()
    plan: str = ""
    kind: WorkKind | None = None
    reason: CompactReason | None = None
    what: str = ""
    why: str = ""
    later: str = ""
    readers_wait: bool = False


BUCKETS_MAX = 16


_UNNAMED = TableName("", "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketView:
    """One of the buckets with the most sorted runs; a table does not know its catalog's name."""

    name: TableName = _UNNAMED
    partition: str
    bucket: int
    sorted_runs: int
    level0_files: int
    size_bytes: int
    compaction_trigger: int
    stop_trigger: int
