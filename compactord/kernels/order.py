"""The order of the records of a key, and its last one: by sequence fields, then sequence number.

Sequence fields are compared in their order, all ascending or all descending, with nulls first in
both directions (utils/UserDefinedSeqComparator.java). Then the sequence number is compared, always
ascending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import (
    Int64s,
    dense_ranks,
    dictionary_ranks,
    integer_words,
    is_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOrder:
    """Which columns are the key, and in which order the records of a key are.

    `disjoint_sequences`: all sequence numbers of a run are below those of the next run. Then the
    order of runs decides and no sequence number is compared. Otherwise runs must be in the order in
    which Java merges them (mergetree/compact/IntervalPartition.java), which decides full ties.

    `ignore_delete`: if a key has two or more records, its retracts are ignored, and a key with
    retracts only is dropped. A key's only record is kept unchanged, even a retract
    (mergetree/compact/ReducerMergeFunctionWrapper.java).
    """

    key_columns: tuple[str, ...]
    sequence_fields: tuple[str, ...] = ()
    sequence_descending: bool = False
    disjoint_sequences: bool = False
    ignore_delete: bool = False


def precedence_words(
    fields: Sequence[pa.Array], sequence: pa.Array | None, rows: Int64s, *, is_descending: bool
) -> Iterator[Int64s]:
    """Yield int64 columns for the given rows, most significant first; greater values are later.

    `sequence` None: sequence numbers are not compared. Each column is computed on demand.
    """
    for field in fields:
        yield from _field_words(field.take(pa.array(rows)), is_descending=is_descending)
    if sequence is not None:
        yield integer_words(sequence)[0][rows]


def _field_words(field: pa.Array, *, is_descending: bool) -> Iterator[Int64s]:
    is_valid = None
    if field.null_count:
        is_valid = pc.is_valid(field).to_numpy(zero_copy_only=False)
        yield is_valid.astype(np.int64)
    if pa.types.is_dictionary(field.type):
        words = [dictionary_ranks(field)]
    elif is_text(field.type):
        words = [dense_ranks(field)]
    else:
        words = integer_words(field)
    for word in words:
        # The complement reverses the order of int64 without overflow.
        directed = ~word if is_descending else word
        yield directed if is_valid is None else np.where(is_valid, directed, 0)


def keep_latest(words: Iterator[Int64s], kept: Int64s, starts: Int64s) -> tuple[Int64s, Int64s]:
    """Reduce each group of the places `kept` to its latest places.

    Groups are consecutive parts of `kept` that begin at `starts`. Words are read, one after the
    other, until one place per group is left or no word is left; tied places all remain. Returns the
    remaining places and the positions where groups begin in them, both int64.
    """
    while len(starts) < len(kept):
        word = next(words, None)
        if word is None:
            break
        values = word.take(kept)
        latest = np.maximum.reduceat(values, starts)
        left = np.flatnonzero(values == np.repeat(latest, np.diff(starts, append=len(kept))))
        starts = np.arange(len(left)) if len(left) == len(starts) else np.searchsorted(left, starts)
        kept = kept.take(left)
    return kept, starts
