"""Cuts sorted runs into windows. A window holds all rows of a range of keys, from every run.

A window never splits a key: it ends with the smallest of the runs' last buffered keys, inclusive.
More rows are read from the run with that key until enough rows are buffered. If runs may have a key
more than once, the window ends before that key, because the run may have more rows of it.

Batches are first cut into pieces of at most `window_rows` rows and `2 * window_bytes / (runs + 2)`
bytes, so that the size of a window does not depend on the size of batches. Each run needs one
buffered piece, which gives its last key. On average half of it goes beyond the window, so that half
of it counts; the last piece that is read may exceed the limit.

Memory: at most `window_rows + (runs / 2 + 1) * piece_rows` rows and `2 * window_bytes` bytes are
buffered at any time, including the window (more bytes only if single rows are larger than a piece;
dictionaries are not counted). One batch per run is in memory until its last piece is merged.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.columns import RowSizes
from compactord.kernels.keys import BatchKeys, Key

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

    `keys_repeat`: a run may have several rows of a key, one after the other.

    Raises `SubcompactionError` when a run's batches are not in key order or a key is null.
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
        """As `counted_rows`."""
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
        """Remove and return the buffered rows up to `bound`; None: all of them.

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
