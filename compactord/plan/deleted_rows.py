"""Bin packing for files with deletion vectors, in append tables without buckets.

Files whose vectors are in one index file go into one task, as in AppendCompactCoordinator.java:
whoever rewrites one of them replaces the index file. Each task is due at once, also one of a single
file. What it writes has no vectors, so repeating ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from compactord.paimon.data_file import DataFile
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.unaware import Bin, PackedCompactions
from compactord.reasons import CompactReason
from compactord.state.files_by_size import FilesBySize


def pack_deleted(
    files: FilesBySize,
    vectors: Mapping[str, VectorRef],
    options: CompactionOptions,
    *,
    is_full: bool,
) -> PackedCompactions:
    """Files that have vectors, in bins of at least twice the target size, smallest index first.

    Those that are small, or of whose rows more than `compaction.delete-ratio-threshold` or an
    unknown number are deleted; all if it `is_full`.
    """
    reason = CompactReason.APPEND_FULL if is_full else CompactReason.DELETED_ROWS
    having = files.only(vectors.keys())
    found = having.read(0, len(having))
    by_index: dict[str, list[int]] = defaultdict(list)
    for place, file in enumerate(found):
        vector = vectors[file.file_name]
        if is_full or _is_due(file, vector, options):
            by_index[vector.path].append(place)
    sizes = [file.file_size for file in found]
    groups = sorted(by_index.values(), key=lambda places: sum(sizes[each] for each in places))
    places: list[int] = []
    bins: list[Bin] = []
    start = weight = 0
    for group in groups:
        places += group
        weight += sum(sizes[place] + options.open_file_cost for place in group)
        if len(places) - start > 1 and weight >= options.target_file_size * 2:
            bins.append(Bin(start, len(places), reason))
            start, weight = len(places), 0
    if start < len(places):
        bins.append(Bin(start, len(places), reason))
    return PackedCompactions(having.take(np.array(places, np.int64)), tuple(bins))


def _is_due(file: DataFile, vector: VectorRef, options: CompactionOptions) -> bool:
    if file.file_size < options.small_file_size or vector.cardinality is None:
        return True
    return vector.cardinality > file.row_count * options.delete_ratio
