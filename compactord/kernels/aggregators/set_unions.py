"""Unions of serialised sets for all keys at once.

A kind of set has a function that unites sets in their usual form, many of them in a few numpy
calls, and an accumulator that walks from set to set. Slots with a set in another form, or whose
union has one, are walked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.aggregators.base import FoldedBytes, Values
from compactord.kernels.aggregators.inserts import Inserts, merged_values
from compactord.kernels.columns import (
    Bools,
    Int64s,
    integer_values,
    stretch_starts,
    taken,
    text_buffers,
)
from compactord.paimon.options.merge import ColumnRule

# Bytes of sets that are united at a time: they stay in the processor's caches.
_PART_BYTES = 1 << 19
# Zeros behind the bytes of sets, so that every header can be read.
_PADDING = 24


class Sets(NamedTuple):
    """Serialised sets: `data` has their bytes, one after the other, and `slots` their slots."""

    data: npt.NDArray[np.uint8]
    starts: Int64s
    lengths: Int64s
    slots: Int64s

    def numbers(self, dtype: str, at: int = 0) -> npt.NDArray[Any]:
        """The number at byte `at` of each set, undefined in shorter sets. `at` is at most 16."""
        return self.numbers_at(dtype, self.starts + at)

    def numbers_at(self, dtype: str, places: Int64s) -> npt.NDArray[Any]:
        """The numbers at any places of `data`."""
        size = len(self.data) - np.dtype(dtype).itemsize + 1
        return np.ndarray((size,), dtype, self.data, 0, (1,))[places]

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """All bytes."""
        return self.data[:-_PADDING]

    def words(self, dtype: str) -> npt.NDArray[Any]:
        """All bytes as numbers; lengths are multiples of the number's size."""
        return self.bytes.view(dtype)


class Unions(NamedTuple):
    """The bytes of unions, one after the other, and how many each slot has."""

    data: npt.NDArray[np.uint8]
    sizes: Int64s


# Returns the unions, or a mask of sets in another form. Slots whose union has another form are
# marked in the last argument, which has one bool for each slot; their bytes are not used.
Unite: TypeAlias = Callable[[Sets, Bools], Unions | Bools]


def united_sets(
    unite: Unite, kind: type[FoldedBytes], inserts: Inserts, rule: ColumnRule
) -> pa.Array:
    """The unions by slot, of sets of a `kind`. A slot's only set stays unchanged. Raises
    `RuleViolation`.
    """
    column, counts = inserts.values.column, inserts.counts
    several = inserts.of((counts > 1)[inserts.slots])
    sizes, others = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.bool_)
    pieces = [np.empty(0, np.uint8)]
    for part in _parts(several):
        slots = slice(part.slots[0], part.slots[-1] + 1)
        values = column.take(pa.array(part.rows))
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        data, sizes[slots] = _united(unite, values, part.slots - slots.start, others[slots])
        pieces.append(data)
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.concatenate(pieces))]
    found = pa.Array.from_buffers(pa.binary(), len(counts), buffers)
    if pa.types.is_dictionary(column.type):
        found = found.dictionary_encode()
    if others.any():
        left = several.of(others[several.slots])
        walked = kind(Values(column, left.rows, len(counts)), rule)
        walked.add(left.slots, left.rows)
        found = merged_values(found, walked.result(), others)
    chosen = np.where(counts > 1, np.arange(len(counts)), -1)
    only = inserts.of((counts == 1)[inserts.slots])
    chosen[only.slots] = len(counts) + np.arange(len(only.rows))
    return taken(pa.concat_arrays([found, column.take(pa.array(only.rows))]), chosen)


def _parts(inserts: Inserts) -> Iterator[Inserts]:
    """Parts of few bytes that split no slot."""
    column, rows = inserts.values.column, inserts.rows
    if pa.types.is_dictionary(column.type):
        column, rows = column.dictionary, integer_values(column.indices)[rows]
    sizes = np.cumsum(np.diff(text_buffers(column)[0])[rows], dtype=np.int64)
    last = np.cumsum(inserts.counts)[inserts.slots] - 1
    starts = stretch_starts(sizes[last] // _PART_BYTES).tolist()
    for start, end in itertools.pairwise([*starts, len(last)]):
        yield inserts.of(np.arange(start, end))


def _united(unite: Unite, values: pa.Array, slots: Int64s, others: Bools) -> Unions:
    """The unions, empty for slots that are marked in `others`."""
    offsets, data = text_buffers(values)
    data = np.append(data[offsets[0] : offsets[-1]], np.zeros(_PADDING, np.uint8))
    starts = (offsets[:-1] - offsets[0]).astype(np.int64)
    found = unite(Sets(data, starts, np.diff(offsets).astype(np.int64), slots), others)
    if isinstance(found, Unions):
        return found
    others[slots[found]] = True
    kept = ~others[slots]
    return _united(unite, values.filter(pa.array(kept)), slots[kept], others)


def interleaved(
    counts: tuple[Int64s, ...], parts: tuple[npt.NDArray[Any], ...]
) -> npt.NDArray[Any]:
    """Each slot's elements of the first part, then of the second one, and so on. `counts` has each
    slot's number of elements, by part.
    """
    roles = part_roles(*counts)
    found = np.empty(len(roles), parts[0].dtype)
    for number, part in enumerate(parts):
        found[np.flatnonzero(roles == number)] = part
    return found


def part_roles(*counts: Int64s) -> npt.NDArray[np.uint8]:
    """The part that each element of `interleaved` comes from."""
    numbers = np.tile(np.arange(len(counts), dtype=np.uint8), len(counts[0]))
    return np.repeat(numbers, np.stack(counts, axis=1).reshape(-1))
