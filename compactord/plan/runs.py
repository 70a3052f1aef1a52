"""The sorted runs of one bucket, as Levels.java arranges its files.

Level 0: each file is a run of its own, newest first. Each level above is one run of files with
disjoint key ranges in key order. All planning on primary-key tables starts with these runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from compactord.errors import FormatError, UsageError
from compactord.model import SortedRun
from compactord.paimon.data_file import DataFile

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
                f"key range overlaps that of {previous.file_name} on level {level}, "
                "where files must be disjoint",
            )
    return SortedRun(level=level, files=tuple(file for _, _, file in keyed))
