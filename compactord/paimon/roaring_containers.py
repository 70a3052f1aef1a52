"""The containers of roaring bitmaps, stored as Java stores them (org.roaringbitmap, `Container`).

Numbers with the same upper bits are a container, stored as sorted numbers, as a bit set, or as
runs. Readers take any of them, so libraries choose by rules of their own, which differ from Java's
at the boundaries. These are those of Java's unions in place and of its `runOptimize`.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint16]

# The most numbers of an array, the bytes of a bit set, and the most numbers of any container.
ARRAY_MAX = 4096
BITS_BYTES = 8192
FULL = 1 << 16


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
