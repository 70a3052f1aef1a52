"""Deletion vectors and their bitmaps.

An index file has a version, 1, and a sequence of vectors. A vector is its size, a magic number, its
bitmap and a checksum. The magic number identifies the vector's kind, which never changes.
Sources: deletionvectors/{BitmapDeletionVector,Bitmap64DeletionVector}.java and
deletionvectors/DeletionVectorsIndexFile.java.

Numbers with the same upper 16 bits form a container, stored as sorted numbers, as a bit set, or as
runs. Readers accept all three, so libraries choose by their own rules, which differ at the
boundaries. This module follows Java's unions in place and its `runOptimize` (org.roaringbitmap,
`Container`).
"""

from __future__ import annotations

import contextlib
import enum
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compactord.errors import DataFileDamaged, FormatError, StorageError
from compactord.storage.base import Storage

Words: TypeAlias = npt.NDArray[np.uint16]

# The most numbers of an array, the bytes of a bit set, and the most numbers of any container.
ARRAY_MAX = 4096
BITS_BYTES = 8192
FULL = 1 << 16
COOKIE_WITHOUT_RUNS, _COOKIE = 12346, 12347
# With runs, bitmaps of fewer containers have no offsets.
_OFFSETS_FROM = 4


class Kind(enum.Enum):
    ARRAY = "array"
    BITS = "bits"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Container:
    """The lower 16 bits of numbers, ascending, and their representation."""

    kind: Kind
    numbers: Words


def read_container(
    data: bytes | memoryview, at: int, kind: Kind, count: int
) -> tuple[Container, int]:
    """The container at `at` and its end; `count` is used for arrays.

    Raises IndexError or struct.error if the bytes end before.
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
    numbers = np.union1d(left.numbers, right.numbers)
    return optimised(Container(_joined_kind({left.kind, right.kind}, len(numbers)), numbers))


def _joined_kind(kinds: set[Kind], count: int) -> Kind:
    """The representation of a union in Java before it is optimised (`Container.ior`)."""
    if count == FULL:
        return Kind.RUNS
    if Kind.BITS in kinds:
        return Kind.BITS
    if Kind.RUNS in kinds:
        return Kind.RUNS
    return Kind.ARRAY if count <= ARRAY_MAX else Kind.BITS


def optimised(container: Container) -> Container:
    """The container in the representation that `runOptimize` chooses."""
    return Container(_optimised_kind(container.kind, container.numbers), container.numbers)


def _optimised_kind(kind: Kind, numbers: Words) -> Kind:
    """The smallest kind. As in Java, the size of an array does not count its length field."""
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
    """The containers by the upper 16 bits, in their order. Raises `ValueError` unless `data` is a
    32-bit bitmap.
    """
    return dict(_containers(data))


def _containers(data: bytes | memoryview) -> Iterator[tuple[int, Container]]:
    try:
        yield from _read(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a roaring bitmap of 32 bits: {error}") from error


def _read(data: bytes | memoryview) -> Iterator[tuple[int, Container]]:
    (cookie,) = struct.unpack_from("<I", data)
    if cookie == COOKIE_WITHOUT_RUNS:
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
    before = -1
    for number in range(size):
        key, count = heads[2 * number], heads[2 * number + 1] + 1
        has_runs = bool(runs) and bool(runs[number // 8] >> number % 8 & 1)
        kind = Kind.RUNS if has_runs else Kind.ARRAY if count <= ARRAY_MAX else Kind.BITS
        container, at = read_container(data, at, kind, count)
        numbers = container.numbers
        if key <= before or (numbers[1:] <= numbers[:-1]).any():
            raise ValueError("not a roaring bitmap of 32 bits: its numbers do not ascend")
        yield key, container
        before = key


def union(left: dict[int, Container], right: dict[int, Container]) -> dict[int, Container]:
    """The containers of both, in the order of their keys, represented as in Java."""
    found = {}
    for key in sorted(left.keys() | right.keys()):
        if key in left and key in right:
            found[key] = joined(left[key], right[key])
        else:
            found[key] = optimised(left[key] if key in left else right[key])
    return found


def serialised(containers: dict[int, Container]) -> bytes:
    size = len(containers)
    flags = [container.kind is Kind.RUNS for container in containers.values()]
    if any(flags):
        packed = np.packbits(np.array(flags), bitorder="little").tobytes()
        head = struct.pack("<I", _COOKIE | (size - 1) << 16) + packed
    else:
        head = struct.pack("<II", COOKIE_WITHOUT_RUNS, size)
    head += b"".join(
        struct.pack("<HH", key, len(container.numbers) - 1) for key, container in containers.items()
    )
    bodies = [container_body(container) for container in containers.values()]
    if not any(flags) or size >= _OFFSETS_FROM:
        starts = np.cumsum([len(head) + 4 * size, *map(len, bodies)])[:-1]
        head += starts.astype("<u4").tobytes()
    return head + b"".join(bodies)


def bitmap_of_parts(parts: Iterable[tuple[int, Words]]) -> bytes:
    """The bitmap of parts as `ascending` yields them, equal to Java's after adding the same
    numbers.

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

    Raises `ValueError` unless `data` is a 32-bit bitmap.
    """
    for upper, container in _containers(data):
        yield upper, container.numbers


def last_of(data: bytes) -> int:
    """The largest number of a bitmap, or -1 if it is empty. Raises as `ascending`."""
    return max(
        (upper * FULL + int(numbers[-1]) for upper, numbers in ascending(data) if len(numbers)),
        default=-1,
    )


INDEX_TYPE = "DELETION_VECTORS"
# The bytes before the first vector of an index file.
VERSION = b"\x01"
_SIZE_BYTES = _MAGIC_BYTES = _CHECKSUM_BYTES = 4
_MAGIC_32 = struct.pack(">i", 1581511376)
_MAGIC_64 = struct.pack("<i", 1681511377)
# The number of bits set in each byte value.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class VectorKind(enum.Enum):
    BITS_32 = 32
    BITS_64 = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRef:
    """Location of a vector: in the index file `path`, its size field is at `offset`.

    `length` is the value in the index manifest, which depends on the kind. `cardinality` is the
    number of deleted rows, None in entries of older releases.
    """

    path: str
    offset: int
    length: int
    cardinality: int | None


NO_VECTORS: Mapping[str, VectorRef] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class DeletedRows:
    """The deleted rows of a data file: one bit for each row, the lowest of a byte first."""

    bits: npt.NDArray[np.uint8]

    @classmethod
    def none_of(cls, rows: int) -> DeletedRows:
        """No deleted row in a file of `rows` rows."""
        return cls(np.zeros(-(-rows // 8), np.uint8))

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        """Delete these rows as well."""
        np.bitwise_or.at(self.bits, positions >> 3, (1 << (positions & 7)).astype(np.uint8))

    def add_bitmap(self, bitmap: bytes | memoryview) -> tuple[int, int]:
        """Delete the rows of a 32-bit bitmap as well. Returns their number and the last one, -1
        without any.

        Positions outside of the file are ignored. Raises `ValueError` for other bytes.
        """
        count, last = 0, -1
        for upper, numbers in ascending(bitmap):
            first = upper * FULL
            if len(numbers) and (last := first + int(numbers[-1])) < 8 * len(self.bits):
                bits = self.bits[first // 8 :][: FULL // 8]
                deleted = np.zeros(8 * len(bits), np.uint8)
                deleted[numbers] = 1
                bits |= np.packbits(deleted, bitorder="little")
            count += len(numbers)
        return count, last

    def count(self) -> int:
        return int(_ONES[self.bits].sum(dtype=np.int64))

    def keeps(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are kept, for `count` rows from position `first`."""
        start, skipped = divmod(first, 8)
        deleted = np.unpackbits(self.bits[start : -(-(first + count) // 8)], bitorder="little")
        kept: npt.NDArray[np.bool_] = deleted[skipped : skipped + count] == 0
        return kept

    def deletes(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """A mask of the deleted rows among `positions`."""
        deleted: npt.NDArray[np.bool_] = (
            self.bits[positions >> 3] >> (positions & 7).astype(np.uint8) & 1 != 0
        )
        return deleted

    def bitmap(self) -> bytes:
        """The positions of deleted rows as a 32-bit bitmap."""
        of_bits = FULL // 8
        parts = (self.bits[first : first + of_bits] for first in range(0, len(self.bits), of_bits))
        return bitmap_of_parts(
            (upper, np.flatnonzero(np.unpackbits(part, bitorder="little")).astype(np.uint16))
            for upper, part in enumerate(parts)
        )


def read_deleted_rows(storage: Storage, ref: VectorRef, rows: int) -> DeletedRows:
    """Read the vector and decode it. Raises as `deleted_rows_in`, and errors of the storage."""
    return deleted_rows_in(read_stored(storage, ref), ref, rows)


def deleted_rows_in(stored: bytes, ref: VectorRef, rows: int) -> DeletedRows:
    """The rows that a vector, a result of `read_stored`, deletes from a data file of `rows` rows.

    Keeps a bit for each row and the numbers of one container in memory. Raises `FormatError` for
    damage, a cardinality that differs from the vector's, and positions that the file does not have.
    """
    deleted = DeletedRows.none_of(rows)
    bitmap = _checked(stored, ref.path)
    with _reading(ref.path):
        count, last = deleted.add_bitmap(bitmap)
    if ref.cardinality is not None and count != ref.cardinality:
        why = f"a vector at {ref.offset} deletes {count} rows, its entry records"
        raise FormatError(ref.path, f"{why} {ref.cardinality}")
    if last >= rows:
        why = f"a vector at {ref.offset} deletes row {last} of a file that has {rows}"
        raise FormatError(ref.path, why)
    return deleted


def read_stored(storage: Storage, ref: VectorRef) -> bytes:
    """The stored bytes of the whole vector, from size to checksum. The checksum is not verified.

    Raises `FormatError` if the file ends within it.
    """
    _require_place(ref)
    # In 32-bit vectors `length` excludes size and checksum; a 64-bit vector may end the file.
    longest = ref.length + _SIZE_BYTES + _CHECKSUM_BYTES
    try:
        data = storage.read_range(ref.path, ref.offset, longest)
    except StorageError as error:
        # A file's length costs one request.
        found = storage.status(ref.path)
        left = longest if found is None else found.size_bytes - ref.offset
        if left >= longest:
            raise
        if left < ref.length:
            raise DataFileDamaged(ref.path, f"it ends within the vector at {ref.offset}") from error
        data = storage.read_range(ref.path, ref.offset, ref.length)
    return _whole(data, ref)


def stored_in(index_file: bytes, ref: VectorRef) -> bytes:
    """As `read_stored`, from the bytes of an index file."""
    _require_place(ref)
    return _whole(index_file[ref.offset :][: ref.length + _SIZE_BYTES + _CHECKSUM_BYTES], ref)


def _require_place(ref: VectorRef) -> None:
    if ref.offset < len(VERSION) or ref.length < _MAGIC_BYTES:
        raise FormatError(ref.path, f"no vector has {ref.length} bytes at {ref.offset}")


def _is_64(data: bytes) -> bool:
    return data[_SIZE_BYTES:][:_MAGIC_BYTES] == _MAGIC_64


def _whole(data: bytes, ref: VectorRef) -> bytes:
    """The vector that `data` begins with."""
    if len(data) < _SIZE_BYTES + _MAGIC_BYTES + _CHECKSUM_BYTES:
        raise DataFileDamaged(ref.path, f"it ends within the vector at {ref.offset}")
    (size,) = struct.unpack_from(">i", data)
    whole = size + _SIZE_BYTES + _CHECKSUM_BYTES
    if ref.length != (whole if _is_64(data) else size):
        raise FormatError(
            ref.path, f"the vector at {ref.offset} has {size} bytes, not {ref.length}"
        )
    if len(data) < whole:
        raise DataFileDamaged(ref.path, f"it ends within the vector at {ref.offset}")
    return data[:whole]


def kind_of(stored: bytes) -> VectorKind:
    return VectorKind.BITS_64 if _is_64(stored) else VectorKind.BITS_32


def bitmap_in(stored: bytes, path: str) -> bytes:
    """The bitmap of a vector, a result of `read_stored`. Equal rows have equal bytes.

    Raises `FormatError` for damage.
    """
    bitmap = _checked(stored, path)
    with _reading(path):
        return bitmap_of_parts(ascending(bitmap))


def _checked(stored: bytes, path: str) -> memoryview:
    """The 32-bit bitmap of a vector. Raises `FormatError` for damage."""
    body = memoryview(stored)[_SIZE_BYTES:-_CHECKSUM_BYTES]
    magic, bitmap = body[:_MAGIC_BYTES], body[_MAGIC_BYTES:]
    if magic not in (_MAGIC_32, _MAGIC_64):
        raise FormatError(path, f"a vector begins with {magic.hex()}, which no release writes")
    if struct.pack(">I", zlib.crc32(body)) != stored[-_CHECKSUM_BYTES:]:
        raise DataFileDamaged(path, "the checksum of a vector does not hold")
    if magic == _MAGIC_32:
        return bitmap
    with _reading(path):
        return _bitmap_in_64(bitmap)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, struct.error) as error:
        raise FormatError(path, f"a vector cannot be read: {error}") from error


def encode_vector(kind: VectorKind, deleted: DeletedRows) -> tuple[bytes, int]:
    """The vector's stored bytes and its `VectorRef.length`. Raises `ValueError` for positions from
    2^31.
    """
    if kind is VectorKind.BITS_32:
        if deleted.bits[1 << 28 :].any():
            raise ValueError("row 2^31 is too large for a vector of 32 bits")
        body = _MAGIC_32 + deleted.bitmap()
    elif deleted.bits.any():
        body = _MAGIC_64 + struct.pack("<qi", 1, 0) + deleted.bitmap()
    else:
        body = _MAGIC_64 + struct.pack("<q", 0)
    stored = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    return stored, len(body) if kind is VectorKind.BITS_32 else len(stored)


def _bitmap_in_64(data: memoryview) -> memoryview:
    """The 32-bit bitmap of a 64-bit one. Raises `ValueError` for a second upper half: data files
    have fewer rows.
    """
    (count,) = struct.unpack_from("<q", data)
    if not count:
        return memoryview(bitmap_of_parts(()))
    (upper,) = struct.unpack_from("<i", data, 8)
    if count != 1 or upper:
        raise ValueError(f"it has {count} bitmaps, the first one for {upper}, rather than one")
    return data[12:]
