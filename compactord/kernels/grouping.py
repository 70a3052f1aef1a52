"""Sorts the rows of a window by key and finds where the rows of each key end.

There are four methods. The window's keys decide which is used (ns per row, measured with 250,000
rows in ten runs):

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

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.codes import Codes, equal_rows, pack, sorted_rows
from compactord.kernels.columns import Bools, Int64s, UInt64s

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
    of ascending keys, one after the other; the sort relies on it. `SubcompactionError` if the codes
    show that there are more runs.
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
