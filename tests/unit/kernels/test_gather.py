from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.kernels.columns import (
    KeyRows,
    gather,
    hand_on,
    split_keys,
    taken,
    taken_valid,
    validity,
)
from tests.sampling import examples


def parts_of(sizes: list[int]) -> list[pa.RecordBatch]:
    """Every sort of column; dictionaries differ from part to part."""
    parts, first = [], 0
    for size in sizes:
        numbers = list(range(first, first + size))
        nullable = [None if number % 5 == 0 else number for number in numbers]
        columns = {
            "number": pa.array(numbers, pa.int64()),
            "nullable": pa.array(nullable, pa.int32()),
            "text": pa.array([f"{number:05d}" for number in numbers], pa.string()),
            "category": pa.array([f"c{number % 7}" for number in numbers]).dictionary_encode(),
            "list": pa.array([[number] * (number % 3) for number in numbers], pa.list_(pa.int16())),
            "map": pa.array(
                [[(str(number), number)] for number in numbers], pa.map_(pa.string(), pa.int64())
            ),
            "struct": pa.array(
                [{"a": number, "b": [str(number)]} for number in numbers],
                pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
            ),
        }
        parts.append(pa.RecordBatch.from_pydict(columns))
        first += size
    return [part for part in parts if part.num_rows]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_rows_come_in_the_order_that_was_asked_for(sizes: list[int], random: object) -> None:
    parts = parts_of(sizes)
    total = sum(sizes)
    rows = random.sample(range(total), random.randint(0, total))  # type: ignore[attr-defined]
    if not parts or not rows:
        return
    taken = pa.Table.from_batches(gather(parts, np.array(rows, np.int64))).to_pylist()
    whole = pa.Table.from_batches(parts_of([total])).to_pylist()
    assert taken == [whole[row] for row in rows]


def test_a_concatenation_that_would_be_too_large_is_made_in_pieces() -> None:
    parts = parts_of([40, 60, 50])
    rows = np.random.default_rng(1).permutation(150)[:120]
    at_once = pa.Table.from_batches(gather(parts, rows)).to_pylist()
    in_pieces = list(gather(parts, rows, max_bytes=1000))
    assert len(in_pieces) > 4
    assert pa.Table.from_batches(in_pieces).to_pylist() == at_once


def test_keys_are_split_into_pieces_that_split_none() -> None:
    parts = parts_of([40, 60, 50])
    rows = np.random.default_rng(1).permutation(150)[:120]
    starts = np.array([0, 1, 2, 30, 31, 90, 100, 119])
    whole = KeyRows(parts, rows, starts, {})
    assert list(split_keys(whole)) == [whole]
    pieces = list(split_keys(whole, max_bytes=1000))
    assert len(pieces) > 4
    found = [batch for piece in pieces for batch in gather(piece.parts, piece.rows)]
    at_once = pa.Table.from_batches(gather(parts, rows))
    assert pa.Table.from_batches(found).to_pylist() == at_once.to_pylist()
    firsts = np.cumsum([0, *(len(piece.rows) for piece in pieces)])
    begins = [first + piece.starts for first, piece in zip(firsts, pieces, strict=False)]
    assert np.concatenate(begins).tolist() == starts.tolist()


def test_long_stretches_are_slices_of_the_input() -> None:
    part = pa.RecordBatch.from_pydict({"number": pa.array(range(20_000), pa.int64())})
    rows = np.concatenate([np.arange(20_000, 40_000), np.arange(0, 20_000)])
    first, second = gather([part, part], rows)
    for batch in (first, second):
        assert batch.column(0).buffers()[1].address == part.column(0).buffers()[1].address
        assert batch.num_rows == 20_000


def test_a_stretch_over_several_parts_is_complete() -> None:
    parts = parts_of([3, 1, 5])
    batches = list(gather(parts, np.arange(1, 8)))
    assert pa.Table.from_batches(batches)["number"].to_pylist() == list(range(1, 8))


def test_many_small_batches_are_handed_on_as_one() -> None:
    [whole] = hand_on(parts_of([1] * 10))
    assert whole.column("number").to_pylist() == list(range(10))


def test_large_batches_are_handed_on_as_they_are() -> None:
    parts = parts_of([5000, 5000])
    assert all(found is part for found, part in zip(hand_on(parts), parts, strict=True))


def test_a_row_that_becomes_null_has_no_nulls_in_its_required_fields() -> None:
    """A file with a null there could not be written, though nobody would see it."""
    required = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
    column = pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}], required)
    found = taken(column, np.array([1, -1, 0]))
    assert found.to_pylist() == [{"a": 2, "b": None}, None, {"a": 1, "b": "x"}]
    assert found.type == required
    assert found.field(0).null_count == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, None, 4], pa.int16()),
        pa.array([1.5, None, 0.0, -0.0]),
        pa.array([1, 2, None, 4], pa.timestamp("us", tz="UTC")),
        pa.array([True, None, False, None]),
        pa.array([None, decimal.Decimal(2), None, decimal.Decimal(4)]),
        pa.array(["a", None, "", "b"]),
        pa.array(["a", None, "", "b"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
@pytest.mark.parametrize("missing", [[], [-1]])
def test_rows_that_are_not_null_are_taken_as_all_others(column, missing):
    for part in (column, column.slice(1), column.slice(2, 1)):
        rows = np.array([*np.flatnonzero(validity(part))[::-1], *missing], np.int64)
        found = taken_valid(part, rows)
        found.validate(full=True)
        assert validity(part).tolist() == part.is_valid().to_pylist()
        assert found.type == column.type
        assert str(found.to_pylist()) == str(
            [*part.drop_null().to_pylist()[::-1], *(missing and [None])]
        )
