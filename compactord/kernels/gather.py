"""Taking the rows that won out of a window's batches, column by column.

Where winners follow each other in the input they are handed on as slices without a copy.
Otherwise each column is concatenated and taken from: one column's copy is alive at a time, beside
the input and the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import Int64s, RowSizes

# Slices shorter than this on average cost more further down than their copies would.
_MIN_SLICE_ROWS = 4096
# Strings and lists have 32-bit offsets: a concatenation must stay below 2^31 bytes and elements,
# and an element of a list may be as small as one bit.
MAX_CONCAT_BYTES = 1 << 28


def concat_column(parts: Sequence[pa.Array]) -> pa.Array:
    """One array; dictionaries that differ are unified."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def hand_on(parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All rows in their order: the batches themselves, or one copy of many small ones."""
    rows = sum(part.num_rows for part in parts)
    if len(parts) * _MIN_SLICE_ROWS <= rows or not _fits(parts, MAX_CONCAT_BYTES):
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
    """The given rows, numbered through all parts, in the given order; a row at most once.

    `concatenated` holds columns that are concatenated already. Parts of more than `max_bytes` of
    varying size are not concatenated as a whole.
    """
    segments = np.count_nonzero(np.diff(rows) != 1) + 1
    if segments == 1 or (segments + len(parts)) * _MIN_SLICE_ROWS <= len(rows):
        yield from _slices(parts, rows)
    elif not _fits(parts, max_bytes):
        for half in np.array_split(rows, 2):
            yield from gather(*_narrow(parts, half), max_bytes=max_bytes)
    else:
        ready = concatenated or {}
        indices = pa.array(rows)
        schema = parts[0].schema
        columns = [
            # The rows come from a sort of these very parts: within bounds.
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


def gather_keys(
    parts: Sequence[pa.RecordBatch],
    rows: Int64s,
    starts: Int64s,
    concatenated: Mapping[str, pa.Array] | None = None,
    *,
    max_bytes: int = MAX_CONCAT_BYTES,
) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
    """The given rows as by `gather`, in batches that split no key, each with where keys begin.

    `starts` are the positions in `rows` at which keys begin. Only a single key's rows may be more
    than `max_bytes` of varying size.
    """
    if len(starts) > 1 and not _fits(parts, max_bytes):
        middle = len(starts) // 2
        cut = starts[middle]
        for half, begins in ((rows[:cut], starts[:middle]), (rows[cut:], starts[middle:] - cut)):
            yield from gather_keys(*_narrow(parts, half), begins, max_bytes=max_bytes)
    elif len(starts):
        whole = list(gather(parts, rows, concatenated, max_bytes=max_bytes))
        yield _concat(whole), starts


def _fits(parts: Sequence[pa.RecordBatch], max_bytes: int) -> bool:
    """Columns of fixed width always do: a window has far fewer rows than an offset can count."""
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
    """The number of each part's first row, and behind them the number of rows."""
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
    """The parts without rows that are not asked for, and the numbers of the rows in those."""
    wanted = np.sort(rows)
    starts = _starts(parts)
    cuts = np.searchsorted(wanted, starts)
    narrowed = [
        part.take(pa.array(wanted[low:high] - start))
        for part, start, low, high in zip(parts, starts[:-1], cuts[:-1], cuts[1:], strict=True)
        if high > low
    ]
    return narrowed, np.searchsorted(wanted, rows)
