"""Unions of 32-bit roaring bitmaps, byte for byte as Java's (FieldRoaringBitmap32Agg.java).

The format is that of the Roaring project, "RoaringFormatSpec": numbers with the same upper 16 bits
are a container, stored as sorted numbers, as a bit set, or as runs. Readers take any of them, so
libraries choose by rules of their own, which differ from Java's at the boundaries. These are those
of Java's `runOptimize`, which is called on each union.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.aggregators.base import Unretractable, Values, Walking
from compactord.paimon.merge_rules import ColumnRule

Words: TypeAlias = npt.NDArray[np.uint16]

_COOKIE_WITHOUT_RUNS, _COOKIE = 12346, 12347
# With runs, bitmaps of fewer containers have no offsets.
_OFFSETS_FROM = 4
_ARRAY_MAX = 4096
_BITS_BYTES = 8192
_FULL = 1 << 16


class Kind(enum.Enum):
    ARRAY = "array"
    BITS = "bits"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Container:
    """The lower 16 bits of numbers, ascending, and how they are stored."""

    kind: Kind
    numbers: Words


class RoaringBitmap32(Walking):
    """The union of bitmaps. A key's first bitmap stays as it is until there is another."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self.retract = Unretractable(rule).retract
        found = values.column.take(pa.array(values.used)).to_pylist()
        self._bytes: dict[int, bytes | None] = dict(zip(values.used.tolist(), found, strict=True))

    def _value(self, row: int) -> bytes | None:
        return self._bytes[row]

    def _added(self, before: bytes | None, value: bytes | None) -> bytes | None:
        if before is None or value is None:
            return value if before is None else before
        return serialised(union(parsed(before), parsed(value)))

    def result(self) -> pa.Array:
        texts = pa.array(self._state, self._values.plain.type)
        if pa.types.is_dictionary(self._values.column.type):
            return texts.dictionary_encode()
        return texts


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
    if size > _FULL:
        raise ValueError(f"not a roaring bitmap of 32 bits: it has {size} containers")
    heads = struct.unpack_from(f"<{2 * size}H", data, at)
    at += 4 * size
    if not runs or size >= _OFFSETS_FROM:
        at += 4 * size
    containers = {}
    for number in range(size):
        key, count = heads[2 * number], heads[2 * number + 1] + 1
        has_runs = bool(runs) and bool(runs[number // 8] >> number % 8 & 1)
        container, at = _container(data, at, count, has_runs=has_runs)
        containers[key] = container
    return containers


def _container(data: bytes, at: int, count: int, *, has_runs: bool) -> tuple[Container, int]:
    """One container and where the next one begins."""
    if has_runs:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = _words(data, at + 2, 2 * runs).reshape(-1, 2).astype(np.int64)
        numbers = [np.arange(first, first + more + 1) for first, more in pairs]
        kept = np.concatenate([np.empty(0, np.int64), *numbers]).astype(np.uint16)
        return Container(Kind.RUNS, kept), at + 2 + 4 * runs
    if count <= _ARRAY_MAX:
        return Container(Kind.ARRAY, _words(data, at, count)), at + 2 * count
    bits = _words(data, at, _BITS_BYTES // 2).view(np.uint8)
    places = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    return Container(Kind.BITS, places.astype(np.uint16)), at + _BITS_BYTES


def _words(data: bytes, at: int, count: int) -> Words:
    if at + 2 * count > len(data):
        raise IndexError(f"{at + 2 * count} bytes are needed, there are {len(data)}")
    return np.frombuffer(data, "<u2", count, at)


def union(left: dict[int, Container], right: dict[int, Container]) -> dict[int, Container]:
    """The containers of both, in the order of their keys, stored as Java stores them."""
    found = {}
    for key in sorted(left.keys() | right.keys()):
        both = [side[key] for side in (left, right) if key in side]
        numbers = both[0].numbers if len(both) == 1 else np.union1d(*(c.numbers for c in both))
        found[key] = Container(_optimised(_joined(both, len(numbers)), numbers), numbers)
    return found


def _joined(both: list[Container], count: int) -> Kind:
    """How Java holds a union before it is optimised (org.roaringbitmap, `Container.ior`)."""
    kinds = {container.kind for container in both}
    if len(both) == 1:
        return both[0].kind
    if count == _FULL:
        return Kind.RUNS
    if Kind.BITS in kinds:
        return Kind.BITS
    if Kind.RUNS in kinds:
        return Kind.RUNS
    return Kind.ARRAY if count <= _ARRAY_MAX else Kind.BITS


def _optimised(kind: Kind, numbers: Words) -> Kind:
    """What `runOptimize` makes of a container; an array's own size leaves out its length."""
    count = len(numbers)
    as_runs = 2 + 4 * _run_count(numbers)
    if kind is Kind.ARRAY:
        return Kind.RUNS if 2 * count > as_runs else Kind.ARRAY
    if kind is Kind.BITS:
        return Kind.RUNS if as_runs < _BITS_BYTES else Kind.BITS
    if as_runs <= min(_BITS_BYTES, 2 * count + 2):
        return Kind.RUNS
    return Kind.ARRAY if count <= _ARRAY_MAX else Kind.BITS


def _run_count(numbers: Words) -> int:
    return int(np.count_nonzero(np.diff(numbers.astype(np.int64)) != 1)) + 1


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
    bodies = [_body(container) for container in containers.values()]
    if not any(flags) or size >= _OFFSETS_FROM:
        starts = np.cumsum([len(head) + 4 * size, *map(len, bodies)])[:-1]
        head += starts.astype("<u4").tobytes()
    return head + b"".join(bodies)


def _body(container: Container) -> bytes:
    numbers = container.numbers
    if container.kind is Kind.ARRAY:
        return numbers.astype("<u2").tobytes()
    if container.kind is Kind.BITS:
        bits = np.zeros(_FULL, np.uint8)
        bits[numbers] = 1
        return np.packbits(bits, bitorder="little").tobytes()
    wide = numbers.astype(np.int64)
    starts = np.append(0, np.flatnonzero(np.diff(wide) != 1) + 1)
    firsts, lasts = wide[starts], wide[np.append(starts[1:], len(wide)) - 1]
    pairs = np.stack([firsts, lasts - firsts], axis=1).astype("<u2")
    return struct.pack("<H", len(starts)) + pairs.tobytes()
