"""Arrow columns as numpy arrays, without copies where Arrow's layout allows it.

All code that orders rows uses this module, so the order of every type is defined in one place. It
is that of the key comparator that Paimon generates (codegen/GenerateUtils.scala):

- booleans, integers, dates, times, timestamps: numeric
- decimals: numeric; a decimal is a signed 128-bit integer of fixed scale
- floats: -0.0 before 0.0, NaN after all numbers and equal to every other NaN
- strings, binaries: by unsigned bytes, a prefix before longer values
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_NAN_BITS = {
    np.dtype(np.int16): 0x7E00,
    np.dtype(np.int32): 0x7FC00000,
    np.dtype(np.int64): 0x7FF8000000000000,
}
_TEXT_KINDS = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)
_SIGN_BIT = np.uint64(1 << 63)


def is_text(type_: pa.DataType) -> bool:
    """Whether values of the type are ordered by bytes: strings and binaries."""
    return any(is_kind(type_) for is_kind in _TEXT_KINDS)


def fixed_values(array: pa.Array, dtype: npt.DTypeLike, width: int = 1) -> npt.NDArray[Any]:
    """The data buffer of a fixed-width column as `dtype`, `width` items per row; no copy.

    Values at null rows are undefined.
    """
    if len(array) == 0:
        return np.empty(0, dtype)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array) * width, array.offset * width * size)


def fixed_array(values: npt.NDArray[Any], valid: Bools, type_: pa.DataType) -> pa.Array:
    """The fixed-width column with this data buffer, null where not valid."""
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type_, len(valid), [bitmap, pa.py_buffer(values)])


def validity(array: pa.Array) -> Bools:
    """One bool per row: False where the value is null."""
    bitmap = array.buffers()[0]
    if bitmap is None or not array.null_count:
        return np.ones(len(array), np.bool_)
    first, skipped = divmod(array.offset, 8)
    bits = np.frombuffer(bitmap, np.uint8, offset=first)
    unpacked = np.unpackbits(bits, count=skipped + len(array), bitorder="little")
    return unpacked[skipped:].view(np.bool_)


def text_buffers(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Offsets (rows + 1, int32 or int64) into the data, and the data, of a text column; no copy."""
    dtype = _offset_type(array.type)
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.zeros(1, dtype), np.empty(0, np.uint8)
    starts = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
    if data is None or data.size == 0:
        return starts, np.empty(0, np.uint8)
    return starts, np.frombuffer(data, np.uint8)


def _offset_type(type_: pa.DataType) -> np.dtype[Any]:
    is_large = pa.types.is_large_string(type_) or pa.types.is_large_binary(type_)
    return np.dtype(np.int64 if is_large else np.int32)


def plain_text(array: pa.Array) -> pa.Array:
    """Text with offsets: fixed-size binaries are cast to binaries."""
    if pa.types.is_fixed_size_binary(array.type):
        return pc.cast(array, pa.binary())
    return array


def ordered_bits(bits: npt.NDArray[Any], is_nan: Bools) -> npt.NDArray[Any]:
    """Signed integers, same width, in the order of the floats with the bits `bits`."""
    bits = np.where(is_nan, bits.dtype.type(_NAN_BITS[bits.dtype]), bits)
    # Negative floats decrease as their bits increase: invert all bits but the sign.
    flip = (bits >> bits.dtype.type(bits.dtype.itemsize * 8 - 1)) & np.iinfo(bits.dtype).max
    result: npt.NDArray[Any] = bits ^ flip
    return result


def integer_values(array: pa.Array) -> npt.NDArray[Any]:
    """The stored integers of an integer, date, time or timestamp column; no copy."""
    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    return fixed_values(array, np.dtype(f"{sign}{array.type.bit_width // 8}"))


def integer_words(array: pa.Array) -> list[Int64s]:
    """Int64 columns whose lexicographic order is the order of a column that is not text.

    There is one column; for decimals that do not fit 64 bits there are two. Values at null rows are
    undefined.
    """
    type_ = array.type
    if pa.types.is_boolean(type_):
        return [fixed_values(pc.cast(array, pa.int8()), np.int8).astype(np.int64)]
    if pa.types.is_decimal128(type_):
        halves = fixed_values(array, np.int64, 2)
        low, high = halves[0::2], halves[1::2]
        if np.array_equal(low >> 63, high):
            return [np.ascontiguousarray(low)]
        return [
            np.ascontiguousarray(high),
            (low.view(np.uint64) ^ _SIGN_BIT).view(np.int64),
        ]
    if pa.types.is_floating(type_):
        floats = fixed_values(array, np.dtype(f"f{type_.bit_width // 8}"))
        bits = floats.view(np.dtype(f"i{floats.itemsize}"))
        return [ordered_bits(bits, np.isnan(floats)).astype(np.int64, copy=False)]
    if pa.types.is_uint64(type_):
        return [(fixed_values(array, np.uint64) ^ _SIGN_BIT).view(np.int64)]
    return [integer_values(array).astype(np.int64, copy=False)]


def dictionary_ranks(array: pa.DictionaryArray) -> Int64s:
    """The dense rank (int64) of each row's value among the dictionary's values; 0 for nulls."""
    ranks = dense_ranks(array.dictionary)
    indices = pc.fill_null(array.indices, 0) if array.null_count else array.indices
    if len(ranks) == 0:
        return np.zeros(len(array), np.int64)
    taken: Int64s = ranks[integer_words(indices)[0]]
    return taken


def dense_ranks(values: pa.Array) -> Int64s:
    """Ranks (int64, from 0) in the order of the type, equal for equal values; for small columns."""
    if is_text(values.type):
        order = fixed_values(pc.array_sort_indices(plain_text(values)), np.uint64).view(np.int64)
        ordered = values.take(pa.array(order))
        differs = pc.fill_null(pc.not_equal(ordered[1:], ordered[:-1]), True)
        steps = differs.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        words = integer_words(values)
        order = np.lexsort(words[::-1])
        steps = np.zeros(max(len(values) - 1, 0), np.int64)
        for word in words:
            ordered_word = word[order]
            steps |= ordered_word[1:] != ordered_word[:-1]
    ranks = np.zeros(len(values), np.int64)
    ranks[order[1:]] = np.cumsum(steps)
    return ranks


def stretch_starts(values: Int64s) -> Int64s:
    """The positions where runs of equal values begin."""
    if len(values) == 0:
        return np.empty(0, np.int64)
    return np.append(0, np.flatnonzero(values[1:] != values[:-1]) + 1)


class RowSizes:
    """The size in bytes of batches of one schema in memory.

    Dictionaries, which batches share, and validity bitmaps are not counted. Several places need the
    size of every batch; summing up `nbytes` there would cost as much as merging.
    """

    __slots__ = ("_fixed_bits", "_nested", "_texts")

    def __init__(self, schema: pa.Schema) -> None:
        self._fixed_bits = 0
        self._texts: list[tuple[int, np.dtype[Any]]] = []
        self._nested: list[int] = []
        for position, type_ in enumerate(schema.types):
            if pa.types.is_dictionary(type_):
                self._fixed_bits += type_.index_type.bit_width
            elif is_text(type_) and not pa.types.is_fixed_size_binary(type_):
                self._texts.append((position, _offset_type(type_)))
            elif pa.types.is_nested(type_):
                self._nested.append(position)
            else:
                self._fixed_bits += type_.bit_width

    def of(self, batch: pa.RecordBatch) -> int:
        """The size of the batch, in bytes."""
        return (self._fixed_bits * int(batch.num_rows) + 7) // 8 + self.of_varying(batch)

    def of_varying(self, batch: pa.RecordBatch) -> int:
        """The size of the columns of variable width only, in bytes."""
        size = 0
        for position, offset_type in self._texts if batch.num_rows else ():
            column = batch.column(position)
            offsets = np.frombuffer(column.buffers()[1], offset_type)
            start, rows = column.offset, batch.num_rows
            size += rows * offset_type.itemsize + int(offsets[start + rows] - offsets[start])
        return size + sum(int(batch.column(position).nbytes) for position in self._nested)
