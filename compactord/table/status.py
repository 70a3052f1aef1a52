"""The status of one table: immutable values of bounded size.

Times are milliseconds since the epoch, 0 where there is none; sizes are bytes.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from compactord.catalog.access import TableAccess
from compactord.clock import local_ms
from compactord.model import CompactReason, TableName, WorkKind
from compactord.paimon.data_file import BucketFiles, BucketId, DataFile
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.paimon.options.merge import USUAL_PREFIX
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.table import TableKind
from compactord.state.base_files import BucketSummaries
from compactord.state.columns import FileTimes
from compactord.state.rewrites import Rewrite
from compactord.state.table_state import TableState
from compactord.storage.calls import DeleteRateLimiter
from compactord.table.planning import StatePlanner

# A stop-trigger with this value never stops a writer.
_NEVER = 2**31 - 1


def measured_stop_trigger(options: CompactionOptions, fallback: int) -> int:
    """The effective stop trigger: `fallback` above the compaction trigger if none is set."""
    if options.stop_trigger >= _NEVER:
        return options.compaction_trigger + fallback
    return options.stop_trigger


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


def table_shape(
    planner: StatePlanner,
    summaries: BucketSummaries,
    times: FileTimes,
    *,
    snapshots: int,
    small_files: int,
    stop_trigger: int,
) -> TableShape:
    """The numbers of the planner's state; runs are measured against `stop_trigger`."""
    state, context, options = planner.state, planner.context, planner.request.options
    has_runs = planner.request.kind is TableKind.PRIMARY_KEY
    runs, level0, sizes = summaries.run_count, summaries.level0_count, summaries.size_bytes
    file_sizes = sizes / np.maximum(1, summaries.file_count)
    count = len(summaries)
    # Creation times are by local wall clock.
    ahead_ms = local_ms(context.now_ms, context.zone) - context.now_ms
    earliest_ms = min(times.earliest_ms.values(), default=0)
    return TableShape(
        snapshot_id=state.snapshot.id if state.snapshot else 0,
        snapshots=snapshots,
        buckets=count,
        files=state.files.file_count,
        small_files=small_files,
        size_bytes=state.files.size_bytes,
        rows=state.files.row_count,
        sorted_runs_max=int(runs.max()) if count and has_runs else 0,
        sorted_runs_avg=float(runs.mean()) if count and has_runs else 0.0,
        level0_files=int(level0.sum()),
        level0_files_max=int(level0.max()) if count else 0,
        level0_files_avg=float(level0.mean()) if count else 0.0,
        bucket_size_bytes_max=int(sizes.max()) if count else 0,
        bucket_size_bytes_avg=float(sizes.mean()) if count else 0.0,
        avg_file_size_bytes_min=float(file_sizes.min()) if count else 0.0,
        size_amplification_max=_amplification(summaries) if has_runs else 0.0,
        deleted_rows_ratio_max=_deleted_ratio(state, summaries),
        buckets_by_run_state=_bands(summaries, options.compaction_trigger, stop_trigger)
        if has_runs
        else {},
        last_full_compaction_ms=_last_full_ms(summaries, options, ahead_ms) if has_runs else 0,
        waiting_since_ms=state.waiting.oldest_ms if state.waiting else 0,
        last_compacted_file_ms=max(0, max(times.last_ms.values(), default=0) - ahead_ms),
        earliest_uncompacted_file_ms=max(0, earliest_ms - ahead_ms),
    )


def top_buckets(
    summaries: BucketSummaries, count: int, planner: StatePlanner, stop_trigger: int
) -> tuple[BucketView, ...]:
    """The buckets with the most runs, at most `count`."""
    rows = np.arange(len(summaries))
    if len(rows) > count:
        rows = np.argpartition(-summaries.run_count, count)[:count]
    rows = rows[np.argsort(-summaries.run_count[rows], kind="stable")]
    buckets = (summaries.index.bucket_id(int(row)) for row in rows)
    return tuple(
        BucketView(
            partition=planner.partition_text(bucket.partition),
            bucket=bucket.bucket,
            sorted_runs=int(summaries.run_count[row]),
            level0_files=int(summaries.level0_count[row]),
            size_bytes=int(summaries.size_bytes[row]),
            compaction_trigger=planner.request.options.compaction_trigger,
            stop_trigger=stop_trigger,
        )
        for row, bucket in zip(rows, buckets, strict=True)
    )


def _amplification(summaries: BucketSummaries) -> float:
    """(All runs but the oldest) / oldest, for the worst bucket."""
    oldest = summaries.oldest_run_bytes
    return float(((summaries.size_bytes - oldest) / np.maximum(1, oldest)).max(initial=0.0))


def _deleted_ratio(state: TableState, summaries: BucketSummaries) -> float:
    """The worst bucket's ratio. Includes vectors of removed files, which are few."""
    deleted: dict[BucketId, int] = defaultdict(int)
    for entry in state.indexes.entries:
        deleted[entry.bucket] += sum(vector.cardinality or 0 for vector in entry.vectors)
    rows = {bucket: summaries.index.find(bucket) for bucket, count in deleted.items() if count}
    return max(
        (
            min(1.0, deleted[bucket] / max(1, int(summaries.row_count[row])))
            for bucket, row in rows.items()
            if row is not None
        ),
        default=0.0,
    )


def _last_full_ms(summaries: BucketSummaries, options: CompactionOptions, ahead_ms: int) -> int:
    """Since the epoch, for the bucket where it is longest ago; 0 if a bucket never had one.

    Estimated from files like Java does (MergeTreeCompactManagerFactory.java): only a compaction of
    all runs writes to the highest level. A file that was moved there as it was has kept its
    creation time, so the truth may be later, but not earlier.
    """
    if not len(summaries):
        return 0
    is_full = summaries.max_level >= options.num_levels - 1
    longest_ago = int(np.where(is_full, summaries.top_created_ms, -1).min())
    return 0 if longest_ago < 0 else longest_ago - ahead_ms


def _bands(summaries: BucketSummaries, trigger: int, stop: int) -> Mapping[RunState, int]:
    """Buckets by run state."""
    bands = dict.fromkeys(RunState, 0)
    for runs, count in enumerate(np.bincount(summaries.run_count)):
        bands[run_state(runs, trigger, stop)] += int(count)
    return bands


def rate_limited(access: TableAccess, pace: DeleteRateLimiter) -> TableAccess:
    """The table with rate-limited deletions in its store. Publishing is not limited."""
    return replace(access, storage=pace.rate_limited(access.storage))


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelShape:
    """One non-empty level. `delete_row_count` counts known deletions."""

    level: int
    file_count: int
    row_count: int
    delete_row_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketShape:
    """The files of a bucket in numbers, under the names that `inspect --json` has for them.

    `sorted_runs` are level-0 files and non-empty levels above; without keys all files are on level
    0, and the number has no meaning. `small_files`: planning treats them as small. `rows`
    are physical: several of one key count separately. `deleted_rows` counts what is known.
    `levels_without_index` lack a sorted index. `lookup_begins`: the levels above
    0 are older than the table's lookups. `foreign_files` have names unlike a Paimon writer's, as in
    migrated tables. `levels` are in ascending order, without the empty ones.
    """

    bucket_id: BucketId
    partition: str
    bucket: int
    total_buckets: int
    sorted_runs: int
    compaction_trigger: int
    stop_trigger: int
    files: int
    small_files: int
    rows: int
    files_with_deleted_rows: int
    deleted_rows: int
    levels_without_index: int
    lookup_begins: bool
    size_bytes: int
    levels: tuple[LevelShape, ...]
    foreign_files: int


def bucket_shape(
    bucket: BucketFiles,
    options: CompactionOptions,
    vectors: Mapping[str, VectorRef] = NO_VECTORS,
    *,
    partition: str = "",
    levels_without_index: int = 0,
    lookup_begins: bool = False,
    file_prefix: str = USUAL_PREFIX,
) -> BucketShape:
    """`vectors` are the deletion vectors of the bucket by data file, which need not be live."""
    files, own, small = bucket.files, (USUAL_PREFIX, file_prefix), options.small_file_size
    by_level: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        by_level[file.level].append(file)
    having = [vectors[file.file_name] for file in files if file.file_name in vectors]
    return BucketShape(
        bucket_id=bucket.bucket,
        partition=partition,
        bucket=bucket.bucket.bucket,
        total_buckets=bucket.total_buckets,
        sorted_runs=sum(1 if level else len(found) for level, found in by_level.items()),
        compaction_trigger=options.compaction_trigger,
        stop_trigger=options.stop_trigger,
        files=len(files),
        small_files=sum(file.file_size < small for file in files),
        rows=sum(file.row_count for file in files),
        files_with_deleted_rows=len(having),
        deleted_rows=sum(vector.cardinality or 0 for vector in having),
        levels_without_index=levels_without_index,
        lookup_begins=lookup_begins,
        size_bytes=sum(file.file_size for file in files),
        levels=tuple(_level_shape(level, by_level[level]) for level in sorted(by_level)),
        foreign_files=sum(not file.file_name.startswith(own) for file in files),
    )


def _level_shape(level: int, files: list[DataFile]) -> LevelShape:
    return LevelShape(
        level=level,
        file_count=len(files),
        row_count=sum(file.row_count for file in files),
        delete_row_count=sum(file.delete_row_count or 0 for file in files),
        size_bytes=sum(file.file_size for file in files),
    )
