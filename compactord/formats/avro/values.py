"""Converts between the values of Avro records, as fastavro has them, and columns of Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from compactord.formats.avro.schema import is_text_map, map_types, moment_unit
from compactord.formats.layout import without_nulls
from compactord.paimon.types import (
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

_UNITS = {"millis": "ms", "micros": "us"}
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
        case AtomicType(root=TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ):
            stored = pa.timestamp(_UNITS[moment_unit(type_)], wanted.tz)
            return pa.array(values, pa.int64()).cast(stored).cast(wanted)
        case AtomicType(root=TypeRoot.DATE | TypeRoot.TIME):
            return pa.array(values, pa.int32()).cast(wanted)
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


def values_of(column: pa.Array, type_: DataType) -> list[Any]:
    """The values of a column of the table's type as fastavro encodes them."""
    convert = _converter(type_)
    values: list[Any] = column.cast(_stored(column.type)).to_pylist()
    return values if convert is None else [convert(each) for each in values]


def _stored(type_: pa.DataType) -> pa.DataType:
    """The type with numbers in place of moments, days and times."""
    if t.is_timestamp(type_):
        return pa.int64()
    if t.is_date(type_) or t.is_time(type_):
        return pa.int32()
    if t.is_map(type_):
        keys, items = type_.key_field, type_.item_field
        return pa.map_(keys.with_type(_stored(keys.type)), items.with_type(_stored(items.type)))
    if t.is_list(type_):
        field = type_.value_field
        return pa.list_(field.with_type(_stored(field.type)))
    if t.is_struct(type_):
        fields = (type_.field(place) for place in range(type_.num_fields))
        return pa.struct([field.with_type(_stored(field.type)) for field in fields])
    return type_


_Convert = Callable[[Any], Any]


def _converter(type_: DataType) -> _Convert | None:
    """Converts one value; None if values stay as they are."""
    match type_:
        case AtomicType(root=TypeRoot.DECIMAL, scale=scale):
            return _unless_null(lambda value: _digits(value, scale or 0))
        case ArrayType(element=element):
            inside = _converter(element)
            return None if inside is None else _unless_null(lambda v: [inside(x) for x in v])
        case MapType() | MultisetType():
            return _unless_null(_map_converter(type_))
        case RowType(fields=fields):
            found = {f.name: c for f in fields if (c := _converter(f.type)) is not None}
            if not found:
                return None
            return _unless_null(
                lambda v: {n: found[n](x) if n in found else x for n, x in v.items()}
            )
        case _:
            return None


def _map_converter(type_: MapType | MultisetType) -> _Convert:
    key, value = map_types(type_)
    of_key, of_value = _converter(key) or _same, _converter(value) or _same
    if is_text_map(key):
        return lambda pairs: {k: of_value(v) for k, v in pairs}
    return lambda pairs: [{"key": of_key(k), "value": of_value(v)} for k, v in pairs]


def _same(value: Any) -> Any:
    return value


def _unless_null(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _digits(value: Decimal, scale: int) -> bytes:
    """The digits in the fewest bytes of two's complement, as BigInteger.toByteArray."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "decimals of Arrow are finite"
    number: int = int("".join(map(str, digits)) or "0") * 10 ** (exponent + scale)
    number = -number if sign else number
    bits = number if number >= 0 else ~number
    size = bits.bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)
