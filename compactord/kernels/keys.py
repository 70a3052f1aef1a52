"""Keys of sorted batches: comparable single keys, and rows that match a set of keys.

A single key is one row's key columns as a tuple that Python compares as Paimon compares keys. Only
the bounds of batches and windows are converted to tuples, never every row.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.codes import pack
from compactord.kernels.columns import (
    Bools,
    Int64s,
    concat_column,
    fixed_values,
    integer_values,
    integer_words,
    is_text,
    plain_text,
    text_buffers,
)
from compactord.kernels.order import key_numbers

Key: TypeAlias = tuple[int | bytes, ...]


class BatchKeys:
    """The keys of a batch by row number. The batch is sorted by key; keys have no nulls."""

    __slots__ = ("_getters", "row_count")

    def __init__(self, batch: pa.RecordBatch, key_columns: Sequence[str]) -> None:
        self.row_count = batch.num_rows
        self._getters = [_getter(batch.column(name)) for name in key_columns]

    def __getitem__(self, row: int) -> Key:
        return tuple(get(row) for get in self._getters)

    def count_up_to(self, bound: Key, start: int = 0) -> int:
        """The first row number >= `start` whose key is greater than `bound`; else the row count."""
        return bisect.bisect_right(range(self.row_count), bound, lo=start, key=self.__getitem__)

    def count_below(self, bound: Key, start: int = 0) -> int:
        """The first row number >= `start` whose key is `bound` or greater; else the row count."""
        return bisect.bisect_left(range(self.row_count), bound, lo=start, key=self.__getitem__)


def end_keys(rows: pa.RecordBatch | pa.Table, key_columns: Sequence[str]) -> tuple[Key, Key]:
    """The first and the last key of rows, which are not empty."""
    first, last = (
        BatchKeys(end.to_batches()[0] if isinstance(end, pa.Table) else end, key_columns)[0]
        for end in (rows.slice(0, 1), rows.slice(rows.num_rows - 1))
    )
    return first, last


def slice_range(
    batch: pa.RecordBatch,
    key_columns: Sequence[str],
    lower: pa.RecordBatch | None,
    upper: pa.RecordBatch | None,
) -> pa.RecordBatch:
    """The rows of a sorted batch with lower <= key < upper; no copy.

    A bound is a batch of one row with the key columns, in the types of `batch`, or None if
    unbounded.
    """
    if batch.num_rows == 0 or (lower is None and upper is None):
        return batch
    keys = BatchKeys(batch, key_columns)
    start, end = 0, batch.num_rows
    # Most batches of a range lie in it as a whole.
    if lower is not None and keys[0] < (bound := BatchKeys(lower, key_columns)[0]):
        start = keys.count_below(bound)
    if upper is not None and keys[end - 1] >= (bound := BatchKeys(upper, key_columns)[0]):
        end = keys.count_below(bound, start)
    return batch.slice(start, end - start)


def _getter(array: pa.Array) -> Callable[[int], int | bytes]:
    type_ = array.type
    if pa.types.is_dictionary(type_):
        index = _getter(array.indices)
        value = _getter(array.dictionary)
        return lambda row: value(int(index(row)))
    if is_text(type_):
        offsets, data = text_buffers(plain_text(array))
        view = data.data
        return lambda row: bytes(view[offsets[row] : offsets[row + 1]])
    if pa.types.is_decimal128(type_):
        halves = fixed_values(array, np.int64, 2)
        return lambda row: (halves.item(2 * row + 1) << 64) | (halves.item(2 * row) % (1 << 64))
    if pa.types.is_boolean(type_) or pa.types.is_floating(type_):
        return lambda row: integer_words(array.slice(row, 1))[0].item()
    values = integer_values(array)
    return lambda row: int(values.item(row))


class Found(NamedTuple):
    """The indexes of the found keys, ascending, and their rows in the same order."""

    places: Int64s
    rows: list[pa.RecordBatch]

    def filtered(self, kept: Bools) -> Found:
        """The items for which `kept` is True, by their order."""
        rows, start = [], 0
        for batch in self.rows:
            part = kept[start : start + batch.num_rows]
            start += batch.num_rows
            if part.any():
                rows.append(batch if part.all() else batch.filter(pa.array(part)))
        return Found(self.places[kept], rows)


def ascends(columns: list[pa.Array]) -> bool:
    """Whether each row's key is above the one before; key columns as for `group_rows`."""
    codes = pack(columns)
    rises = bool((codes.values[1:] > codes.values[:-1]).all())
    if rises or not codes.rest:
        return rises
    try:
        numbers = key_numbers(columns, 1)
    except SubcompactionError:
        return False
    return bool((numbers[1:] > numbers[:-1]).all())


def matches(rows: Sequence[pa.Array], keys: Sequence[pa.Array]) -> tuple[Int64s, Int64s]:
    """The numbers of the rows that have one of the keys, and the places of these keys.

    Both are key columns as for `group_rows`, of the same types, whose rows ascend.
    """
    columns = [concat_column(pair) for pair in zip(rows, keys, strict=True)]
    count = len(rows[0])
    codes = pack(columns)
    numbers = codes.values if not codes.rest else key_numbers(columns, 2)
    of_rows, of_keys = numbers[:count], numbers[count:]
    found = np.minimum(np.searchsorted(of_rows, of_keys), count - 1)
    places = np.flatnonzero(of_rows[found] == of_keys)
    return found[places], places
