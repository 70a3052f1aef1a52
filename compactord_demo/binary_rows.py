"""BinaryRow for whole columns: the hash and the bucket of many rows at once.

Rows of numbers, dates, texts and binaries are encoded side by side into one buffer without a Python
object per row; other key types are encoded row by row by `binary_row`. The bytes are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.formats.layout import scalar_value
from compactord.paimon.binary_row import encode_row
from compactord.paimon.types import AtomicType, TypeRoot

_Words: TypeAlias = npt.NDArray[np.uint64]
_Counts: TypeAlias = npt.NDArray[np.int64]

_SLOT = 8
_INLINE = 7
_BYTES = (TypeRoot.CHAR, TypeRoot.VARCHAR, TypeRoot.BINARY, TypeRoot.VARBINARY)
# The integer type of a value in a slot.
_STORAGE = {
    TypeRoot.BOOLEAN: (pa.uint8(), np.uint8),
    TypeRoot.TINYINT: (pa.int8(), np.uint8),
    TypeRoot.SMALLINT: (pa.int16(), np.uint16),
    TypeRoot.INT: (pa.int32(), np.uint32),
    TypeRoot.DATE: (pa.int32(), np.uint32),
    TypeRoot.TIME: (pa.int32(), np.uint32),
    TypeRoot.BIGINT: (pa.int64(), np.uint64),
}


def encode_rows(columns: Sequence[pa.Array], types: Sequence[AtomicType]) -> list[bytes]:
    """Every row serialised, as by `binary_row.encode_row`."""
    values = [
        [scalar_value(scalar, type_) for scalar in column]
        for column, type_ in zip(columns, types, strict=True)
    ]
    return [encode_row(row, types) for row in zip(*values, strict=True)]


def row_hash(data: bytes) -> int:
    """Murmur3 (32 bits, seed 42) of a serialised row's body, signed as in Java."""
    hashed = 42
    words = struct.unpack_from(f"<{(len(data) - 4) // 4}I", data, 4)
    for word in words:
        word = word * 0xCC9E2D51 & 0xFFFFFFFF
        word = (word << 15 | word >> 17) & 0xFFFFFFFF
        hashed ^= word * 0x1B873593 & 0xFFFFFFFF
        hashed = (hashed << 13 | hashed >> 19) & 0xFFFFFFFF
        hashed = hashed * 5 + 0xE6546B64 & 0xFFFFFFFF
    hashed ^= 4 * len(words)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def row_hashes(columns: Sequence[pa.Array], types: Sequence[AtomicType]) -> npt.NDArray[np.int32]:
    """`row_hash` of every row. Needs at least one column."""
    if not all(type_.root in _STORAGE or type_.root in _BYTES for type_ in types):
        return np.array([row_hash(row) for row in encode_rows(columns, types)], np.int32)
    words, starts = _bodies(columns, types)
    return _murmur(words, starts)


def bucket_numbers(
    columns: Sequence[pa.Array], types: Sequence[AtomicType], buckets: int
) -> npt.NDArray[np.int32]:
    """The bucket of every row of a bucket key, under the default bucket function."""
    hashes = row_hashes(columns, types).astype(np.int64)
    return (np.abs(hashes) % buckets).astype(np.int32)


def _bodies(columns: Sequence[pa.Array], types: Sequence[AtomicType]) -> tuple[_Words, _Counts]:
    """All bodies back to back as words of 8 bytes; the word at which each begins, and the end."""
    rows = len(columns[0])
    null_words = (len(types) + 63 + 8) // 64
    fixed_words = null_words + len(types)
    sizes = {
        index: _sizes(column)
        for index, (column, type_) in enumerate(zip(columns, types, strict=True))
        if type_.root in _BYTES
    }
    lengths = np.full(rows, fixed_words, np.int64)
    for size in sizes.values():
        lengths += _outside_words(size)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    words: _Words = np.zeros(starts[-1], np.uint64)
    free = np.full(rows, fixed_words, np.int64)
    for index, (column, type_) in enumerate(zip(columns, types, strict=True)):
        bit = index + 8
        nulls = np.asarray(pc.is_null(column)).astype(np.uint64)
        words[starts[:-1] + bit // 64] |= nulls << np.uint64(bit % 64)
        at = starts[:-1] + null_words + index
        if index in sizes:
            _put_bytes(words, column, sizes[index], at=at, starts=starts[:-1], free=free)
            free += _outside_words(sizes[index])
        else:
            words[at] = _numbers(column, type_)
    return words, starts


def _numbers(column: pa.Array, type_: AtomicType) -> _Words:
    arrow, unsigned = _STORAGE[type_.root]
    filled = column.cast(arrow).fill_null(0)
    return np.asarray(filled).view(unsigned).astype(np.uint64)


def _sizes(column: pa.Array) -> _Counts:
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _outside_words(sizes: _Counts) -> _Counts:
    """Words in the variable part: none for values that fit their slot."""
    return np.where(sizes > _INLINE, (sizes + _SLOT - 1) // _SLOT, 0)


def _put_bytes(
    words: _Words, column: pa.Array, sizes: _Counts, *, at: _Counts, starts: _Counts, free: _Counts
) -> None:
    binary = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    dense = column.cast(pa.large_binary() if binary else pa.binary())
    _, offsets_buffer, data_buffer = dense.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64 if binary else np.int32)
    begins = offsets[dense.offset : dense.offset + len(dense)].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)
    inline = sizes <= _INLINE
    marks = np.where(inline, (sizes | 0x80) << 56, (free * _SLOT) << 32 | sizes)
    words[at] = np.where(np.asarray(pc.is_valid(column)), marks.view(np.uint64), np.uint64(0))
    targets = np.where(inline, at, starts + free) * _SLOT
    # Byte j of value i goes from begins[i] + j to targets[i] + j.
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    words.view(np.uint8)[np.repeat(targets, sizes) + within] = data[
        np.repeat(begins, sizes) + within
    ]


def _murmur(words: _Words, starts: _Counts) -> npt.NDArray[np.int32]:
    """Murmur3 of all bodies, one step of 4 bytes for all rows that are that long."""
    halves = words.view(np.uint32)
    lengths = np.diff(starts) * 2
    begins = starts[:-1] * 2
    hashes = np.full(len(lengths), 42, np.uint32)
    for step in range(int(lengths.max(initial=0))):
        rows: Any = slice(None) if step < lengths.min() else np.flatnonzero(lengths > step)
        mixed = halves[begins[rows] + step] * np.uint32(0xCC9E2D51)
        mixed = _rotated(mixed, 15) * np.uint32(0x1B873593)
        hashes[rows] = _rotated(hashes[rows] ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= (4 * lengths).astype(np.uint32)
    hashes = (hashes ^ hashes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ hashes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return (hashes ^ hashes >> np.uint32(16)).view(np.int32)


def _rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return values << np.uint32(bits) | values >> np.uint32(32 - bits)
