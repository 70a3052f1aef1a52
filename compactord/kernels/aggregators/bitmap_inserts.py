"""Unions of 32-bit roaring bitmaps for all keys at once: the numbers of many are sorted together.

This covers unions of arrays without runs that are arrays without runs. How Java stores others may
depend on the unions in between, so `RoaringBitmap32` makes them.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.aggregators.base import Values
from compactord.kernels.aggregators.bitmaps import RoaringBitmap32
from compactord.kernels.aggregators.inserts import Inserts, merged_values
from compactord.kernels.columns import Bools, Int64s, stretch_starts, taken, text_buffers
from compactord.paimon.deletion_vectors import ARRAY_MAX, COOKIE_WITHOUT_RUNS
from compactord.paimon.options.merge import ColumnRule

# Bytes of bitmaps that are united at a time: they stay in the processor's caches.
_PART_BYTES = 1 << 18
# The parts of a bitmap: cookie and number of containers; their keys and sizes; their places; their
# numbers.
_START, _HEADS, _PLACES, _NUMBERS = range(4)
_START_WORDS = 4


def rbm32(inserts: Inserts, rule: ColumnRule) -> pa.Array:
    """The unions by slot. A slot's only bitmap stays unchanged."""
    column, counts = inserts.values.column, inserts.counts
    several = inserts.of((counts > 1)[inserts.slots])
    bitmaps = column.take(pa.array(several.rows))
    if pa.types.is_dictionary(bitmaps.type):
        bitmaps = bitmaps.dictionary_decode()
    sizes, others = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.bool_)
    pieces = [np.empty(0, np.uint8)]
    for part in _parts(several, text_buffers(bitmaps)[0]):
        slots = slice(several.slots[part.start], several.slots[part.stop - 1] + 1)
        own = several.slots[part] - slots.start
        united, sizes[slots] = _united(bitmaps[part], own, others[slots])
        pieces.append(united.view(np.uint8))
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.concatenate(pieces))]
    found = pa.Array.from_buffers(pa.binary(), len(counts), buffers)
    if pa.types.is_dictionary(column.type):
        found = found.dictionary_encode()
    if others.any():
        left = several.of(others[several.slots])
        walked = RoaringBitmap32(Values(column, left.rows, len(counts)), rule)
        walked.add(left.slots, left.rows)
        found = merged_values(found, walked.result(), others)
    chosen = np.where(counts > 1, np.arange(len(counts)), -1)
    only = inserts.of((counts == 1)[inserts.slots])
    chosen[only.slots] = len(counts) + only.rows
    return taken(pa.concat_arrays([found, column]), chosen)


def _parts(inserts: Inserts, offsets: npt.NDArray[Any]) -> list[slice]:
    """Ranges of rows that split no slot."""
    last = np.cumsum(inserts.counts)[inserts.slots]
    starts = stretch_starts(offsets[last] // _PART_BYTES).tolist()
    return [slice(*cut) for cut in itertools.pairwise([*starts, len(last)])]


def _united(bitmaps: pa.Array, slots: Int64s, others: Bools) -> tuple[npt.NDArray[Any], Int64s]:
    """The bytes of all unions, and how many each slot has. Marks slots in `others` instead."""
    offsets, data = text_buffers(bitmaps)
    lengths = np.diff(offsets).astype(np.int64)
    # Zeros behind, so that every start can be read.
    data = np.append(data[offsets[0] : offsets[-1]], np.zeros(8, np.uint8))
    numbers = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    starts = offsets[:-1] - offsets[0]
    sizes = numbers[starts + 4].astype(np.int64)
    words = lengths // 2 - _START_WORDS - 4 * sizes
    is_plain = (numbers[starts] == COOKIE_WITHOUT_RUNS) & (lengths % 2 == 0) & (words >= 0)
    if not is_plain.all():
        return _without(~is_plain, bitmaps, slots, others)
    stored, roles = data[:-8].view("<u2"), _roles(np.ones_like(sizes), sizes, words)
    heads = stored[roles == _HEADS].astype(np.int64)
    keys, counts = heads[::2], heads[1::2] + 1
    holders = np.repeat(np.arange(len(slots)), sizes)
    is_other = np.bincount(holders, counts, len(slots)) != words
    is_other[holders[counts > ARRAY_MAX]] = True
    if is_other.any():
        return _without(is_other, bitmaps, slots, others)
    containers, ranks = np.unique(slots[holders] << 16 | keys, return_inverse=True)
    dtype = np.dtype(np.uint32 if len(containers) <= 1 << 16 else np.uint64)
    found = np.repeat(ranks.astype(dtype) << 16, counts)
    found |= stored[roles == _NUMBERS]
    falls = found[1:] <= found[:-1]
    ends = np.cumsum(words)
    falls[ends[(ends > 0) & (ends < len(found))] - 1] = False
    if falls.any():
        is_other[np.searchsorted(ends, np.flatnonzero(falls) + 1, "right")] = True
        return _without(is_other, bitmaps, slots, others)
    found.sort(kind="stable")
    found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
    return _stored(containers, found, slots, others)


def _without(
    is_other: Bools, bitmaps: pa.Array, slots: Int64s, others: Bools
) -> tuple[npt.NDArray[Any], Int64s]:
    """As `_united`, without the slots of some bitmaps."""
    others[slots[is_other]] = True
    kept = ~others[slots]
    return _united(bitmaps.filter(pa.array(kept)), slots[kept], others)


def _stored(
    containers: Int64s, numbers: npt.NDArray[Any], slots: Int64s, others: Bools
) -> tuple[npt.NDArray[Any], Int64s]:
    """The bytes of the slots' bitmaps. `containers` are slots and keys; the upper bits of a number
    are the place of its container.
    """
    firsts = np.searchsorted(numbers, np.arange(len(containers)).astype(numbers.dtype) << 16)
    counts = np.diff(firsts, append=len(numbers))
    follows = np.flatnonzero(numbers[1:] - numbers[:-1] == 1) + 1
    follows = follows[numbers[follows] & 0xFFFF != 0]
    holders = np.searchsorted(firsts, follows, "right") - 1
    runs = counts - np.bincount(holders, minlength=len(counts))
    of = containers >> 16
    # At the same size, Java keeps runs that an earlier union had.
    others[of[(counts > ARRAY_MAX) | (2 * runs <= counts)]] = True
    sizes = np.bincount(of, minlength=len(others))
    words = np.bincount(of, counts, len(others)).astype(np.int64)
    is_used = np.bincount(slots, minlength=len(others)) > 0
    roles = _roles(is_used, sizes, words)
    stored = np.empty(len(roles), "<u2")
    starts = np.stack([np.full(len(sizes), COOKIE_WITHOUT_RUNS), sizes], axis=1)[is_used]
    stored[roles == _START] = _words(starts)
    stored[roles == _HEADS] = np.stack([containers, counts - 1], axis=1).astype("<u2").reshape(-1)
    before = firsts - (np.cumsum(words) - words)[of]
    stored[roles == _PLACES] = _words(2 * _START_WORDS + 8 * sizes[of] + 2 * before)
    stored[roles == _NUMBERS] = numbers.astype("<u2")
    return stored, 2 * (_START_WORDS * is_used + 4 * sizes + words)


def _words(numbers: Int64s) -> npt.NDArray[Any]:
    return numbers.astype("<u4").reshape(-1).view("<u2")


def _roles(starts: npt.NDArray[Any], sizes: Int64s, words: Int64s) -> npt.NDArray[np.uint8]:
    """The part of its bitmap that each word belongs to."""
    counts = np.stack([_START_WORDS * starts, 2 * sizes, 2 * sizes, words], axis=1)
    parts = np.tile(np.arange(4, dtype=np.uint8), len(counts))
    return np.repeat(parts, counts.reshape(-1))
