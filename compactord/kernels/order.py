"""The records of one window in key order, and the order of the records of a key.

They are ordered by sequence fields, then by sequence number.

Sequence fields are compared in their order, all ascending or all descending, with nulls first in
both directions (utils/UserDefinedSeqComparator.java). Then the sequence number is compared, always
ascending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.codes import equal_rows, pack_words
from compactord.kernels.columns import (
    Int64s,
    dense_ranks,
    dictionary_ranks,
    integer_words,
    is_text,
    stretch_starts,
)
from compactord.kernels.grouping import Groups
from compactord.kernels.kinds import SEQUENCE_NUMBER, VALUE_KIND, is_retract
from compactord.kernels.ties import MergeTree, SequencedRows


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


class Records:
    """A window's records in key order; a place is a position in that order, from 0."""

    def __init__(
        self,
        order: MergeOrder,
        groups: Groups,
        columns: Mapping[str, pa.Array],
        run_ends: Int64s,
    ) -> None:
        self._order = order
        self._rows = groups.order
        self._ends = groups.ends
        self._firsts = np.append(True, groups.ends[:-1])
        self._columns = columns
        self._run_ends = run_ends
        # User sequence fields are expensive to compare, and a single retract is not ignored. In
        # both cases keys with a single record are excluded until the end.
        self._is_contested_only = bool(order.sequence_fields) or order.ignore_delete

    def latest(self) -> tuple[Int64s, Int64s]:
        """The places of the keys' last records, and the positions where each key begins in them.

        A key has several places if records are tied. Keys with one record may be missing.
        """
        if not self._is_contested_only:
            places = np.arange(len(self._rows))
            return keep_latest(self._words(places), places, np.flatnonzero(self._firsts))
        places = np.flatnonzero(~(self._firsts & self._ends))
        kept = np.arange(len(places))
        if self._order.ignore_delete:
            retracts = is_retract(self._columns[VALUE_KIND])
            kept = np.flatnonzero(~retracts.take(self._rows.take(places)))
        starts = stretch_starts(self._groups_at(places.take(kept)))
        kept, starts = keep_latest(self._words(places), kept, starts)
        return places.take(kept), starts

    def rows_at(self, latest: Int64s) -> Int64s:
        """Row numbers in key order, of all keys with a single record and of the given places."""
        if self._is_contested_only:
            is_kept = self._firsts & self._ends
            is_kept[latest] = True
            latest = np.flatnonzero(is_kept)
        rows: Int64s = self._rows.take(latest)
        return rows

    def in_order(self, tree: MergeTree | None) -> tuple[Int64s, Int64s]:
        """Row numbers of all records by key, from first to last, and the positions of key starts.

        The records pass through the tree, which decides full ties. Without a tree the order of
        runs decides them.
        """
        order = self._order
        if order.disjoint_sequences and not order.sequence_fields:
            places = np.arange(len(self._rows))
        else:
            sequenced, places = self.sequenced(0)
            if tree is not None:
                places = places.take(tree.order_of_ties(sequenced))
                tree.pass_rows(sequenced)
        if not order.ignore_delete:
            return self._rows.take(places), np.flatnonzero(self._firsts)
        rows: Int64s = self._rows.take(places)
        is_single = (self._firsts & self._ends).take(places)
        is_kept = is_single | ~is_retract(self._columns[VALUE_KIND]).take(rows)
        groups = np.cumsum(self._firsts).take(places)
        return rows[is_kept], stretch_starts(groups[is_kept])

    def tail_start(self, size: int) -> int:
        """The first place of the keys that are entirely in the last `size` places; 0 if none is."""
        start = max(0, len(self._rows) - size)
        heads = np.flatnonzero(self._firsts[start:])
        return start + int(heads[0]) if start and len(heads) else 0

    def sequenced(self, start: int) -> tuple[SequencedRows, Int64s]:
        """The records from place `start` on, ordered by key and precedence, and their places."""
        places = np.arange(start, len(self._rows))
        groups = self._groups_at(places)
        words = [groups, *self._words(places)]
        codes = pack_words(words)
        if codes.rest:
            by_precedence = np.lexsort(words[::-1])
            steps = ~equal_rows(words, by_precedence[:-1], by_precedence[1:])
        else:
            by_precedence = np.argsort(codes.values, kind="stable")
            ordered = codes.values[by_precedence]
            steps = ordered[1:] != ordered[:-1]
        places = places[by_precedence]
        rows = SequencedRows(
            np.searchsorted(self._run_ends, self._rows[places], side="right"),
            groups[by_precedence],
            np.append(0, np.cumsum(steps)),
        )
        return rows, places

    def _groups_at(self, places: Int64s) -> Int64s:
        """One ascending number per place, equal for places of the same key."""
        if len(places) == 0:
            return places
        low = int(places[0])
        numbers: Int64s = np.cumsum(self._firsts[low : int(places[-1]) + 1])
        return numbers[places - low]

    def _words(self, places: Int64s) -> Iterator[Int64s]:
        order = self._order
        return precedence_words(
            [self._columns[name] for name in order.sequence_fields],
            None if order.disjoint_sequences else self._columns[SEQUENCE_NUMBER],
            self._rows[places],
            is_descending=order.sequence_descending,
        )
