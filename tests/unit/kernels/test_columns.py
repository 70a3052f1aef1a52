from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest

from compactord.kernels.codes import text_ranks
from compactord.kernels.columns import RowSizes, dictionary_ranks, integer_words
from compactord.kernels.keys import BatchKeys


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3, 4], pa.int8()),
        pa.array([1, 2, 3, 4], pa.int64()),
        pa.array([1, 2, 3, 4], pa.timestamp("ms")),
        pa.array([decimal.Decimal(n) for n in range(4)], pa.decimal128(20, 2)),
        pa.array([b"ab", b"cd", b"ef", b"gh"], pa.binary(2)),
        pa.array(["a", "", "long text", "b"]),
        pa.array([b"a", b"", b"bytes", b"b"], pa.large_binary()),
        pa.array([[1], [2, 3], [], [4]], pa.list_(pa.int32())),
    ],
    ids=lambda column: str(column.type),
)
def test_sizes_are_those_of_the_values_and_offsets_in_a_slice(column):
    batch = pa.record_batch({"c": column})
    for part in (batch, batch.slice(1, 2)):
        assert RowSizes(part.schema).of(part) == part.column("c").nbytes


def test_columns_add_up():
    batch = pa.record_batch({"a": pa.array([1, 2]), "b": pa.array(["x", "yz"])})
    assert RowSizes(batch.schema).of(batch) == 16 + 11
    assert RowSizes(batch.schema).of_varying(batch) == 11


def test_dictionaries_do_not_count():
    column = pa.array(["a long word"] * 4).dictionary_encode()
    batch = pa.record_batch({"c": column})
    assert RowSizes(batch.schema).of(batch) == 4 * 4


def test_no_rows_have_no_values():
    batch = pa.record_batch({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})
    assert RowSizes(batch.schema).of(batch) == 0


def test_indices_under_nulls_mean_nothing():
    bits, numbers = np.array([0b101], np.uint8), np.array([2, -7, 0], np.int32)
    indices = pa.Array.from_buffers(pa.int32(), 3, [pa.py_buffer(bits), pa.py_buffer(numbers)])
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b", "c"]), safe=False)
    assert dictionary_ranks(column).tolist()[::2] == [2, 0]


@pytest.mark.parametrize("low", [0, -(2**62), -(2**63), -(2**63) - 1, -(10**37)])
@pytest.mark.parametrize("high", [1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**37])
def test_decimals_of_any_size_are_in_their_order(low, high):
    values = sorted({low, low + 1, high - 1, high})
    column = pa.array([decimal.Decimal(value) for value in values], pa.decimal128(38, 0))
    rows = list(zip(*(word.tolist() for word in integer_words(column)), strict=True))
    assert rows == sorted(set(rows))
    keys = BatchKeys(pa.record_batch({"k": column}), ["k"])
    assert [keys[row] for row in range(len(values))] == [(value,) for value in values]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["", ""],
        ["2024-06-30 23:59:59", "2023-12-31 00:00:00", "2024-07-01 00:00:00"],
        ["\x00\x7f", "\x7f\x00", "\x01\x01"],
        ["é", "ab", "ñ"],
        ["any length", "", "b", "a", "any"],
        ["too many bits 0aZ~!", "Too Many Bits !~Za0", "tOO mANY bITS a~0!Z", "^\x01" * 9 + "\x02"],
    ],
)
@pytest.mark.parametrize("skipped", [0, 1])
def test_ranks_of_texts_have_their_order(texts: list[str], skipped: int) -> None:
    texts = texts * 2
    column = pa.array(texts, pa.string())[skipped:]
    ranks, encoded = text_ranks(column).tolist(), [text.encode() for text in texts[skipped:]]
    assert [a < b for a in ranks for b in ranks] == [a < b for a in encoded for b in encoded]
