"""Converts single values between Arrow columns and serialised rows.

The Python form is that of `paimon.binary_row`: dates as days, times as milliseconds, timestamps as
nanoseconds since the epoch, texts as str, decimals as Decimal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from compactord.formats.layout import Layout
from compactord.paimon.binary_row import Value, text_of, unscaled
from compactord.paimon.types import (
    MOMENTS,
    TEXTS,
    WIDE_TIMESTAMP,
    AtomicType,
    DataField,
    DataType,
    TypeRoot,
    arrow_type,
    from_nanoseconds,
    nanoseconds_of,
)


def cell(column: pa.Array | pa.ChunkedArray, index: int, type_: DataType) -> Value:
    """One value of a column that is not nested."""
    assert isinstance(type_, AtomicType), "nested columns have no values outside data files"
    return scalar_value(column[index], type_)


def scalar_value(scalar: pa.Scalar, type_: AtomicType) -> Value:
    """The value of an Arrow scalar."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if not scalar.is_valid:
        return None
    if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
        return scalar.value
    if scalar.type == WIDE_TIMESTAMP:
        return nanoseconds_of(scalar)
    if type_.root in MOMENTS:
        return scalar.value * nanos_per_unit(type_)
    if type_.root in TEXTS:
        return text_of(scalar.as_buffer().to_pybytes())
    return scalar.as_py()


def one_row(values: Sequence[Value], fields: Sequence[DataField]) -> pa.RecordBatch:
    """A batch of one row, the inverse of `cell`."""
    columns = [_single(value, f.type) for value, f in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def partition_arrays(layout: Layout, names: Collection[str]) -> dict[str, pa.Array]:
    """Arrays of one row with the partition's values of those of its columns that are named."""
    types = {field.name: field.type for field in layout.row_fields}
    return {name: _single(value, types[name]) for name, value in layout.partition if name in names}


def _single(value: Value, type_: DataType) -> pa.Array:
    wanted = arrow_type(type_)
    if isinstance(type_, AtomicType) and value is not None:
        if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
            return pa.array([value], pa.int32()).view(wanted)
        if wanted == WIDE_TIMESTAMP:
            return from_nanoseconds([value])
        if type_.root in MOMENTS:
            return pa.array([value // nanos_per_unit(type_)], pa.int64()).view(wanted)
        if type_.root in TEXTS and isinstance(value, bytes):
            return pa.array([value], pa.binary()).view(wanted)
    return pa.array([value], wanted)


def nanos_per_unit(type_: AtomicType) -> int:
    """Nanoseconds per unit in which timestamps of this precision are compared."""
    precision = type_.precision or 0
    return 1_000_000 if precision <= 3 else 1_000 if precision <= 6 else 1


def value_order(value: Value, type_: AtomicType) -> Any:
    """The sort key of a value in its Python form: bytes, or a number in the column's unit."""
    if type_.root is TypeRoot.DECIMAL:
        return unscaled(value, type_.scale or 0)
    if type_.root in TEXTS:
        return value.encode() if isinstance(value, str) else value
    if type_.root in MOMENTS:
        return value // nanos_per_unit(type_)
    return value
