"""Which buckets of a huge table may need a compaction, decided on columns.

Planning makes Python objects of a bucket's files. With a million files, most of them in buckets
without work, that is the expensive part, so a few sums per bucket first rule out most buckets. The
answer contains every bucket that `plan_bucket` would pick; it may contain others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from compactord.paimon.data_file import BucketId
from compactord.paimon.manifest.entry_columns import Mask
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.append import FULL_MIN_FILES
from compactord.plan.table import Strategy, TableKind
from compactord.state.base_files import BucketSummaries


def candidates(
    summary: BucketSummaries,
    kind: TableKind,
    strategy: Strategy,
    options: CompactionOptions,
    *,
    with_deleted: Iterable[BucketId] = (),
    lookup_begins: bool = False,
) -> Mask:
    """True where a bucket may have a pick. Buckets whose delta commits are due: ask with FULL.

    `with_deleted` are those that have deletion vectors. `lookup_begins`: files may be from before
    the table looked up (`PlanRequest.partial_schemas`, `unmarked_schemas`).
    """
    is_full = strategy is Strategy.FULL
    found = _candidates(summary, kind, options, is_full=is_full)
    if kind is TableKind.PRIMARY_KEY and lookup_begins:
        found |= summary.run_count > 1
    if is_full or kind is TableKind.APPEND_UNAWARE:
        rows = (summary.index.find(bucket) for bucket in with_deleted)
        found[[row for row in rows if row is not None]] = True
    return found


def _candidates(
    summary: BucketSummaries, kind: TableKind, options: CompactionOptions, *, is_full: bool
) -> Mask:
    """As if no file had deletion vectors, or were from before the table looked up."""
    match kind:
        case TableKind.PRIMARY_KEY:
            return _full_merges(summary, options) if is_full else _minor_merges(summary, options)
        case TableKind.APPEND_UNAWARE:
            # Small files have to be counted one by one: the summary has no file sizes.
            return summary.file_count > 1
        case TableKind.APPEND_BUCKETED:
            if not is_full:
                return summary.file_count >= max(2, options.min_file_num)
            if options.force_rewrite_all_files:
                return summary.file_count > 0
            return summary.file_count >= FULL_MIN_FILES


def _full_merges(summary: BucketSummaries, options: CompactionOptions) -> Mask:
    has_files = summary.file_count > 0
    if options.force_rewrite_all_files or options.record_expire is not None:
        return has_files
    return has_files & ~_is_alone_on_top(summary, options)


def _minor_merges(summary: BucketSummaries, options: CompactionOptions) -> Mask:
    several = summary.run_count > 1
    picked = summary.run_count >= options.compaction_trigger
    if options.optimization_interval_ms is not None:
        picked |= several
    if options.total_size_threshold is not None:
        picked |= several & (summary.size_bytes < options.total_size_threshold)
    if options.incremental_size_threshold is not None:
        # The size above the highest level is at most that of the bucket.
        picked |= several & (summary.size_bytes > options.incremental_size_threshold)
    if options.force_up_level_0 or options.lookup is not None:
        picked |= summary.level0_count > 0
    return picked & (summary.run_count > 0) & ~_is_alone_on_top(summary, options)


def _is_alone_on_top(summary: BucketSummaries, options: CompactionOptions) -> Mask:
    top = np.maximum(summary.max_level, options.num_levels - 1)
    alone: Mask = (summary.run_count == 1) & (summary.max_level == top)
    return alone
