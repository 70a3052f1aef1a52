"""Universal compaction: sorted runs and the picks of each trigger.

A minor pick is universal compaction as Paimon's default strategy does it. The first trigger that
fires, in this order: early full compaction, size amplification, size ratio, run count, and, if the
table's options say so, all of level 0. Agrees with UniversalCompaction.java,
EarlyFullCompaction.java, ForceUpLevel0Compaction.java, OffPeakHours.java and the filters in
MergeTreeCompactManager.java, including their arithmetic: sizes and their percentages are 64-bit
integers that wrap, the ratio test is done in doubles. `PickRule` says of which release. A full pick
is CompactStrategy.pickFullCompaction.

By either rule a pick takes the runs of all levels up to its output and no others, so what is left
is older than what it makes.

Java's strategy also remembers when it last picked everything; here that moment is an argument, so
equal arguments give equal results.

Level 0: each file is a run of its own, newest first. Each level above is one run of files with
disjoint key ranges in key order. All planning on primary-key tables starts with these runs.

A key then may have records on several levels above 0: parts of its state, or records of which the
lowest one counts and the others are not marked as deleted. Readers who merge no levels see each.
Before anything else is compacted, one merge of all levels above 0 makes one record of them.
What is on the highest of these levels hides nothing, so files there need no look.

A merge of parts has to take in every record of a key. One of whole states has to take the one of
the lowest level, which has the others in it; where a state is one of the records, both come to the
same. So of whole states beside parts only that can be merged. In tables whose rows are marked, a
delete that came while others were on two levels has marked one of them and is gone: what readers
see again since then stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from compactord.errors import FormatError, UsageError
from compactord.model import CompactReason, PickRule, SortedRun
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import CompactionOptions

_LONG_SIGN, _LONG_SPAN = 1 << 63, 1 << 64


def never_expired(file: DataFile) -> bool:
    """For tables whose records do not expire."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Files to compact into one level, in the order of their runs (CompactUnit.java)."""

    files: tuple[DataFile, ...]
    output_level: int
    reason: CompactReason


def pick_universal(
    runs: Sequence[SortedRun],
    num_levels: int,
    options: CompactionOptions,
    *,
    rule: PickRule,
    now_ms: int,
    last_full_ms: int | None,
    hour_of_day: int,
) -> Pick | None:
    """What a minor compaction takes from the runs of one bucket, or None.

    `runs` as `bucket_runs` orders them; `num_levels` is the number in effect. `now_ms` and
    `last_full_ms` are on one clock, whichever; None: no full compaction is known. `hour_of_day` is
    the local hour, 0 to 23. Raises `UsageError` for a compaction trigger below 1.
    """
    if options.compaction_trigger < 1:
        raise UsageError(
            f"num-sorted-run.compaction-trigger is {options.compaction_trigger}, must be at least 1"
        )
    if not runs:
        return None
    shape = _Shape(
        runs=runs,
        sizes=[_long(run.size_bytes) for run in runs],
        max_level=num_levels - 1,
        options=options,
        ratio_percent=options.size_ratio_percent + offpeak_ratio(options, hour_of_day),
        rule=rule,
    )
    pick = shape.early_full(now_ms, last_full_ms) or shape.by_size()
    if pick is None and options.force_up_level_0:
        pick = shape.level_0()
    # One file that would stay on its level is left.
    if pick and len(pick.files) == 1 and pick.files[0].level == pick.output_level:
        return None
    return pick


def offpeak_ratio(options: CompactionOptions, hour_of_day: int) -> int:
    """Percent that are added to the size ratio at this local hour."""
    start, end = options.offpeak_start_hour, options.offpeak_end_hour
    if start == -1 or end == -1 or start == end:
        return 0
    if start <= end:
        is_offpeak = start <= hour_of_day < end
    else:
        is_offpeak = hour_of_day < end or start <= hour_of_day
    return options.offpeak_ratio_percent if is_offpeak else 0


def pick_runs(runs: Sequence[SortedRun], output_level: int, reason: CompactReason) -> Pick:
    files = tuple(file for run in runs for file in run.files)
    return Pick(files=files, output_level=output_level, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The runs of one bucket with their sizes, and what is picked of them by each trigger."""

    runs: Sequence[SortedRun]
    sizes: Sequence[int]
    max_level: int
    options: CompactionOptions
    ratio_percent: int
    rule: PickRule

    def early_full(self, now_ms: int, last_full_ms: int | None) -> Pick | None:
        if len(self.runs) == 1:
            return None
        interval = self.options.optimization_interval_ms
        if interval is not None and (last_full_ms is None or now_ms - last_full_ms > interval):
            return self._all(CompactReason.EARLY_FULL_INTERVAL)
        threshold = self.options.total_size_threshold
        if threshold is not None and _long(sum(self.sizes)) < threshold:
            return self._all(CompactReason.EARLY_FULL_TOTAL_SIZE)
        threshold = self.options.incremental_size_threshold
        if threshold is not None:
            pairs = zip(self.runs, self.sizes, strict=True)
            incremental = sum(size for run, size in pairs if run.level != self.max_level)
            if _long(incremental) > threshold:
                return self._all(CompactReason.EARLY_FULL_INCREMENTAL_SIZE)
        return None

    def by_size(self) -> Pick | None:
        """By size amplification, size ratio or run count."""
        trigger = self.options.compaction_trigger
        if len(self.runs) < trigger:
            return None
        younger, oldest = _long(sum(self.sizes[:-1])), self.sizes[-1]
        if _long(younger * 100) > _long(self.options.max_size_amplification_percent * oldest):
            return self._all(CompactReason.SIZE_AMPLIFICATION)
        count = self._extended(1)
        if count > 1:
            return self._first(count, CompactReason.SIZE_RATIO)
        if len(self.runs) > trigger:
            count = self._extended(len(self.runs) - trigger + 1)
            return self._first(count, CompactReason.RUN_COUNT)
        return None

    def level_0(self) -> Pick | None:
        runs = self.runs
        count = sum(run.level == 0 for run in runs)
        if count == 0:
            return None
        # Level 0 cannot be the output while level 1 is occupied: level 1 joins before the ratio
        # test.
        if count < len(runs) and runs[count].level == 1:
            count += 1
        return self._first(self._extended(count), CompactReason.FORCED_LEVEL_0)

    def _extended(self, count: int) -> int:
        """How many runs to take when each next one is about as large as all before or smaller.

        Once there is something to merge, what lies on levels 0 and 1 has to join whatever its size,
        as nothing is put on level 0. By 2.1 it joins here and counts for the runs after it.
        """
        taken = _long(sum(self.sizes[:count]))
        factor = 100.0 + self.ratio_percent
        for run, size in zip(self.runs[count:], self.sizes[count:], strict=True):
            has_to_join = self.rule is PickRule.RELEASE_2_1 and count > 1 and run.level <= 1
            if not has_to_join and float(taken) * factor / 100.0 < float(size):
                break
            taken = _long(taken + size)
            count += 1
        return count

    def _all(self, reason: CompactReason) -> Pick:
        return pick_runs(self.runs, self.max_level, reason)

    def _first(self, count: int, reason: CompactReason) -> Pick:
        """The first `count` runs, and more where the output would be level 0."""
        runs = self.runs
        output_level = self.max_level if count == len(runs) else max(0, runs[count].level - 1)
        if output_level == 0:
            for run in runs[count:]:
                count += 1
                if run.level != 0:
                    output_level = run.level
                    break
        if count == len(runs):
            output_level = self.max_level
        return pick_runs(runs[:count], output_level, reason)


def _long(value: int) -> int:
    """The value as Java's long holds it: a percentage of a large run can overflow there."""
    return (value + _LONG_SIGN) % _LONG_SPAN - _LONG_SIGN


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
    """All runs, or None when they already are one run on the highest level.

    With `force_rewrite` such a run is picked nevertheless, and without it those of its files that
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

    The clock is that of creation times: local wall-clock milliseconds. An upgraded file keeps its
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
                f"key range overlaps that of {previous.file_name} on level {level}, "
                "where files must be disjoint",
            )
    return SortedRun(level=level, files=tuple(file for _, _, file in keyed))


def holds_parts(
    runs: Sequence[SortedRun], partial_schemas: Set[int], *, is_one_record: bool
) -> bool:
    """Whether states of keys are spread over levels, by files that have one of these schemas.

    `is_one_record`: the state of a key is one of its records. Raises `FormatError` where it is not,
    and whole states lie beside parts: nobody knows which parts they have in them.
    """
    middle = [file for run in runs if 0 < run.level < runs[-1].level for file in run.files]
    parts = [file for file in middle if file.schema_id in partial_schemas]
    if parts and len(parts) < len(middle) and not is_one_record:
        raise FormatError(
            parts[0].file_name,
            "it was compacted while the table did not look keys up, others of its bucket while it "
            "did: which rows they hold together cannot be told",
        )
    return bool(parts)


def is_from_before(files: Iterable[DataFile], schemas: Set[int]) -> bool:
    """Whether levels above 0 are merged into one first: some file of these schemas hides others."""
    above = [file for file in files if file.level > 0]
    highest = max((file.level for file in above), default=0)
    return any(file.level < highest and file.schema_id in schemas for file in above)


def begins_text(options: CompactionOptions) -> str:
    """What levels of before are merged for, of a table."""
    does = "looks up what keys have above"
    if options.lookup is not None and options.lookup.marks:
        does = "marks rows that others replace (deletion-vectors.enabled)"
    return f"{does}; levels above 0 were compacted before it did and are merged into one first"
