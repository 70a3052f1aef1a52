"""Hashes of the identities of files, by which many are compared at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compactord.paimon.avro.columns import Bytes, Ints, Span
from compactord.paimon.data_file import FileIdentity

Hashes = npt.NDArray[np.uint64]
_ONES, _HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (0x01, 0x80))
_SLASHES, _BACKSLASHES = (np.uint64(ord(c) * 0x0101010101010101) for c in "/\\")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Neighbouring rows are hashed together because their bytes are still in the processor's cache.
_HASHED_TOGETHER = 4096


def identity_hashes(identities: Sequence[FileIdentity]) -> Hashes:
    """`FileColumns.identity_hash` of these identities: by file name, bucket and level."""
    names = [identity.file_name.encode() for identity in identities]
    data = np.frombuffer(b"".join(names) + bytes(8), np.uint8)
    length = np.fromiter((len(name) for name in names), np.int64, len(names))
    bucket = np.fromiter((i.bucket for i in identities), np.int64, len(names))
    level = np.fromiter((i.level for i in identities), np.int64, len(names))
    hashed, _ = hash_spans(data, Span(np.cumsum(length) - length, length))
    return mixed(hashed, bucket, level)


@dataclass(frozen=True, slots=True)
class Deletions:
    """What some manifests delete, all together: their names, the sorted hashes of the files."""

    manifests: frozenset[str]
    hashes: Hashes

    @staticmethod
    def of(manifests: Iterable[str], identities: Iterable[FileIdentity]) -> Deletions:
        return Deletions(frozenset(manifests), np.sort(identity_hashes(list(identities))))

    def may_have(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which of these may be among them; hashes of different files may be equal."""
        if not len(self.hashes):
            return np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        found: npt.NDArray[np.bool_] = self.hashes[places] == hashes
        return found


def hash_spans(data: Bytes, span: Span) -> tuple[Hashes, Ints]:
    """64 bits of each span's bytes, and the rows that may hold no name of a file.

    These are all that hold a separator, are not ASCII, or are no longer than `..`. `data` is padded
    by eight bytes.
    """
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    hashed = span.length.astype(np.uint64)
    odd = np.where(span.length <= 2, _HIGH_BITS, np.uint64(0))
    for first in range(0, len(hashed), _HASHED_TOGETHER):
        rows = slice(first, first + _HASHED_TOGETHER)
        _hash_words(words, span.start[rows], span.length[rows], hashed[rows], odd[rows])
    return hashed, np.flatnonzero(odd & _HIGH_BITS)


def _hash_words(
    words: npt.NDArray[np.uint64],
    start: Ints,
    length: Ints,
    hashed: npt.NDArray[np.uint64],
    odd: npt.NDArray[np.uint64],
) -> None:
    """Eight bytes at a time; `odd` gets the high bit of a byte for a byte that is odd."""
    for offset in range(0, int(length.max(initial=0)), 8):
        left = length - offset
        going = np.flatnonzero(left > 0)
        word = words[start[going] + offset]
        word <<= 64 - 8 * np.minimum(left[going], 8).astype(np.uint64)
        hashed[going] = _mix(hashed[going] ^ word)
        # A byte that is one of these becomes zero, and then less than that.
        odd[going] |= ((word ^ _SLASHES) - _ONES) | ((word ^ _BACKSLASHES) - _ONES)


def mixed(hashed: Hashes, bucket: Ints, level: Ints) -> Hashes:
    return _mix(_mix(hashed ^ bucket.astype(np.uint64)) ^ level.astype(np.uint64))


def _mix(hashed: Hashes) -> Hashes:
    hashed = hashed * _MULTIPLIER
    return hashed ^ (hashed >> np.uint64(32))


NO_DELETIONS = Deletions.of((), ())
