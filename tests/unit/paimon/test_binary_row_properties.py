from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import FormatError
from compactord.paimon.binary_row import decode_row, encode_row
from compactord.paimon.types import (
    WIDE_TIMESTAMP,
    AtomicType,
    DataType,
    TypeRoot,
    arrow_type,
    from_nanoseconds,
)
from compactord_demo.binary_rows import bucket_numbers, encode_rows, row_hash, row_hashes
from tests.unit.paimon.values import TIMESTAMPS, atomic_types, nested_types, same, values


@st.composite
def rows(draw: st.DrawFn) -> tuple[tuple[Any, ...], list[DataType]]:
    types = draw(st.lists(nested_types(), max_size=6))
    return tuple(draw(values(type_)) for type_ in types), types


@given(rows())
def test_decoding_gives_back_what_was_encoded(row: tuple[tuple[Any, ...], list[DataType]]) -> None:
    row_values, types = row
    data = encode_row(row_values, types)
    assert (len(data) - 4) % 8 == 0 or any(not isinstance(t, AtomicType) for t in types)
    decoded = decode_row(data, types)
    assert same(decoded, row_values)
    assert encode_row(decoded, types) == data


@given(rows(), st.data())
def test_damaged_rows_are_refused_or_decoded_but_never_crash(
    row: tuple[tuple[Any, ...], list[DataType]], data: st.DataObject
) -> None:
    row_values, types = row
    broken = bytearray(encode_row(row_values, types))
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    try:
        decoded = decode_row(cut, types)
    except FormatError:
        return
    assert len(decoded) == len(types)


SHORT_YEARS = 9_000_000_000_000_000_000


def _fits_arrow(value: Any, type_: AtomicType) -> Any:
    if value is not None and type_.root in TIMESTAMPS and arrow_type(type_) != WIDE_TIMESTAMP:
        return value % SHORT_YEARS // 1_000_000 * 1_000_000
    return value


def _arrow(column: list[Any], type_: AtomicType) -> pa.Array:
    kind = arrow_type(type_)
    if kind == WIDE_TIMESTAMP:
        return from_nanoseconds(column)
    if type_.root in TIMESTAMPS:
        unit = {"ms": 1_000_000, "us": 1000}[kind.unit]
        ticks = [None if value is None else value // unit for value in column]
        return pa.array(ticks, pa.int64()).cast(kind)
    if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
        return pa.array(column, pa.int32()).cast(kind)
    return pa.array(column, kind)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[list[Any]], list[AtomicType]]:
    types = draw(st.lists(atomic_types(), min_size=1, max_size=4))
    count = draw(st.integers(0, 12))
    drawn = [draw(st.lists(values(type_), min_size=count, max_size=count)) for type_ in types]
    return [
        [_fits_arrow(value, type_) for value in column]
        for column, type_ in zip(drawn, types, strict=True)
    ], types


@given(columns(), st.integers(1, 64), st.integers(0, 3))
@settings(deadline=None)
def test_columns_are_hashed_as_their_rows(
    table: tuple[list[list[Any]], list[AtomicType]], buckets: int, offset: int
) -> None:
    drawn, types = table
    arrays = [
        _arrow(column, type_).slice(offset) for column, type_ in zip(drawn, types, strict=True)
    ]
    expected = [encode_row(row, types) for row in zip(*(c[offset:] for c in drawn), strict=True)]
    assert encode_rows(arrays, types) == expected
    assert row_hashes(arrays, types).tolist() == [row_hash(row) for row in expected]
    numbers = bucket_numbers(arrays, types, buckets)
    assert numbers.dtype == np.int32
    assert numbers.tolist() == [abs(row_hash(row)) % buckets for row in expected]


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38))
def test_every_decimal_survives(number: int, scale: int) -> None:
    kind = AtomicType(root=TypeRoot.DECIMAL, precision=38, scale=scale)
    value = Decimal(f"{number}e-{scale}")
    [decoded] = decode_row(encode_row((value,), [kind]), [kind])
    assert decoded == value
    assert decoded.as_tuple().exponent == -scale
