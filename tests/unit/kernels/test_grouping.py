"""Each way of sorting is reached on purpose, and all agree with Python's sort."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compactord.errors import SubcompactionError
from compactord.kernels.codes import pack
from compactord.kernels.order import collide_often, group_rows, key_numbers, last_rows
from tests.unit.kernels import model

RUN_COUNT = 4

Rows = list[tuple[Any, ...]]


def runs_of(keys: Rows) -> Rows:
    """Sorted runs that share keys, one after the other."""
    random_ = random.Random(3)
    return [
        key
        for _ in range(RUN_COUNT)
        for key in sorted((key for key in keys if random_.random() < 0.6), key=model.key_order)
    ]


def columns_of(rows: Rows, types: list[pa.DataType]) -> list[pa.Array]:
    return [pa.array([row[column] for row in rows], type_) for column, type_ in enumerate(types)]


def check(rows: Rows, types: list[pa.DataType]) -> None:
    groups = group_rows(columns_of(rows, types), RUN_COUNT)
    expected = sorted(range(len(rows)), key=lambda row: (model.key_order(rows[row]), row))
    assert groups.order.tolist() == expected
    keys = [model.key_order(rows[row]) for row in expected]
    is_last = [index + 1 == len(keys) or keys[index + 1] != key for index, key in enumerate(keys)]
    assert groups.ends.tolist() == is_last


NUMBERS = range(2000)
SHAPES: dict[str, tuple[Rows, list[pa.DataType], str]] = {
    "small range": ([(n,) for n in NUMBERS], [pa.int64()], "packed"),
    "whole range of int64": (
        [(n * ((1 << 64) // 2000) - (1 << 63),) for n in NUMBERS] + [((1 << 63) - 1,)],
        [pa.int64()],
        "argsort",
    ),
    "eight varying bytes of one length": (
        [(f"user-{n * 49_999:08d}",) for n in NUMBERS],
        [pa.string()],
        "argsort",
    ),
    "texts of any length": ([(f"user-{n * 7}",) for n in NUMBERS], [pa.string()], "packed"),
    "shorter than eight bytes": ([(f"{n:04d}",) for n in NUMBERS], [pa.string()], "packed"),
    "the empty text": ([("",)], [pa.string()], "packed"),
    "a rare collision after eight bytes": (
        [(f"{n * 49_999:08d}x",) for n in NUMBERS] + [("00049999y",), ("00049999z",)],
        [pa.string()],
        "verified",
    ),
    "zero bytes at the end": (
        [(f"{n:04d}",) for n in NUMBERS] + [("0007\0",), ("0007\0\0",)],
        [pa.string()],
        "verified",
    ),
    "prefix without use": (
        [(f"tenant-{n % 2}-order-number-{n:09d}",) for n in NUMBERS],
        [pa.string()],
        "in full",
    ),
    "few long texts, then a number": (
        [(f"{n % 7}-a-long-name-of-a-region", n) for n in NUMBERS],
        [pa.string(), pa.int64()],
        "packed",
    ),
    "many long texts, then a number": (
        [(f"{n % 900:09d}-a-long-name", n) for n in NUMBERS],
        [pa.string(), pa.int64()],
        "in full",
    ),
    "three columns": (
        [(n % 10, f"region-{n % 300:03d}", n) for n in NUMBERS],
        [pa.int32(), pa.string(), pa.int64()],
        "packed",
    ),
    "two wide numbers": (
        [(n * 4_000_000_000_000_000, n) for n in NUMBERS],
        [pa.int64(), pa.int64()],
        "argsort",
    ),
    "a second number that is cut off": (
        [(n * (1 << 40), n * (1 << 40)) for n in NUMBERS] + [(10 << 40, (10 << 40) + 1)],
        [pa.int64(), pa.int64()],
        "verified",
    ),
    "a constant column": (
        [(7, f"a{n:03d}") for n in range(900)],
        [pa.int8(), pa.string()],
        "packed",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_sorted_and_grouped(shape: str) -> None:
    keys, types, _ = SHAPES[shape]
    check(runs_of(keys), types)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_of_sorting_suits_the_keys(shape: str) -> None:
    keys, types, way = SHAPES[shape]
    rows = runs_of(keys)
    codes = pack(columns_of(rows, types))
    if collide_often(codes):
        found = "in full"
    elif codes.rest and len(set(codes.values.tolist())) < len(set(rows)):
        found = "verified"
    else:
        found = "packed" if codes.bits + len(rows).bit_length() <= 64 else "argsort"
    assert found == way


def test_a_run_that_is_not_sorted_is_an_error() -> None:
    with pytest.raises(SubcompactionError, match="keys descend 2 times"):
        group_rows([pa.array([1, 3, 2, 4, 1, 5])], 2)


@pytest.mark.parametrize("spread", [1, 9], ids=["dense", "sparse"])
def test_last_rows_and_key_numbers_of_numbers(spread):
    runs = [np.arange(100, 200) * spread, np.arange(150, 250) * spread]
    found = last_rows([pa.array(np.concatenate(runs))], 2)
    assert found.tolist() == [*range(50), *range(100, 200)]
    numbers = key_numbers([pa.array(np.concatenate(runs))], 2)
    assert numbers.tolist() == [*range(100), *range(50, 150)]


def test_last_rows_of_unsorted_runs_are_an_error():
    with pytest.raises(SubcompactionError, match="sorted runs were expected"):
        last_rows([pa.array([3, 1, 2, 0])], 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_last_rows_and_key_numbers_are_those_of_the_groups(shape):
    keys, types, _ = SHAPES[shape]
    rows = runs_of(keys)
    columns = columns_of(rows, types)
    groups = group_rows(columns, RUN_COUNT)
    assert last_rows(columns, RUN_COUNT).tolist() == groups.order[groups.ends].tolist()
    numbers = key_numbers(columns, RUN_COUNT)[groups.order]
    assert numbers.tolist() == (np.cumsum(groups.ends) - groups.ends).tolist()


def test_last_rows_of_texts_that_differ_in_a_zero_byte_only():
    texts = ["k", "k\0", "k", "k\0\0"]
    assert last_rows([pa.array(texts)], 2).tolist() == [2, 1, 3]
