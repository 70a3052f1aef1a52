"""Sketches united for all keys at once have the bytes of the library's unions, which walk."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from compactord.kernels.aggregators.base import FoldedBytes, RuleViolation, Values
from compactord.kernels.aggregators.set_unions import Unite
from compactord.kernels.aggregators.sketch_inserts import hll_unions, theta_unions
from compactord.kernels.aggregators.sketches import HllSketch, ThetaSketch
from compactord.kernels.functions.folding import Action, Step, added_at_once, stepwise
from compactord.paimon.options.merge import ColumnRule
from tests.unit.kernels.test_folds_at_once import (
    EVERY,
    Case,
    Draw,
    check_damaged,
    check_not_walked,
    compare_folds,
    two_of_each,
)
from tests.unit.kernels.test_sketches import hll, theta

FEW, MORE = (1, 2, 5, 7), (8, 9, 12, 24, 25, 48, 49, 100, 191, 192)


def hlls(*counts: int, lg_ks: tuple[int, ...] = (12,), forms: str = "compact") -> Draw:
    """Sketches of few numbers, so that they share coupons, and of others."""

    def draw(chance: random.Random) -> bytes:
        type_ = chance.choice(["HLL_4", "HLL_6", "HLL_8"])
        first = chance.choice([0, 0, 5, 100, chance.getrandbits(30)])
        sketch = hll(first, chance.choice(counts), chance.choice(lg_ks), type_)
        return bytes(getattr(sketch, f"serialize_{chance.choice(forms.split())}")())

    return draw


def thetas(*counts: int, is_ordered: bool = True) -> Draw:
    def draw(chance: random.Random) -> bytes:
        first = chance.choice([0, 0, 5, 1000, chance.getrandbits(30)])
        ordered = is_ordered or chance.random() < 0.5
        sketch = theta(first, chance.choice(counts), chance.choice([12, 12, 5]), is_ordered=ordered)
        return bytes(sketch.serialize())

    return draw


def case(aggregator: str, draw: Draw, type_: pa.DataType | None = None) -> Case:
    return Case(f"{aggregator}_sketch", type_ or pa.binary(), draw)


CASES = {
    "hll-lists": case("hll", hlls(*FEW)),
    "hll-lists-without-sets": case("hll", hlls(1, 2, 3, lg_ks=(4, 7))),
    "hll-sets": case("hll", hlls(*FEW, *MORE)),
    "hll-large-sets": case("hll", hlls(192, 384, 700, 1500, lg_ks=(14, 15))),
    "hll-sizes": case("hll", hlls(*FEW, *MORE, lg_ks=(7, 8, 9, 10, 12, 21))),
    "hll-mixed": case("hll", hlls(0, 3, 12, 500, lg_ks=(8, 9), forms="compact updatable")),
    "hll-dictionary": case("hll", hlls(*FEW, 8), pa.dictionary(pa.int32(), pa.binary())),
    "theta-exact": case("theta", thetas(0, 1, 2, 3, 20, 60)),
    "theta-single": case("theta", thetas(0, 1)),
    "theta-estimates": case("theta", thetas(0, 1, 20, 60, 100, 400)),
    "theta-large": case("theta", thetas(1, 900, 2000, 5000)),
    "theta-unordered": case("theta", thetas(0, 1, 20, 60, 100, is_ordered=False)),
}


@pytest.mark.parametrize("only_adds", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_fold_at_once_has_the_bytes_of_the_walk(name: str, only_adds: bool) -> None:
    compare_folds(name, CASES[name], only_adds=only_adds)


@pytest.mark.parametrize(
    ("unite", "kind", "draw"),
    [
        (hll_unions, HllSketch, hlls(*FEW, *MORE[:-2])),
        (theta_unions, ThetaSketch, thetas(0, 1, 2, 60, 900)),
    ],
)
def test_usual_sketches_are_not_walked(unite: Unite, kind: type[FoldedBytes], draw: Draw) -> None:
    check_not_walked(unite, kind, draw)


@pytest.mark.parametrize(
    ("aggregator", "draw"),
    [("hll_sketch", hlls(0, *FEW, *MORE, 2000)), ("theta_sketch", thetas(0, 1, 2, 60, 900))],
)
def test_damaged_sketches_have_the_outcome_of_the_walk(aggregator: str, draw: Draw) -> None:
    check_damaged(aggregator, draw)


def test_a_damaged_sketch_is_named_by_its_row() -> None:
    values, steps = two_of_each(hlls(*FEW), random.Random(7))
    cells = values.column.to_pylist()
    cells[57] = cells[57][:-1]
    values = Values(pa.array(cells, pa.binary()), values.used, values.slots)
    with pytest.raises(RuleViolation, match="not an HLL sketch: it has") as e:
        added_at_once(values, ColumnRule(column="v", aggregator="hll_sketch"), steps)
    assert e.value.row == 57


def test_hashes_that_differ_in_their_last_bits_are_in_order() -> None:
    """More slots leave fewer bits for hashes in one number."""
    head = bytes.fromhex("02030300001acc93030000000000803f")
    cells = [
        head + np.array(sorted(3 << 55 | n for n in numbers), "<i8").tobytes()
        for numbers in ([1, 4, 9], [2, 4, 8])
        for _ in EVERY
    ]
    values = Values(pa.array(cells, pa.binary()), np.arange(80), 40)
    steps = [Step(Action.ADD, EVERY, EVERY), Step(Action.ADD, EVERY, EVERY + 40)]
    rule = ColumnRule(column="v", aggregator="theta_sketch")
    found = added_at_once(values, rule, steps)
    assert found is not None
    assert np.frombuffer(found[0].as_py(), "<i8", 5, 16).tolist() == [
        3 << 55 | n for n in (1, 2, 4, 8, 9)
    ]
    assert found.equals(stepwise(values, rule, steps))
