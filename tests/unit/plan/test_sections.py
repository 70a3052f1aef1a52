"""The order of runs in a section, which is that of Java's queue: it settles ties of records."""

from __future__ import annotations

import itertools

import pytest

from compactord.plan.sections import interval_partition
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
