from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.model import CompactReason, Rewrite, Section, Upgrade
from compactord.paimon.data_file import DataFile
from compactord.plan.picks import Pick
from compactord.plan.sections import ActionRules, cut_actions, interval_partition
from tests.unit.plan.builders import data_file, key_of

SMALL_SIZE = 50


@st.composite
def overlapping_files(draw: st.DrawFn) -> list[DataFile]:
    return [
        data_file(
            f"f{number}",
            level=draw(st.integers(0, 2)),
            size=draw(st.integers(1, 100)),
            keys=(low, low + draw(st.integers(0, 8))),
            deletes=draw(st.sampled_from([0, 0, 1, None])),
        )
        for number, low in enumerate(draw(st.lists(st.integers(0, 40), max_size=15)))
    ]


def files_in(section: Section) -> list[DataFile]:
    return [file for run in section.runs for file in run.files]


def span(files: list[DataFile]) -> tuple[tuple[int], tuple[int]]:
    return min(key_of(f.min_key) for f in files), max(key_of(f.max_key) for f in files)


@settings(deadline=None)
@given(overlapping_files())
def test_sections_hold_every_file_once_and_never_touch(files: list[DataFile]) -> None:
    sections = interval_partition(files, key_of)
    spans = [span(files_in(section)) for section in sections]
    found = [file.file_name for section in sections for file in files_in(section)]
    assert sorted(found) == sorted(file.file_name for file in files)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


@settings(deadline=None)
@given(overlapping_files())
def test_runs_of_a_section_are_disjoint_and_as_few_as_overlap_demands(
    files: list[DataFile],
) -> None:
    for section in interval_partition(files, key_of):
        for run in section.runs:
            assert run.level == run.files[0].level
            ends = zip(run.files, run.files[1:], strict=False)
            assert all(key_of(a.max_key) < key_of(b.min_key) for a, b in ends)
        members = files_in(section)
        deepest = max(
            sum(f.min_key <= point.min_key <= f.max_key for f in members) for point in members
        )
        assert len(section.runs) == deepest


@settings(deadline=None)
@given(overlapping_files(), st.integers(1, 2), st.booleans())
def test_actions_come_in_key_order_and_leave_out_only_files_that_may_stay(
    files: list[DataFile], output_level: int, force_rewrite: bool
) -> None:
    rules = ActionRules(max_level=2, small_file_size=SMALL_SIZE, force_rewrite=force_rewrite)
    pick = Pick(files=tuple(files), output_level=output_level, reason=CompactReason.FULL)
    actions = cut_actions(pick, key_of, rules)
    groups = []
    for action in actions:
        match action:
            case Upgrade(file=file):
                assert file.level != output_level
                assert not force_rewrite
                assert output_level < 2 or file.delete_row_count == 0
                groups.append([file])
            case Rewrite(sections=sections):
                groups.append([file for section in sections for file in files_in(section)])
    spans = [span(group) for group in groups]
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    used = [file.file_name for group in groups for file in group]
    assert len(used) == len(set(used))
    for file in files:
        if file.file_name not in used:
            assert file.level == output_level
            assert not force_rewrite
