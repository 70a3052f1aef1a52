"""Unions of 32-bit roaring bitmaps, byte for byte as Java's (FieldRoaringBitmap32Agg.java).

The format is that of the Roaring project, "RoaringFormatSpec"; the upper 16 bits of its numbers
name a container. Java calls `runOptimize` on each union.
"""

from __future__ import annotations

import struct

import numpy as np

from compactord.kernels.aggregators.base import FoldedBytes
from compactord.kernels.aggregators.bitmap_containers import (
    ARRAY_MAX,
    FULL,
    Container,
    Kind,
    container_body,
    joined,
    optimised,
    read_container,
)

_COOKIE_WITHOUT_RUNS, _COOKIE = 12346, 12347
# With runs, bitmaps of fewer containers have no offsets.
_OFFSETS_FROM = 4


class RoaringBitmap32(FoldedBytes):
    def united(self, before: bytes, value: bytes) -> bytes:
        return serialised(union(parsed(before), parsed(value)))


def parsed(data: bytes) -> dict[int, Container]:
    """The containers by the upper 16 bits. Raises ValueError for bytes that are no such bitmap."""
    try:
        return _parsed(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a roaring bitmap of 32 bits: {error}") from error


def _parsed(data: bytes) -> dict[int, Container]:
    (cookie,) = struct.unpack_from("<I", data)
    if cookie == _COOKIE_WITHOUT_RUNS:
        (size,) = struct.unpack_from("<I", data, 4)
        at, runs = 8, b""
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
    containers = {}
    for number in range(size):
        key, count = heads[2 * number], heads[2 * number + 1] + 1
        has_runs = bool(runs) and bool(runs[number // 8] >> number % 8 & 1)
        kind = Kind.RUNS if has_runs else Kind.ARRAY if count <= ARRAY_MAX else Kind.BITS
        containers[key], at = read_container(data, at, kind, count)
    return containers


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
