from __future__ import annotations

import decimal

import pyarrow as pa
import pytest

from compactord.kernels.columns import RowSizes


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
