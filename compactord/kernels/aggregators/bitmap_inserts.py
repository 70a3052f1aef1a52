"""Unions of 32-bit roaring bitmaps for all keys at once: the numbers of many are sorted together.

This covers unions of arrays without runs that are arrays without runs. How Java stores others may
depend on the unions in between, so `RoaringBitmap32` makes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compactord.kernels.aggregators.set_unions import Sets, Unions, part_roles
from compactord.kernels.columns import Bools, Int64s
from compactord.paimon.deletion_vectors import ARRAY_MAX, COOKIE_WITHOUT_RUNS

# The parts of a bitmap: cookie and number of containers; their keys and sizes; their places; their
# numbers.
_START, _HEADS, _PLACES, _NUMBERS = range(4)
_START_WORDS = 4


def rbm32_unions(sets: Sets, others: Bools) -> Unions | Bools:
    """See `set_unions.Unite`."""
    sizes = sets.numbers("<u4", 4).astype(np.int64)
    words = sets.lengths // 2 - _START_WORDS - 4 * sizes
    is_other: Bools = sets.numbers("<u4") != COOKIE_WITHOUT_RUNS
    is_other |= (sets.lengths % 2 != 0) | (words < 0)
    if is_other.any():
        return is_other
    stored, roles = sets.words("<u2"), _roles(np.ones_like(sizes), sizes, words)
    heads = stored[roles == _HEADS].astype(np.int64)
    keys, counts = heads[::2], heads[1::2] + 1
    holders = np.repeat(np.arange(len(sizes)), sizes)
    is_other = np.bincount(holders, counts, len(sizes)) != words
    is_other[holders[counts > ARRAY_MAX]] = True
    if is_other.any():
        return is_other
    containers, ranks = np.unique(sets.slots[holders] << 16 | keys, return_inverse=True)
    found = _packed(ranks, counts, stored[roles == _NUMBERS], len(containers))
    falls = found[1:] <= found[:-1]
    ends = np.cumsum(words)
    falls[ends[(ends > 0) & (ends < len(found))] - 1] = False
    if falls.any():
        is_other[np.searchsorted(ends, np.flatnonzero(falls) + 1, "right")] = True
        return is_other
    found, counts, has_other = _distinct(found, len(containers))
    others[(containers >> 16)[has_other]] = True
    return _stored(containers, counts, found, sets.slots, len(others))


def merged_numbers(
    ranks: Int64s, counts: Int64s, numbers: npt.NDArray[np.uint16], size: int
) -> tuple[npt.NDArray[np.uint16], Int64s, Bools]:
    """The distinct numbers of `size` containers in a row, the count of each container, and a mask
    of containers that are or may be stored in another form than an array.

    The input is parts of containers: their containers, counts, and numbers in a row.
    """
    return _distinct(_packed(ranks, counts, numbers, size), size)


def _packed(
    ranks: Int64s, counts: Int64s, numbers: npt.NDArray[np.uint16], size: int
) -> npt.NDArray[Any]:
    dtype = np.dtype(np.uint32 if size <= 1 << 16 else np.uint64)
    return np.repeat(ranks.astype(dtype) << 16, counts) | numbers


def _distinct(packed: npt.NDArray[Any], size: int) -> tuple[npt.NDArray[np.uint16], Int64s, Bools]:
    """As `merged_numbers`, of ranks and numbers in one number; sorts them."""
    packed.sort(kind="stable")
    packed = packed[np.append(True, packed[1:] != packed[:-1])[: len(packed)]]
    firsts = np.searchsorted(packed, np.arange(size).astype(packed.dtype) << 16)
    counts = np.diff(firsts, append=len(packed))
    follows = np.flatnonzero(packed[1:] - packed[:-1] == 1) + 1
    follows = follows[packed[follows] & 0xFFFF != 0]
    holders = np.searchsorted(firsts, follows, "right") - 1
    runs = counts - np.bincount(holders, minlength=len(counts))
    # At the same size, Java keeps runs that an earlier union had.
    return packed.astype("<u2"), counts, (counts > ARRAY_MAX) | (2 * runs <= counts)


def _stored(
    containers: Int64s,
    counts: Int64s,
    numbers: npt.NDArray[np.uint16],
    slots: Int64s,
    slot_count: int,
) -> Unions:
    """The slots' bitmaps. `containers` are slots and keys."""
    of = containers >> 16
    sizes = np.bincount(of, minlength=slot_count)
    words = np.bincount(of, counts, slot_count).astype(np.int64)
    is_used = np.bincount(slots, minlength=slot_count) > 0
    roles = _roles(is_used, sizes, words)
    stored = np.empty(len(roles), "<u2")
    starts = np.stack([np.full(len(sizes), COOKIE_WITHOUT_RUNS), sizes], axis=1)[is_used]
    stored[roles == _START] = _words(starts)
    stored[roles == _HEADS] = np.stack([containers, counts - 1], axis=1).astype("<u2").reshape(-1)
    before = np.cumsum(counts) - counts - (np.cumsum(words) - words)[of]
    stored[roles == _PLACES] = _words(2 * _START_WORDS + 8 * sizes[of] + 2 * before)
    stored[roles == _NUMBERS] = numbers
    return Unions(stored.view(np.uint8), 2 * (_START_WORDS * is_used + 4 * sizes + words))


def _words(numbers: Int64s) -> npt.NDArray[Any]:
    return numbers.astype("<u4").reshape(-1).view("<u2")


def _roles(starts: npt.NDArray[Any], sizes: Int64s, words: Int64s) -> npt.NDArray[np.uint8]:
    """The part of its bitmap that each word belongs to."""
    return part_roles(_START_WORDS * starts, 2 * sizes, 2 * sizes, words)
