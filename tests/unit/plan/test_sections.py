"""The order of runs in a section, which is that of Java's queue: it settles ties of records."""

from __future__ import annotations

import itertools

import pytest

from compactord.model import CompactReason, Rewrite
from compactord.plan.picks import Pick
from compactord.plan.sections import ActionRules, cut_actions, interval_partition
from tests.unit.plan.builders import data_file, key_of, names


@pytest.mark.parametrize(
    ("keys", "runs"),
    [
        # What begins together is taken in the order of ends.
        ([(3, 6), (3, 4), (1, 4)], ["f2", "f0", "f1"]),
        # Of two runs that end together the left one rises.
        ([(0, 4), (0, 6), (1, 3), (1, 1), (0, 4)], ["f3", "f2", "f4", "f1", "f0"]),
    ],
)
def test_runs_lie_as_in_the_queue_of_java(keys: list[tuple[int, int]], runs: list[str]) -> None:
    files = [data_file(f"f{number}", keys=bounds) for number, bounds in enumerate(keys)]
    (section,) = interval_partition(files, key_of)
    assert [names(run.files) for run in section.runs] == [[name] for name in runs]


def test_the_order_of_the_files_has_no_influence() -> None:
    keys = [(0, 9), (0, 3), (2, 3), (2, 9), (4, 5)]
    files = [data_file(f"f{number}", keys=bounds) for number, bounds in enumerate(keys)]
    assert len({interval_partition(order, key_of) for order in itertools.permutations(files)}) == 1


@pytest.mark.parametrize(("forced", "expired", "rewritten"), [(1, 0, 0), (0, 1, 1), (0, 0, 0)])
def test_a_settled_file_is_rewritten_when_records_have_expired_since(
    forced: int, expired: int, rewritten: int
) -> None:
    """A service remembers what it made for as long as it runs."""
    made, new = data_file("made", level=3, size=100), data_file("new", size=100, keys=(10, 11))
    rules = ActionRules(
        max_level=5,
        small_file_size=70,
        force_rewrite=bool(forced),
        final={"made", "new"},
        is_expired=lambda file: bool(expired) and file is made,
    )
    pick = Pick(files=(made, new), output_level=4, reason=CompactReason.FULL)
    actions = [isinstance(action, Rewrite) for action in cut_actions(pick, key_of, rules)]
    assert actions == [bool(rewritten), False]
