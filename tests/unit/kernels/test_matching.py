"""Rows that have one of some keys: those that a dict finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from compactord.kernels.keys import ascends, matches

# The columns of the key of a number: they ascend with it.
KEYS: dict[str, tuple[list[pa.DataType], Callable[[int], tuple[Any, ...]]]] = {
    "number": ([pa.int64()], lambda n: (n * 7 - 900,)),
    "far apart": ([pa.int64()], lambda n: ((n - 200) * 2**53,)),
    "text": ([pa.string()], lambda n: (f"{n:05}",)),
    "long prefix": ([pa.binary()], lambda n: (b"x" * 40 * (n // 100) + b"%09d" % n,)),
    "decimal": ([pa.decimal128(38, 0)], lambda n: (Decimal(n - 200) * 10**30,)),
    "double": ([pa.float64()], lambda n: (n - 200.5,)),
    "boolean and number": ([pa.bool_(), pa.int32()], lambda n: (n >= 200, n)),
    "two texts": ([pa.string(), pa.string()], lambda n: ("same" * 9, f"long text number {n:05}")),
    "wide": ([pa.int64(), pa.int64()], lambda n: (2**62 * (n // 200), 2**55 * (n % 200))),
    "dictionary": ([pa.dictionary(pa.int32(), pa.string())], lambda n: (f"{n:05}",)),
}


def columns(key: str, numbers: list[int]) -> list[pa.Array]:
    types, of_number = KEYS[key]
    values = [of_number(number) for number in numbers]
    return [
        pa.array([value[place] for value in values], type_.value_type).dictionary_encode()
        if pa.types.is_dictionary(type_)
        else pa.array([value[place] for value in values], type_)
        for place, type_ in enumerate(types)
    ]


@pytest.mark.parametrize("key", KEYS)
def test_the_rows_of_keys_are_those_of_a_dict(key: str) -> None:
    seeded = random.Random(key)
    for rows, wanted in ((1, 1), (200, 200), (390, 5), (3, 300)):
        numbers = sorted(seeded.sample(range(400), rows))
        keys = sorted(seeded.sample(range(400), wanted))
        row_of = {number: row for row, number in enumerate(numbers)}
        expected = [(row_of[n], place) for place, n in enumerate(keys) if n in row_of]
        found = matches(columns(key, numbers), columns(key, keys))
        assert list(zip(*(each.tolist() for each in found), strict=True)) == expected


@pytest.mark.parametrize("key", KEYS)
def test_rows_ascend_unless_two_are_equal_or_swapped(key: str) -> None:
    numbers = list(range(400))
    assert ascends(columns(key, numbers))
    assert ascends(columns(key, [7]))
    for place in (0, 150, 398):
        assert not ascends(columns(key, [*numbers[: place + 1], *numbers[place:]]))
        swapped = [*numbers[:place], place + 1, place, *numbers[place + 2 :]]
        assert not ascends(columns(key, swapped))
