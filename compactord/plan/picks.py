"""Sorted runs, and full picks of them; compactord.plan.triggers has minor picks.

A full pick is CompactStrategy.pickFullCompaction. A pick of either kind takes exactly the runs of
all levels up to its output, so the remaining runs are older than its result.

Level 0 has each file as a run by itself, newest first. Each level above is one run of files with
disjoint key ranges in key order. All planning on primary-key tables starts with these runs.

A key then may have records on several levels above level 0, as parts of its state, or records where
only the lowest counts, the rest not marked as deleted. Readers that merge no levels read each.
Before any other compaction, one merge of all levels above 0 makes one record of them.
The highest of these levels hides no records, so files there need no lookup.

A merge of parts must include every record of a key. A merge of whole states must include the
record of the lowest level, which contains the rest; if a state is one of the records, both are
equivalent. So whole states next to parts can be merged only if a state is one of the records. In
tables with deletion vectors, a delete that arrived while records were on two levels has marked only
one of them and is then dropped: rows that readers see again since then remain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from compactord.errors import FormatError, UsageError
from compactord.model import CompactReason, SortedRun
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import CompactionOptions


def never_expired(file: DataFile) -> bool:
    """For tables whose records do not expire."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Files to compact into one level, in the order of their runs (CompactUnit.java)."""

    files: tuple[DataFile, ...]
    output_level: int
    reason: CompactReason


def pick_runs(runs: Sequence[SortedRun], output_level: int, reason: CompactReason) -> Pick:
    files = tuple(file for run in runs for file in run.files)
    return Pick(files=files, output_level=output_level, reason=reason)


def pick_full(
    runs: Sequence[SortedRun],
    num_levels: int,
    *,
    force_rewrite: bool,
    final: Set[str] = frozenset(),
    is_expired: Callable[[DataFile], bool] = never_expired,
    with_deleted: Collection[str] = (),
    reason: CompactReason = CompactReason.FULL,
) -> Pick | None:
    """All runs, or None if they already are one run on the highest level.

    With `force_rewrite` such a run is picked nevertheless, and without it only its files that
    have expired records or are named in `with_deleted`, which have deletion vectors; in either case
    without files named in `final`. The pick's reason then is FORCED_REWRITE, EXPIRED_RECORDS if any
    has such, or DELETED_ROWS: each file is rewritten on its own.
    """
    if not runs:
        return None
    max_level = num_levels - 1
    if len(runs) > 1 or runs[0].level != max_level:
        return pick_runs(runs, max_level, reason)
    files = tuple(
        file
        for file in runs[0].files
        if file.file_name not in final
        and (force_rewrite or is_expired(file) or file.file_name in with_deleted)
    )
    if not files:
        return None
    if force_rewrite:
        reason = CompactReason.FORCED_REWRITE
    elif any(map(is_expired, files)):
        reason = CompactReason.EXPIRED_RECORDS
    else:
        reason = CompactReason.DELETED_ROWS
    return Pick(files=files, output_level=max_level, reason=reason)


def last_full_compaction_ms(files: Iterable[DataFile], options: CompactionOptions) -> int | None:
    """An estimate of the last full compaction: the newest file on the *configured* highest level.

    Its clock is that for creation times: local wall-clock milliseconds. An upgraded file keeps its
    creation time, so a full compaction that only upgraded looks older than it is; a caller that
    remembers the true time uses the later of both.
    """
    top = options.num_levels - 1
    return max(
        (
            file.creation_time_ms
            for file in files
            if file.level == top and file.creation_time_ms is not None
        ),
        default=None,
    )


# A serialised key to a value that compares as Paimon's key comparator does.
KeyOf = Callable[[bytes], Any]


def bucket_runs(files: Iterable[DataFile], key_of: KeyOf) -> tuple[SortedRun, ...]:
    """Level-0 runs, newest first, then the non-empty levels in ascending order.

    Agrees with Levels.levelSortedRuns. Keys are decoded for levels above 0 only. Raises
    `FormatError` with the name of a file whose key range overlaps its neighbour's on one level or
    cannot be read, or whose level is negative.
    """
    by_level: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.level < 0:
            raise FormatError(
                file.file_name, f"data file on level {file.level}, expected 0 or more"
            )
        by_level[file.level].append(file)
    newest_first = sorted(by_level.pop(0, ()), key=_level_0_order)
    runs = [SortedRun(level=0, files=(file,)) for file in newest_first]
    runs += [_level_run(level, by_level[level], key_of) for level in sorted(by_level)]
    return tuple(runs)


def level_count(highest: int, configured: int) -> int:
    """The number of levels in effect: the configured one, or more if files are on higher levels.

    `highest` is the highest level with a file, -1 if there is none. Raises `UsageError` when the
    number is below 2, as Levels.java refuses.
    """
    count = max(configured, 1 + highest)
    if count < 2:
        raise UsageError(f"num-levels is {configured}, must be at least 2")
    return count


def _level_0_order(file: DataFile) -> tuple[int, int, int, str]:
    return -file.max_sequence_number, file.min_sequence_number, file.created_ms, file.file_name


def _level_run(level: int, files: list[DataFile], key_of: KeyOf) -> SortedRun:
    keyed = [(*file.key_range(key_of), file) for file in files]
    keyed.sort(key=lambda item: item[0])
    for (_, previous_max, previous), (minimum, _, file) in pairwise(keyed):
        if not minimum > previous_max:
            raise FormatError(
                file.file_name,
                f"key range overlaps with {previous.file_name} on level {level}, "
                "where files must be disjoint",
            )
    return SortedRun(level=level, files=tuple(file for _, _, file in keyed))


def holds_parts(
    runs: Sequence[SortedRun], partial_schemas: Set[int], *, is_one_record: bool
) -> bool:
    """Whether states of keys are spread over levels, by files that have one of these schemas.

    `is_one_record`: the state of a key is one of its records. Raises `FormatError` if it is not,
    and whole states exist next to parts: it is unknown which parts they contain.
    """
    middle = [file for run in runs if 0 < run.level < runs[-1].level for file in run.files]
    parts = [file for file in middle if file.schema_id in partial_schemas]
    if parts and len(parts) < len(middle) and not is_one_record:
        raise FormatError(
            parts[0].file_name,
            "it was compacted while the table did not look keys up, other files of its bucket were "
            "compacted while it did: the rows that they hold together are unknown",
        )
    return bool(parts)


def is_from_before(files: Iterable[DataFile], schemas: Set[int]) -> bool:
    """Whether levels above 0 are merged into one first: a file of these schemas hides others."""
    above = [file for file in files if file.level > 0]
    highest = max((file.level for file in above), default=0)
    return any(file.level < highest and file.schema_id in schemas for file in above)


def begins_text(options: CompactionOptions) -> str:
    """The reason why a table's older levels are merged first."""
    does = "looks up what keys have above"
    if options.lookup is not None and options.lookup.marks:
        does = "marks rows that others replace (deletion-vectors.enabled)"
    return f"{does}; levels above 0 were compacted before it did and are merged into one first"
