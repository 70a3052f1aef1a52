"""Samples of long tests: `make test` runs some cases of a matrix, `make test-nightly` all of them.

The sample follows from the names of a test and its parameters, so each run of `make test` is the
same. Only the examples of properties are others in each run.
"""

from __future__ import annotations

import itertools
import os
from binascii import crc32
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
IS_WHOLE = os.environ.get("COMPACTORD_TESTS") == "whole"


class CutPoints:
    """Places of a run at which a test lets something happen."""

    def __init__(self, name: str) -> None:
        self._number = _number(name)

    def __call__(self, step: int) -> Iterator[int]:
        """Every `step`-th number without an end, from one of the first `step` on; all if whole."""
        return itertools.count(1) if IS_WHOLE else itertools.count(1 + self._number % step, step)

    def of(self, cases: Sequence[T], step: int) -> Sequence[T]:
        """One in `step` cases; all if whole."""
        return cases if IS_WHOLE else cases[self._number % step :: step]


def examples(many: int) -> int:
    """How many random examples a property is tried on: a third of them; all if whole."""
    return many if IS_WHOLE else many // 3


def seeds(first: int, few: int, many: int) -> range:
    """A few seeds of random tests; many if whole."""
    return range(first, first + (many if IS_WHOLE else few))


def one_in(step: int) -> pytest.MarkDecorator:
    """Marks a test with many parameters of which a sample runs: one in `step` combinations.

    Each value of each parameter is in the sample if another parameter has `step` values or more.
    """
    return pytest.mark.one_in(step)


def divide(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run and those that are not in a sample.

    A case that is collected alone runs: somebody named it.
    """
    collected: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        collected[item.nodeid.split("[")[0]].append(item)
    left_out = {
        item.nodeid
        for cases in collected.values()
        if len(cases) > 1 and not IS_WHOLE
        for item in cases
        if not _is_sampled(item)
    }
    return (
        [item for item in items if item.nodeid not in left_out],
        [item for item in items if item.nodeid in left_out],
    )


def _is_sampled(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("one_in")
    if mark is None:
        return True
    assert isinstance(item, pytest.Function)
    places = dict(item.callspec.indices)
    for parameters in item.iter_markers("parametrize"):
        names = parameters.args[0]
        names = names.replace(" ", "").split(",") if isinstance(names, str) else names
        # Together they are one parameter.
        for name in names:
            places.pop(name)
        places[",".join(names)] = _place(
            [item.callspec.params[name] for name in names], parameters.args[1]
        )
    place = _number(item.nodeid.split("[")[0]) + sum(places.values())
    return place % mark.args[0] == 0


def _place(given: Sequence[object], cases: Iterable[Any]) -> int:
    """Which of the cases of `parametrize` has these values."""
    for place, case in enumerate(cases):
        whole = case if len(given) > 1 else (case,)
        values = case.values if hasattr(case, "marks") else whole
        if [*values] == [*given]:
            return place
    raise AssertionError(f"{given} is no case")


def _number(name: str) -> int:
    return crc32(name.encode())
