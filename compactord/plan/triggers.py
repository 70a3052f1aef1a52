"""Triggers of minor picks: each has the conditions, the pick and the explanation of one reason.

`TRIGGERS` is universal compaction as Paimon's default strategy does it: the first trigger that
fires picks. Agrees with UniversalCompaction.java, EarlyFullCompaction.java,
ForceUpLevel0Compaction.java, OffPeakHours.java and the filters in MergeTreeCompactManager.java,
including their arithmetic: sizes and their percentages are 64-bit integers that wrap, the ratio
test is done in doubles. `PickRule` names the release.

Java's strategy also remembers when it last picked everything; here that moment is an argument, so
equal arguments give equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from compactord.errors import UsageError
from compactord.model import CompactReason, PickRule, SortedRun
from compactord.paimon.manifest.entry_columns import Mask
from compactord.paimon.options.table_options import CompactionOptions
from compactord.plan.picks import Pick, pick_runs
from compactord.state.base_files import BucketSummaries
from compactord.text import age_text, size_text

_LONG_SIGN, _LONG_SPAN = 1 << 63, 1 << 64
_T = TypeVar("_T")

LOOKED_UP = "rows of level 0 wait for lookup (lookup-compact)"
RUN_TRIGGER = "num-sorted-run.compaction-trigger"
INTERVAL = "compaction.optimization-interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerOption(Generic[_T]):
    """An option of tables and runs; `parse` raises `ValueError` with what it expects."""

    name: str
    parse: Callable[[str], _T]
    default: _T

    def of(self, options: CompactionOptions) -> _T:
        value: _T = options.of_triggers.get(self.name, self.default)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRuns:
    """The sorted runs of one bucket, at least one, as `bucket_runs` orders them.

    `now_ms` and `last_full_ms` are on one clock; the latter is None without a known full
    compaction. `ratio_percent` includes the off-peak ratio.
    """

    runs: Sequence[SortedRun]
    sizes: Sequence[int]
    max_level: int
    options: CompactionOptions
    ratio_percent: int
    rule: PickRule
    now_ms: int
    last_full_ms: int | None

    def extended(self, count: int) -> int:
        """How many runs to take while the next one is at most about as large as all before it.

        No output goes to level 0, so a merge includes all runs on levels 0 and 1, of any size. By
        the rule of 2.1 they join here and count for the next runs.
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

    def pick_all(self, reason: CompactReason) -> Pick:
        return pick_runs(self.runs, self.max_level, reason)

    def pick_first(self, count: int, reason: CompactReason) -> Pick:
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


class Trigger(Protocol):
    """One reason for minor picks. `option` is its option, unless `CompactionOptions` has it.

    `CompactReason.added` makes the reason of a trigger that Paimon lacks. Commands repeat
    plans until one is empty, so a pick must leave fewer runs, or fewer on level 0.
    """

    reason: CompactReason
    option: TriggerOption[Any] | None = None

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        """False only for buckets for which `pick` returns None."""
        ...

    def pick(self, runs: BucketRuns) -> Pick | None: ...

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        """Why it fired, with the numbers and the options that set their bounds."""
        ...


class _Interval(Trigger):
    reason = CompactReason.EARLY_FULL_INTERVAL

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        return options.optimization_interval_ms is not None and buckets.run_count > 1

    def pick(self, runs: BucketRuns) -> Pick | None:
        interval_ms, last_ms = runs.options.optimization_interval_ms, runs.last_full_ms
        if interval_ms is None or len(runs.runs) == 1:
            return None
        is_due = last_ms is None or runs.now_ms - last_ms > interval_ms
        return runs.pick_all(self.reason) if is_due else None

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        interval = age_text(options.optimization_interval_ms or 0)
        return f"no full compaction within {interval} ({INTERVAL})"


class _TotalSize(Trigger):
    reason = CompactReason.EARLY_FULL_TOTAL_SIZE

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        threshold = options.total_size_threshold
        if threshold is None:
            return False
        return (buckets.run_count > 1) & (buckets.size_bytes < threshold)

    def pick(self, runs: BucketRuns) -> Pick | None:
        threshold = runs.options.total_size_threshold
        if threshold is None or len(runs.runs) == 1 or _long(sum(runs.sizes)) >= threshold:
            return None
        return runs.pick_all(self.reason)

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        bound = size_text(options.total_size_threshold or 0)
        size = size_text(sum(run.size_bytes for run in runs))
        return f"{size} in all, below {bound} (compaction.total-size-threshold)"


class _IncrementalSize(Trigger):
    reason = CompactReason.EARLY_FULL_INCREMENTAL_SIZE

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        threshold = options.incremental_size_threshold
        if threshold is None:
            return False
        # The size above the highest level is at most the size of the bucket.
        return (buckets.run_count > 1) & (buckets.size_bytes > threshold)

    def pick(self, runs: BucketRuns) -> Pick | None:
        threshold = runs.options.incremental_size_threshold
        if threshold is None or len(runs.runs) == 1:
            return None
        pairs = zip(runs.runs, runs.sizes, strict=True)
        incremental = sum(size for run, size in pairs if run.level != runs.max_level)
        return runs.pick_all(self.reason) if _long(incremental) > threshold else None

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        bound = size_text(options.incremental_size_threshold or 0)
        return f"more than {bound} below the highest level (compaction.incremental-size-threshold)"


class _SizeAmplification(Trigger):
    reason = CompactReason.SIZE_AMPLIFICATION

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        return buckets.run_count >= options.compaction_trigger

    def pick(self, runs: BucketRuns) -> Pick | None:
        options, sizes = runs.options, runs.sizes
        if len(sizes) < options.compaction_trigger:
            return None
        younger, most_percent = _long(sum(sizes[:-1])), options.max_size_amplification_percent
        is_due = _long(younger * 100) > _long(most_percent * sizes[-1])
        return runs.pick_all(self.reason) if is_due else None

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        return (
            f"{amplification_text(runs)}, above {options.max_size_amplification_percent} % "
            "(compaction.max-size-amplification-percent)"
        )


class _SizeRatio(Trigger):
    reason = CompactReason.SIZE_RATIO

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        return buckets.run_count >= options.compaction_trigger

    def pick(self, runs: BucketRuns) -> Pick | None:
        if len(runs.runs) < runs.options.compaction_trigger:
            return None
        count = runs.extended(1)
        return runs.pick_first(count, self.reason) if count > 1 else None

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        return (
            f"{len(runs)} sorted runs, {options.compaction_trigger} or more ({RUN_TRIGGER}), and "
            "the newest are about as large as each other (compaction.size-ratio)"
        )


class _RunCount(Trigger):
    reason = CompactReason.RUN_COUNT

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        return buckets.run_count > options.compaction_trigger

    def pick(self, runs: BucketRuns) -> Pick | None:
        more = len(runs.runs) - runs.options.compaction_trigger
        return runs.pick_first(runs.extended(more + 1), self.reason) if more > 0 else None

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        return f"{len(runs)} sorted runs, more than {options.compaction_trigger} ({RUN_TRIGGER})"


class _ForcedLevel0(Trigger):
    reason = CompactReason.FORCED_LEVEL_0

    def may_fire(self, buckets: BucketSummaries, options: CompactionOptions) -> Mask | bool:
        # Rows that need a lookup force it once they have waited.
        is_possible = options.force_up_level_0 or options.lookup is not None
        return is_possible and buckets.level0_count > 0

    def pick(self, runs: BucketRuns) -> Pick | None:
        levels = [run.level for run in runs.runs]
        count = levels.count(0)
        if not runs.options.force_up_level_0 or count == 0:
            return None
        # Level 0 cannot be the output while level 1 is occupied: level 1 joins before the ratio
        # test.
        count += levels[count : count + 1] == [1]
        return runs.pick_first(runs.extended(count), self.reason)

    def explain(self, runs: Sequence[SortedRun], options: CompactionOptions) -> str:
        if options.lookup is None:
            return "level 0 must be empty (compaction.force-up-level-0)"
        return f"{LOOKED_UP}: readers wait for them"


# In their order: the first one that fires picks.
Triggers: TypeAlias = Sequence[Trigger]

TRIGGERS: Triggers = (
    _Interval(),
    _TotalSize(),
    _IncrementalSize(),
    _SizeAmplification(),
    _SizeRatio(),
    _RunCount(),
    _ForcedLevel0(),
)


def trigger_options(triggers: Triggers) -> Mapping[str, Callable[[str], Any]]:
    """The options of triggers that `CompactionOptions` has no field for, and how they are read."""
    options = (trigger.option for trigger in triggers)
    return {option.name: option.parse for option in options if option is not None}


def pick_universal(
    runs: Sequence[SortedRun],
    num_levels: int,
    options: CompactionOptions,
    *,
    rule: PickRule,
    now_ms: int,
    last_full_ms: int | None,
    hour_of_day: int,
    triggers: Triggers = TRIGGERS,
) -> Pick | None:
    """The minor pick from the runs of one bucket, or None.

    `num_levels` is the number in effect, `hour_of_day` the local hour, 0 to 23; `BucketRuns` has
    the rest. Raises `UsageError` for a compaction trigger below 1.
    """
    if options.compaction_trigger < 1:
        raise UsageError(f"{RUN_TRIGGER} is {options.compaction_trigger}, must be at least 1")
    if not runs:
        return None
    found = BucketRuns(
        runs=runs,
        sizes=[_long(run.size_bytes) for run in runs],
        max_level=num_levels - 1,
        options=options,
        ratio_percent=options.size_ratio_percent + offpeak_ratio(options, hour_of_day),
        rule=rule,
        now_ms=now_ms,
        last_full_ms=last_full_ms,
    )
    pick = next((pick for trigger in triggers if (pick := trigger.pick(found))), None)
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


def amplification_text(runs: Sequence[SortedRun]) -> str:
    younger, oldest = sum(run.size_bytes for run in runs[:-1]), runs[-1].size_bytes
    percent = 100 * younger // max(1, oldest)
    return f"the newer runs hold {percent:,} % of the oldest"


def _long(value: int) -> int:
    """The value as Java's long holds it: a percentage of a large run can overflow there."""
    return (value + _LONG_SIGN) % _LONG_SPAN - _LONG_SIGN
