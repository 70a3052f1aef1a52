"""Roaring bitmaps of 32 bits, as the Roaring project stores them ("RoaringFormatSpec").

The upper 16 bits of its numbers name a container. What is written has the bytes that Java's
`runOptimize` leaves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

from compactord.paimon.roaring_containers import (
    ARRAY_MAX,
    FULL,
    Container,
    Kind,
    Words,
    container_body,
    joined,
    optimised,
    read_container,
)

_COOKIE_WITHOUT_RUNS, _COOKIE = 12346, 12347
# With runs, bitmaps of fewer containers have no offsets.
_OFFSETS_FROM = 4


def parsed(data: bytes) -> dict[int, Container]:
    """The containers by the upper 16 bits. Raises ValueError for bytes that are no such bitmap."""
    return dict(_containers(data))


def _containers(data: bytes | memoryview) -> Iterator[tuple[int, Container]]:
    try:
        yield from _read(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a roaring bitmap of 32 bits: {error}") from error


def _read(data: bytes | memoryview) -> Iterator[tuple[int, Container]]:
    (cookie,) = struct.unpack_from("<I", data)
    if cookie == _COOKIE_WITHOUT_RUNS:
        (size,) = struct.unpack_from("<I", data, 4)
        at, runs = 8, data[:0]
    elif cookie & 0xFFFF == _COOKIE:
        size = (cookie >> 16) + 1
        at = 4 + (size + 7) // 8
        runs = data[4:at]
    else:
        raise ValueError(f"not a roaring bitmap of 32 bits: it begins with {cookie}")
    if size > FULL:
        raise ValueError(f"not a roaring bitmap of 32 bits: it has {size} containers")
    heads = struct.unpack_from(f"<{2 * size}H", data, at)
    at += 4 * size
    if not runs or size >= _OFFSETS_FROM:
        at += 4 * size
    for number in range(size):
        key, count = heads[2 * number], heads[2 * number + 1] + 1
        has_runs = bool(runs) and bool(runs[number // 8] >> number % 8 & 1)
        kind = Kind.RUNS if has_runs else Kind.ARRAY if count <= ARRAY_MAX else Kind.BITS
        container, at = read_container(data, at, kind, count)
        yield key, container


def union(left: dict[int, Container], right: dict[int, Container]) -> dict[int, Container]:
    """The containers of both, in the order of their keys, stored as Java stores them."""
    found = {}
    for key in sorted(left.keys() | right.keys()):
        if key in left and key in right:
            found[key] = joined(left[key], right[key])
        else:
            found[key] = optimised(left[key] if key in left else right[key])
    return found


def serialised(containers: dict[int, Container]) -> bytes:
    """The bytes of a bitmap."""
    size = len(containers)
    flags = [container.kind is Kind.RUNS for container in containers.values()]
    if any(flags):
        packed = np.packbits(np.array(flags), bitorder="little").tobytes()
        head = struct.pack("<I", _COOKIE | (size - 1) << 16) + packed
    else:
        head = struct.pack("<II", _COOKIE_WITHOUT_RUNS, size)
    head += b"".join(
        struct.pack("<HH", key, len(container.numbers) - 1) for key, container in containers.items()
    )
    bodies = [container_body(container) for container in containers.values()]
    if not any(flags) or size >= _OFFSETS_FROM:
        starts = np.cumsum([len(head) + 4 * size, *map(len, bodies)])[:-1]
        head += starts.astype("<u4").tobytes()
    return head + b"".join(bodies)


def bitmap_of_parts(parts: Iterable[tuple[int, Words]]) -> bytes:
    """The bitmap of what `ascending` yields, as Java's that its numbers were added to.

    Parts may be empty.
    """
    containers = {}
    for upper, numbers in parts:
        if len(numbers):
            kind = Kind.ARRAY if len(numbers) <= ARRAY_MAX else Kind.BITS
            containers[upper] = optimised(Container(kind, numbers))
    return serialised(containers)


def ascending(data: bytes | memoryview) -> Iterator[tuple[int, Words]]:
    """The upper 16 bits of a bitmap's numbers with the lower ones, ascending.

    Raises ValueError for bytes that are no such bitmap.
    """
    before = -1
    for upper, container in _containers(data):
        numbers = container.numbers
        if upper <= before or (numbers[1:] <= numbers[:-1]).any():
            raise ValueError("not a roaring bitmap of 32 bits: its numbers do not ascend")
        yield upper, numbers
        before = upper


def last_of(data: bytes) -> int:
    """The largest number of a bitmap, -1 for none. Raises as `ascending`."""
    return max(
        (upper * FULL + int(numbers[-1]) for upper, numbers in ascending(data) if len(numbers)),
        default=-1,
    )
