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

from compactord.errors import DataFileDamaged, FormatError, StorageError
from compactord.paimon.roaring import FULL, ascending, bitmap_of_parts
from compactord.storage.base import Storage

INDEX_TYPE = "DELETION_VECTORS"
# What precedes the first vector of an index file.
VERSION = b"\x01"
_SIZE_BYTES = _MAGIC_BYTES = _CHECKSUM_BYTES = 4
_MAGIC_32 = struct.pack(">i", 1581511376)
_MAGIC_64 = struct.pack("<i", 1681511377)
# How many bits of each byte are set.
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


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

    def add_bitmap(self, bitmap: bytes | memoryview) -> tuple[int, int]:
        """Delete the rows of a bitmap of 32 bits, too: how many it has, and the last; -1: none.

        Positions for which there are no bits are left out. Raises ValueError for other bytes.
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
        """How many rows do not count."""
        return int(_ONES[self.bits].sum(dtype=np.int64))

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


def read_deleted_rows(storage: Storage, ref: VectorRef, rows: int) -> DeletedRows:
    """As `deleted_rows_in`; raises what reading raises, too."""
    return deleted_rows_in(read_stored(storage, ref), ref, rows)


def deleted_rows_in(stored: bytes, ref: VectorRef, rows: int) -> DeletedRows:
    """What the vector, as `read_stored` has read it, deletes of a data file that has `rows`.

    In memory are a bit for each row and the numbers of one container. Raises `FormatError` for
    damage, a cardinality that is not the vector's, and positions that the file does not have.
    """
    deleted = DeletedRows.none_of(rows)
    bitmap = _checked(stored, ref.path)
    with _reading(ref.path):
        count, last = deleted.add_bitmap(bitmap)
    if ref.cardinality is not None and count != ref.cardinality:
        why = f"a vector at {ref.offset} deletes {count} rows, its entry says"
        raise FormatError(ref.path, f"{why} {ref.cardinality}")
    if last >= rows:
        why = f"a vector at {ref.offset} deletes row {last} of a file that has {rows}"
        raise FormatError(ref.path, why)
    return deleted


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
            raise DataFileDamaged(ref.path, f"it ends within the vector at {ref.offset}") from error
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
    """The kind of a vector that is whole."""
    return VectorKind.BITS_64 if _is_64(stored) else VectorKind.BITS_32


def bitmap_in(stored: bytes, path: str) -> bytes:
    """What `read_stored` has read as a bitmap: of the same rows it has the same bytes.

    Raises `FormatError` for damage.
    """
    bitmap = _checked(stored, path)
    with _reading(path):
        return bitmap_of_parts(ascending(bitmap))


def _checked(stored: bytes, path: str) -> memoryview:
    """A vector's bitmap of 32 bits. Raises `FormatError` for damage."""
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
    """As it is stored, and its `VectorRef.length`. Raises `ValueError` for positions of 2^31."""
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
    """Of bitmaps for upper halves from 0 on; no data file has rows for a second one."""
    (count,) = struct.unpack_from("<q", data)
    if not count:
        return memoryview(bitmap_of_parts(()))
    (upper,) = struct.unpack_from("<i", data, 8)
    if count != 1 or upper:
        raise ValueError(f"it has {count} bitmaps, the first one for {upper}, rather than one")
    return data[12:]
