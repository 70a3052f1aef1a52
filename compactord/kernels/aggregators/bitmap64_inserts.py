"""Unions of 64-bit roaring bitmaps for all keys at once.

`bitmaps` has the format. This covers bitmaps as Java writes them without removals, of few
containers, all of them arrays, whose unions are arrays without runs. Such bytes follow from the
keys of the containers, the order in which they came, and the numbers: a bitmap that has other bytes
when it is written again is left to `RoaringBitmap64`, which also refuses damaged ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compactord.kernels.aggregators.bitmap_inserts import merged_numbers
from compactord.kernels.aggregators.bitmaps import ROOMS
from compactord.kernels.aggregators.set_unions import Sets, Unions
from compactord.kernels.columns import Bools, Int64s, stretch_starts
from compactord.paimon.deletion_vectors import ARRAY_MAX

# Nodes and containers are read one after the other, of all bitmaps at once.
_CONTAINERS_MAX = 256
_KEY_BYTES, _LEAF = 6, 4
_HEAD_BYTES, _NODE_BYTES, _LEAF_BYTES = 9, 4, 18
_LIST_HEAD, _LIST_BYTES = np.frombuffer(b"\1\0\0\0\xfe", np.uint8), 9
_ARRAY_HEAD, _ARRAY_BYTES = 0x02_01, 6
_END_BYTES = 16
# The bytes that nodes use for their children, by room.
_CHILD_BYTES = np.array([4, 16, 256, 32])
_SLOTS_ROOM, _BITS_ROOM, _NO_SLOT = 2, 3, 255


def _capacities(count: int) -> Int64s:
    """The lengths of a list of containers that grows by half."""
    found = [0]
    while found[-1] < count:
        found.append(max(found[-1] + found[-1] // 2, found[-1] + 1))
    return np.array(found)


_CAPACITIES = _capacities(1 << 40)


class _Containers(NamedTuple):
    """Containers, ordered by bitmap and key: `of` is the number of the bitmap, `places` have the
    order in which the containers of a bitmap came. `numbers` has all numbers in a row.
    """

    of: Int64s
    keys: Int64s
    places: Int64s
    counts: Int64s
    numbers: npt.NDArray[np.uint16]


def rbm64_unions(sets: Sets, others: Bools) -> Unions | Bools:
    """See `set_unions.Unite`."""
    found = _read(sets)
    if not isinstance(found, _Containers):
        return found
    written = _written(found, len(sets.starts), np.ones_like(sets.starts, np.bool_))
    is_other: Bools = written.sizes != sets.lengths
    if is_other.any():
        return is_other
    differs = np.flatnonzero(written.data != sets.bytes)
    if len(differs):
        is_other[np.searchsorted(sets.starts, differs, "right") - 1] = True
        return is_other
    slots, numbers = sets.slots, np.arange(len(sets.slots))
    numbers -= np.searchsorted(slots, slots)
    # By slot and key, the value that has the key first comes first.
    order = np.lexsort((numbers[found.of], found.keys, slots[found.of]))
    of, keys = slots[found.of][order], found.keys[order]
    begins = np.append(True, (of[1:] != of[:-1]) | (keys[1:] != keys[:-1]))[: len(of)]
    ranks = np.empty_like(order)
    ranks[order] = np.cumsum(begins) - 1
    of, keys, firsts = of[begins], keys[begins], order[begins]
    # Java adds the keys of a later value in their order.
    value = numbers[found.of[firsts]]
    came = np.lexsort((np.where(value == 0, found.places[firsts], keys), value, of))
    places = np.empty_like(came)
    places[came] = np.arange(len(came)) - np.searchsorted(of, of)
    merged, counts, has_other = merged_numbers(ranks, found.counts, found.numbers, len(of))
    others[of[has_other]] = True
    is_used = np.bincount(slots, minlength=len(others)) > 0
    return _written(_Containers(of, keys, places, counts, merged), len(others), is_used)


class _Cursor:
    """The place in each bitmap up to which it has been read. `wrong` marks bitmaps in another
    form.
    """

    def __init__(self, sets: Sets) -> None:
        self._sets = sets
        self.at, self.ends = sets.starts + _HEAD_BYTES, sets.starts + sets.lengths
        self.wrong = np.zeros(len(self.at), np.bool_)

    def numbers(self, dtype: str, at: Int64s) -> Int64s:
        return self._sets.numbers_at(dtype, at).astype(np.int64)

    def skip(self, bitmaps: Int64s, sizes: Int64s, is_right: Bools) -> None:
        """Move past nodes or containers. Bitmaps that end before, or are not right, are wrong."""
        ends = self.at[bitmaps] + sizes
        is_right = is_right & (ends <= self.ends[bitmaps])
        self.wrong[bitmaps[~is_right]] = True
        self.at[bitmaps] = np.where(is_right, ends, self.at[bitmaps])


def _read(sets: Sets) -> _Containers | Bools:
    """The containers, or a mask of bitmaps in another form. Callers compare the other bytes."""
    is_empty = sets.lengths == 1
    sizes = np.where(is_empty, 0, sets.numbers("<i8", 1))
    is_other: Bools = sets.numbers("<u1") != np.where(is_empty, 0, 1)
    is_other |= (sizes < 1) & ~is_empty | (sizes > _CONTAINERS_MAX) | (sets.lengths < 1)
    if is_other.any():
        return is_other
    cursor, firsts = _Cursor(sets), np.cumsum(sizes) - sizes
    of, keys, places = _read_keys(cursor, sizes)
    counts, bodies = _read_containers(cursor, sizes, firsts)
    if cursor.wrong.any():
        return cursor.wrong
    order = np.argsort(of, kind="stable")
    of, keys, found_at = of[order], keys[order], (firsts[of] + places)[order]
    falls = np.append(False, (of[1:] == of[:-1]) & (keys[1:] <= keys[:-1]))[: len(of)]
    is_repeated = np.bincount(found_at, minlength=len(of))[found_at] != 1
    counts, bodies = counts[found_at], bodies[found_at]
    ends = np.cumsum(counts)
    total = int(counts.sum())
    numbers_at = np.repeat(bodies - 2 * (ends - counts), counts) + 2 * np.arange(total)
    numbers = cursor.numbers("<u2", numbers_at).astype(np.uint16)
    drops = np.flatnonzero(numbers[1:] <= numbers[:-1]) + 1
    drops = np.searchsorted(ends, drops[np.isin(drops, ends, invert=True)], "right")
    wrong = np.concatenate([of[falls | is_repeated], of[drops]])
    if len(wrong):
        return np.isin(np.arange(len(sizes)), wrong)
    return _Containers(of, keys, found_at - firsts[of], counts, numbers)


def _read_keys(cursor: _Cursor, sizes: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The bitmap, the key and the place of each leaf; the leaves of a bitmap in their order."""
    left, found = sizes.copy(), [(np.empty(0, np.int64),) * 3]
    for _ in range(2 * _CONTAINERS_MAX):
        reading = np.flatnonzero((left > 0) & ~cursor.wrong)
        if not len(reading):
            break
        at = cursor.at[reading]
        rooms, prefixes = cursor.numbers("<u1", at), cursor.numbers("<u1", at + 3)
        is_leaf = rooms == _LEAF
        nodes = _NODE_BYTES + prefixes + _CHILD_BYTES[np.minimum(rooms, _BITS_ROOM)]
        cursor.skip(reading, np.where(is_leaf, _LEAF_BYTES, nodes), rooms <= _LEAF)
        leaves, at = reading[is_leaf], at[is_leaf]
        left[leaves] -= 1
        keys, places = cursor.numbers(">i8", at + 2) & (1 << 48) - 1, cursor.numbers("<i8", at + 10)
        is_right = (places >= 0) & (places < sizes[leaves])
        cursor.wrong[leaves[~is_right]] = True
        found.append((leaves, keys, places))
    cursor.wrong |= left > 0
    of, keys, places = map(np.concatenate, zip(*found, strict=True))
    return of, keys, places


def _read_containers(cursor: _Cursor, sizes: Int64s, firsts: Int64s) -> tuple[Int64s, Int64s]:
    """The number of numbers of each container, and where they begin; by bitmap and place."""
    counts, bodies = np.zeros((2, int(sizes.sum())), np.int64)
    cursor.at += _LIST_BYTES
    for number in range(int(sizes.max(initial=0))):
        reading = np.flatnonzero((sizes > number) & ~cursor.wrong)
        at = np.minimum(cursor.at[reading], cursor.ends[reading])
        found = cursor.numbers("<u4", at + 2)
        counts[firsts[reading] + number] = found
        bodies[firsts[reading] + number] = at + _ARRAY_BYTES
        cursor.skip(reading, _ARRAY_BYTES + 2 * found, (found > 0) & (found <= ARRAY_MAX))
    return counts, bodies


class _Branches(NamedTuple):
    """Nodes of one depth. `firsts` are their first leaves; `ahead` are the bytes of nodes above
    with the same first leaf. `children` are the first leaves of the nodes' children, and `came`
    the children's least places.
    """

    depth: int
    firsts: Int64s
    counts: Int64s
    rooms: Int64s
    prefixes: Int64s
    ahead: Int64s
    children: Int64s
    came: Int64s


def _tree(found: _Containers) -> tuple[list[_Branches], Int64s]:
    """The inner nodes by depth, and for each leaf the bytes of the nodes that begin with it."""
    differs = np.append(-1, found.keys[1:] ^ found.keys[:-1])[: len(found.keys)]
    # The bytes that a key has in common with the one before.
    common = sum(differs >> 8 * (_KEY_BYTES - 1 - n) == 0 for n in range(_KEY_BYTES))
    common = np.where(np.append(True, found.of[1:] != found.of[:-1])[: len(differs)], -1, common)
    levels, ahead, above = [], np.zeros(len(common), np.int64), np.zeros(len(common), np.int64)
    for depth in range(_KEY_BYTES):
        starts, begins_child = np.flatnonzero(common < depth), common <= depth
        counts = np.add.reduceat(begins_child.astype(np.int64), starts)
        is_branch = counts > 1
        if not is_branch.any():
            continue
        is_inner = np.repeat(is_branch, np.diff(starts, append=len(common)))
        firsts, counts = starts[is_branch], counts[is_branch]
        rooms = np.searchsorted(ROOMS, counts)
        prefixes = depth - above[firsts]
        children = np.flatnonzero(begins_child)
        came = np.minimum.reduceat(found.places, children)[is_inner[children]]
        children = children[is_inner[children]]
        levels.append(
            _Branches(depth, firsts, counts, rooms, prefixes, ahead[firsts], children, came)
        )
        ahead[firsts] += _NODE_BYTES + prefixes + _CHILD_BYTES[rooms]
        above[is_inner] = depth + 1
    return levels, ahead


class _Output:
    """Bytes that are written anywhere, at first zeros."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)

    def put(self, dtype: str, at: Int64s, values: npt.ArrayLike) -> None:
        width = np.dtype(dtype).itemsize
        np.ndarray((max(len(self.data) - width + 1, 0),), dtype, self.data, 0, (1,))[at] = values


def _written(found: _Containers, count: int, is_used: Bools) -> Unions:
    """The bytes of bitmaps; a bitmap may have no containers."""
    sizes = np.bincount(found.of, minlength=count)
    firsts = np.cumsum(sizes) - sizes
    levels, ahead = _tree(found)
    leaf_ends = np.cumsum(ahead + _LEAF_BYTES)
    trees = np.bincount(found.of, ahead + _LEAF_BYTES, count).astype(np.int64)
    by_place = np.empty(len(found.of), np.int64)
    by_place[firsts[found.of] + found.places] = _ARRAY_BYTES + 2 * found.counts
    body_ends = np.cumsum(by_place)
    bodies = np.bincount(found.of, _ARRAY_BYTES + 2 * found.counts, count).astype(np.int64)
    rooms = _CAPACITIES[np.searchsorted(_CAPACITIES, sizes)]
    has_any = sizes > 0
    lengths = _HEAD_BYTES + trees + _LIST_BYTES + bodies + rooms - sizes + _END_BYTES
    lengths = np.where(has_any, lengths, is_used)
    starts = np.cumsum(lengths) - lengths
    output = _Output(int(lengths.sum()))
    # Places in the output of nodes and containers, were all bitmaps one.
    nodes = starts + _HEAD_BYTES - (np.cumsum(trees) - trees)
    lists = starts + _HEAD_BYTES + trees
    arrays = lists + _LIST_BYTES - (np.cumsum(bodies) - bodies)
    _put_tree(output, found, levels, nodes[found.of] + leaf_ends - ahead - _LEAF_BYTES)
    _put_leaves(output, found, nodes[found.of] + leaf_ends - _LEAF_BYTES)
    output.put("<u1", starts[has_any], 1)
    output.put("<i8", starts[has_any] + 1, sizes[has_any])
    output.data[lists[has_any][:, None] + np.arange(len(_LIST_HEAD))] = _LIST_HEAD
    output.put("<u4", lists[has_any] + len(_LIST_HEAD), rooms[has_any])
    at = arrays[found.of] + (body_ends - by_place)[firsts[found.of] + found.places]
    output.put("<u2", at, _ARRAY_HEAD)
    output.put("<u4", at + 2, found.counts)
    skipped = at + _ARRAY_BYTES - 2 * (np.cumsum(found.counts) - found.counts)
    output.put(
        "<u2", np.repeat(skipped, found.counts) + 2 * np.arange(len(found.numbers)), found.numbers
    )
    ends = (starts + lengths)[has_any]
    output.put("<i8", ends - _END_BYTES, sizes[has_any])
    output.put("<i4", ends - 4, sizes[has_any] - 1)
    return Unions(output.data, lengths)


def _put_leaves(output: _Output, found: _Containers, at: Int64s) -> None:
    output.put("<u1", at, _LEAF)
    # Two bytes too many, which the place overwrites.
    output.put(">u8", at + _NODE_BYTES, found.keys.astype(np.uint64) << np.uint64(16))
    output.put("<i8", at + _NODE_BYTES + _KEY_BYTES, found.places)


def _put_tree(
    output: _Output, found: _Containers, levels: list[_Branches], firsts_at: Int64s
) -> None:
    """Write the branches; `firsts_at` has where the nodes of each first leaf begin."""
    for nodes in levels:
        has_prefix = nodes.prefixes > 0
        firsts, bits = nodes.firsts[has_prefix], 8 * nodes.prefixes[has_prefix].astype(np.uint64)
        keys = found.keys[firsts].astype(np.uint64) >> np.uint64(8 * (_KEY_BYTES - nodes.depth))
        at = firsts_at[firsts] + nodes.ahead[has_prefix] + _NODE_BYTES
        # Zeros follow the prefix; they are overwritten later.
        output.put(">u8", at, keys << np.uint64(64) - bits)
    for nodes in levels:
        at = firsts_at[nodes.firsts] + nodes.ahead
        output.put("<u1", at, nodes.rooms)
        output.put("<u2", at + 1, nodes.counts)
        output.put("<u1", at + 3, nodes.prefixes)
        _put_children(output, found, nodes, at + _NODE_BYTES + nodes.prefixes)


def _put_children(output: _Output, found: _Containers, nodes: _Branches, at: Int64s) -> None:
    node = np.repeat(np.arange(len(at)), nodes.counts)
    ranks = np.arange(len(node)) - (np.cumsum(nodes.counts) - nodes.counts)[node]
    bytes_ = found.keys[nodes.children] >> 8 * (_KEY_BYTES - 1 - nodes.depth) & 255
    rooms, at = nodes.rooms[node], at[node]
    is_listed = rooms < _SLOTS_ROOM
    width = np.minimum(_CHILD_BYTES[rooms], 8) - 1
    turned = ranks & ~width | width - (ranks & width)
    output.put("<u1", (at + turned)[is_listed], bytes_[is_listed])
    in_bits = rooms == _BITS_ROOM
    np.bitwise_or.at(
        output.data, (at + (bytes_ >> 3))[in_bits], (1 << (bytes_ & 7)).astype(np.uint8)[in_bits]
    )
    if not (has_slot := rooms == _SLOTS_ROOM).any():
        return
    output.data[at[has_slot & (ranks == 0)][:, None] + np.arange(256)] = _NO_SLOT
    turned = bytes_ & ~7 | 7 - (bytes_ & 7)
    output.put("<u1", (at + turned)[has_slot], _slots(node, nodes.came)[has_slot])


def _slots(node: Int64s, came: Int64s) -> Int64s:
    """The slots of children, which are ordered by node and byte. The first 16 that came have slots
    in the order of their bytes.
    """
    order, ranks, firsts = np.lexsort((came, node)), np.empty_like(node), stretch_starts(node)
    ranks[order] = np.arange(len(node)) - firsts[node]
    is_early = ranks < ROOMS[_SLOTS_ROOM - 1]
    early: Int64s = np.cumsum(is_early) - is_early
    return np.where(is_early, early - early[firsts][node], ranks)
