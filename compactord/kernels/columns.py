"""Columns of record batches: system columns, row kinds, gathering by index, records by key.

All code that orders rows uses this module, so the order of every type is defined in one place. It
matches the key comparator that Paimon generates (codegen/GenerateUtils.scala):

- booleans, integers, dates, times, timestamps: numeric
- decimals: numeric; a decimal is a signed 128-bit integer of fixed scale
- floats: -0.0 before 0.0, NaN after all numbers and equal to every other NaN
- strings, binaries: by unsigned bytes, a prefix before longer values

Files store kinds as int8: +I 0, -U 1, +U 2, -D 3; -U and -D are retracts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.paimon.types import WIDE_TIMESTAMP, text_of

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


# Slices shorter than this on average cost later steps more than a copy would.
_MIN_SLICE_ROWS = 4096
# Strings and lists have 32-bit offsets: a concatenation must stay below 2^31 bytes and elements,
# and an element of a list may be as small as one bit.
MAX_CONCAT_BYTES = 1 << 28


def concat_column(parts: Sequence[pa.Array]) -> pa.Array:
    """The parts as one array; different dictionaries are unified."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def hand_on(parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in their order: the same batches, or one copy if there are many small ones."""
    rows = sum(part.num_rows for part in parts)
    if len(parts) * _MIN_SLICE_ROWS <= rows or not fits(parts, MAX_CONCAT_BYTES):
        yield from parts
    else:
        yield _concat(parts)


def gather(
    parts: Sequence[pa.RecordBatch],
    rows: Int64s,
    concatenated: Mapping[str, pa.Array] | None = None,
    *,
    max_bytes: int = MAX_CONCAT_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows `rows` of `parts` in the given order.

    Selected rows that are adjacent in the input are returned as slices, without a copy. Otherwise
    each column is concatenated and the rows are taken from it: only one concatenated column is in
    memory at a time, in addition to the input and the output.

    `rows` (int64) are row numbers counted over all parts; each occurs at most once. `concatenated`
    maps names to columns that are concatenated already. If the columns of variable width take more
    than `max_bytes`, the parts are not concatenated as a whole.
    """
    segments = np.count_nonzero(np.diff(rows) != 1) + 1
    if segments == 1 or (segments + len(parts)) * _MIN_SLICE_ROWS <= len(rows):
        yield from _slices(parts, rows)
    elif not fits(parts, max_bytes):
        for half in np.array_split(rows, 2):
            yield from gather(*_narrow(parts, half), max_bytes=max_bytes)
    else:
        ready = concatenated or {}
        indices = pa.array(rows)
        schema = parts[0].schema
        columns = [
            # The rows come from a sort of these parts, so they are within bounds.
            pc.take(
                ready[name]
                if name in ready
                else concat_column([part.column(position) for part in parts]),
                indices,
                boundscheck=False,
            )
            for position, name in enumerate(schema.names)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


class KeyRows(NamedTuple):
    """Rows `rows` of `parts` in key order; keys begin at the positions `starts` (both int64).

    `concatenated` maps names to columns that are concatenated already.
    """

    parts: Sequence[pa.RecordBatch]
    rows: Int64s
    starts: Int64s
    concatenated: Mapping[str, pa.Array]


def split_keys(whole: KeyRows, *, max_bytes: int = MAX_CONCAT_BYTES) -> Iterator[KeyRows]:
    """Yield all rows in order, in parts that can be concatenated and split no key.

    Columns of variable width take at most `max_bytes`, unless the rows of a single key take more.
    """
    parts, rows, starts, _ = whole
    if len(starts) > 1 and not fits(parts, max_bytes):
        middle = len(starts) // 2
        cut = int(starts[middle])
        for half, begins in ((rows[:cut], starts[:middle]), (rows[cut:], starts[middle:] - cut)):
            narrowed, numbers = _narrow(parts, half)
            yield from split_keys(KeyRows(narrowed, numbers, begins, {}), max_bytes=max_bytes)
    elif len(starts):
        yield whole


def taken(column: pa.Array, rows: Int64s) -> pa.Array:
    """The values of the rows; null for row -1."""
    missing = rows < 0
    if not missing.any():
        return pc.take(column, pa.array(rows), boundscheck=False)
    if not pa.types.is_struct(column.type) or len(column) == 0:
        return pc.take(column, pa.array(rows, mask=missing), boundscheck=False)
    # Inside a null struct Arrow would put nulls into fields that cannot be null.
    filled = pc.take(column, pa.array(np.where(missing, 0, rows)), boundscheck=False)
    nulls = missing | filled.is_null().to_numpy(zero_copy_only=False)
    children = [filled.field(place) for place in range(filled.type.num_fields)]
    return pa.StructArray.from_arrays(children, fields=list(column.type), mask=pa.array(nulls))


def taken_valid(column: pa.Array, rows: Int64s) -> pa.Array:
    """As `taken` for rows without nulls; faster for numbers and dictionaries."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        indices = taken_valid(column.indices, rows)
        return pa.DictionaryArray.from_arrays(indices, column.dictionary, safe=False)
    if not pa.types.is_primitive(type_) or pa.types.is_boolean(type_):
        return taken(column, rows)
    valid = rows >= 0
    values = fixed_values(column, f"i{type_.bit_width // 8}").take(rows)
    values *= valid
    return fixed_array(values, valid, type_)


def fits(parts: Sequence[pa.RecordBatch], max_bytes: int) -> bool:
    """Whether the parts can be concatenated.

    Columns of fixed width always fit: a window has far fewer rows than 32-bit offsets allow.
    """
    sizes = RowSizes(parts[0].schema)
    return sum(sizes.of_varying(part) for part in parts) <= max_bytes


def _concat(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    schema = parts[0].schema
    columns = [
        concat_column([part.column(position) for part in parts])
        for position in range(len(schema.names))
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _starts(parts: Sequence[pa.RecordBatch]) -> Int64s:
    """The number of each part's first row, followed by the total number of rows."""
    return np.cumsum([0, *(part.num_rows for part in parts)])


def _slices(parts: Sequence[pa.RecordBatch], rows: Int64s) -> Iterator[pa.RecordBatch]:
    if len(rows) == 0:
        return
    starts = _starts(parts)
    breaks = np.flatnonzero(np.diff(rows) != 1)
    firsts = rows[np.append(0, breaks + 1)]
    ends = rows[np.append(breaks, len(rows) - 1)] + 1
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        index = int(np.searchsorted(starts, first, side="right")) - 1
        while first < end:
            part_start, part_end = int(starts[index]), int(starts[index + 1])
            stop = min(end, part_end)
            if stop > first:
                yield parts[index].slice(first - part_start, stop - first)
            first = max(first, stop)
            index += 1


def _narrow(parts: Sequence[pa.RecordBatch], rows: Int64s) -> tuple[list[pa.RecordBatch], Int64s]:
    """The parts reduced to the given rows, and the numbers of the given rows in these parts."""
    wanted = np.sort(rows)
    starts = _starts(parts)
    cuts = np.searchsorted(wanted, starts)
    narrowed = [
        part.take(pa.array(wanted[low:high] - start))
        for part, start, low, high in zip(parts, starts[:-1], cuts[:-1], cuts[1:], strict=True)
        if high > low
    ]
    return narrowed, np.searchsorted(wanted, rows)


VALUE_KIND = "_VALUE_KIND"
SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)


def is_retract(kinds: pa.Array) -> Bools:
    """One bool per row: True for -U and -D."""
    return is_retract_kind(fixed_values(kinds, np.int8))


def is_retract_kind(kinds: npt.NDArray[Any]) -> Bools:
    """As `is_retract`, for kinds in numpy."""
    retracts: Bools = (kinds & 1).astype(np.bool_)
    return retracts


def drop_retracts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The +I and +U rows, which the highest level keeps (mergetree/DropDeleteReader.java).

    Returns the same batch if it has no other rows.
    """
    retracts = is_retract(batch.column(VALUE_KIND))
    return batch.filter(pa.array(~retracts)) if retracts.any() else batch


_SHOWN_CHARACTERS = 100


class KeyedRecords:
    """A window's records, or a part of them that splits no key.

    A merge function that makes new rows folds the records of each key from first to last, for all
    keys at once: round n takes the n-th record of every key that has one. There are as many rounds
    as the most records of a key, at most one per run, and a round costs a few numpy calls on each
    column. Keys with a single record take part in no round: their record stays as it is.

    A row number counts the rows of the columns that `column` returns. A slot is the number of a key
    with several records (with `folds_all`: with any), ordered by descending record count.
    """

    def __init__(
        self, records: KeyRows, key_columns: Sequence[str], *, folds_all: bool = False
    ) -> None:
        self._records = records
        self._key_columns = key_columns
        counts = np.diff(records.starts, append=len(records.rows))
        several = np.flatnonzero(counts > (0 if folds_all else 1))
        counts = counts[several]
        self._keys: Int64s = several[np.argsort(-counts, kind="stable")]
        self.slots = len(several)
        starts = records.starts[self._keys]
        # Slots are in descending order of their records.
        sizes = np.bincount(counts)[::-1].cumsum()[::-1] if len(counts) else np.zeros(1, np.int64)
        self.rounds: list[Int64s] = [
            records.rows[starts[: sizes[number + 1]] + number] for number in range(len(sizes) - 1)
        ]

    @property
    def schema(self) -> pa.Schema:
        return self._records.parts[0].schema

    def column(self, name: str) -> pa.Array:
        """All rows of a column, in the order of the parts, not of keys."""
        if name in self._records.concatenated:
            return self._records.concatenated[name]
        return concat_column([part.column(name) for part in self._records.parts])

    @cached_property
    def used(self) -> Int64s:
        """The row numbers of all records of keys with several."""
        return np.concatenate([np.empty(0, np.int64), *self.rounds])

    @cached_property
    def kinds(self) -> Int64s:
        """The kind of each row (int8)."""
        kinds: Int64s = fixed_values(self.column(VALUE_KIND), np.int8)
        return kinds

    @cached_property
    def sequences(self) -> Int64s:
        numbers: Int64s = fixed_values(self.column(SEQUENCE_NUMBER), np.int64)
        return numbers

    def place(self, chosen: Int64s) -> Int64s:
        """Row numbers of all keys in key order: `chosen` by slot, or the key's only record."""
        rows: Int64s = self._records.rows.take(self._records.starts)
        rows[self._keys] = chosen
        return rows

    def selected(self, column: pa.Array, chosen: Int64s) -> pa.Array:
        """The result column with, for each slot, the value of row `chosen`, null for -1."""
        return taken(column, self.place(chosen))

    def computed(self, column: pa.Array, values: pa.Array) -> pa.Array:
        """The result column with, for each slot, the value of `values`."""
        rows = self.place(np.arange(len(values)) + len(column))
        return pc.take(pa.concat_arrays([column, values]), pa.array(rows), boundscheck=False)

    def key_text(self, row: int) -> str:
        return key_text({name: self.column(name)[row] for name in self._key_columns})


def key_text(key: Mapping[str, pa.Scalar]) -> str:
    """A key's columns as text, for errors."""
    texts = []
    for name, value in key.items():
        text = text_of(value) if value.type == WIDE_TIMESTAMP and value.is_valid else str(value)
        is_long = len(text) > _SHOWN_CHARACTERS
        texts.append(f"{name}={text[:_SHOWN_CHARACTERS]}…" if is_long else f"{name}={text}")
    return ", ".join(texts)
