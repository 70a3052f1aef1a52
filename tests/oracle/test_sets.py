"""Unions of serialised sets have the bytes of Java's; tests/oracle/merging.py has whole tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from compactord.kernels.aggregators import bitmaps
from compactord.kernels.aggregators.sketches import HllSketch, ThetaSketch
from compactord.paimon.deletion_vectors import Kind
from tests.oracle.judge import Judge
from tests.sampling import IS_WHOLE
from tests.unit.kernels.merge_functions import united, united_at_once

PROGRAM = Path(__file__).with_name("Sets.java")


@pytest.fixture(scope="module")
def judge(judge: Judge) -> Judge:
    judge.jvm.load(PROGRAM)
    return judge


def _sets(judge: Judge, method: str, *texts: str) -> bytes:
    first, *others = texts
    return bytes.fromhex(judge.jvm.call("Sets", method, first, *others))


def _union(judge: Judge, name: str, left: bytes, right: bytes) -> bytes:
    return _sets(judge, "union", name, left.hex(), right.hex())


def _bitmap64(chance: random.Random, judge: Judge) -> bytes:
    """Trees with nodes of every size, containers of every kind, and traces of removals."""
    what = chance.choice(["few", "node", "node", "ranges", "many"])
    if what == "few":
        numbers = [1, 2, 3, 1 << 16, 5 << 16, 1 << 40, 1 << 40 | 3 << 16, -1, -5]
        numbers += [chance.getrandbits(63), chance.getrandbits(20)]
        added = [str(chance.choice(numbers)) for _ in range(chance.randrange(6))]
    elif what == "node":
        shift = chance.choice([16, 24, 32, 40, 48])
        size = chance.choice([3, 4, 5, 16, 17, 40, 48, 49, 60, 200, 256])
        added = [str(byte << shift) for byte in chance.sample(range(256), size)]
    elif what == "ranges":
        first = chance.choice([0, 10, 65_530, 1 << 33])
        added = [f"{first + 9 * n}:{chance.choice([1, 2, 3, 5, 100, 70_000])}" for n in range(3)]
    else:
        first, step = chance.choice([0, 1 << 32]), chance.choice([2, 3, 15])
        added = [str(first + n) for n in range(0, chance.choice([3000, 9000, 13_000]), step)]
    removed = [text for text in added if ":" not in text and chance.random() < 0.3]
    if chance.random() < 0.8:
        removed = []
    optimised = "true" if chance.random() < 0.3 else "false"
    return _sets(judge, "bitmap64", optimised, ",".join(added), ",".join(removed))


def _rbm64(left: bytes, right: bytes) -> bytes:
    union = bitmaps.union(bitmaps.parsed(left), bitmaps.parsed(right))
    return bitmaps.serialised(union)


def _same_bitmap(judge: Judge, ours: bytes, java: bytes) -> bool:
    """Equal, but for what a removal once left behind in one's tree; Java reads ours."""
    if ours == java:
        return True
    empty = bitmaps.serialised(bitmaps.Bitmap64())
    assert _union(judge, "rbm64", ours, empty) == ours
    return _contents(ours) == _contents(java)


def _contents(data: bytes) -> list[tuple[bytes, Kind, list[int]]]:
    found = bitmaps.contents(bitmaps.parsed(data))
    return [(key, container.kind, container.numbers.tolist()) for key, container in found]


def _hll_sketch(chance: random.Random, judge: Judge) -> bytes:
    """Sketches of all sizes, types and modes; most of the usual size."""
    form = chance.choice(["compact", "compact", "updatable"])
    type_ = chance.choice(["HLL_4", "HLL_6", "HLL_8"])
    lg_k = chance.choice([12, 12, 12, 4, 7, 8, 10, 11, 13, 14])
    first = chance.randrange(5) * chance.choice([0, 10, 1000])
    count = chance.choice([0, 1, 2, 5, 7, 8, 9, 20, 100, 150, 400, 500, 1000, 3000, 20_000])
    return _sets(judge, "hll", form, type_, str(lg_k), str(first), str(count))


def _theta_sketch(chance: random.Random, judge: Judge) -> bytes:
    form = chance.choice(["ordered", "unordered", "updatable"])
    family = chance.choice(["QUICKSELECT", "QUICKSELECT", "ALPHA"])
    lg_k = chance.choice([12, 12, 12, 9, 10, 13])
    first = chance.randrange(5) * chance.choice([0, 10, 1000])
    count = chance.choice([0, 1, 2, 5, 50, 1000, 4000, 4096, 5000, 8000, 30_000])
    sampled = chance.choice(["1", "1", "0.5"])
    return _sets(judge, "theta", form, family, sampled, str(lg_k), str(first), str(count))


def _united_sketches(kind: Callable[..., Any]) -> Callable[[bytes, bytes], bytes]:
    pytest.importorskip("datasketches", reason="pip install '.[sketches]'")
    return partial(united, kind)


def _same(judge: Judge, ours: bytes, java: bytes) -> bool:
    return ours == java


Sample: TypeAlias = Callable[[random.Random, Judge], bytes]
Union: TypeAlias = Callable[[], Callable[[bytes, bytes], bytes]]
SETS: dict[str, tuple[Sample, Union, Callable[[Judge, bytes, bytes], bool]]] = {
    "rbm64": (_bitmap64, lambda: _rbm64, _same_bitmap),
    "hll_sketch": (_hll_sketch, partial(_united_sketches, HllSketch), _same),
    "theta_sketch": (_theta_sketch, partial(_united_sketches, ThetaSketch), _same),
}


@pytest.mark.parametrize("name", SETS)
def test_random_unions_are_those_of_java(judge: Judge, name: str) -> None:
    sample, union, is_same = SETS[name]
    unite = union()
    seed = random.randrange(1 << 30) if IS_WHOLE else 0
    chance = random.Random(seed)
    pool = [sample(chance, judge) for _ in range(50)]
    equal = 0
    for _ in range(100):
        left, right = chance.choice(pool), chance.choice(pool)
        ours, java = unite(left, right), _union(judge, name, left, right)
        at_once = united_at_once(name, left, right)
        for found in (ours, at_once):
            assert is_same(judge, found, java), f"seed {seed}: {left.hex()} and {right.hex()}"
        equal += ours == java
        pool.append(java)
    assert equal > 80, f"seed {seed}"
