"""Unions of 32-bit roaring bitmaps for all keys at once: the numbers of many are sorted together.

This covers unions of arrays without runs that are arrays without runs. How Java stores others may
depend on the unions in between, so `RoaringBitmap32` makes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.aggregators.bitmaps import RoaringBitmap32
from compactord.kernels.aggregators.inserts import Inserts
from compactord.kernels.aggregators.set_unions import Sets, Unions, part_roles, united_sets
from compactord.kernels.columns import Bools, Int64s
from compactord.paimon.deletion_vectors import ARRAY_MAX, COOKIE_WITHOUT_RUNS
from compactord.paimon.options.merge import ColumnRule

# The parts of a bitmap: cookie and number of containers; their keys and sizes; their places; their
# numbers.
_START, _HEADS, _PLACES, _NUMBERS = range(4)
_START_WORDS = 4


def rbm32(inserts: Inserts, rule: ColumnRule) -> pa.Array:
    return united_sets(inserts, rule, _united, RoaringBitmap32)


def _united(sets: Sets, others: Bools) -> Unions | Bools:
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
    dtype = np.dtype(np.uint32 if len(containers) <= 1 << 16 else np.uint64)
    found = np.repeat(ranks.astype(dtype) << 16, counts)
    found |= stored[roles == _NUMBERS]
    falls = found[1:] <= found[:-1]
    ends = np.cumsum(words)
    falls[ends[(ends > 0) & (ends < len(found))] - 1] = False
    if falls.any():
        is_other[np.searchsorted(ends, np.flatnonzero(falls) + 1, "right")] = True
        return is_other
    found.sort(kind="stable")
    found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
    return _stored(containers, found, sets.slots, others)


def _stored(containers: Int64s, numbers: npt.NDArray[Any], slots: Int64s, others: Bools) -> Unions:
    """The slots' bitmaps. `containers` are slots and keys; the upper bits of a number are the place
    of its container.
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
    return Unions(stored.view(np.uint8), 2 * (_START_WORDS * is_used + 4 * sizes + words))


def _words(numbers: Int64s) -> npt.NDArray[Any]:
    return numbers.astype("<u4").reshape(-1).view("<u2")


def _roles(starts: npt.NDArray[Any], sizes: Int64s, words: Int64s) -> npt.NDArray[np.uint8]:
    """The part of its bitmap that each word belongs to."""
    return part_roles(_START_WORDS * starts, 2 * sizes, 2 * sizes, words)
