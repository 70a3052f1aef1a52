"""Deletion vectors: which rows of a data file do not count, by their positions from 0.

An index file has a version, 1, and vectors one after the other. A vector is its size, a magic
number, its bitmap and a checksum; the magic number tells its kind, and a vector keeps its kind.
Sources: deletionvectors/{BitmapDeletionVector,Bitmap64DeletionVector}.java and
deletionvectors/DeletionVectorsIndexFile.java.
"""

from __future__ import annotations

import contextlib
import enum
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from compactord.errors import FormatError, StorageError
from compactord.paimon.roaring import FULL, ascending, bitmap_of, bitmap_of_parts, numbers_of
from compactord.storage.base import Storage

INDEX_TYPE = "DELETION_VECTORS"
# What precedes the first vector of an index file.
VERSION = b"\x01"
_SIZE_BYTES = _MAGIC_BYTES = _CHECKSUM_BYTES = 4
_MAGIC_32 = struct.pack(">i", 1581511376)
_MAGIC_64 = struct.pack("<i", 1681511377)


class VectorKind(enum.Enum):
    BITS_32 = 32
    BITS_64 = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRef:
    """Where a vector is: in the index file `path`, from its size on at `offset`.

    `length` is as the index manifest has it, which depends on the kind. `cardinality`: how many
    rows are deleted, None in entries of older releases.
    """

    path: str
    offset: int
    length: int
    cardinality: int | None


NO_VECTORS: Mapping[str, VectorRef] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class DeletionVector:
    """Ascending, distinct positions."""

    kind: VectorKind
    positions: npt.NDArray[np.int64]

    def with_marks(self, positions: npt.NDArray[np.int64]) -> DeletionVector:
        """With more positions, ascending; its kind stays."""
        return DeletionVector(self.kind, united(self.positions, positions))


@dataclass(frozen=True, slots=True, eq=False)
class DeletedRows:
    """Which rows of a data file do not count: a bit for each row, the lowest of a byte first."""

    bits: npt.NDArray[np.uint8]

    @classmethod
    def none_of(cls, rows: int) -> DeletedRows:
        """All of so many rows count, until others are added."""
        return cls(np.zeros(-(-rows // 8), np.uint8))

    def add(self, positions: npt.NDArray[np.int64]) -> None:
        """Delete these rows, too."""
        np.bitwise_or.at(self.bits, positions >> 3, (1 << (positions & 7)).astype(np.uint8))

    def keeps(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Which rows count, of so many from the position `first` on."""
        start, skipped = divmod(first, 8)
        deleted = np.unpackbits(self.bits[start : -(-(first + count) // 8)], bitorder="little")
        kept: npt.NDArray[np.bool_] = deleted[skipped : skipped + count] == 0
        return kept

    def deletes(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these rows do not count."""
        deleted: npt.NDArray[np.bool_] = (
            self.bits[positions >> 3] >> (positions & 7).astype(np.uint8) & 1 != 0
        )
        return deleted

    def bitmap(self) -> bytes:
        """The positions of the rows as a bitmap of 32 bits."""
        of_bits = FULL // 8
        parts = (self.bits[first : first + of_bits] for first in range(0, len(self.bits), of_bits))
        return bitmap_of_parts(
            (upper, np.flatnonzero(np.unpackbits(part, bitorder="little")).astype(np.uint16))
            for upper, part in enumerate(parts)
        )


def united(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The positions of both, ascending and distinct, as each has them."""
    # Two sorted stretches are merged; numpy's own union takes twenty times as long.
    both = np.sort(np.concatenate([left, right]), kind="stable")
    return both[np.append(True, both[1:] != both[:-1])] if len(both) else both


def read_deleted_rows(storage: Storage, ref: VectorRef, rows: int) -> DeletedRows:
    """What the vector of a data file that has `rows` deletes.

    In memory are a bit for each row and the vector as it is stored, which takes about as much at
    most. Raises as `vector_of`, and what reading raises.
    """
    deleted_rows, count, last = DeletedRows.none_of(rows), 0, -1
    _, bitmap = _checked(read_stored(storage, ref), ref.path)
    with _reading(ref.path):
        for upper, numbers in ascending(bitmap):
            first = upper * FULL
            if len(numbers) and (last := first + int(numbers[-1])) < rows:
                deleted = np.zeros(min(FULL, rows - first), np.uint8)
                deleted[numbers] = 1
                packed = np.packbits(deleted, bitorder="little")
                deleted_rows.bits[first // 8 :][: len(packed)] = packed
            count += len(numbers)
    _check_fits(ref, count, last, rows)
    return deleted_rows


def vector_of(stored: bytes, ref: VectorRef, rows: int) -> DeletionVector:
    """The vector that `read_stored` has read, of a data file that has `rows`.

    Raises `FormatError` for damage, a cardinality that is not the vector's, and positions that the
    file does not have.
    """
    vector = decode_vector(stored, ref.path)
    positions = vector.positions
    _check_fits(ref, len(positions), int(positions[-1]) if len(positions) else -1, rows)
    return vector


def _check_fits(ref: VectorRef, count: int, last: int, rows: int) -> None:
    """`count`: how many rows are deleted, up to the position `last`; -1: none."""
    if ref.cardinality is not None and count != ref.cardinality:
        why = f"a vector at {ref.offset} deletes {count} rows, its entry says"
        raise FormatError(ref.path, f"{why} {ref.cardinality}")
    if last >= rows:
        why = f"a vector at {ref.offset} deletes row {last} of a file that has {rows}"
        raise FormatError(ref.path, why)


def read_stored(storage: Storage, ref: VectorRef) -> bytes:
    """The whole vector as it is stored, from its size to its checksum, which is not checked.

    Raises `FormatError` where the file ends within it.
    """
    _require_place(ref)
    # For one of 32 bits `length` leaves out size and checksum; nothing need follow one of 64 bits.
    longest = ref.length + _SIZE_BYTES + _CHECKSUM_BYTES
    try:
        data = storage.read_range(ref.path, ref.offset, longest)
    except StorageError as error:
        # The store says how long a file is only if it is asked.
        found = storage.status(ref.path)
        left = longest if found is None else found.size_bytes - ref.offset
        if left >= longest:
            raise
        if left < ref.length:
            raise FormatError(ref.path, f"it ends within the vector at {ref.offset}") from error
        data = storage.read_range(ref.path, ref.offset, ref.length)
    return _whole(data, ref)


def stored_in(index_file: bytes, ref: VectorRef) -> bytes:
    """As `read_stored`, of an index file that has been read."""
    _require_place(ref)
    return _whole(index_file[ref.offset :][: ref.length + _SIZE_BYTES + _CHECKSUM_BYTES], ref)


def _require_place(ref: VectorRef) -> None:
    if ref.offset < len(VERSION) or ref.length < _MAGIC_BYTES:
        raise FormatError(ref.path, f"no vector has {ref.length} bytes at {ref.offset}")


def _is_64(data: bytes) -> bool:
    return data[_SIZE_BYTES:][:_MAGIC_BYTES] == _MAGIC_64


def _whole(data: bytes, ref: VectorRef) -> bytes:
    """The vector with which `data` begins."""
    if len(data) < _SIZE_BYTES + _MAGIC_BYTES + _CHECKSUM_BYTES:
        raise FormatError(ref.path, f"it ends within the vector at {ref.offset}")
    (size,) = struct.unpack_from(">i", data)
    whole = size + _SIZE_BYTES + _CHECKSUM_BYTES
    if ref.length != (whole if _is_64(data) else size):
        raise FormatError(
            ref.path, f"the vector at {ref.offset} has {size} bytes, not {ref.length}"
        )
    if len(data) < whole:
        raise FormatError(ref.path, f"it ends within the vector at {ref.offset}")
    return data[:whole]


def decode_vector(stored: bytes, path: str) -> DeletionVector:
    """What `read_stored` has read. Raises `FormatError` for damage."""
    kind, bitmap = _checked(stored, path)
    with _reading(path):
        return DeletionVector(kind, numbers_of(bitmap).astype(np.int64))


def _checked(stored: bytes, path: str) -> tuple[VectorKind, memoryview]:
    """A vector's kind and its bitmap of 32 bits. Raises `FormatError` for damage."""
    body = memoryview(stored)[_SIZE_BYTES:-_CHECKSUM_BYTES]
    magic, bitmap = body[:_MAGIC_BYTES], body[_MAGIC_BYTES:]
    if magic not in (_MAGIC_32, _MAGIC_64):
        raise FormatError(path, f"a vector begins with {magic.hex()}, which no release writes")
    if struct.pack(">I", zlib.crc32(body)) != stored[-_CHECKSUM_BYTES:]:
        raise FormatError(path, "the checksum of a vector does not hold")
    if magic == _MAGIC_32:
        return VectorKind.BITS_32, bitmap
    with _reading(path):
        return VectorKind.BITS_64, _bitmap_in_64(bitmap)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, struct.error) as error:
        raise FormatError(path, f"a vector cannot be read: {error}") from error


def encode_vector(vector: DeletionVector) -> tuple[bytes, int]:
    """As it is stored, and its `VectorRef.length`. Raises `ValueError` for positions of 2^31."""
    positions = vector.positions
    if vector.kind is VectorKind.BITS_32:
        if len(positions) and positions[-1] >= 1 << 31:
            raise ValueError(f"position {positions[-1]} is too large for a vector of 32 bits")
        body = _MAGIC_32 + bitmap_of(positions.astype(np.uint32))
    else:
        body = _MAGIC_64 + _bitmap_64(positions)
    stored = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    return stored, len(body) if vector.kind is VectorKind.BITS_32 else len(stored)


def _bitmap_in_64(data: memoryview) -> memoryview:
    """Of bitmaps for upper halves from 0 on; no data file has rows for a second one."""
    (count,) = struct.unpack_from("<q", data)
    if not count:
        return memoryview(bitmap_of(np.empty(0, np.uint32)))
    (upper,) = struct.unpack_from("<i", data, 8)
    if count != 1 or upper:
        raise ValueError(f"it has {count} bitmaps, the first one for {upper}, rather than one")
    return data[12:]


def _bitmap_64(positions: npt.NDArray[np.int64]) -> bytes:
    if not len(positions):
        return struct.pack("<q", 0)
    return struct.pack("<qi", 1, 0) + bitmap_of(positions.astype(np.uint32))
