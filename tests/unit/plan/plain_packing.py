"""Packing of tables without buckets file by file, on objects: slow, plain, and what must come out.

Kept as the reference of compactord.plan.append.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from compactord.model import CompactReason
from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.options.table_options import CompactionOptions

# Files in reading order, and why.
Pick = tuple[tuple[DataFile, ...], CompactReason]


def plain_pack(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    now_local_ms: int,
    wait_ms: int | None,
    final: Set[str],
) -> tuple[list[Pick], tuple[DataFile, ...]]:
    """The picks of a minor compaction, and the small files that wait."""
    small = [
        file
        for file in files
        if file.file_size < options.small_file_size and file.file_name not in final
    ]
    bins, rest = _fill_bins(small, options)
    picks = [
        (full, CompactReason.APPEND_SMALL_FILES)
        for full in bins
        if _leaves_fewer_small(full, options)
    ]
    reason = _reason_for_rest(rest, options, now_local_ms, wait_ms)
    if reason is not None and _leaves_fewer_small(rest, options):
        picks.append((rest, reason))
        rest = ()
    return picks, rest


def plain_pack_full(
    files: Iterable[DataFile], options: CompactionOptions, *, final: Set[str]
) -> list[Pick]:
    """The picks of a full compaction."""
    candidates = [
        file
        for file in files
        if file.file_size < options.target_file_size and not _is_full_output(file, options, final)
    ]
    bins, rest = _fill_bins(candidates, options)
    return [(full, CompactReason.APPEND_FULL) for full in (*bins, rest) if len(full) > 1]


def _fill_bins(
    files: Iterable[DataFile], options: CompactionOptions
) -> tuple[list[tuple[DataFile, ...]], tuple[DataFile, ...]]:
    """Full bins, and the last one, which is not full and may be empty."""
    bins: list[tuple[DataFile, ...]] = []
    current: list[DataFile] = []
    weight = 0
    for file in sorted(files, key=lambda f: (f.file_size, f.min_sequence_number, f.file_name)):
        current.append(file)
        weight += file.file_size + options.open_file_cost
        if len(current) > 1 and weight >= options.target_file_size * 2:
            bins.append(tuple(current))
            current, weight = [], 0
    return bins, tuple(current)


def _reason_for_rest(
    rest: Sequence[DataFile], options: CompactionOptions, now_local_ms: int, wait_ms: int | None
) -> CompactReason | None:
    if len(rest) >= max(2, options.min_file_num):
        return CompactReason.APPEND_SMALL_FILES
    if wait_ms is None:
        return None
    waited = sum(
        file.creation_time_ms is None or abs(now_local_ms - file.creation_time_ms) > wait_ms
        for file in rest
    )
    return CompactReason.APPEND_WAITED if waited > 1 else None


def _is_full_output(file: DataFile, options: CompactionOptions, final: Set[str]) -> bool:
    return file.file_name in final or (
        file.file_source == FileSource.COMPACT and file.file_size >= options.small_file_size
    )


def _leaves_fewer_small(files: Sequence[DataFile], options: CompactionOptions) -> bool:
    target, small = max(1, options.target_file_size), options.small_file_size
    full_count, last_bytes = divmod(sum(file.file_size for file in files), target)
    small_after = (full_count if target < small else 0) + (0 < last_bytes < small)
    return small_after < sum(file.file_size < small for file in files)
