"""Converts between the values of Avro records, as fastavro has them, and columns of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.formats.avro.schema import is_text_map, map_types, moment_unit
from compactord.formats.layout import without_nulls
from compactord.paimon.types import (
    MOMENTS,
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
    arrow_type,
)

UNITS = {"millis": "ms", "micros": "us"}
_DECIMAL_BYTES = 16


def column_of(
    values: Sequence[Any], type_: DataType, wanted: pa.DataType | None = None
) -> pa.Array:
    """The values as a column of Arrow's type `wanted`, by default the table's.

    Raises `pa.ArrowInvalid` and `OverflowError` for values that the type does not hold.
    """
    wanted = arrow_type(type_) if wanted is None else wanted
    match type_:
        case AtomicType(root=TypeRoot.DECIMAL):
            return _decimals(values, wanted)
        case AtomicType(root=root) if root in MOMENTS or root in (TypeRoot.DATE, TypeRoot.TIME):
            return of_numbers(pa.array(values, pa.int64()), type_, wanted)
        case AtomicType():
            return pa.array(values, wanted)
        case ArrayType(element=element):
            inside = column_of(_flat(values), element, wanted.value_type)
            return pa.Array.from_buffers(
                wanted, len(values), _list_buffers(values), children=[inside]
            )
        case MapType() | MultisetType():
            return _maps(values, type_, wanted)
        case RowType(fields=fields):
            inside_of = [
                _field_of(values, field, wanted.field(place)) for place, field in enumerate(fields)
            ]
            valid = _validity(values)
            return pa.Array.from_buffers(wanted, len(values), [valid], children=inside_of)
        case VectorType():
            raise AssertionError("refused before")


def of_numbers(numbers: pa.Array, type_: AtomicType, wanted: pa.DataType) -> pa.Array:
    """Integers as a column of integers, moments, days or times."""
    if type_.root in MOMENTS:
        return numbers.cast(pa.timestamp(UNITS[moment_unit(type_)], wanted.tz)).cast(wanted)
    if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
        numbers = numbers.cast(pa.int32())
    return numbers.cast(wanted)


def _field_of(values: Sequence[Any], field: DataField, wanted: pa.Field) -> pa.Array:
    inside = [None if each is None else each[field.name] for each in values]
    column = column_of(inside, field.type, wanted.type)
    return column if wanted.nullable else without_nulls(column)


def _maps(values: Sequence[Any], type_: MapType | MultisetType, wanted: pa.DataType) -> pa.Array:
    key, value = map_types(type_)
    if is_text_map(key):
        keys = [name for each in values if each is not None for name in each]
        items = [item for each in values if each is not None for item in each.values()]
    else:
        entries = _flat(values)
        keys = [entry["key"] for entry in entries]
        items = [entry["value"] for entry in entries]
    inside = pa.StructArray.from_arrays(
        [column_of(keys, key, wanted.key_type), column_of(items, value, wanted.item_type)],
        fields=[wanted.key_field, wanted.item_field],
    )
    return pa.Array.from_buffers(wanted, len(values), _list_buffers(values), children=[inside])


def _flat(values: Sequence[Any]) -> list[Any]:
    return [item for each in values if each is not None for item in each]


def _list_buffers(values: Sequence[Any]) -> list[pa.Buffer | None]:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([0 if each is None else len(each) for each in values], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError("too many values inside of a column")
    return [_validity(values), pa.py_buffer(offsets.astype(np.int32))]


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    valid = np.fromiter((each is not None for each in values), np.bool_, len(values))
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _decimals(values: Sequence[bytes | None], wanted: pa.DataType) -> pa.Array:
    """Decimals from the two's complement of their digits, the first byte highest."""
    data = bytearray()
    most = 10**wanted.precision
    for each in values:
        digits = int.from_bytes(each or b"", "big", signed=True)
        if not -most < digits < most:
            raise OverflowError(f"{digits} has more than {wanted.precision} digits")
        data += digits.to_bytes(_DECIMAL_BYTES, "little", signed=True)
    return pa.Array.from_buffers(wanted, len(values), [_validity(values), pa.py_buffer(data)])
