"""Unions of roaring bitmaps, byte for byte as Java's (FieldRoaringBitmap{32,64}Agg.java).

64-bit bitmaps have the format of Java's `Roaring64Bitmap`, release 1.2.1, not the Roaring
project's: a radix tree over the upper 48 bits (org.roaringbitmap.art), then the list of containers
that its leaves point to. A node has room for 4, 16, 48 or 256 children and grows when it is full.
Only unoccupied parts may differ from Java's bytes, where its tree once had more children.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from compactord.kernels.aggregators.base import FoldedBytes
from compactord.paimon import deletion_vectors
from compactord.paimon.deletion_vectors import (
    Container,
    Kind,
    container_body,
    joined,
    optimised,
    read_container,
)

_KEY_BYTES = 6
ROOMS = (4, 16, 48, 256)
_LEAF = 4
_NO_SLOT = 255
_KINDS = (Kind.RUNS, Kind.BITS, Kind.ARRAY)
_NOT_TRIMMED = 0xFE


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """The index of a key's container. A removal may leave a prefix, which has no meaning."""

    key: bytes
    place: int
    prefix: bytes = b""


@dataclass(slots=True, kw_only=True)
class Branch:
    """Children by the byte after `prefix`; with room for 48 in the order of their slots."""

    room: int
    prefix: bytes
    children: dict[int, Node]

    def add(self, byte: int, child: Node) -> None:
        if len(self.children) == ROOMS[self.room]:
            self.room += 1
            self.children = dict(sorted(self.children.items()))
        self.children[byte] = child


Node: TypeAlias = Leaf | Branch


@dataclass(slots=True, kw_only=True)
class Bitmap64:
    """A tree and its containers. `last` is the last assigned index, or -1."""

    root: Node | None = None
    containers: list[Container | None] = field(default_factory=list)
    last: int = -1

    def put(self, key: bytes, container: Container) -> None:
        """Add a container under a key that has none, where Java adds it."""
        self.last += 1
        if self.last >= len(self.containers):
            room = max(len(self.containers) + len(self.containers) // 2, self.last + 1)
            self.containers += [None] * (room - len(self.containers))
        self.containers[self.last] = container
        leaf = Leaf(key=key, place=self.last)
        self.root = leaf if self.root is None else _with(self.root, leaf, 0)


class RoaringBitmap32(FoldedBytes):
    """Java calls `runOptimize` on each union."""

    def united(self, before: Any, value: Any) -> dict[int, Container]:
        read = deletion_vectors.parsed
        left, right = (read(v) if isinstance(v, bytes) else v for v in (before, value))
        return deletion_vectors.union(left, right)

    def stored(self, union: dict[int, Container]) -> bytes:
        return deletion_vectors.serialised(union)


class RoaringBitmap64(FoldedBytes):
    def united(self, before: Any, value: Any) -> Bitmap64:
        left, right = (parsed(v) if isinstance(v, bytes) else v for v in (before, value))
        return union(left, right)

    def stored(self, union: Bitmap64) -> bytes:
        return serialised(union)


def union(left: Bitmap64, right: Bitmap64) -> Bitmap64:
    """`left` with the numbers of both, stored as Java stores them; changes `left`."""
    own = {leaf.key: leaf.place for leaf in _leaves(left.root)}
    for key, container in contents(right):
        found = left.containers[own[key]] if key in own else None
        if found is None:
            left.put(key, container)
        else:
            left.containers[own[key]] = joined(found, container)
    left.containers = [each and _optimised(each) for each in left.containers]
    return left


def _optimised(container: Container) -> Container:
    """Java keeps the result of `runOptimize` only if it has runs."""
    found = optimised(container)
    return found if found.kind is Kind.RUNS else container


def contents(bitmap: Bitmap64) -> Iterator[tuple[bytes, Container]]:
    """The upper 48 bits of numbers, in their order, with the container of the lower ones."""
    for leaf in _leaves(bitmap.root):
        container = bitmap.containers[leaf.place]
        if container is not None:
            yield leaf.key, container


def _leaves(node: Node | None) -> Iterator[Leaf]:
    if isinstance(node, Leaf):
        yield node
    elif node is not None:
        for _, child in sorted(node.children.items()):
            yield from _leaves(child)


def _with(node: Node, leaf: Leaf, depth: int) -> Node:
    """The node with another leaf, whose key continues at `depth` (Art.insert)."""
    if isinstance(node, Leaf):
        rest, own = node.key[depth:], leaf.key[depth:]
        at = _common(rest, own)
        bare = Leaf(key=node.key, place=node.place)
        return Branch(room=0, prefix=own[:at], children={rest[at]: bare, own[at]: leaf})
    at = _common(node.prefix, leaf.key[depth:])
    byte = leaf.key[depth + at]
    if at < len(node.prefix):
        above, between, node.prefix = node.prefix[:at], node.prefix[at], node.prefix[at + 1 :]
        return Branch(room=0, prefix=above, children={between: node, byte: leaf})
    if byte in node.children:
        node.children[byte] = _with(node.children[byte], leaf, depth + at + 1)
    else:
        node.add(byte, leaf)
    return node


def _common(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def parsed(data: bytes) -> Bitmap64:
    """The bitmap. Raises `ValueError` unless `data` is a 64-bit bitmap."""
    try:
        return _Reader(data).bitmap()
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a roaring bitmap of 64 bits: {error}") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def bitmap(self) -> Bitmap64:
        if self._next("<B") == 0:
            return Bitmap64()
        keys = self._next("<Q")
        root = self._node(b"")
        containers = self._containers()
        _, first, last = self._next("<Q"), self._next("<i"), self._next("<i")
        places = [leaf.place for leaf in _leaves(root)]
        if len(places) != keys or len(set(places)) != keys:
            raise _no_bitmap(f"{keys} keys, but {len(places)} leaves")
        if first != 0 or not max(places) <= last < len(containers):
            raise _no_bitmap(f"{len(containers)} containers, the last one at {last}")
        if any(containers[place] is None for place in places):
            raise _no_bitmap("a key without a container")
        return Bitmap64(root=root, containers=containers, last=last)

    def _next(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise IndexError(f"it ends after {len(self._data)} bytes")
        self._at += count
        return found

    def _node(self, above: bytes) -> Node:
        """The node for keys that begin with `above`."""
        room, count = self._next("<B"), self._next("<H")
        prefix = self._bytes(self._next("<B"))
        if room == _LEAF:
            key, place = self._bytes(_KEY_BYTES), self._next("<Q")
            if not key.startswith(above):
                raise _no_bitmap(f"the key {key.hex()} below {above.hex()}")
            return Leaf(key=key, place=place, prefix=prefix)
        if room > _LEAF or len(above) + len(prefix) >= _KEY_BYTES:
            raise _no_bitmap(f"a node of type {room} below {above.hex()}")
        bytes_ = self._bytes_of_children(room, count)
        if not count or len(set(bytes_)) != count:
            raise _no_bitmap(f"a node with {count} children")
        found = {byte: self._node(above + prefix + bytes([byte])) for byte in sorted(bytes_)}
        return Branch(room=room, prefix=prefix, children={byte: found[byte] for byte in bytes_})

    def _bytes_of_children(self, room: int, count: int) -> list[int]:
        if room < 2:
            return list(_turned(self._bytes(ROOMS[room]))[:count])
        if room == 3:
            bits = np.frombuffer(self._bytes(32), np.uint8)
            return [int(byte) for byte in np.flatnonzero(np.unpackbits(bits, bitorder="little"))]
        slots = {slot: byte for byte, slot in enumerate(_turned(self._bytes(256)))}
        slots.pop(_NO_SLOT, None)
        return [slots[slot] for slot in sorted(slots)]

    def _containers(self) -> list[Container | None]:
        lists, _, count = self._next("<I"), self._next("<B"), self._next("<I")
        if lists != 1:
            raise _no_bitmap(f"{lists} lists of containers")
        return [self._container() for _ in range(min(count, len(self._data)))]

    def _container(self) -> Container | None:
        if not self._next("<B"):
            return None
        kind, count = _KINDS[self._next("<B")], self._next("<I")
        found, self._at = read_container(self._data, self._at, kind, count)
        if len(found.numbers) != count or (np.diff(found.numbers.astype(np.int64)) < 1).any():
            raise _no_bitmap(f"a container of {count} numbers that are not these")
        return found


def _no_bitmap(why: str) -> ValueError:
    return ValueError(f"not a roaring bitmap of 64 bits: {why}")


def _turned(data: bytes) -> bytes:
    """Swap the byte order of words: Java's words begin with the highest byte, files with the
    lowest.
    """
    word = min(len(data), 8)
    return b"".join(data[at : at + word][::-1] for at in range(0, len(data), word))


def serialised(bitmap: Bitmap64) -> bytes:
    if bitmap.root is None:
        return b"\0"
    places = sum(1 for _ in _leaves(bitmap.root))
    parts = [struct.pack("<BQ", 1, places), *_node_parts(bitmap.root)]
    parts.append(struct.pack("<IBI", 1, _NOT_TRIMMED, len(bitmap.containers)))
    for container in bitmap.containers:
        if container is None:
            parts.append(b"\0")
        else:
            count = len(container.numbers)
            parts.append(struct.pack("<BBI", 1, _KINDS.index(container.kind), count))
            parts.append(container_body(container))
    parts.append(struct.pack("<Qii", places, 0, bitmap.last))
    return b"".join(parts)


def _node_parts(node: Node) -> Iterator[bytes]:
    """A node, then its children in the order of their bytes."""
    if isinstance(node, Leaf):
        yield struct.pack("<BHB", _LEAF, 0, len(node.prefix)) + node.prefix
        yield node.key + struct.pack("<Q", node.place)
        return
    yield struct.pack("<BHB", node.room, len(node.children), len(node.prefix)) + node.prefix
    yield _children_bytes(node)
    for _, child in sorted(node.children.items()):
        yield from _node_parts(child)


def _children_bytes(node: Branch) -> bytes:
    if node.room < 2:
        return _turned(bytes(sorted(node.children)).ljust(ROOMS[node.room], b"\0"))
    if node.room == 3:
        bits = np.zeros(256, np.uint8)
        bits[list(node.children)] = 1
        return np.packbits(bits, bitorder="little").tobytes()
    slots = bytearray([_NO_SLOT]) * 256
    for slot, byte in enumerate(node.children):
        slots[byte] = slot
    return _turned(bytes(slots))
