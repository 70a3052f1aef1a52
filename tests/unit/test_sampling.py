"""What `make test` runs of a matrix that `make test-nightly` runs whole, and in which units."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from tests import sampling, scheduling
from tests.sampling import CutPoints, one_in

_ROOT = Path(__file__).parent.parent.parent


@one_in(3)
@pytest.mark.parametrize(("a", "same"), [(n, n) for n in range(3)])
@pytest.mark.parametrize("b", range(6))
def test_each_value_is_in_a_sample(
    request: pytest.FixtureRequest, a: int, same: int, b: int
) -> None:
    function = request.node.nodeid.split("[")[0]
    items = [item for item in request.session.items if item.nodeid.split("[")[0] == function]
    cases = [item.callspec.params for item in items if isinstance(item, pytest.Function)]
    if request.config.getoption("keyword") or "::" in "".join(request.config.args):
        pytest.skip("some cases were chosen: run the file")
    assert len(cases) == (18 if sampling.IS_WHOLE else 6)
    assert {case["a"] for case in cases} == {*range(3)}
    assert {case["b"] for case in cases} == {*range(6)}


@pytest.mark.skipif(sampling.IS_WHOLE, reason="nothing is left out: run `make test`")
@pytest.mark.parametrize("step", [1, 3, 7])
def test_cut_points_are_every_nth_from_one_of_the_first_on(step: int) -> None:
    places = set()
    for name in map(str, range(100)):
        first, second = islice(CutPoints(name)(step), 2)
        assert second - first == step
        assert CutPoints(name).of(range(step), step) == range(first - 1, first)
        places.add(first)
    assert places == {*range(1, step + 1)}


def test_modules_with_a_recorded_duration_or_a_shared_fixture_are_there() -> None:
    recorded = json.loads((_ROOT / "tests/durations.json").read_text())
    modules = {unit.split("::")[0].split(", ")[0] for unit in recorded} | {*scheduling.UNITS}
    assert [module for module in modules if not (_ROOT / module).exists()] == []
