"""Unions of sketches for all keys at once, without the library.

This covers HLL sketches that are lists or sets of coupons and whose unions are, and compact theta
sketches whose unions have at most 4,096 hashes. `HllSketch` and `ThetaSketch` make other unions,
and refuse damaged sketches.

The coupons of an HLL set are stored in the order of its hash table. That order depends on the order
in which coupons came, as a coupon takes the first free place of its own sequence of places.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compactord.kernels.aggregators.set_unions import (
    Sets,
    Unions,
    interleaved,
    part_roles,
)
from compactord.kernels.aggregators.sketches import EMPTY_THETA
from compactord.kernels.columns import Bools, Int64s

# Headers as numbers: from the lowest byte on ints before the data, version, family, lg of the
# registers, lg of the table, flags, count of a list, mode. Two bits of the mode are the type of the
# registers, which does not matter.
_LIST_HEAD, _LIST_MASK = np.array([0x00_00_08_03_00_07_01_02, 0xF3_00_FF_FF_00_FF_FF_FF], "<u8")
_SET_HEAD, _SET_MASK = np.array([0x01_00_08_00_00_07_01_03, 0xF3_FF_FF_00_00_FF_FF_FF], "<u8")
_LG_K, _LG_TABLE, _LIST_COUNT, _MODE = 24, 32, 48, 56
_LIST_BYTES, _SET_BYTES = 8, 12
_LG_K_MIN, _LG_K_MAX, _SETS_FROM_LG_K = 4, 21, 8
_TYPES_END = 12
# A list that grows to this many coupons becomes a set.
_SET_MIN = 8
# The most coupons of hash tables by size, from 2^5 places on. The largest of all has 2^18.
_LG_FIRST_TABLE = 5
_TABLE_MAX = 3 << np.arange(_LG_FIRST_TABLE, 19) >> 2
_KEY_MASK = (1 << 26) - 1

# The same of compact theta sketches: longs before the data, version, family, two unused bytes,
# flags, and the hash of the seed 9001. Sketches with one hash may have a flag of their own.
_THETA_HEAD, _THETA_MASK = np.array([0x93CC_1A_00_00_03_03_00, 0xFFFF_DF_FF_FF_FF_FF_00], "<u8")
_SINGLE_HEAD = np.uint64(0x93CC_3A_00_00_03_03_01)
_EMPTY_HEAD = np.frombuffer(EMPTY_THETA, "<u8")[0]
_SINGLE, _EXACT, _ESTIMATE = 1, 2, 3
_LONG_BYTES = 8
# Probability 1.0 as a number behind the count of hashes.
_PROBABILITY = 0x3F80_0000 << 32
_THETA_MAX, _HASHES_MAX = (1 << 63) - 1, 4096


class _Coupons(NamedTuple):
    """The coupons of sketches, one sketch after the other, in the order of their bytes."""

    coupons: npt.NDArray[np.uint32]
    counts: Int64s
    lg_k: Int64s

    @property
    def is_set(self) -> Bools:
        return self.counts >= _SET_MIN

    def of(self, chosen: Bools) -> _Coupons:
        """The coupons of some sketches."""
        kept = np.repeat(chosen, self.counts)
        coupons = np.compress(kept, self.coupons)
        return _Coupons(coupons, self.counts[chosen], self.lg_k[chosen])


def hll_unions(sets: Sets, others: Bools) -> Unions | Bools:
    """See `set_unions.Unite`."""
    values = _coupons(sets)
    if not isinstance(values, _Coupons):
        return values
    slots = sets.slots
    numbers = np.arange(len(slots)) - np.searchsorted(slots, slots)
    of, state = slots[numbers == 0], values.of(numbers == 0)
    done = []
    for number in range(1, int(numbers.max(initial=0)) + 1):
        is_next = (numbers == number) & ~others[slots]
        continues = np.isin(of, slots[is_next])
        done.append((of[~continues], state.of(~continues)))
        of, state = slots[is_next], _union(state.of(continues), values.of(is_next))
        # Java's union has registers.
        others[of] = state.is_set & (state.counts > _set_max(state.lg_k))
        of, state = of[~others[of]], state.of(~others[of])
    return _stored([*done, (of, state)], len(others))


def _set_max(lg_k: Int64s) -> Int64s:
    """The most coupons of a set."""
    return np.where(lg_k < _SETS_FROM_LG_K, 0, 3 << np.maximum(lg_k - _LG_FIRST_TABLE, 0))


def _coupons(sets: Sets) -> _Coupons | Bools:
    """The coupons, or a mask of sketches that have none or are not as the library writes them."""
    heads, in_set = sets.numbers("<u8"), sets.numbers("<u4", _LIST_BYTES).astype(np.int64)
    lg_k, lg_table, in_list, mode = (
        (heads >> np.uint64(bit) & np.uint64(255)).astype(np.int64)
        for bit in (_LG_K, _LG_TABLE, _LIST_COUNT, _MODE)
    )
    is_list, is_set = heads & _LIST_MASK == _LIST_HEAD, heads & _SET_MASK == _SET_HEAD
    is_list &= (in_list > 0) & (in_list < _SET_MIN)
    is_set &= (in_set >= _SET_MIN) & (in_set <= _set_max(lg_k)) & (lg_table == _lg_table(in_set))
    counts = np.where(is_set, in_set, in_list)
    head_bytes = np.where(is_set, _SET_BYTES, _LIST_BYTES)
    is_plain = (is_list | is_set) & (mode < _TYPES_END) & (sets.lengths == head_bytes + 4 * counts)
    is_plain &= (lg_k >= _LG_K_MIN) & (lg_k <= _LG_K_MAX)
    if not is_plain.all():
        is_other: Bools = ~is_plain
        return is_other
    coupons = np.compress(part_roles(head_bytes // 4, counts) == 1, sets.words("<u4"))
    holders = np.repeat(np.arange(len(counts)), counts)
    in_sets = is_set[holders]
    ordered = np.sort(holders[in_sets] << 32 | coupons[in_sets])
    repeated = ordered[1:][ordered[1:] == ordered[:-1]] >> 32
    wrong = np.append(holders[coupons == 0], repeated)
    if len(wrong):
        return np.isin(np.arange(len(counts)), wrong)
    return _Coupons(coupons, counts, lg_k)


def _lg_table(counts: Int64s) -> Int64s:
    return _LG_FIRST_TABLE + np.searchsorted(_TABLE_MAX, counts)


def _union(before: _Coupons, value: _Coupons) -> _Coupons:
    """The unions as Java makes them: it reads both sketches, and adds the coupons of the earlier
    one to the later one.
    """
    earlier, is_set = before.coupons.copy(), np.repeat(before.is_set, before.counts)
    read = before.of(before.is_set)
    earlier[is_set] = read.coupons[_in_tables(read.coupons, read.counts)]
    counts = value.counts + before.counts
    coupons = interleaved((value.counts, before.counts), (value.coupons, earlier))
    order = _in_tables(coupons, counts)
    of = np.repeat(np.arange(len(counts)), counts)[order]
    counts = np.bincount(of, minlength=len(counts))
    in_list = (counts < _SET_MIN)[of]
    order[in_list] = np.sort(order[in_list])
    return _Coupons(coupons[order], counts, value.lg_k)


def _in_tables(coupons: npt.NDArray[np.uint32], counts: Int64s) -> Int64s:
    """The coupons' indices in the order of their sketches' hash tables, after adding one coupon
    after the other, without repeated coupons.
    """
    of, is_first = np.repeat(np.arange(len(counts)), counts), np.ones(len(coupons), np.bool_)
    # Tables grow by the number of distinct coupons; the first one sorts them out by itself.
    large = np.flatnonzero((counts > _TABLE_MAX[0])[of])
    if len(large):
        is_first[large] = False
        packed = of.take(large) << 32 | coupons.take(large)
        is_first[large[np.unique(packed, return_index=True)[1]]] = True
        counts = np.bincount(of[is_first], minlength=len(counts))
    found = np.flatnonzero(is_first)
    return found[_grown(coupons[found], counts, _LG_FIRST_TABLE)]


def _grown(coupons: npt.NDArray[np.uint32], counts: Int64s, lg_table: int) -> Int64s:
    """As `_in_tables`, for tables that have at least 2^`lg_table` places."""
    most = int(_TABLE_MAX[lg_table - _LG_FIRST_TABLE])
    is_large = counts > most
    if not is_large.any():
        return _in_table(coupons, counts, lg_table)
    # One coupon too many makes a table grow: its coupons are added to a larger one in their order.
    firsts = np.minimum(counts, most + 1)
    roles, of = part_roles(firsts, counts - firsts), np.repeat(np.arange(len(counts)), counts)
    firsts_at = np.flatnonzero(roles == 0)
    placed = firsts_at[_in_table(coupons[firsts_at], firsts, lg_table)]
    is_moved = is_large[of[placed]]
    left = (counts - firsts)[is_large]
    moved = interleaved((firsts[is_large], left), (placed[is_moved], np.flatnonzero(roles == 1)))
    grown = moved[_grown(coupons[moved], counts[is_large], lg_table + 1)]
    found = np.append(placed[~is_moved], grown)
    return found[np.argsort(of[found], kind="stable")]


def _in_table(coupons: npt.NDArray[np.uint32], counts: Int64s, lg_table: int) -> Int64s:
    """As `_in_tables`, for tables of 2^`lg_table` places.

    All coupons try their first place at once. The earliest coupon gets a place; other coupons, and
    a later one that held it, try the next place of their sequence. The result is the same as if
    they came one after the other.
    """
    last, free = (1 << lg_table) - 1, len(coupons)
    table = np.full(len(counts) << lg_table, free, np.int64)
    numbers = coupons.astype(np.int64)
    wanted = np.repeat(np.arange(len(counts)) << lg_table, counts) + (numbers & last)
    np.minimum.at(table, wanted, np.arange(free))
    holders = table.take(wanted)
    lost = np.flatnonzero(holders != np.arange(free))
    winners = holders.take(lost)
    while len(lost):
        trying = np.compress(numbers.take(lost) != numbers.take(winners), lost)
        places = wanted.take(trying)
        stride = (numbers.take(trying) & _KEY_MASK) >> lg_table | 1
        wanted[trying] = places = places & ~last | places + stride & last
        held = table.take(places)
        np.minimum.at(table, places, trying)
        holders = table.take(places)
        has_won = holders == trying
        losers, displaced = np.flatnonzero(~has_won), np.flatnonzero(has_won & (held < free))
        lost = np.append(trying.take(losers), held.take(displaced))
        winners = np.append(holders.take(losers), trying.take(displaced))
    return np.compress(table < free, table)


def _stored(pieces: list[tuple[Int64s, _Coupons]], slot_count: int) -> Unions:
    """The sketches of the slots, of the type HLL_4."""
    of = np.concatenate([slots for slots, _ in pieces])
    coupons, counts, lg_k = map(np.concatenate, zip(*(found for _, found in pieces), strict=True))
    coupons = coupons[np.argsort(np.repeat(of, counts), kind="stable")]
    order = np.argsort(of)
    counts, lg_k = counts[order], lg_k[order]
    is_set = counts >= _SET_MIN
    heads = np.where(
        is_set,
        _SET_HEAD | (_lg_table(counts) << _LG_TABLE).astype("<u8"),
        _LIST_HEAD | (counts << _LIST_COUNT).astype("<u8"),
    )
    heads |= (lg_k << _LG_K).astype("<u8")
    words = interleaved(
        (np.full(len(counts), 2), is_set.astype(np.int64), counts),
        (heads.view("<u4"), counts[is_set].astype("<u4"), coupons),
    )
    sizes = np.zeros(slot_count, np.int64)
    sizes[of[order]] = np.where(is_set, _SET_BYTES, _LIST_BYTES) + 4 * counts
    return Unions(words.view(np.uint8), sizes)


class _Hashes(NamedTuple):
    """The hashes of theta sketches, one sketch after the other; they are below their sketch's
    theta. Empty sketches have none, and are not sketches that estimate without hashes.
    """

    hashes: Int64s
    counts: Int64s
    thetas: Int64s
    is_empty: Bools


def theta_unions(sets: Sets, others: Bools) -> Unions | Bools:
    """The distinct hashes of each slot below its least theta; see `set_unions.Unite`."""
    values = _hashes(sets)
    if not isinstance(values, _Hashes):
        return values
    # Java's union might have to cut.
    others |= np.bincount(sets.slots, values.counts, len(others)) > _HASHES_MAX
    if (is_large := others[sets.slots]).any():
        return is_large
    thetas, is_empty = np.full(len(others), _THETA_MAX), np.ones(len(others), np.bool_)
    np.minimum.at(thetas, sets.slots, values.thetas)
    is_empty[sets.slots[~values.is_empty]] = False
    slots = np.repeat(sets.slots, values.counts)
    order = _order(slots, values.hashes)
    slots, hashes = slots[order], values.hashes[order]
    is_kept = hashes < thetas[slots]
    is_kept[1:] &= (hashes[1:] != hashes[:-1]) | (slots[1:] != slots[:-1])
    counts = np.bincount(slots[is_kept], minlength=len(others))
    is_used = np.bincount(sets.slots, minlength=len(others)) > 0
    return _stored_hashes(_Hashes(hashes[is_kept], counts, thetas, is_empty), is_used)


def _hashes(sets: Sets) -> _Hashes | Bools:
    """The hashes, or a mask of sketches that are not as the library writes them."""
    heads, counts = sets.numbers("<u8"), sets.numbers("<u4", _LONG_BYTES).astype(np.int64)
    longs = (heads & np.uint64(255)).astype(np.int64)
    counts = np.where(longs == _SINGLE, 1, counts)
    is_plain = (heads & _THETA_MASK == _THETA_HEAD) & (longs >= _SINGLE) & (longs <= _ESTIMATE)
    is_plain &= (longs == _ESTIMATE) | (counts > 0)
    # Java ignores sketches that are so short, with any bytes.
    is_empty = sets.lengths == _LONG_BYTES
    counts[is_empty], longs[is_empty] = 0, 1
    is_plain = (is_plain | is_empty) & (sets.lengths == _LONG_BYTES * (longs + counts))
    if not is_plain.all():
        is_other: Bools = ~is_plain
        return is_other
    thetas = np.where(longs == _ESTIMATE, sets.numbers("<i8", 2 * _LONG_BYTES), _THETA_MAX)
    hashes = np.compress(part_roles(longs, counts) == 1, sets.words("<i8"))
    holders = np.repeat(np.arange(len(counts)), counts)
    is_wrong = (hashes <= 0) | (hashes >= thetas[holders])
    is_wrong[1:] |= (hashes[1:] <= hashes[:-1]) & (holders[1:] == holders[:-1])
    if is_wrong.any():
        return np.isin(np.arange(len(counts)), holders[is_wrong])
    return _Hashes(hashes, counts, thetas, is_empty)


def _order(slots: Int64s, hashes: Int64s) -> Int64s:
    """The order by ascending slot and hash. Slots ascend already."""
    bits = int(slots.max(initial=0)).bit_length()
    order = np.argsort(slots << 63 - bits | hashes >> bits, kind="stable")
    ordered = hashes[order]
    falls = (ordered[1:] < ordered[:-1]) & (slots[1:] == slots[:-1])
    # Hashes that differ only in the bits that were cut off are rare.
    return np.lexsort((hashes, slots)) if falls.any() else order


def _stored_hashes(unions: _Hashes, is_used: Bools) -> Unions:
    """The sketches of the slots that are used."""
    hashes, counts, thetas, is_empty = unions
    estimates = thetas < _THETA_MAX
    has_count = is_used & ~is_empty & (estimates | (counts > 1))
    heads = _THETA_HEAD | np.where(estimates, _ESTIMATE, _EXACT).astype("<u8")
    heads[~has_count] = _SINGLE_HEAD
    heads[is_empty] = _EMPTY_HEAD
    sizes = tuple(part.astype(np.int64) for part in (is_used, has_count, has_count & estimates))
    words = interleaved(
        (*sizes, counts),
        (
            heads[is_used].view("<i8"),
            counts[has_count] | _PROBABILITY,
            thetas[has_count & estimates],
            hashes,
        ),
    )
    return Unions(words.view(np.uint8), _LONG_BYTES * (sum(sizes) + counts))
