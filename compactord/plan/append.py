"""Plans append tables: bin packing of small files, with or without buckets.

In bucketed tables only neighbours in arrival order are rewritten, so that rows keep their order
(BucketedAppendCompactManager.java).

Differences from Java, so that planning after each commit ends and needs no history:

- A task has at least two files regardless of `compaction.min.file-num`: Java's tasks fail below.
- A task without an expected gain is not picked. Outputs are assumed to have the target size, the
  last one the remainder. For neighbours in a bucket gain means fewer files, otherwise fewer small
  files. With a small-file ratio of at most 1 only buckets can differ, where Java would rewrite
  files of about the target size, or far larger, into as many. An output that is not small counts as
  full even if it is below the target: encoding makes files smaller than their writer estimates.
- Full compactions of buckets read files in arrival order, where Java takes its heap's array order.
- A bucket without deletion vectors is picked as if the table could have none; Java rewrites it at
  each full compaction.

`final` names outputs of the running command that count as full at any size
(`PlanRequest.final`): the command ends even if the writer closes files early.

In tables without buckets files are counted on columns, as a partition may have very many; only
files of a task that is read become objects. Agrees with AppendCompactCoordinator.java except for
the differences above, and:

- A coordinator's age, counted in rounds, becomes the age of the files.
- A full compaction, which Java's coordinator does not have, takes every file below the target size.
- Files of one size are in the order of their sequence numbers and names; Java's is a hash set's.

Files whose deletion vectors are in one index file go into one task, since rewriting one of them
replaces the index file. Each task is due at once, even with a single file. Its output has no
vectors, so repeating ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from compactord.model import Compaction, CompactReason, Concat
from compactord.paimon.avro.columns import NULL
from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.manifest.entry_columns import Mask
from compactord.paimon.options.table_options import CompactionOptions
from compactord.state.files_by_size import FilesBySize

# BucketedAppendCompactManager.FULL_COMPACT_MIN_FILE.
FULL_MIN_FILES = 3


def pick_bucketed(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    final: Set[str] = frozenset(),
) -> tuple[tuple[DataFile, ...], ...]:
    """Groups of `compaction.min.file-num` neighbours that gain from a rewrite, in arrival order.

    A window moves over the files and drops its first file while it holds twice the target size.
    The first pick is the one that Java makes, which makes one at a time; further picks follow it.
    """
    wanted = max(2, options.min_file_num)
    picks: list[tuple[DataFile, ...]] = []
    window: list[DataFile] = []
    window_bytes = 0
    for file in in_arrival_order(files):
        window.append(file)
        window_bytes += file.file_size
        is_full = len(window) >= wanted
        if is_full and _leaves_fewer_files(window, options, final):
            picks.append(tuple(window))
            window, window_bytes = [], 0
        elif is_full or window_bytes >= options.target_file_size * 2:
            window_bytes -= window.pop(0).file_size
    return tuple(picks)


def pick_bucketed_full(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    final: Set[str] = frozenset(),
    with_deleted: Collection[str] = (),
) -> tuple[tuple[DataFile, ...], ...]:
    """All files of a bucket from the first that is small or in `with_deleted`, in arrival order.

    `with_deleted` are names of files that have deletion vectors. Without any, only if there are at
    least three and most are small. With `compaction.force-rewrite-all-files` all files. Files
    before the last final one are not picked.
    """
    ordered = in_arrival_order(files)
    done = [index for index, file in enumerate(ordered) if file.file_name in final]
    reachable = ordered[done[-1] + 1 :] if done else ordered
    if not options.force_rewrite_all_files:
        is_due = [
            file.file_size < options.small_file_size or file.file_name in with_deleted
            for file in reachable
        ]
        first = is_due.index(True) if True in is_due else len(reachable)
        reachable = reachable[first:]
        has_deleted = any(file.file_name in with_deleted for file in reachable)
        small_count = sum(file.file_size < options.small_file_size for file in reachable)
        if not has_deleted and (
            len(reachable) < FULL_MIN_FILES
            or small_count * 2 <= len(reachable)
            or not leaves_fewer_small(
                options, small_count, sum(file.file_size for file in reachable)
            )
        ):
            return ()
    return (tuple(reachable),) if reachable else ()


def in_arrival_order(files: Iterable[DataFile]) -> list[DataFile]:
    """By smallest sequence number.

    All outputs of one Java task start with the same number; creation time and the counter at the
    end of their names, which have one prefix, decide their order.
    """
    return sorted(
        files,
        key=lambda file: (
            file.min_sequence_number,
            file.created_ms,
            len(file.file_name),
            file.file_name,
        ),
    )


def _is_full_output(file: DataFile, options: CompactionOptions, final: Set[str]) -> bool:
    return file.file_name in final or (
        file.file_source == FileSource.COMPACT and file.file_size >= options.small_file_size
    )


def _leaves_fewer_files(
    files: Sequence[DataFile], options: CompactionOptions, final: Set[str]
) -> bool:
    sizes = [file.file_size for file in files if not _is_full_output(file, options, final)]
    return -(-sum(sizes) // max(1, options.target_file_size)) < len(sizes)


def leaves_fewer_small(options: CompactionOptions, count: int, size_bytes: int) -> bool:
    """Whether rewriting files of `size_bytes`, `count` of them small, leaves fewer small ones."""
    target, small = max(1, options.target_file_size), options.small_file_size
    full_count, last_bytes = divmod(size_bytes, target)
    small_after = (full_count if target < small else 0) + (0 < last_bytes < small)
    return small_after < count


_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Bin:
    """Files to rewrite into larger ones: from one place to before another, in that order."""

    start: int
    stop: int
    reason: CompactReason


@dataclass(frozen=True, slots=True, eq=False)
class PackedCompactions(Sequence[Compaction]):
    """One compaction for each of `bins`, made from `files` on access."""

    files: FilesBySize
    bins: tuple[Bin, ...]

    def __len__(self) -> int:
        return len(self.bins)

    @overload
    def __getitem__(self, index: int) -> Compaction: ...
    @overload
    def __getitem__(self, index: slice) -> PackedCompactions: ...
    def __getitem__(self, index: int | slice) -> Compaction | PackedCompactions:
        if isinstance(index, slice):
            return replace(self, bins=self.bins[index])
        one = self.bins[index]
        return Compaction(
            bucket=self.files.bucket,
            total_buckets=self.files.total_buckets,
            reason=one.reason,
            actions=(Concat(files=self.files.read(one.start, one.stop), ordered=False),),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def followed_by(self, other: PackedCompactions) -> PackedCompactions:
        """The compactions of both, which are of one bucket and share no file."""
        behind = len(self.files)
        moved = (Bin(one.start + behind, one.stop + behind, one.reason) for one in other.bins)
        return PackedCompactions(self.files.followed_by(other.files), (*self.bins, *moved))

    @property
    def taken(self) -> Mask:
        """A mask of the `files` that are in a bin."""
        taken = np.zeros(len(self.files), np.bool_)
        for one in self.bins:
            taken[one.start : one.stop] = True
        return taken


def pack_unaware(
    files: FilesBySize,
    options: CompactionOptions,
    *,
    now_local_ms: int,
    wait_ms: int | None,
    final: Set[str] = frozenset(),
) -> tuple[PackedCompactions, int]:
    """Small files of one partition in bins of at least twice the target size, smallest first.

    Also returns how many small files are left for later.

    Files that do not fill a bin become a task if there are `compaction.min.file-num` of them, or if
    at least two are older than `wait_ms`, unless that is None. `now_local_ms` is on the clock
    of creation times. A file without a creation time counts as having waited, and so does one whose
    creation time is more than `wait_ms` in the future: the clock was set back, its age is unknown.
    """
    small = files.smaller_than(options.small_file_size).without(final)
    filled = _filled(small, options)
    leaves_fewer = partial(leaves_fewer_small, options)
    bins = [
        Bin(start, stop, CompactReason.APPEND_SMALL_FILES)
        for start, stop in filled.bounds
        if leaves_fewer(stop - start, filled.size_bytes(start, stop))
    ]
    start, stop = filled.rest
    reason = _reason_for_rest(small.take(slice(start, stop)), options, now_local_ms, wait_ms)
    waiting = stop - start
    if reason is not None and leaves_fewer(waiting, filled.size_bytes(start, stop)):
        bins.append(Bin(start, stop, reason))
        waiting = 0
    return PackedCompactions(small, tuple(bins)), waiting


def pack_unaware_full(
    files: FilesBySize,
    options: CompactionOptions,
    *,
    final: Set[str] = frozenset(),
) -> PackedCompactions:
    """Every file of one partition below the target size, in bins as `pack_unaware` fills them.

    A single file is not rewritten, nor are full outputs of compactions. So each task turns at least
    two candidates into at most one, and repeating ends with at most one candidate.
    `compaction.force-rewrite-all-files` has no effect here, as in Java's coordinator.
    """
    columns = files.columns
    is_full_output = columns.file_source == FileSource.COMPACT
    is_full_output &= columns.file_size >= options.small_file_size
    below = columns.file_size < options.target_file_size
    candidates = files.take(below & ~is_full_output).without(final)
    filled = _filled(candidates, options)
    bounds = (*filled.bounds, filled.rest)
    bins = tuple(
        Bin(start, stop, CompactReason.APPEND_FULL) for start, stop in bounds if stop - start > 1
    )
    return PackedCompactions(candidates, bins)


@dataclass(frozen=True, slots=True)
class _Filled:
    """The bounds of full bins, and the remaining files, if any.

    `weights` are cumulative before each place: bytes, and `cost` for each file.
    """

    bounds: list[tuple[int, int]]
    rest: tuple[int, int]
    weights: npt.NDArray[Any]
    cost: int

    def size_bytes(self, start: int, stop: int) -> int:
        weight = int(self.weights[stop]) - int(self.weights[start])
        return weight - (stop - start) * self.cost


def _filled(files: FilesBySize, options: CompactionOptions) -> _Filled:
    sizes, cost, full = (
        files.columns.file_size,
        options.open_file_cost,
        options.target_file_size * 2,
    )
    count = len(sizes)
    # An option may be the largest number of its type; Python's numbers are unbounded.
    largest = max(abs(int(sizes[0])), abs(int(sizes[-1])), abs(cost)) if count else 0
    number = np.int64 if largest < _LARGEST // (2 * count + 2) else object
    weights = np.zeros(count + 1, number)
    np.cumsum(sizes.astype(number) + cost, out=weights[1:])
    bounds = []
    start = 0
    while count - start > 1:
        stop = bisect_left(weights, int(weights[start]) + full, lo=start + 2)
        if stop > count:
            break
        bounds.append((start, stop))
        start = stop
    return _Filled(bounds, (start, count), weights, cost)


def _reason_for_rest(
    rest: FilesBySize, options: CompactionOptions, now_local_ms: int, wait_ms: int | None
) -> CompactReason | None:
    if len(rest) >= max(2, options.min_file_num):
        return CompactReason.APPEND_SMALL_FILES
    if wait_ms is None:
        return None
    created_ms = rest.columns.creation_time_ms
    waited = (created_ms == NULL) | (np.abs(now_local_ms - created_ms) > wait_ms)
    return CompactReason.APPEND_WAITED if np.count_nonzero(waited) > 1 else None


def pack_deleted(
    files: FilesBySize,
    vectors: Mapping[str, VectorRef],
    options: CompactionOptions,
    *,
    is_full: bool,
) -> PackedCompactions:
    """Files that have vectors, in bins of at least twice the target size, smallest index first.

    Takes small files and files with more than `compaction.delete-ratio-threshold` or an
    unknown number of deleted rows; all files if `is_full`.
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
