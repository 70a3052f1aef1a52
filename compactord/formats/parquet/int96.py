"""INT96 timestamps, as Java writes TIMESTAMP(7..9): read as bytes, converted with a check.

Arrow's own conversion wraps without an error outside 1677-09-21 … 2262-04-11, and the result looks
valid. So the file is opened with a footer that declares INT96 columns as fixed-size bytes (the
pages of both types are the same), and this module converts the twelve bytes.

A value is the nanoseconds of the day (64 bits) and the Julian day (32 bits), little-endian. Java
divides toward zero, so before 1970 it writes the next day and negative nanoseconds
(format/parquet/writer/ParquetRowDataWriter.java).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.formats.parquet import thrift
from compactord.formats.parquet.structs import Chunk, Element, File, Group, Meta, Type
from compactord.formats.parquet.thrift import Kind, Struct, required, required_list
from compactord.kernels.columns import Bools, Int64s

WIDTH = 12
_NANOS_PER_DAY = 86_400_000_000_000
_JULIAN_EPOCH = 2_440_588
_RAW = np.dtype([("nanos", "<i8"), ("day", "<i4")])
# Days whose nanoseconds fit 64 bits at any time of the day.
_EDGE_DAY = (1 << 63) // _NANOS_PER_DAY - 1

_INT96, _FIXED = thrift.i32(Type.INT96), thrift.i32(Type.FIXED_LEN_BYTE_ARRAY)


def declared(footer: Struct) -> Struct:
    """The decoded footer with INT96 columns as 12 fixed bytes; the same object if it has none."""
    elements = required_list(footer, File.SCHEMA, Kind.STRUCT)
    if not any(element.get(Element.TYPE) == _INT96 for element in elements):
        return footer
    changed = [
        element
        if element.get(Element.TYPE) != _INT96
        else {Element.TYPE: _FIXED, Element.LENGTH: thrift.i32(WIDTH)}
        | {field: value for field, value in element.items() if field > Element.LENGTH}
        for element in elements
    ]
    groups = map(_declared_group, required_list(footer, File.GROUPS, Kind.STRUCT))
    return {
        **footer,
        File.SCHEMA: thrift.items(Kind.STRUCT, changed),
        File.GROUPS: thrift.items(Kind.STRUCT, groups),
    }


def _declared_group(group: Struct) -> Struct:
    chunks = map(_declared_chunk, required_list(group, Group.COLUMNS, Kind.STRUCT))
    return {**group, Group.COLUMNS: thrift.items(Kind.STRUCT, chunks)}


def _declared_chunk(chunk: Struct) -> Struct:
    meta = required(chunk, Chunk.META, Kind.STRUCT)
    if meta.get(Meta.TYPE) != _INT96:
        return chunk
    return {**chunk, Chunk.META: thrift.struct({**meta, Meta.TYPE: _FIXED})}


def to_nanoseconds(column: pa.Array, absent: Bools, path: str, name: str) -> pa.Array:
    """Convert an array of 12 fixed bytes to timestamp[ns].

    `absent` (one bool per slot) marks slots in a ROW that is null: a NOT NULL field has undefined
    bytes there. Raises `FormatError` when a value does not fit 64 bits of nanoseconds.
    """
    count = len(column)
    raw = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    first = column.offset * WIDTH
    values = raw[first : first + count * WIDTH].view(_RAW)
    day = values["day"].astype(np.int64) - _JULIAN_EPOCH
    nanos = values["nanos"].copy()
    valid = np.asarray(column.is_valid())
    day[~valid | absent] = 0
    nanos[~valid | absent] = 0
    if bool(_outside(day, nanos).any()):
        raise FormatError(
            path,
            f"column {name} holds a timestamp outside 1677-09-21 … 2262-04-11, which 64 bits of"
            " nanoseconds cannot hold",
        )
    total = day * _NANOS_PER_DAY + nanos
    return pa.array(total, pa.int64(), mask=~valid).view(pa.timestamp("ns"))


def _outside(day: Int64s, nanos: Int64s) -> Bools:
    """Which instants do not fit 64 bits of nanoseconds; exact, without intermediate overflow."""
    outside: Bools = (np.abs(day) > _EDGE_DAY + 2) | (np.abs(nanos) > _NANOS_PER_DAY)
    edge = np.flatnonzero(~outside & (np.abs(day) >= _EDGE_DAY))
    if edge.size:
        exact = day[edge].astype(object) * _NANOS_PER_DAY + nanos[edge].astype(object)
        outside[edge] = (exact < -(1 << 63)) | (exact >= 1 << 63)
    return outside


def convert(
    column: pa.Array, wanted: pa.DataType, path: str, name: str, absent: Bools | None = None
) -> pa.Array:
    """Apply `to_nanoseconds` wherever `wanted` has a timestamp for 12 bytes, at any depth."""
    found = column.type
    is_moment = pa.types.is_timestamp(wanted) and pa.types.is_fixed_size_binary(found)
    if not is_moment and not (pa.types.is_nested(wanted) and found.id == wanted.id):
        return column
    if absent is None:
        absent = np.zeros(len(column), bool)
    if is_moment:
        return to_nanoseconds(column, absent, path, name)
    # A copy without offsets: the children of a sliced nested array are not aligned with its rows.
    column = column.take(pa.array(np.arange(len(column))))
    nulls = column.is_null()
    if pa.types.is_struct(found):
        names = [found.field(i).name for i in range(found.num_fields)]
        inside = absent | np.asarray(nulls)
        children = [
            convert(column.field(n), wanted.field(n).type, path, f"{name}.{n}", inside)
            if wanted.get_field_index(n) >= 0
            else column.field(n)
            for n in names
        ]
        return pa.StructArray.from_arrays(children, names=names, mask=nulls)
    if pa.types.is_map(found):
        keys = convert(column.keys, wanted.key_type, path, f"{name}.key")
        items = convert(column.items, wanted.item_type, path, f"{name}.value")
        return pa.MapArray.from_arrays(column.offsets, keys, items, mask=nulls)
    values = convert(column.values, wanted.value_type, path, f"{name}.element")
    return pa.ListArray.from_arrays(column.offsets, values, mask=nulls)
