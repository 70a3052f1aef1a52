"""Bin packing for append tables, which have neither keys nor levels.

Tables without buckets are packed per partition by file size (AppendCompactCoordinator.java); in
bucketed tables only neighbours in arrival order are rewritten, so that rows keep their order
(BucketedAppendCompactManager.java).

Differences from Java, so that planning after each commit comes to an end and needs no history:

- A coordinator's age, counted in rounds, becomes the age of the files.
- A task has at least two files, whatever `compaction.min.file-num` says: Java's tasks fail below.
- A task without an expected gain is not picked. Outputs are assumed to have the target size, the
  last one the remainder. For neighbours in a bucket gain means fewer files, otherwise fewer small
  files. With a small-file ratio of at most 1 only buckets can differ, where Java would rewrite
  files of about the target size, or far larger, into as many. An output that is not small counts as
  full even if it is below the target: encoding makes files smaller than their writer estimates.
- A full compaction, which Java's coordinator does not have, takes every file below the target size.
- Full compactions of buckets read files in arrival order, where Java takes its heap's array order.

`settled` names outputs of the running command that count as full whatever their size (`settled_by`
in compactord.plan.table): the command ends even if the writer closes files early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from compactord.model import CompactReason
from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.options import CompactionOptions

# BucketedAppendCompactManager.FULL_COMPACT_MIN_FILE.
FULL_MIN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPick:
    """Files to rewrite into larger ones, in reading order."""

    files: tuple[DataFile, ...]
    reason: CompactReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Tasks that share no file, and the small files that were left for later."""

    picks: tuple[AppendPick, ...]
    waiting: tuple[DataFile, ...]


def pack_unaware(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    now_local_ms: int,
    wait_ms: int | None,
    settled: Set[str] = frozenset(),
) -> Packing:
    """Small files of one partition in bins of at least twice the target size, smallest first.

    Files that do not fill a bin become a task if there are `compaction.min.file-num` of them, or if
    at least two were created more than `wait_ms` ago (None: never). `now_local_ms` is on the clock
    of creation times. A file without a creation time counts as having waited, and so does one whose
    creation time is more than `wait_ms` in the future: the clock was set back, its age is unknown.
    """
    small = [
        file
        for file in files
        if file.file_size < options.small_file_size and file.file_name not in settled
    ]
    bins, rest = _fill_bins(small, options)
    picks = [
        AppendPick(files=full, reason=CompactReason.APPEND_SMALL_FILES)
        for full in bins
        if _leaves_fewer_small(full, options)
    ]
    reason = _reason_for_rest(rest, options, now_local_ms, wait_ms)
    if reason is not None and _leaves_fewer_small(rest, options):
        picks.append(AppendPick(files=rest, reason=reason))
        rest = ()
    return Packing(picks=tuple(picks), waiting=rest)


def pack_unaware_full(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    settled: Set[str] = frozenset(),
) -> tuple[AppendPick, ...]:
    """Every file of one partition below the target size, in bins as `pack_unaware` fills them.

    A single file is not rewritten, nor are full outputs of compactions. So each task turns at least
    two candidates into at most one, and repeating ends with at most one candidate.
    `compaction.force-rewrite-all-files` has no effect here, as in Java's coordinator.
    """
    candidates = [
        file
        for file in files
        if file.file_size < options.target_file_size and not _is_full_output(file, options, settled)
    ]
    bins, rest = _fill_bins(candidates, options)
    return tuple(
        AppendPick(files=full, reason=CompactReason.APPEND_FULL)
        for full in (*bins, rest)
        if len(full) > 1
    )


def pick_bucketed(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    settled: Set[str] = frozenset(),
) -> tuple[AppendPick, ...]:
    """Groups of `compaction.min.file-num` neighbours whose rewriting is a gain, in arrival order.

    A window moves over the files and drops its first file while it holds twice the target size.
    The first pick is the one that Java makes, which makes one at a time; the others follow it.
    """
    wanted = max(2, options.min_file_num)
    picks: list[AppendPick] = []
    window: list[DataFile] = []
    window_bytes = 0
    for file in in_arrival_order(files):
        window.append(file)
        window_bytes += file.file_size
        is_full = len(window) >= wanted
        if is_full and _leaves_fewer_files(window, options, settled):
            picks.append(AppendPick(files=tuple(window), reason=CompactReason.APPEND_SMALL_FILES))
            window, window_bytes = [], 0
        elif is_full or window_bytes >= options.target_file_size * 2:
            window_bytes -= window.pop(0).file_size
    return tuple(picks)


def pick_bucketed_full(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    settled: Set[str] = frozenset(),
) -> tuple[AppendPick, ...]:
    """All files of a bucket from the first small one on, in arrival order, as one pick.

    Only if there are at least three and most are small. With `compaction.force-rewrite-all-files`
    all files. Files before the last settled one are not picked.
    """
    ordered = in_arrival_order(files)
    done = [index for index, file in enumerate(ordered) if file.file_name in settled]
    reachable = ordered[done[-1] + 1 :] if done else ordered
    if not options.force_rewrite_all_files:
        is_small = [file.file_size < options.small_file_size for file in reachable]
        first = is_small.index(True) if True in is_small else len(reachable)
        reachable, small_count = reachable[first:], sum(is_small)
        if (
            len(reachable) < FULL_MIN_FILES
            or small_count * 2 <= len(reachable)
            or not _leaves_fewer_small(reachable, options)
        ):
            return ()
    if not reachable:
        return ()
    return (AppendPick(files=tuple(reachable), reason=CompactReason.APPEND_FULL),)


def in_arrival_order(files: Iterable[DataFile]) -> list[DataFile]:
    """By smallest sequence number.

    All outputs of one Java task start with the same number; creation time and the counter at the
    end of their names, which have one prefix, tell their order.
    """
    return sorted(
        files,
        key=lambda file: (
            file.min_sequence_number,
            -1 if file.creation_time_ms is None else file.creation_time_ms,
            len(file.file_name),
            file.file_name,
        ),
    )


def _fill_bins(
    files: Iterable[DataFile], options: CompactionOptions
) -> tuple[list[tuple[DataFile, ...]], tuple[DataFile, ...]]:
    """Full bins, and the last one, which is not full and may be empty."""
    bins: list[tuple[DataFile, ...]] = []
    current: list[DataFile] = []
    weight = 0
    # Java's order among files of one size is that of a hash set; ours is deterministic.
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


def _is_full_output(file: DataFile, options: CompactionOptions, settled: Set[str]) -> bool:
    return file.file_name in settled or (
        file.file_source == FileSource.COMPACT and file.file_size >= options.small_file_size
    )


def _leaves_fewer_files(
    files: Sequence[DataFile], options: CompactionOptions, settled: Set[str]
) -> bool:
    sizes = [file.file_size for file in files if not _is_full_output(file, options, settled)]
    return -(-sum(sizes) // max(1, options.target_file_size)) < len(sizes)


def _leaves_fewer_small(files: Sequence[DataFile], options: CompactionOptions) -> bool:
    target, small = max(1, options.target_file_size), options.small_file_size
    full_count, last_bytes = divmod(sum(file.file_size for file in files), target)
    small_after = (full_count if target < small else 0) + (0 < last_bytes < small)
    return small_after < sum(file.file_size < small for file in files)
