"""Order-preserving codes of key columns: integers and texts.

Columns are packed from the first on, each in as few bits as the window's values need: numbers as
the difference from the smallest, text as the bytes after the window's common prefix. Bits beyond 64
are truncated. Then `code(a) < code(b)` still means that a's key is smaller, but equal codes do not
always mean equal keys: `Codes.rest` holds the columns that must be compared in addition.

Texts of equal length, as most identifiers are, form a matrix of bytes in memory: their eight bytes
are loaded with a stride instead of an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import (
    Bools,
    Int64s,
    UInt64s,
    dense_ranks,
    dictionary_ranks,
    fixed_values,
    integer_words,
    is_text,
    plain_text,
    text_buffers,
)

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
    # Eight more bytes at the end, so that the last text is loaded like the other ones.
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


_CODE_BITS = 64
# Size of the sample that decides whether a text column gets ranks instead of prefixes, and the
# share of distinct values in the sample up to which ranks are cheaper.
_SAMPLE_ROWS = 2048
_LOW_CARDINALITY = 0.25

Word: TypeAlias = Int64s | pa.Array


@dataclass(frozen=True, slots=True)
class Codes:
    """`values` (uint64, one per row) use the lowest `bits` bits. `rest` is compared if they are
    equal.
    """

    values: UInt64s
    bits: int
    rest: tuple[Word, ...]
    is_one_column: bool


def pack(columns: list[pa.Array]) -> Codes:
    """Codes of equally long key columns without nulls, not empty, most significant column first."""
    return pack_words([word for column in columns for word in _words(column)])


def pack_words(words: Sequence[Word]) -> Codes:
    """As `pack`, for columns that are already int64 numbers or texts."""
    codes: UInt64s | None = None
    bits = 0
    for position, word in enumerate(words):
        if isinstance(word, np.ndarray):
            part, width, is_exact = *_from_minimum(word), True
        else:
            part, width, is_exact = _text_part(word, is_last=position == len(words) - 1)
        free = _CODE_BITS - bits
        if width > free:
            part, width, is_exact = part >> np.uint64(width - free), free, False
        if codes is None or bits == 0:
            codes = part
        elif width:
            codes = (codes << np.uint64(width)) | part
        bits += width
        if not is_exact:
            return Codes(codes, bits, tuple(words[position:]), len(words) == 1)
        if bits == _CODE_BITS:
            return Codes(codes, bits, tuple(words[position + 1 :]), False)
    assert codes is not None, "a key has at least one column"
    return Codes(codes, bits, (), len(words) == 1)


def _words(column: pa.Array) -> list[Word]:
    if pa.types.is_dictionary(column.type):
        return [dictionary_ranks(column)]
    if is_text(column.type):
        return [plain_text(column)]
    return list(integer_words(column))


def _from_minimum(word: Int64s) -> tuple[UInt64s, int]:
    """The distance of each value from the smallest, and the bits that it takes.

    The difference of two int64 may wrap around; read as uint64 it is exact.
    """
    low = word.min()
    distance = (word - low).view(np.uint64)
    return distance, int(distance.max()).bit_length()


def _text_part(column: pa.Array, *, is_last: bool) -> tuple[UInt64s, int, bool]:
    """The codes of a text column, their bits, and whether equal codes mean equal texts."""
    part, is_exact = text_prefixes(column)
    if not is_exact and not is_last and _has_few_values(column):
        return *_from_minimum(dictionary_ranks(pc.dictionary_encode(column))), True
    part -= part.min()
    return part, int(part.max()).bit_length(), is_exact


def _has_few_values(column: pa.Array) -> bool:
    step = max(1, len(column) // _SAMPLE_ROWS)
    sample = column.take(pa.array(np.arange(0, len(column), step)))
    return len(pc.unique(sample)) <= len(sample) * _LOW_CARDINALITY


def equal_rows(words: Sequence[Word], left: Int64s, right: Int64s) -> Bools:
    """One bool per pair: whether rows `left[i]` and `right[i]` are equal in all columns."""
    equal = np.ones(len(left), np.bool_)
    for word in words:
        if isinstance(word, np.ndarray):
            equal &= word[left] == word[right]
        else:
            same = pc.equal(word.take(pa.array(left)), word.take(pa.array(right)))
            equal &= same.to_numpy(zero_copy_only=False)
    return equal


def word_ranks(words: Sequence[Int64s]) -> Int64s:
    """Ranks (int64, from 0) of equally long rows of numbers, equal for equal rows."""
    if len(words[0]) == 0:
        return np.empty(0, np.int64)
    codes = pack_words(words)
    order = sorted_rows(tuple(words)) if codes.rest else np.argsort(codes.values, kind="stable")
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.append(0, np.cumsum(~equal_rows(words, order[:-1], order[1:])))
    return ranks


def text_ranks(texts: pa.Array) -> Int64s:
    """Numbers from 0 in the order of texts without nulls, equal for equal texts.

    Texts of one length, such as times, are packed: each byte takes the bits that it needs.
    """
    offsets, data = text_buffers(texts)
    lengths = np.diff(offsets)
    if len(lengths) == 0 or (lengths != lengths[0]).any():
        return dense_ranks(texts)
    matrix = data[offsets[0] : offsets[-1]].reshape(len(lengths), lengths[0])
    lows = matrix.min(axis=0).tolist()
    bits = [int(spread).bit_length() for spread in np.ptp(matrix, axis=0)]
    if sum(bits) >= _CODE_BITS:
        return dense_ranks(texts)
    ranks = np.zeros(len(lengths), np.int64)
    for position, width in enumerate(bits):
        if width:
            ranks <<= width
            ranks |= matrix[:, position] - np.uint8(lows[position])
    return ranks


def sorted_rows(words: tuple[Int64s | UInt64s | pa.Array, ...]) -> Int64s:
    """Row numbers (int64) in the order of the columns; equal rows keep theirs (Arrow is stable)."""
    if len(words) == 1 and not isinstance(words[0], np.ndarray):
        indices = pc.array_sort_indices(words[0])
    else:
        names = [str(position) for position in range(len(words))]
        table = pa.table([pa.array(word) for word in words], names=names)
        indices = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    rows: Int64s = fixed_values(indices, np.uint64).view(np.int64)
    return rows
