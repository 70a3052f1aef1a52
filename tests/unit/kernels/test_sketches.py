"""Unions of sketches; tests/oracle/test_sets.py compares the bytes with those of Java."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators.sketches import HllSketch, ThetaSketch
from tests.unit.kernels.merge_functions import united
from tests.unit.kernels.test_merge_engines import merged, rule

library = pytest.importorskip("datasketches", reason="pip install '.[sketches]'")

COUNTS = (0, 1, 7, 8, 30, 400, 3000)


def hll(first: int, count: int, lg_k: int = 9, type_: str = "HLL_4") -> Any:
    sketch = library.hll_sketch(lg_k, getattr(library.tgt_hll_type, type_))
    for number in range(first, first + count):
        sketch.update(number)
    return sketch


def theta(first: int, count: int, lg_k: int = 12, *, is_ordered: bool = True) -> Any:
    sketch = library.update_theta_sketch(lg_k)
    for number in range(first, first + count):
        sketch.update(number)
    return sketch.compact(is_ordered)


@pytest.mark.parametrize("left", COUNTS)
@pytest.mark.parametrize("right", COUNTS)
def test_an_hll_union_counts_the_values_of_both_and_is_one_again(left: int, right: int) -> None:
    for type_ in ("HLL_4", "HLL_6", "HLL_8"):
        one, other = hll(0, left, 11, type_), hll(left // 2, right, 10, type_)
        for data in (one.serialize_compact(), one.serialize_updatable()):
            found = united(HllSketch, data, other.serialize_compact())
            again = library.hll_sketch.deserialize(united(HllSketch, found, found))
            distinct = max(left, left // 2 + right) if right else left
            assert again.get_estimate() == pytest.approx(distinct, rel=0.15, abs=0.01)
            assert again.lg_config_k == 10


@pytest.mark.parametrize("left", [*COUNTS, 9000])
@pytest.mark.parametrize("right", [*COUNTS, 9000])
def test_a_theta_union_counts_the_values_of_both_and_is_one_again(left: int, right: int) -> None:
    one, other = theta(0, left).serialize(), theta(left // 2, right).serialize()
    found = united(ThetaSketch, united(ThetaSketch, one, other), other)
    sketch = library.compact_theta_sketch.deserialize(found)
    distinct = max(left, left // 2 + right) if right else left
    assert sketch.get_estimate() == pytest.approx(distinct, rel=0.06)
    assert sketch.num_retained <= 4096


def test_small_unions_have_these_bytes() -> None:
    """Java was seen to make them."""
    found = united(HllSketch, hll(0, 2).serialize_compact(), hll(1, 2).serialize_compact())
    assert found.hex() == "02010709030803002bf2fb06862ff90dcbd7c204"
    empty = theta(0, 0).serialize()
    assert united(ThetaSketch, empty, empty).hex() == "0103030000" + "1e0000"
    assert (
        united(ThetaSketch, empty, theta(0, 1).serialize()).hex()
        == "01030300003acc93e56b61eec8804420"
    )
    found = united(ThetaSketch, theta(0, 1).serialize(), theta(1, 1).serialize())
    assert found.hex() == "02030300001acc93020000000000803f15f97dcbbd86a105e56b61eec8804420"


def test_damaged_sketches_are_an_error_or_sketches() -> None:
    """The library alone ends the process for some of these."""
    chance = random.Random(26)
    sketches = [
        (HllSketch, data)
        for count in COUNTS
        for type_ in ("HLL_4", "HLL_8")
        for sketch in [hll(0, count, 7 if count % 2 else 10, type_)]
        for data in (sketch.serialize_compact(), sketch.serialize_updatable())
    ]
    sketches += [(ThetaSketch, theta(0, count).serialize()) for count in COUNTS]
    failed = 0
    for _ in range(3000):
        kind, whole = chance.choice(sketches)
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(min(len(data), 60))] = chance.choice([0, 1, 8, 255, 77])
        cut = bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            united(kind, cut, whole)
        except ValueError:
            failed += 1
    assert failed > 1000


@pytest.mark.parametrize("aggregator", ["hll_sketch", "theta_sketch"])
def test_sketches_in_a_merge(aggregator: str) -> None:
    is_hll = aggregator == "hll_sketch"
    data = hll(0, 3).serialize_compact() if is_hll else theta(0, 3).serialize()
    both = united(HllSketch if is_hll else ThetaSketch, data, data)
    types = {"v": pa.binary()}

    kept = merged("aggregation", rule(aggregator), types, ("+I", (None,)), ("+I", (data,)))
    assert kept == ("+I", 1, (data,))
    same = merged("aggregation", rule(aggregator), types, ("+I", (data,)), ("+I", (data,)))
    assert same == ("+I", 1, (both,))
    with pytest.raises(
        SubcompactionError, match=f"key k=7, column v: .*{aggregator} cannot take back"
    ):
        merged("aggregation", rule(aggregator), types, ("+I", (data,)), ("-U", (data,)))
    with pytest.raises(SubcompactionError, match=r"key k=7, column v: not an? .* sketch"):
        merged("aggregation", rule(aggregator), types, ("+I", (data,)), ("+I", (b"\1" * 20,)))
