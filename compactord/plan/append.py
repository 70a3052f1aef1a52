"""Picks in append tables, which have neither keys nor levels.

In bucketed tables only neighbours in arrival order are rewritten, so that rows keep their order
(BucketedAppendCompactManager.java). Tables without buckets: compactord.plan.unaware.

Differences from Java, so that planning after each commit comes to an end and needs no history:

- A task has at least two files, whatever `compaction.min.file-num` says: Java's tasks fail below.
- A task without an expected gain is not picked. Outputs are assumed to have the target size, the
  last one the remainder. For neighbours in a bucket gain means fewer files, otherwise fewer small
  files. With a small-file ratio of at most 1 only buckets can differ, where Java would rewrite
  files of about the target size, or far larger, into as many. An output that is not small counts as
  full even if it is below the target: encoding makes files smaller than their writer estimates.
- Full compactions of buckets read files in arrival order, where Java takes its heap's array order.
- A bucket without deletion vectors is picked as if the table could have none; Java rewrites it at
  each full compaction.

`final` names outputs of the running command that count as full whatever their size
(`PlanRequest.final`): the command ends even if the writer closes files early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set

from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.options.table_options import CompactionOptions

# BucketedAppendCompactManager.FULL_COMPACT_MIN_FILE.
FULL_MIN_FILES = 3


def pick_bucketed(
    files: Iterable[DataFile],
    options: CompactionOptions,
    *,
    final: Set[str] = frozenset(),
) -> tuple[tuple[DataFile, ...], ...]:
    """Groups of `compaction.min.file-num` neighbours whose rewriting is a gain, in arrival order.

    A window moves over the files and drops its first file while it holds twice the target size.
    The first pick is the one that Java makes, which makes one at a time; the others follow it.
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
    """All files of a bucket from one on that is small or in `with_deleted`, in arrival order.

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
    end of their names, which have one prefix, tell their order.
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
    """Whether files of so many bytes, `count` of them small, are fewer small ones if rewritten."""
    target, small = max(1, options.target_file_size), options.small_file_size
    full_count, last_bytes = divmod(size_bytes, target)
    small_after = (full_count if target < small else 0) + (0 < last_bytes < small)
    return small_after < count
