"""Which buckets of a huge table can have anything to do, decided on columns.

Planning makes Python objects of a bucket's files. With a million files in buckets that are mostly
quiet that is the expensive part, so a few sums per bucket rule out most of them first. The answer
never misses a bucket that `plan_bucket` would pick; it may name one that turns out to be quiet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compactord.paimon.options import CompactionOptions
from compactord.plan.table import Strategy, TableKind

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSummary:
    """One element per bucket in each array. Sizes in bytes; an empty bucket's highest level is -1.

    `small_count` are files that planning calls small, `below_target_count` those below the target
    size.
    """

    file_count: Ints
    level_0_count: Ints
    run_count: Ints
    highest_level: Ints
    size_bytes: Ints
    small_count: Ints
    below_target_count: Ints


def summarise(
    bucket: Ints, level: Ints, file_size: Ints, *, bucket_count: int, options: CompactionOptions
) -> BucketSummary:
    """Sums per bucket from one element per file, in any order.

    `bucket` numbers the buckets from 0 to `bucket_count` - 1, whatever they are called.
    """
    size_bytes = np.zeros(bucket_count, np.int64)
    np.add.at(size_bytes, bucket, file_size)
    highest = np.full(bucket_count, -1, np.int64)
    np.maximum.at(highest, bucket, level)
    level_0_count = _count(bucket[level == 0], bucket_count)
    level_span = int(level.max(initial=0)) + 1
    occupied = np.unique(bucket[level > 0] * level_span + level[level > 0]) // level_span
    return BucketSummary(
        file_count=_count(bucket, bucket_count),
        level_0_count=level_0_count,
        run_count=level_0_count + _count(occupied, bucket_count),
        highest_level=highest,
        size_bytes=size_bytes,
        small_count=_count(bucket[file_size < options.small_file_size], bucket_count),
        below_target_count=_count(bucket[file_size < options.target_file_size], bucket_count),
    )


def candidates(
    summary: BucketSummary, kind: TableKind, strategy: Strategy, options: CompactionOptions
) -> Mask:
    """True where a bucket may have a pick. Buckets whose delta commits are due: ask with FULL."""
    is_full = strategy is Strategy.FULL
    match kind:
        case TableKind.PRIMARY_KEY:
            return _full_merges(summary, options) if is_full else _minor_merges(summary, options)
        case TableKind.APPEND_UNAWARE:
            return (summary.below_target_count if is_full else summary.small_count) > 1
        case TableKind.APPEND_BUCKETED:
            if not is_full:
                return summary.file_count >= max(2, options.min_file_num)
            if options.force_rewrite_all_files:
                return summary.file_count > 0
            # Of at least three files more than half are small.
            return (summary.file_count > 2) & (summary.small_count > 1)


def _full_merges(summary: BucketSummary, options: CompactionOptions) -> Mask:
    has_files = summary.file_count > 0
    if options.force_rewrite_all_files:
        return has_files
    return has_files & ~_is_alone_on_top(summary, options)


def _minor_merges(summary: BucketSummary, options: CompactionOptions) -> Mask:
    several = summary.run_count > 1
    picked = summary.run_count >= options.compaction_trigger
    if options.optimization_interval_ms is not None:
        picked |= several
    if options.total_size_threshold is not None:
        picked |= several & (summary.size_bytes < options.total_size_threshold)
    if options.incremental_size_threshold is not None:
        # The size above the highest level is at most that of the bucket.
        picked |= several & (summary.size_bytes > options.incremental_size_threshold)
    if options.force_up_level_0:
        picked |= summary.level_0_count > 0
    return picked & (summary.run_count > 0) & ~_is_alone_on_top(summary, options)


def _is_alone_on_top(summary: BucketSummary, options: CompactionOptions) -> Mask:
    top = np.maximum(summary.highest_level, options.num_levels - 1)
    alone: Mask = (summary.run_count == 1) & (summary.highest_level == top)
    return alone


def _count(bucket: Ints, bucket_count: int) -> Ints:
    return np.bincount(bucket, minlength=bucket_count).astype(np.int64)
