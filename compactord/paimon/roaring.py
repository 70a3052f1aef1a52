"""Roaring bitmaps of 32 bits, as the Roaring project stores them ("RoaringFormatSpec").

Numbers with the same upper 16 bits are a container, stored as sorted numbers, as a bit set, or as
runs. Readers take any of them, so libraries choose by rules of their own, which differ at the
boundaries. These are those of Java's unions in place and of its `runOptimize`
(org.roaringbitmap, `Container`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint16]

# The most numbers of an array, the bytes of a bit set, and the most numbers of any container.
ARRAY_MAX = 4096
BITS_BYTES = 8192
FULL = 1 << 16
_COOKIE_WITHOUT_RUNS, _COOKIE = 12346, 12347
# With runs, bitmaps of fewer containers have no offsets.
_OFFSETS_FROM = 4


class Kind(enum.Enum):
    ARRAY = "array"
    BITS = "bits"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Container:
    """The lower 16 bits of numbers, ascending, and how they are stored."""

    kind: Kind
    numbers: Words


def read_container(
    data: bytes | memoryview, at: int, kind: Kind, count: int
) -> tuple[Container, int]:
    """The container at `at`, and where it ends; `count` is used for arrays.

    Raises IndexError or struct.error when the bytes end before.
    """
    if kind is Kind.RUNS:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = _words(data, at + 2, 2 * runs).reshape(-1, 2).astype(np.int64)
        numbers = [np.arange(first, first + more + 1) for first, more in pairs]
        kept = np.concatenate([np.empty(0, np.int64), *numbers]).astype(np.uint16)
        return Container(kind, kept), at + 2 + 4 * runs
    if kind is Kind.ARRAY:
        return Container(kind, _words(data, at, count)), at + 2 * count
    bits = _words(data, at, BITS_BYTES // 2).view(np.uint8)
    # Flags are searched faster than numbers.
    places = np.flatnonzero(np.unpackbits(bits, bitorder="little").view(np.bool_))
    return Container(kind, places.astype(np.uint16)), at + BITS_BYTES


def _words(data: bytes | memoryview, at: int, count: int) -> Words:
    if at + 2 * count > len(data):
        raise IndexError(f"{at + 2 * count} bytes are needed, there are {len(data)}")
    return np.frombuffer(data, "<u2", count, at)


def container_body(container: Container) -> bytes:
    """What `read_container` reads."""
    numbers = container.numbers
    if container.kind is Kind.ARRAY:
        return numbers.astype("<u2").tobytes()
    if container.kind is Kind.BITS:
        bits = np.zeros(FULL, np.uint8)
        bits[numbers] = 1
        return np.packbits(bits, bitorder="little").tobytes()
    wide = numbers.astype(np.int64)
    starts = np.append(0, np.flatnonzero(np.diff(wide) != 1) + 1)
    firsts, lasts = wide[starts], wide[np.append(starts[1:], len(wide)) - 1]
    pairs = np.stack([firsts, lasts - firsts], axis=1).astype("<u2")
    return struct.pack("<H", len(starts)) + pairs.tobytes()


def joined(left: Container, right: Container) -> Container:
    """The union of two containers, optimised."""
    numbers = np.union1d(left.numbers, right.numbers)
    return optimised(Container(_joined_kind({left.kind, right.kind}, len(numbers)), numbers))


def _joined_kind(kinds: set[Kind], count: int) -> Kind:
    """How Java holds a union before it is optimised (`Container.ior`)."""
    if count == FULL:
        return Kind.RUNS
    if Kind.BITS in kinds:
        return Kind.BITS
    if Kind.RUNS in kinds:
        return Kind.RUNS
    return Kind.ARRAY if count <= ARRAY_MAX else Kind.BITS


def optimised(container: Container) -> Container:
    """What `runOptimize` makes of a container."""
    return Container(_optimised_kind(container.kind, container.numbers), container.numbers)


def _optimised_kind(kind: Kind, numbers: Words) -> Kind:
    """An array's own size leaves out its length."""
    count = len(numbers)
    as_runs = 2 + 4 * _run_count(numbers)
    if kind is Kind.ARRAY:
        return Kind.RUNS if 2 * count > as_runs else Kind.ARRAY
    if kind is Kind.BITS:
        return Kind.RUNS if as_runs < BITS_BYTES else Kind.BITS
    if as_runs <= min(BITS_BYTES, 2 * count + 2):
        return Kind.RUNS
    return Kind.ARRAY if count <= ARRAY_MAX else Kind.BITS


def _run_count(numbers: Words) -> int:
    return int(np.count_nonzero(np.diff(numbers.astype(np.int64)) != 1)) + 1


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
