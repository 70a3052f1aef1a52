"""Order-preserving codes: the key columns of a window packed into one 64-bit number per row.

Columns are packed from the first on, each in as few bits as the window's values need: numbers as
the difference from the smallest, text as the bytes after the window's common prefix. Bits beyond 64
are truncated. Then `code(a) < code(b)` still means that a's key is smaller, but equal codes do not
always mean equal keys: `Codes.rest` holds the columns that must be compared in addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import (
    Bools,
    Int64s,
    UInt64s,
    dictionary_ranks,
    fixed_values,
    integer_words,
    is_text,
    plain_text,
)
from compactord.kernels.text import text_prefixes

_CODE_BITS = 64
# Size of the sample that decides whether a text column gets ranks instead of prefixes, and the
# share of distinct values in the sample up to which ranks are cheaper.
_SAMPLE_ROWS = 2048
_LOW_CARDINALITY = 0.25

Word: TypeAlias = Int64s | pa.Array


@dataclass(frozen=True, slots=True)
class Codes:
    """`values` (uint64, one per row) use the lowest `bits` bits; `rest`: to compare if equal."""

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
