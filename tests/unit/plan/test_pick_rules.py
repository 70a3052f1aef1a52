"""What holds for minor picks of both rules, and where the rules may differ."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compactord.model import CompactReason, PickRule, SortedRun, TableKind
from compactord.paimon.data_file import DataFile
from compactord.plan.picks import Pick, bucket_runs, level_count
from compactord.plan.table import PlanRequest
from compactord.plan.triggers import pick_universal
from tests.sampling import examples
from tests.unit.plan.builders import NOW_MS, compaction_options, data_file, key_of, plan_request
from tests.unit.plan.test_table_properties import lsm_files, requests

_BY_SIZE = (CompactReason.SIZE_RATIO, CompactReason.RUN_COUNT, CompactReason.FORCED_LEVEL_0)
# Level 1 is as large as the rest of what is above the highest level.
_LARGE_LEVEL_1 = [(0, 1), (0, 1), (0, 1), (1, 1000), (4, 10_000), (5, 100_000)]


def files_of(*runs: tuple[int, int]) -> list[DataFile]:
    """One file a run, (level, size), newest first."""
    return [
        data_file(
            f"f{position}",
            level=level,
            size=size,
            sequences=(len(runs) - position, len(runs) - position),
        )
        for position, (level, size) in enumerate(runs)
    ]


def runs_of(files: list[DataFile]) -> tuple[SortedRun, ...]:
    return tuple(bucket_runs(files, key_of))


def picked(files: list[DataFile], request: PlanRequest, rule: PickRule) -> Pick | None:
    options = request.options
    return pick_universal(
        runs_of(files),
        level_count(max((file.level for file in files), default=-1), options.num_levels),
        options,
        rule=rule,
        now_ms=NOW_MS,
        last_full_ms=None,
        hour_of_day=12,
    )


@settings(max_examples=examples(500), deadline=None)
@given(lsm_files(), requests(TableKind.PRIMARY_KEY), st.sampled_from(PickRule))
def test_a_pick_takes_all_runs_up_to_its_output_and_no_others(
    files: list[DataFile], request: PlanRequest, rule: PickRule
) -> None:
    """So what stays is older than the output, and the output's level holds nothing else."""
    pick = picked(files, request, rule)
    if pick is not None:
        assert pick.output_level > 0
        runs = [run for run in runs_of(files) if run.level <= pick.output_level]
        assert pick.files == tuple(file for run in runs for file in run.files)


@settings(max_examples=examples(500), deadline=None)
@given(lsm_files(), requests(TableKind.PRIMARY_KEY))
@example(files_of(*_LARGE_LEVEL_1), plan_request(options=compaction_options()))
def test_the_rules_pick_at_the_same_times_for_the_same_reasons(
    files: list[DataFile], request: PlanRequest
) -> None:
    old, new = (picked(files, request, rule) for rule in PickRule)
    assert (old and old.reason) == (new and new.reason)
    is_forced = new is not None and new.reason is CompactReason.FORCED_LEVEL_0
    levels = [run.level for run in runs_of(files)]
    if is_forced or (levels.count(0) <= 2 and 1 not in levels):
        assert old == new
    if new is not None and new.reason in _BY_SIZE:
        assert {file for file in files if file.level <= 1} <= set(new.files)


def test_a_large_level_1_moves_on_by_the_newer_rule_only() -> None:
    files, request = files_of(*_LARGE_LEVEL_1), plan_request(options=compaction_options())
    old, new = (picked(files, request, rule) for rule in PickRule)
    assert old is not None
    assert new is not None
    assert (old.files, old.output_level) == (new.files, 1)
    assert new.output_level == 3
