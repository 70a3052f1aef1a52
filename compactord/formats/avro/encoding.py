"""Encodes columns of Arrow as Avro values, without a loop over rows.

Each column becomes a binary column with the encoding of each value; the record of a row is what its
columns have there, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.formats.avro.schema import is_text_map, map_types, moment_unit
from compactord.formats.avro.values import UNITS
from compactord.paimon.types import (
    BINARIES,
    FLOATS,
    MOMENTS,
    TEXTS,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
)

_NOTHING = pa.scalar(b"", pa.binary())
_END = pa.scalar(b"\x00", pa.binary())
# The branches of a union of null and another type.
_NULL, _VALUE = _END, pa.scalar(b"\x02", pa.binary())
_VARINT_BYTES_MAX = 10
_DECIMAL_BYTES = 16


def encoded_rows(columns: Sequence[pa.Array], types: Sequence[DataType]) -> pa.BinaryArray:
    """The records of rows: their columns one after the other."""
    return _joined([encoded(each, type_) for each, type_ in zip(columns, types, strict=True)])


def encoded(column: pa.Array, type_: DataType) -> pa.BinaryArray:
    """The encoding of each value; the column has the table's type, perhaps dictionary-encoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    valid = column.is_valid()
    present = column.drop_null() if column.null_count else column
    found = _encoded(present, type_)
    if type_.nullable:
        found = _joined([pa.repeat(_VALUE, len(present)), found])
    if not column.null_count:
        return found
    places = np.cumsum(valid.to_numpy(zero_copy_only=False)) - 1
    return found.take(pc.if_else(valid, pa.array(places), None)).fill_null(_NULL)


def _joined(parts: Sequence[pa.Array]) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, _NOTHING)


def _encoded(column: pa.Array, type_: DataType) -> pa.BinaryArray:
    """The same for values that are not null, without the branch of a union."""
    match type_:
        case AtomicType():
            return _atomic(column, type_)
        case ArrayType(element=element):
            return _counted(pc.list_value_length(column), encoded(column.flatten(), element))
        case MapType() | MultisetType():
            return _map(column, type_)
        case RowType(fields=fields):
            children = column.flatten()
            return encoded_rows(children, [each.type for each in fields])
        case VectorType():
            raise AssertionError("refused before")
        case _:
            assert_never(type_)


def _atomic(column: pa.Array, type_: AtomicType) -> pa.BinaryArray:
    root = type_.root
    if root in TEXTS or root in BINARIES:
        return _with_size(column.cast(pa.binary()))
    if root in FLOATS:
        return _fixed(column.to_numpy(zero_copy_only=False))
    if root is TypeRoot.BOOLEAN:
        return _fixed(column.to_numpy(zero_copy_only=False).view(np.uint8))
    if root is TypeRoot.DECIMAL:
        return _with_size(_digits(column))
    if root in MOMENTS:
        column = column.cast(pa.timestamp(UNITS[moment_unit(type_)], column.type.tz))
    elif root in (TypeRoot.DATE, TypeRoot.TIME):
        column = column.cast(pa.int32())
    return _varints(column.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _map(column: pa.MapArray, type_: MapType | MultisetType) -> pa.BinaryArray:
    key, value = map_types(type_)
    # A slice has all entries of the whole.
    whole = pa.concat_arrays([column, column.slice(0, 0)])
    offsets = np.asarray(whole.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = whole.keys[first:last], whole.items[first:last]
    of_keys = _encoded(keys, key) if is_text_map(key) else encoded(keys, key)
    return _counted(pa.array(np.diff(offsets)), _joined([of_keys, encoded(items, value)]))


def _counted(counts: pa.Array, items: pa.BinaryArray) -> pa.BinaryArray:
    """Items in one block each, or in none if there are none, and the end."""
    numbers = counts.to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(numbers)]).astype(np.int32)
    of_rows = pa.ListArray.from_arrays(pa.array(offsets), items)
    ends = pc.if_else(pa.array(numbers > 0), _END, _NOTHING)
    return _joined([_varints(numbers), pc.binary_join(of_rows, _NOTHING), ends])


def _with_size(values: pa.BinaryArray) -> pa.BinaryArray:
    sizes = pc.binary_length(values).to_numpy(zero_copy_only=False)
    return _joined([_varints(sizes.astype(np.int64)), values])


def _varints(numbers: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Zigzag numbers of variable length, seven bits in a byte, the lowest first."""
    bits = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    most = int(bits.max(initial=0)).bit_length()
    width = max(1, -(-most // 7))
    assert width <= _VARINT_BYTES_MAX, "64 bits"
    sizes = np.ones(len(bits), np.int32)
    matrix = np.empty((len(bits), width), np.uint8)
    for place in range(width):
        rest = bits >> np.uint64(7 * place)
        has_more = rest > 0x7F
        matrix[:, place] = (rest & np.uint64(0x7F)) | (has_more.astype(np.uint64) << np.uint64(7))
        sizes += has_more
    return _binary(matrix[np.arange(width) < sizes[:, None]], sizes)


def _digits(column: pa.Decimal128Array) -> pa.BinaryArray:
    """The digits in the fewest bytes of two's complement, as BigInteger.toByteArray."""
    start = _DECIMAL_BYTES * column.offset
    raw = np.frombuffer(column.buffers()[1], np.uint8)[start : start + _DECIMAL_BYTES * len(column)]
    highest_first = raw.reshape(len(column), _DECIMAL_BYTES)[:, ::-1]
    sign = highest_first[:, :1] >> 7
    is_spare = (highest_first[:, :-1] == sign * 0xFF) & (highest_first[:, 1:] >> 7 == sign)
    spare = np.cumprod(is_spare, axis=1, dtype=np.int32).sum(axis=1, dtype=np.int32)
    kept = np.arange(_DECIMAL_BYTES) >= spare[:, None]
    return _binary(highest_first[kept], _DECIMAL_BYTES - spare)


def _fixed(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Values of a fixed width in the order of their bytes in memory, the lowest first."""
    sizes = np.full(len(values), values.dtype.itemsize, np.int32)
    return _binary(np.ascontiguousarray(values).view(np.uint8), sizes)


def _binary(data: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> pa.BinaryArray:
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)
