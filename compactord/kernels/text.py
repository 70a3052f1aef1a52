"""Converts texts to numbers: the eight bytes after the common prefix, most significant byte first.

Texts of equal length, as most identifiers are, form a matrix of bytes in memory: their eight bytes
are loaded with a stride instead of an index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import Int64s, UInt64s, text_buffers

_WORD = 8


def text_prefixes(column: pa.Array) -> tuple[UInt64s, bool]:
    """One number per text, in the order of the texts, and whether equal numbers mean equal texts.

    A number holds up to eight bytes after the window's common prefix; shorter texts are padded with
    zero bytes. That is exact unless a text continues after the eighth byte, or ends with a zero
    byte and so equals a shorter one. The column has no nulls and is not empty. The caller may
    modify the returned array.
    """
    offsets, data = text_buffers(column)
    lengths = np.diff(offsets)
    shortest, longest = int(lengths.min()), int(lengths.max())
    data = data[int(offsets[0]) : int(offsets[-1])]
    if shortest < longest:
        starts = (offsets[:-1] - offsets[0]).astype(np.int64)
        return _prefixes_of_any_length(column, data, starts, lengths)
    if longest >= _WORD:
        return _prefixes_of_one_length(data, len(column), longest)
    padded = np.zeros((len(column), _WORD), np.uint8)
    padded[:, _WORD - longest :] = data.reshape(len(column), longest)
    return _as_numbers(padded.view("<u8").reshape(-1)), True


def _prefixes_of_one_length(
    data: npt.NDArray[np.uint8], count: int, length: int
) -> tuple[UInt64s, bool]:
    for start in range(0, length, _WORD):
        # The last word may overlap the word before; the shared bytes are part of the prefix.
        column = _words_at(data, min(start, length - _WORD), count, length)
        varying = int(np.bitwise_or.reduce(column ^ column[0]))
        if varying:
            # Little-endian: the first byte of the text is the lowest byte of the number.
            common = min(start, length - _WORD) + (varying & -varying).bit_length() // _WORD
            first = min(common, length - _WORD)
            return _as_numbers(_words_at(data, first, count, length).copy()), (
                length - common <= _WORD
            )
    return np.zeros(count, np.uint64), True


def _words_at(
    data: npt.NDArray[np.uint8], position: int, count: int, length: int
) -> npt.NDArray[Any]:
    """Eight bytes of each text from `position` on, as little-endian numbers; no copy."""
    return np.ndarray((count,), "<u8", data, position, (length,))


def _prefixes_of_any_length(
    column: pa.Array,
    data: npt.NDArray[np.uint8],
    starts: Int64s,
    lengths: npt.NDArray[Any],
) -> tuple[UInt64s, bool]:
    # Eight bytes past the end, so that the last text can be loaded like all others.
    padded = np.empty(len(data) + _WORD, np.uint8)
    padded[: len(data)] = data
    padded[len(data) :] = 0
    ends_with_zero = bool((padded[(starts + lengths)[lengths > 0] - 1] == 0).any())
    common = _common_prefix_length(column)
    starts += common
    loads: npt.NDArray[Any] = np.ndarray((len(data) + 1,), "<u8", padded, 0, (1,))
    prefixes = _as_numbers(loads[starts])
    missing = _WORD + common - lengths
    unused = int(missing.min())
    if int(missing.max()) > 0:
        # Clear the bytes of the next text. A shift by 64 is undefined, so shift twice by half.
        half = (np.maximum(missing, 0) * 4).astype(np.uint8)
        prefixes >>= half
        prefixes >>= half
        prefixes <<= half
        prefixes <<= half
    if 0 < unused < _WORD:
        prefixes >>= np.uint64(8 * unused)
    return prefixes, unused >= 0 and not ends_with_zero


def _as_numbers(little_endian: npt.NDArray[Any]) -> UInt64s:
    numbers: UInt64s = little_endian.byteswap(inplace=True).view(np.uint64)
    return numbers


def _common_prefix_length(column: pa.Array) -> int:
    ends = pc.min_max(column)
    low, high = (ends[name].as_buffer().to_pybytes() for name in ("min", "max"))
    limit = min(len(low), len(high))
    return next((i for i in range(limit) if low[i] != high[i]), limit)
