"""What is known of one table, in numbers and texts: immutable values with bounded size.

Times are milliseconds since the epoch, 0 where there is none; sizes are bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from compactord.model import WorkKind
from compactord.paimon.options.maintenance import MaintenanceOptions
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.table import TableKind
from compactord.state.rewrites import Rewrite

# A stop-trigger with this value never stops a writer.
_NEVER = 2**31 - 1


def measured_stop_trigger(options: CompactionOptions, fallback: int) -> int:
    """The effective stop trigger: `fallback` above the compaction trigger where none is set."""
    if options.stop_trigger >= _NEVER:
        return options.compaction_trigger + fallback
    return options.stop_trigger


class RunState(enum.Enum):
    """How a bucket's run count r stands against its triggers; the bands are disjoint."""

    IDLE = "idle"  # r < compaction-trigger
    DUE = "due"  # trigger <= r < stop - 1
    NEAR_STOP = "near_stop"  # stop - 1 <= r <= stop
    OVER_STOP = "over_stop"  # r > stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RestingPartition:
    """A partition with something to do that is skipped until `until_ms`, after a rewrite."""

    partition: str
    rewrite: Rewrite
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """What the table is; `warnings` name its options that have no effect here.

    `rewrite` is the last commit by somebody whose next one may fail because of a compaction.

    `readers_wait`: readers do not see rows before a compaction (`CompactionOptions.waiting_level`).
    `maintenance` is what its options ask for besides compaction.

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
    readers_wait: bool = False
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)

    @property
    def usual_kind(self) -> WorkKind:
        """The kind of compactions that every table of its kind has."""
        return WorkKind.MINOR if self.kind == TableKind.PRIMARY_KEY.value else WorkKind.APPEND


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The live files in numbers. Runs and bands are those of primary-key tables only.

    `size_amplification_max` is (all runs but the oldest) / oldest of the worst bucket,
    `deleted_rows_ratio_max` the rows that deletion vectors delete / rows, as far as they are known.
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
    # Of the worst bucket as its files tell it, 0 where one never had any.
    last_full_compaction_ms: int = 0
    # Since when the oldest row waits for a compaction before which readers do not see it.
    waiting_since_ms: int = 0
    # The creation of the newest live file that a compaction wrote or moved up, and of the oldest
    # that one should take: on level 0, or without keys a small one, and written by no compaction.
    last_compacted_file_ms: int = 0
    earliest_uncompacted_file_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is due and not committed, running work included. `oldest_ms` 0: nothing is."""

    tasks: int = 0
    files: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0


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

    `plan` says in a line what would be picked now and why, or that the partition is skipped; empty
    when nothing would be picked.
    """

    partition: str
    bucket: int
    sorted_runs: int
    files: int
    size_bytes: int
    runs: tuple[RunView, ...]
    plan: str


BUCKETS_MAX = 16
