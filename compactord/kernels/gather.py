"""Copies the selected rows out of a window's batches, column by column.

Selected rows that are adjacent in the input are returned as slices, without a copy. Otherwise each
column is concatenated and the rows are taken from it: only one concatenated column is in memory at
a time, in addition to the input and the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import Int64s, RowSizes, fixed_array, fixed_values

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
    """The values of the rows; row -1: null."""
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
    """As `taken`, of rows none of which is null; faster for numbers and dictionaries."""
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
    """Columns of fixed width always fit: a window has far fewer rows than 32-bit offsets allow."""
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
