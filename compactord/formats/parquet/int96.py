"""INT96 timestamps, as Java writes TIMESTAMP(7..9): in memory as bytes, converted both ways.

Arrow's own conversion wraps without an error outside 1677-09-21 … 2262-04-11, and its writer makes
either all timestamps of a file INT96 or none. So a file is opened with a footer that declares INT96
columns as fixed-size bytes, and written as fixed-size bytes with a footer that declares INT96: both
types have the same pages. `footer` changes the footers, this module the values.

A value is the nanoseconds of the day (64 bits) and the Julian day (32 bits), little-endian. Java
divides toward zero, so before 1970 it writes the next day and negative nanoseconds
(format/parquet/writer/ParquetRowDataWriter.java).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from compactord.kernels.columns import Bools, Int64s
from compactord.paimon.types import (
    NANOS_PER_MS,
    PER_MS,
    WIDE_TIMESTAMP,
    from_parts,
    parts_of,
)

WIDTH = 12
INT96 = pa.binary(WIDTH)
_MS_PER_DAY = 86_400_000
_JULIAN_EPOCH = 2_440_588
_RAW = np.dtype([("nanos", "<i8"), ("day", "<i4")])


def _nulls(column: pa.Array) -> Bools:
    return np.asarray(column.is_null())


def _parts(column: pa.Array) -> tuple[Int64s, Int64s]:
    """Milliseconds since the epoch and nanoseconds (0 to 999,999) of INT96 values.

    Any bytes fit the result, so the undefined bytes of nulls need no special case.
    """
    if len(column) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    raw = np.frombuffer(column.buffers()[1], np.uint8)
    first = column.offset * WIDTH
    values = raw[first : first + len(column) * WIDTH].view(_RAW)
    millis, nanos = np.divmod(values["nanos"], NANOS_PER_MS)
    millis += (values["day"].astype(np.int64) - _JULIAN_EPOCH) * _MS_PER_DAY
    return millis, nanos


def _to_ticks(column: pa.Array, wanted: pa.TimestampType) -> pa.Array:
    """INT96 as milliseconds or microseconds. Raises `ArrowInvalid` for a value that does not
    fit.
    """
    per_ms = PER_MS[wanted.unit]
    nulls = _nulls(column)
    millis, nanos = _parts(column)
    units, rest = np.divmod(nanos, NANOS_PER_MS // per_ms)
    limit = np.iinfo(np.int64).max // per_ms - 1
    lossy = ((rest != 0) | (np.abs(millis) > limit)) & ~nulls
    if lossy.any():
        raise pa.ArrowInvalid(f"a timestamp that {wanted.unit} in 64 bits cannot hold")
    return pa.array(millis * per_ms + units, pa.int64(), mask=nulls).view(wanted)


def _to_int96(column: pa.Array) -> pa.Array:
    millis, nanos = parts_of(column)
    # Toward zero, as Java divides.
    days = (np.abs(millis) // _MS_PER_DAY) * np.sign(millis)
    values = np.empty(len(column), _RAW)
    values["day"] = days + _JULIAN_EPOCH
    values["nanos"] = (millis - days * _MS_PER_DAY) * NANOS_PER_MS + nanos
    validity = pa.array(~_nulls(column)).buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(INT96, len(column), [validity, pa.py_buffer(values)])


def convert(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The column with timestamps in the types of `wanted`, at any depth; other values are
    unchanged.

    From INT96 and 64-bit timestamps to `WIDE_TIMESTAMP`, from INT96 to 64-bit timestamps, from
    `WIDE_TIMESTAMP` to INT96. Raises `ArrowInvalid` for a value that does not fit.
    """
    found = column.type
    if wanted == WIDE_TIMESTAMP:
        if found == INT96:
            return from_parts(*_parts(column), _nulls(column))
        if not pa.types.is_timestamp(found):
            return column
        return from_parts(*parts_of(column), _nulls(column))
    if found == INT96 and pa.types.is_timestamp(wanted):
        return _to_ticks(column, wanted)
    if found == WIDE_TIMESTAMP and wanted == INT96:
        return _to_int96(column)
    if not pa.types.is_nested(wanted) or found.id != wanted.id or found == wanted:
        return column
    # A copy without offsets: the children of a sliced nested array are not aligned with its rows.
    column = column.take(pa.array(np.arange(len(column))))
    nulls = column.is_null()
    if pa.types.is_struct(found):
        names = [found.field(i).name for i in range(found.num_fields)]
        children = [
            convert(column.field(n), wanted.field(n).type)
            if wanted.get_field_index(n) >= 0
            else column.field(n)
            for n in names
        ]
        return pa.StructArray.from_arrays(children, names=names, mask=nulls)
    if pa.types.is_map(found):
        keys = convert(column.keys, wanted.key_type)
        items = convert(column.items, wanted.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, mask=nulls)
    values = convert(column.values, wanted.value_type)
    return pa.ListArray.from_arrays(column.offsets, values, mask=nulls)


def stored_type(type_: pa.DataType) -> pa.DataType:
    """The type under which Arrow writes a column: INT96 in place of `WIDE_TIMESTAMP`."""
    if type_ == WIDE_TIMESTAMP:
        return INT96
    if pa.types.is_struct(type_):
        return pa.struct([stored_field(type_.field(i)) for i in range(type_.num_fields)])
    if pa.types.is_map(type_):
        return pa.map_(stored_field(type_.key_field), stored_field(type_.item_field))
    if pa.types.is_list(type_):
        return pa.list_(stored_field(type_.value_field))
    return type_


def stored_field(field: pa.Field) -> pa.Field:
    """The field with its type as `stored_type` gives it."""
    return field.with_type(stored_type(field.type))
