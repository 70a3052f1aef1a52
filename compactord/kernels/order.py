"""The total order of records: keys, sequence fields, sequence numbers, ties.

Records of a key are ordered by sequence fields, all ascending or all descending, with nulls first
in both directions (utils/UserDefinedSeqComparator.java), then by sequence number, always ascending,
then as Java's merge tree returns them (`MergeTree`).

Rows are grouped by keys with one of four methods. The window's keys decide which (ns per row,
measured with 250,000 rows in ten runs):

1. only the last row of each key is needed, and there are few more codes than rows: a table of the
   last row by code, no sort (about 4)
2. a code and a row number fit 64 bits together: one stable sort of numbers (about 16)
3. codes fit 64 bits: stable argsort (about 20); numpy's stable sort detects the sorted runs
4. codes are truncated and would collide too often: Arrow's sort of whole columns (60 to 90)

Truncated codes are verified: rows with equal codes are compared in full, and sorted in full where
they differ. The collision rate of truncated codes is known before sorting: adjacent rows of a run
have different keys, so each adjacent pair with equal codes is a collision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.errors import SubcompactionError
from compactord.kernels.codes import Codes, equal_rows, pack, pack_words, sorted_rows
from compactord.kernels.columns import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    Bools,
    Int64s,
    UInt64s,
    dense_ranks,
    dictionary_ranks,
    integer_words,
    is_retract,
    is_text,
    stretch_starts,
)

_OUTSIDE = 2
_BOTH = 3


@dataclass(frozen=True, slots=True)
class SequencedRows:
    """Rows ordered by (key, precedence): the run, key group and distinct sequence of each.

    All arrays are int64 with one item per row. `sequences` are dense numbers that increase with
    every change of group or precedence.
    """

    runs: Int64s
    groups: Int64s
    sequences: Int64s


class MergeTree:
    """The state of each inner node of Java's loser tree, kept from window to window.

    Two writers that started from the same snapshot give the same sequence numbers to different
    records. The format does not define which of them is newer. In Java the result depends on the
    state of its loser tree (mergetree/compact/LoserTree.java), that is, on the records that passed
    through the tree before. This class computes the same result, so that a table has the same rows
    before and after a compaction of all its runs.

    An inner node of the tree merges the two sides below it. If two heads tie, it pops the one that
    reached the node first (the stored one). After a pop it continues with the same side while that
    side ties. Between keys, the stored head belongs to the side that stayed or was refilled first:

    - the last key passed through one side only: the head of the other side was there before
    - the last key passed through both sides: the side that was popped last is refilled first

    So the state of a node is one bit, the side to continue with. Each distinct sequence that passes
    sets the bit (if it is on one side only) or flips it (if it is on both sides: first the side of
    the bit, then the other). For n runs, the parent of leaf i is node (i + n) / 2. Leaves are first
    filled from last to first.

    The result is exact for a merge that starts as Java's does: with the first key of a section, its
    runs in Java's order, at most `sort-spill-threshold` runs (above it Java reorders them), and the
    default `sort-engine`. A subcompaction that starts at a later key of a section does not know the
    history: ties before the first key that decides a node's state may be ordered unlike Java's.
    """

    def __init__(self, run_count: int) -> None:
        # For inner node p (the root is 1) and run r: r is below the left child 2p (0), below the
        # right child 2p+1 (1), or elsewhere.
        self._sides = np.full((run_count, run_count), _OUTSIDE, np.int64)
        for run in range(run_count):
            child = run + run_count
            while child > 1:
                self._sides[child // 2, run] = child % 2
                child //= 2
        # The side that is stored before the first key: its leaves are filled before the other's.
        self._next_side = np.zeros(run_count, np.int64)
        for node in range(1, run_count):
            lowest = [int(np.flatnonzero(self._sides[node] == side)[0]) for side in (0, 1)]
            self._next_side[node] = int(lowest[1] > lowest[0])

    def pass_run(self, run: int) -> None:
        """Update the state after keys that only this run has."""
        side = self._sides[:, run]
        self._next_side = np.where(side == _OUTSIDE, self._next_side, 1 - side)

    def pass_rows(self, rows: SequencedRows) -> None:
        """Update the state after these rows, which are all rows of their keys."""
        decided = self._after(range(1, len(self._next_side)), rows, is_tail=False)
        assert decided is not None, "all rows decide every node"
        self._next_side = decided

    def pass_tail(self, rows: SequencedRows, present_runs: Sequence[int]) -> bool:
        """Update the state after keys of these runs; `rows` are the rows of the last keys.

        Returns False, without a change, if these rows do not determine the new state.
        """
        touched = (self._sides[:, list(present_runs)] != _OUTSIDE).any(axis=1)
        decided = self._after(np.flatnonzero(touched).tolist(), rows, is_tail=True)
        if decided is not None:
            self._next_side = decided
        return decided is not None

    def _after(self, nodes: Iterable[int], rows: SequencedRows, *, is_tail: bool) -> Int64s | None:
        after = self._next_side.copy()
        for node in nodes:
            states = self._states(node, rows)
            if is_tail and (states is None or not states.is_decided):
                return None
            if states is not None:
                after[node] = states.next_side[-1]
        return after

    def last_of_ties(self, rows: SequencedRows, tied: Int64s) -> Int64s:
        """The place that is popped last among the tied places in `rows`, one per group (int64).

        The tied places of a group have the same sequence. Call it before `pass_rows`.
        """
        remaining = tied
        for node in range(1, len(self._next_side)):
            side = self._sides[node, rows.runs[remaining]]
            here = np.flatnonzero(side != _OUTSIDE)
            states = self._states(node, rows) if len(here) else None
            if states is None:
                continue
            sequence = rows.sequences[remaining[here]]
            starts = stretch_starts(sequence)
            both = np.bitwise_or.reduceat(side[here] + 1, starts) == _BOTH
            is_contested = np.repeat(both, np.diff(starts, append=len(here)))
            last_side = states.next_side[np.searchsorted(states.sequences, sequence)]
            loses = is_contested & (side[here] != last_side)
            remaining = np.delete(remaining, here[loses])
        return remaining

    def order_of_ties(self, rows: SequencedRows) -> Int64s:
        """The places of `rows` (int64), with places of one sequence in the order of popping.

        Call it before `pass_rows`.
        """
        order = np.arange(len(rows.runs))
        is_same = rows.sequences[1:] == rows.sequences[:-1]
        tied = np.flatnonzero(np.append(is_same, False) | np.append(False, is_same))
        if len(tied) == 0:
            return order
        depth = (len(self._next_side) - 1).bit_length()
        # For each level of the tree, whether a row is on the side that is popped last.
        is_late = np.zeros((depth, len(tied)), np.bool_)
        for node in range(1, len(self._next_side)):
            side = self._sides[node, rows.runs[tied]]
            here = np.flatnonzero(side != _OUTSIDE)
            states = self._states(node, rows) if len(here) else None
            if states is None:
                continue
            sequence = rows.sequences[tied[here]]
            last_side = states.next_side[np.searchsorted(states.sequences, sequence)]
            is_late[node.bit_length() - 1, here] = side[here] == last_side
        order[tied] = tied[np.lexsort([*is_late[::-1], rows.sequences[tied]])]
        return order

    def _states(self, node: int, rows: SequencedRows) -> _NodeStates | None:
        """The node's state after each distinct sequence; None if no row passes the node."""
        side = self._sides[node, rows.runs]
        through = np.flatnonzero(side != _OUTSIDE)
        if len(through) == 0:
            return None
        bit = side[through] + 1
        sequence, group = rows.sequences[through], rows.groups[through]
        sequence_starts, group_starts = stretch_starts(sequence), stretch_starts(group)
        present = np.bitwise_or.reduceat(bit, sequence_starts)
        group_present = np.repeat(
            np.bitwise_or.reduceat(bit, group_starts), np.diff(group_starts, append=len(bit))
        )[sequence_starts]
        is_flip = present == _BOTH
        # After a key that passed on one side only, the head of the other side is the stored one.
        set_to = np.where(group_present == _BOTH, present - 1, 2 - group_present)
        places = np.arange(len(present))
        last_set = np.maximum.accumulate(np.where(is_flip, -1, places))
        base = np.where(last_set < 0, self._next_side[node], set_to[last_set])
        return _NodeStates(
            sequence[sequence_starts], base ^ ((places - last_set) & 1), not is_flip.all()
        )


@dataclass(frozen=True, slots=True)
class _NodeStates:
    """The side to continue with after each sequence; decided: the last one needs no history."""

    sequences: Int64s
    next_side: Int64s
    is_decided: bool


_MAX_COLLISION_SHARE = 0.02
# Codes per row up to which a table of codes is faster than a sort.
_MAX_TABLE_SHARE = 2


@dataclass(frozen=True, slots=True)
class Groups:
    """`order`: row numbers by key, stable. `ends`: one bool per row, True at each key's last."""

    order: Int64s
    ends: Bools

    def key_of_row(self) -> Int64s:
        """The number of each row's key, from 0 in key order."""
        numbers = np.empty(len(self.order), np.int64)
        numbers[self.order] = np.cumsum(self.ends) - self.ends
        return numbers


def group_rows(columns: list[pa.Array], run_count: int) -> Groups:
    """Sort and group the rows of key columns, most significant column first.

    The columns are equally long, not empty and without nulls. Their rows must be `run_count` runs
    of ascending keys, one after the other; the sort relies on it. Raises `SubcompactionError` if
    the codes show that there are more runs.
    """
    return _groups(_codes(columns, run_count))


def last_rows(columns: list[pa.Array], run_count: int) -> Int64s:
    """The row number of each key's last row, in key order; arguments and errors as `group_rows`."""
    codes = _codes(columns, run_count)
    if _is_dense(codes):
        last = np.full(1 << codes.bits, -1, np.int32)
        # When an index occurs several times, numpy keeps the last assignment.
        last[codes.values.view(np.int64)] = np.arange(len(codes.values), dtype=np.int32)
        return last[last >= 0].astype(np.int64)
    groups = _groups(codes)
    winners: Int64s = groups.order.take(np.flatnonzero(groups.ends))
    return winners


def key_numbers(columns: list[pa.Array], run_count: int) -> Int64s:
    """The number of each row's key, from 0 in key order; arguments and errors as `group_rows`."""
    codes = _codes(columns, run_count)
    if _is_dense(codes):
        values = codes.values.view(np.int64)
        is_key = np.zeros(1 << codes.bits, np.bool_)
        is_key[values] = True
        table: Int64s = np.cumsum(is_key) - 1
        return table.take(values)
    return _groups(codes).key_of_row()


def _is_dense(codes: Codes) -> bool:
    """Whether a table with a place for each possible code is faster than a sort."""
    return not codes.rest and 1 << codes.bits <= _MAX_TABLE_SHARE * len(codes.values)


def _codes(columns: list[pa.Array], run_count: int) -> Codes:
    codes = pack(columns)
    descents = np.count_nonzero(codes.values[1:] < codes.values[:-1])
    if descents >= run_count:
        raise SubcompactionError(
            f"{run_count} sorted runs were expected, but keys descend {descents} times"
        )
    return codes


def _groups(codes: Codes) -> Groups:
    if collide_often(codes):
        return _sort_in_full(codes)
    groups, ordered = _sort_codes(codes)
    return _verify(groups, ordered, codes) if codes.rest else groups


def collide_often(codes: Codes) -> bool:
    """Whether sorting whole columns is faster than comparing the rows of equal codes."""
    if not codes.rest:
        return False
    collisions = int(np.count_nonzero(codes.values[1:] == codes.values[:-1]))
    return collisions > len(codes.values) * _MAX_COLLISION_SHARE


def _sort_codes(codes: Codes) -> tuple[Groups, UInt64s]:
    """Groups of equal codes, and the codes in order."""
    row_count = len(codes.values)
    row_bits = row_count.bit_length()
    if codes.bits + row_bits <= 64:
        packed = codes.values << np.uint64(row_bits)
        packed |= np.arange(row_count, dtype=np.uint64)
        packed.sort(kind="stable")
        order = (packed & np.uint64((1 << row_bits) - 1)).view(np.int64)
        packed >>= np.uint64(row_bits)
        ordered = packed
    else:
        order = np.argsort(codes.values, kind="stable")
        ordered = codes.values[order]
    return Groups(order, _ends(ordered[1:] != ordered[:-1])), ordered


def _verify(groups: Groups, ordered: UInt64s, codes: Codes) -> Groups:
    """Compare neighbours with equal codes in full; sort those codes' rows where keys differ."""
    order, ends = groups.order, groups.ends
    tied = np.flatnonzero(~ends[:-1])
    differs = ~equal_rows(codes.rest, order[tied], order[tied + 1])
    if not differs.any():
        return groups
    group_of: Int64s = np.cumsum(ends) - ends
    mixed = np.zeros(int(group_of[-1]) + 1, np.bool_)
    mixed[group_of[tied[differs]]] = True
    places = np.flatnonzero(mixed[group_of])
    rows = order[places]
    parts = tuple(
        word[rows] if isinstance(word, np.ndarray) else word.take(pa.array(rows))
        for word in codes.rest
    )
    again = sorted_rows((ordered[places], *parts))
    order, ends = order.copy(), ends.copy()
    order[places] = rows[again]
    inside = np.flatnonzero(group_of[places[1:]] == group_of[places[:-1]])
    same = equal_rows(parts, again[inside], again[inside + 1])
    ends[places[inside]] = ~same
    return Groups(order, ends)


def _sort_in_full(codes: Codes) -> Groups:
    order = sorted_rows(codes.rest if codes.is_one_column else (codes.values, *codes.rest))
    ordered = codes.values[order]
    steps = ordered[1:] != ordered[:-1]
    tied = np.flatnonzero(~steps)
    steps[tied] = ~equal_rows(codes.rest, order[tied], order[tied + 1])
    return Groups(order, _ends(steps))


def _ends(steps: Bools) -> Bools:
    return np.append(steps, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOrder:
    """The key columns, and the order of a key's records.

    `disjoint_sequences`: all sequence numbers of a run are below the next run's. Then the order of
    runs decides and no sequence number is compared. Otherwise runs must be in the order in which
    Java merges them (mergetree/compact/IntervalPartition.java), which decides full ties.

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

    Without `sequence`, sequence numbers are not compared. Each column is computed on demand.
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
