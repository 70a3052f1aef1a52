"""Merges sorted runs window by window: rows of a key range that fit into memory.

The merge is streaming and vectorised. It cuts the runs into windows of rows (`windows`) and sorts
each window by key codes. As the function needs, it selects the last record of each key or orders
all of them (`order`). The function then copies the rows that it keeps (`columns.gather`) or
computes new ones. A window with rows of one run only is returned unchanged. The merge uses one
thread, apart from Arrow's own.

Memory: the rows that `windows` buffers, a second copy of the window's key and sequence columns,
about 32 bytes per row of a window for codes and order, a copy of one other column, and the output
batches that the caller holds. A function that needs all records adds a sorted copy of the window.

Batches are first cut into pieces of at most `window_rows` rows and `2 * window_bytes / (runs + 2)`
bytes, so that the size of a window does not depend on the size of batches. Each run needs one
buffered piece for its last key. On average half of it goes beyond the window, so half of it counts;
the last piece that is read may exceed the limit.

At most `window_rows + (runs / 2 + 1) * piece_rows` rows and `2 * window_bytes` bytes are buffered
at any time, including the window (more bytes only if single rows are larger than a piece;
dictionaries are not counted). One batch per run is in memory until its last piece is merged.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.columns import (
    MAX_CONCAT_BYTES,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    Bools,
    Int64s,
    RowSizes,
    concat_column,
    fits,
    fixed_values,
    hand_on,
    is_retract,
)
from compactord.kernels.functions.base import MergeFunction, Needs, OrderedRecords
from compactord.kernels.keys import BatchKeys, Key
from compactord.kernels.lookup import (
    MERGED,
    NEW,
    SAME,
    Candidates,
    Find,
    MergedKeys,
    keys_with_before,
    looked_up,
)
from compactord.kernels.order import (
    Groups,
    MergeOrder,
    MergeTree,
    Records,
    group_rows,
    key_numbers,
    last_rows,
)

# Per run, in the order of the runs, its batches of this window.
Window: TypeAlias = list[list[pa.RecordBatch]]


def windows(
    runs: Sequence[Iterator[pa.RecordBatch]],
    key_columns: Sequence[str],
    *,
    window_rows: int,
    window_bytes: int,
    keys_repeat: bool = False,
) -> Iterator[Window]:
    """Yield windows in key order, none of them empty; every row of every run is in exactly one.

    A window has all rows of a key range, from every run. It never splits a key: it ends with the
    smallest of the runs' last buffered keys, inclusive. More rows are read from the run with that
    key until enough rows are buffered. If `keys_repeat`, a run may have several rows of a key, one
    after the other. The window then ends before that key, because the run may have more rows of it.

    Raises `SubcompactionError` if a run's batches are not in key order or a key is null.
    """
    assert window_rows > 0, f"window_rows must be positive, not {window_rows}"
    assert window_bytes > 0, f"window_bytes must be positive, not {window_bytes}"
    buffers = [
        _RunBuffer(
            index,
            _pieces(run, window_rows, 2 * window_bytes // (len(runs) + 2)),
            key_columns,
            keys_repeat=keys_repeat,
        )
        for index, run in enumerate(runs)
    ]
    while True:
        for buffer in buffers:
            buffer.ensure()
        growing = [(b.last_key(), b.index) for b in buffers if not b.is_exhausted]
        heapq.heapify(growing)
        rows = sum(buffer.counted_rows for buffer in buffers)
        size_bytes = sum(buffer.counted_bytes for buffer in buffers)
        while growing and rows < window_rows and size_bytes < window_bytes:
            behind = buffers[growing[0][1]]
            rows -= behind.counted_rows
            size_bytes -= behind.counted_bytes
            behind.read()
            rows += behind.counted_rows
            size_bytes += behind.counted_bytes
            if behind.is_exhausted:
                heapq.heappop(growing)
            else:
                heapq.heapreplace(growing, (behind.last_key(), behind.index))
        bound = growing[0][0] if growing else None
        window = [buffer.cut(bound) for buffer in buffers]
        if any(window):
            yield window
        elif growing:
            # The run with the smallest last key has rows of one key only in its buffer.
            buffers[growing[0][1]].read()
        if bound is None:
            return


class _Piece:
    """A batch, or the rest of it, with its keys."""

    __slots__ = ("batch", "first_key", "keys", "last_key", "size_bytes", "start")

    def __init__(self, batch: pa.RecordBatch, size_bytes: int, key_columns: Sequence[str]) -> None:
        self.batch = batch
        self.start = 0
        self.size_bytes = size_bytes
        self.keys = BatchKeys(batch, key_columns)
        self.first_key = self.keys[0]
        self.last_key = self.keys[batch.num_rows - 1]

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows) - self.start


@dataclass(slots=True, eq=False)
class _RunBuffer:
    """The batches of one run that have been read and not merged yet."""

    index: int
    batches: Iterator[tuple[pa.RecordBatch, int]]
    key_columns: Sequence[str]
    keys_repeat: bool
    pieces: deque[_Piece] = field(default_factory=deque)
    last_read: Key | None = None
    is_exhausted: bool = False
    rows: int = 0
    size_bytes: int = 0

    def last_key(self) -> Key:
        return self.pieces[-1].last_key

    @property
    def counted_rows(self) -> int:
        """Rows that count for the limit: half of the last piece, which goes beyond the window."""
        return self.rows - self.pieces[-1].rows // 2 if self.pieces else 0

    @property
    def counted_bytes(self) -> int:
        return self.size_bytes - self.pieces[-1].size_bytes // 2 if self.pieces else 0

    def ensure(self) -> None:
        """Read a piece if none is buffered."""
        if not self.pieces and not self.is_exhausted:
            self.read()

    def read(self) -> None:
        """Buffer one more piece, or set `is_exhausted` if there is none.

        Raises `SubcompactionError` for a run that is not sorted by its key, or has a null in it.
        """
        found = next(self.batches, None)
        if found is None:
            self.is_exhausted = True
            return
        batch, size_bytes = found
        for name in self.key_columns:
            nulls = batch.column(name).null_count
            if nulls:
                raise SubcompactionError(f"run {self.index}: key column {name} holds {nulls} nulls")
        piece = _Piece(batch, size_bytes, self.key_columns)
        if piece.last_key < piece.first_key or self._is_behind(piece.first_key):
            raise SubcompactionError(
                f"run {self.index} is not sorted by its key: after {self.last_read} came a "
                f"batch from {piece.first_key} to {piece.last_key}"
            )
        self.last_read = piece.last_key
        self.pieces.append(piece)
        self.rows += piece.rows
        self.size_bytes += piece.size_bytes

    def _is_behind(self, key: Key) -> bool:
        if self.last_read is None:
            return False
        return key < self.last_read if self.keys_repeat else key <= self.last_read

    def cut(self, bound: Key | None) -> list[pa.RecordBatch]:
        """Remove and return the buffered rows up to `bound`, or all rows without it.

        Rows with the key `bound` are included, unless keys repeat.
        """
        taken: list[pa.RecordBatch] = []
        while self.pieces:
            piece = self.pieces[0]
            if bound is not None and self._goes_beyond(piece, bound):
                count = piece.keys.count_below if self.keys_repeat else piece.keys.count_up_to
                end = count(bound, piece.start)
                if end > piece.start:
                    taken.append(self._take(piece, end))
                break
            taken.append(self._take(piece, piece.batch.num_rows))
            self.pieces.popleft()
        return taken

    def _goes_beyond(self, piece: _Piece, bound: Key) -> bool:
        return piece.last_key >= bound if self.keys_repeat else piece.last_key > bound

    def _take(self, piece: _Piece, end: int) -> pa.RecordBatch:
        rows = end - piece.start
        share = piece.size_bytes * rows // piece.rows
        part = piece.batch.slice(piece.start, rows)
        piece.start = end
        piece.size_bytes -= share
        self.rows -= rows
        self.size_bytes -= share
        return part


def _pieces(
    batches: Iterator[pa.RecordBatch], max_rows: int, max_bytes: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batches cut into pieces that are not empty, each with its size in bytes.

    A piece is within the limits unless it is a single row larger than `max_bytes`.
    """
    sizes: RowSizes | None = None
    for batch in batches:
        sizes = sizes or RowSizes(batch.schema)
        waiting = [batch] if batch.num_rows else []
        while waiting:
            part = waiting.pop()
            size_bytes = sizes.of(part)
            if part.num_rows > 1 and (part.num_rows > max_rows or size_bytes > max_bytes):
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                yield part, size_bytes


# The level of the record's file (int16), for records whose level matters.
LEVEL = "_LEVEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The roles of levels in a merge.

    `before`: a key's record on this level is its earlier state. `looks_up`: of the records above
    level 0, the one on the lowest level counts and is the key's earlier state. `find` looks it up
    in files that are not merged, and is None if no record is from level 0.
    """

    before: int | None = None
    looks_up: bool = False
    find: Find | None = None


# How many of a window's last rows are read first to find the history of the merge tree.
_TAIL_ROWS = 128


def merge_runs(
    runs: Sequence[Iterator[pa.RecordBatch]],
    order: MergeOrder,
    function: MergeFunction,
    *,
    window_rows: int,
    window_bytes: int,
    keys_repeat: bool = False,
    levels: Levels | None = None,
) -> Iterator[MergedKeys]:
    """Yield the function's result rows, in key order, in batches of at most one window.

    All batches, of input and output, have one schema with `_SEQUENCE_NUMBER` (int64) and
    `_VALUE_KIND` (int8). A run is sorted by key and has each key once; with `keys_repeat` it may
    have several records of a key, in their order. The dictionary of a dictionary-encoded column may
    differ between batches, in input and output; its indices are int32.

    With `levels` batches have a column `LEVEL` besides, as their last, which results lack, and each
    key comes with what it was before.

    Raises `SubcompactionError` when a run is not sorted, a key is null, or has two records of a
    level above 0 that count.
    """
    merge = _Merge(order, function, len(runs), keys_repeat=keys_repeat)
    for window in windows(
        runs,
        order.key_columns,
        window_rows=window_rows,
        window_bytes=window_bytes,
        keys_repeat=keys_repeat,
    ):
        if levels is None:
            yield from map(MergedKeys, merge.merge_window(window))
        elif levels.looks_up:
            yield from merge.looked_up(window, levels.find)
        elif levels.before is not None:
            yield from merge.keys_of(window, levels.before)


class _Merge:
    """The state of a merge between windows: the history of the tie-breaking tree."""

    def __init__(
        self, order: MergeOrder, function: MergeFunction, run_count: int, *, keys_repeat: bool
    ) -> None:
        self._order = order
        self._function = function
        self._keys_repeat = keys_repeat
        self._tree = None if order.disjoint_sequences else MergeTree(run_count)
        self._keys = order.key_columns
        # Whether the later run has the later record of a key, and no record is ignored.
        self._by_run = (
            order.disjoint_sequences and not order.sequence_fields and not order.ignore_delete
        )
        names = [*order.key_columns, *order.sequence_fields]
        if not order.disjoint_sequences:
            names.append(SEQUENCE_NUMBER)
        if order.ignore_delete:
            names.append(VALUE_KIND)
        self._compared_columns = tuple(dict.fromkeys(names))

    def merge_window(self, window: Window) -> Iterator[pa.RecordBatch]:
        parts = [batch for batches in window for batch in batches]
        if self._is_one_run(window):
            return hand_on(parts)
        columns = self._columns(parts)
        numbers = self._numbers(window, parts, columns)
        rows, starts = None, None
        if numbers is None:
            rows, starts = self._ordered(window, columns, None)
        records = OrderedRecords(parts, rows, starts, columns, self._keys, numbers=numbers)
        return self._function.merge(records)

    def keys_of(self, window: Window, before_level: int) -> Iterator[MergedKeys]:
        parts = [batch for batches in window for batch in batches]
        if self._is_one_run(window):
            for batch in hand_on(parts):
                is_before = fixed_values(batch.column(LEVEL), np.int16) == before_level
                change_kinds = np.where(is_before, SAME, NEW).astype(np.int8)
                yield MergedKeys(batch.drop_columns([LEVEL]), change_kinds, ())
            return
        columns = self._columns(parts)
        levels = concat_column([part.column(LEVEL) for part in parts])
        parts = [part.drop_columns([LEVEL]) for part in parts]
        numbers = self._numbers(window, parts, columns)
        keys = [columns[name] for name in self._keys]
        rows, starts = None, None
        if numbers is not None:
            key_of_row, found = numbers, np.arange(int(numbers.max()) + 1)
        elif self._function.needs is Needs.LAST and self._by_run:
            key_of_row = key_numbers(keys, sum(map(bool, window)))
            found = np.arange(int(key_of_row.max()) + 1)
            rows = np.empty(len(found), np.int64)
            rows[key_of_row] = np.arange(len(key_of_row))
        else:
            groups = group_rows(keys, sum(map(bool, window)))
            key_of_row = groups.key_of_row()
            rows, starts = self._ordered(window, columns, groups)
            # The keys that have a result, one in each row, in order.
            found = key_of_row[rows if starts is None else rows[starts]]
        change_kinds, befores = _before(key_of_row, fixed_values(levels, np.int16) == before_level)
        records = OrderedRecords(parts, rows, starts, columns, self._keys, numbers=numbers)
        results = self._function.merge(records)
        yield from keys_with_before(
            results, found, change_kinds, befores, parts=parts, columns=columns
        )

    def looked_up(self, window: Window, find: Find | None) -> Iterator[MergedKeys]:
        parts = [batch for batches in window for batch in batches]
        columns = {
            name: concat_column([part.column(name) for part in parts])
            for name in dict.fromkeys([*self._compared_columns, SEQUENCE_NUMBER, VALUE_KIND])
        }
        levels = fixed_values(concat_column([part.column(LEVEL) for part in parts]), np.int16)
        if self._is_one_run(window):
            rows = starts = np.arange(len(levels))
        else:
            # Deletes that are ignored hide lower-ranked records until then.
            order = replace(self._order, ignore_delete=False)
            rows, starts = self._records(window, columns, order).in_order(self._tree)
        parts = [part.drop_columns([LEVEL]) for part in parts]
        ignores = self._order.ignore_delete
        records = Candidates(parts, rows, starts, columns, levels[rows], ignores_deletes=ignores)
        return looked_up(records, self._order, self._function, find)

    def _is_one_run(self, window: Window) -> bool:
        """Whether each row is the only one of its key."""
        present = [run for run, batches in enumerate(window) if batches]
        if len(present) > 1 or self._keys_repeat:
            return False
        if self._tree is not None:
            self._tree.pass_run(present[0])
        return True

    def _columns(self, parts: Sequence[pa.RecordBatch]) -> Mapping[str, pa.Array]:
        """The columns that determine the order of rows, whole."""
        return {
            name: concat_column([part.column(name) for part in parts])
            for name in self._compared_columns
        }

    def _numbers(
        self, window: Window, parts: Sequence[pa.RecordBatch], columns: Mapping[str, pa.Array]
    ) -> Int64s | None:
        """The number of each row's key, where that is enough for the function."""
        if self._function.needs is not Needs.INSERTS or not self._by_run or not _are_inserts(parts):
            return None
        return key_numbers([columns[name] for name in self._keys], sum(map(bool, window)))

    def _ordered(
        self, window: Window, columns: Mapping[str, pa.Array], groups: Groups | None
    ) -> tuple[Int64s, Int64s | None]:
        """Rows and starts as `OrderedRecords` has them; `groups` where they are known already."""
        present = [run for run, batches in enumerate(window) if batches]
        keys = [columns[name] for name in self._keys]
        needs_last = self._function.needs is Needs.LAST
        if needs_last and self._by_run and groups is None:
            return last_rows(keys, len(present)), None
        records = self._records(window, columns, self._order, groups)
        if needs_last:
            return self._pick(records, present), None
        return records.in_order(self._tree)

    def _records(
        self,
        window: Window,
        columns: Mapping[str, pa.Array],
        order: MergeOrder,
        groups: Groups | None = None,
    ) -> Records:
        keys = [columns[name] for name in self._keys]
        groups = groups or group_rows(keys, sum(map(bool, window)))
        run_ends = np.cumsum([sum(batch.num_rows for batch in run) for run in window])
        return Records(order, groups, columns, run_ends)

    def _pick(self, records: Records, present: Sequence[int]) -> Int64s:
        """The row numbers of the last record of each key, in key order."""
        latest, starts = records.latest()
        if len(starts) < len(latest):
            if self._tree is None:
                latest = latest[np.append(starts[1:], len(latest)) - 1]
            else:
                rows, places = records.sequenced(0)
                is_latest = np.zeros(len(places), np.bool_)
                is_latest[latest] = True
                tied = np.flatnonzero(is_latest.take(places))
                latest = np.sort(places[self._tree.last_of_ties(rows, tied)])
                self._tree.pass_rows(rows)
        elif self._tree is not None:
            self._follow(self._tree, records, present)
        return records.rows_at(latest)

    @staticmethod
    def _follow(tree: MergeTree, records: Records, present: Sequence[int]) -> None:
        """Update the tree's history, from as few of the last records as suffice."""
        size = _TAIL_ROWS
        while (start := records.tail_start(size)) > 0:
            rows, _ = records.sequenced(start)
            if tree.pass_tail(rows, present):
                return
            size *= 8
        rows, _ = records.sequenced(0)
        tree.pass_rows(rows)


def _before(key_of_row: Int64s, is_before: Bools) -> tuple[npt.NDArray[np.int8], Int64s]:
    """The fate of each key (`MergedKeys`), and the row number of its record before (-1: none)."""
    counts = np.bincount(key_of_row)
    places = np.flatnonzero(is_before)
    owners = key_of_row[places]
    rows = np.full(len(counts), -1, np.int64)
    rows[owners] = places
    if np.count_nonzero(rows >= 0) < len(places):
        raise SubcompactionError("a key has two records on the highest level")
    change_kinds = np.where(counts > 1, MERGED, SAME).astype(np.int8)
    change_kinds[rows < 0] = NEW
    return change_kinds, rows


def _are_inserts(parts: Sequence[pa.RecordBatch]) -> bool:
    """Whether no row is a retract, and each column of the parts can be concatenated."""
    retracts = (is_retract(part.column(VALUE_KIND)).any() for part in parts)
    return fits(parts, MAX_CONCAT_BYTES) and not any(retracts)
