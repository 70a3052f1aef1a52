"""A table in numbers, and its worst buckets: sums over the summaries of all buckets, on columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from compactord.clock import local_ms
from compactord.paimon.data_file import BucketId
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.table import TableKind
from compactord.state.base_files import BucketSummaries
from compactord.state.columns import FileTimes
from compactord.state.table_state import TableState
from compactord.table.planning import StatePlanner
from compactord.table.status import RunState, TableShape


@dataclass(frozen=True, slots=True, kw_only=True)
class TopBucket:
    """One of the buckets with the most runs."""

    bucket: BucketId
    partition: str
    sorted_runs: int
    level0_files: int
    size_bytes: int


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
    summaries: BucketSummaries, count: int, partition_text: Callable[[bytes], str]
) -> tuple[TopBucket, ...]:
    """The buckets with the most runs, at most `count`."""
    rows = np.arange(len(summaries))
    if len(rows) > count:
        rows = np.argpartition(-summaries.run_count, count)[:count]
    rows = rows[np.argsort(-summaries.run_count[rows], kind="stable")]
    return tuple(
        TopBucket(
            bucket=summaries.index.bucket_id(int(row)),
            partition=partition_text(summaries.index.bucket_id(int(row)).partition),
            sorted_runs=int(summaries.run_count[row]),
            level0_files=int(summaries.level0_count[row]),
            size_bytes=int(summaries.size_bytes[row]),
        )
        for row in rows
    )


def _amplification(summaries: BucketSummaries) -> float:
    """(All runs but the oldest) / oldest, of the worst bucket."""
    oldest = summaries.oldest_run_bytes
    return float(((summaries.size_bytes - oldest) / np.maximum(1, oldest)).max(initial=0.0))


def _deleted_ratio(state: TableState, summaries: BucketSummaries) -> float:
    """Of the worst bucket. Vectors of files that are gone count, too: there are few."""
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
    """Since the epoch, of the bucket where it is longest ago; 0 when one never had any.

    As Java estimates it from the files it finds (MergeTreeCompactManagerFactory.java): only what
    takes all runs writes to the highest level. A file that was moved there as it was has kept its
    creation time, so the truth may be later, but not earlier.
    """
    if not len(summaries):
        return 0
    is_full = summaries.max_level >= options.num_levels - 1
    longest_ago = int(np.where(is_full, summaries.top_created_ms, -1).min())
    return 0 if longest_ago < 0 else longest_ago - ahead_ms


def _bands(summaries: BucketSummaries, trigger: int, stop: int) -> Mapping[RunState, int]:
    """Buckets by run state; evaluated from the last band down, so that they are disjoint."""
    runs = summaries.run_count
    over = int(np.count_nonzero(runs > stop))
    near = int(np.count_nonzero(runs >= stop - 1)) - over
    pending = int(np.count_nonzero((runs >= trigger) & (runs < stop - 1)))
    idle = len(runs) - over - near - pending
    return {
        RunState.IDLE: idle,
        RunState.DUE: pending,
        RunState.NEAR_STOP: near,
        RunState.OVER_STOP: over,
    }
