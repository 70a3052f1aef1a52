"""The numbers of tables and buckets, computed from their files for `status` and `inspect`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compactord.clock import local_ms
from compactord.model import TableKind
from compactord.paimon.data_file import BucketFiles, BucketId, DataFile
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.paimon.options.merge import USUAL_PREFIX
from compactord.paimon.options.table_options import CompactionOptions
from compactord.state.base_files import BucketSummaries
from compactord.state.columns import FileTimes
from compactord.state.table_state import TableState
from compactord.table.planning import StatePlanner
from compactord.table.status import BucketView, RunState, TableShape, run_state

# A stop-trigger with this value never stops a writer.
_NEVER = 2**31 - 1


def measured_stop_trigger(options: CompactionOptions, fallback: int) -> int:
    """The effective stop trigger: `fallback` above the compaction trigger if none is set."""
    if options.stop_trigger >= _NEVER:
        return options.compaction_trigger + fallback
    return options.stop_trigger


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
