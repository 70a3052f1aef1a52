"""Finds rows of a sorted file by batches of keys that ascend from call to call.

A key may be reported absent only if that is certain: the rows below and above it are neighbours, or
it is below the first row or above the last. The keys of decoded rows are checked to ascend. Skipped
rows are assumed to be sorted, as merges of a key range assume it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.kernels.columns import Int64s
from compactord.kernels.keys import BatchKeys, Found, Key, ascends, matches
from compactord.model import InputFile


class Finder(ABC):
    @property
    @abstractmethod
    def read_bytes(self) -> int:
        """Bytes of the file's columns that were read so far."""

    @abstractmethod
    def find(self, keys: pa.RecordBatch) -> tuple[Found, Int64s]:
        """The rows with these keys, in the layout's row schema, and their numbers in the file.

        `keys`: distinct and ascending, above the keys of earlier calls; the layout's key columns in
        its types. Raises as `OpenFile.batches`, and `FormatError` if rows are not sorted.
        """

    @abstractmethod
    def close(self) -> None:
        """End reading. Raises `FormatError` if the data already read turns out to be damaged."""


class SkippedError(Exception):
    """A key may be among rows that were not read."""


class Hits(NamedTuple):
    """Rows of a batch with wanted keys: the indexes of the keys and of the rows in the batch.

    `positions`: row numbers in the file, or in its searched part.
    """

    places: Int64s
    rows: Int64s
    positions: Int64s
    batch: pa.RecordBatch

    def taken(self) -> pa.RecordBatch:
        """A copy of the rows, so that the batch need not stay in memory."""
        return self.batch.take(pa.array(self.rows))


class KeyOrder:
    """Checks that the keys of a file ascend, batch by batch."""

    def __init__(self, key_columns: Sequence[str], path: str) -> None:
        self._names = list(key_columns)
        self._path = path
        self._last: Key | None = None

    def check(self, row: int, batch: pa.RecordBatch) -> None:
        """Raise `FormatError` unless each key of the batch, which begins at `row`, is the highest.

        A batch has at least one row.
        """
        keys = BatchKeys(batch, self._names)
        if (self._last is not None and keys[0] <= self._last) or not ascends(
            batch.select(self._names).columns
        ):
            raise FormatError(self._path, f"its keys do not ascend, from row {row} on")
        self._last = keys[batch.num_rows - 1]


class SortedRows:
    """Rows of a file, or of a part of it, that are matched with keys in one pass.

    `batches` come with the numbers of their first rows. All rows before `first` are known to be
    below the keys; `end` is the row after the last of the part. `row`: all rows before it are below
    the keys to come. `read_to`: the row after the last one that was read. `passed`: the number of
    keys of the last call that are not above the last row.
    """

    def __init__(
        self,
        batches: Generator[tuple[int, pa.RecordBatch], None, None],
        key_columns: Sequence[str],
        path: str,
        first: int,
        end: int,
    ) -> None:
        self._batches = batches
        self._names = list(key_columns)
        self._order = KeyOrder(key_columns, path)
        self._end = end
        self._held: tuple[int, pa.RecordBatch] | None = None
        self._follows = True
        self.read_to = first
        self.row = first
        self.passed = 0

    def hits(self, keys: pa.RecordBatch) -> Iterator[Hits]:
        """Rows found for the keys. Raises `SkippedError` if absence of the other keys is uncertain.

        Reads no further than the last key.
        """
        keys = keys.select(self._names)
        wanted, self.passed = BatchKeys(keys, self._names), 0
        while self.passed < keys.num_rows and (held := self._next_batch()) is not None:
            row, batch = held
            stored = BatchKeys(batch, self._names)
            start = wanted.count_below(stored[0], self.passed)
            if start > self.passed and not self._follows:
                raise SkippedError
            self.passed = end = wanted.count_up_to(stored[batch.num_rows - 1], start)
            if end > start:
                first = stored.count_below(wanted[start])
                below = stored.count_up_to(wanted[end - 1], first)
                if below > first:
                    rows, places = matches(
                        batch.select(self._names).slice(first, below - first).columns,
                        keys.slice(start, end - start).columns,
                    )
                    rows += first
                    yield Hits(places + start, rows, rows + row, batch)
                self.row = row + below
            if end < keys.num_rows:
                self.row = row + batch.num_rows
                self._held = None
        if self.passed < keys.num_rows and self.read_to < self._end:
            raise SkippedError

    def close(self) -> None:
        """End reading. Raises errors from the end of `batches`."""
        self._batches.close()

    def _next_batch(self) -> tuple[int, pa.RecordBatch] | None:
        while self._held is None:
            found = next(self._batches, None)
            if found is None:
                return None
            row, batch = found
            if batch.num_rows:
                self._order.check(row, batch)
                self._held = found
                self._follows = row <= self.read_to
                self.read_to = row + batch.num_rows
        return self._held


class StreamFinder(Finder):
    """Reads all rows up to the last key: possible in every format."""

    def __init__(
        self,
        batches: Generator[tuple[int, pa.RecordBatch], None, None],
        key_columns: Sequence[str],
        file: InputFile,
    ) -> None:
        self._file = file
        self._rows = SortedRows(batches, key_columns, file.path, 0, 0)

    @property
    def read_bytes(self) -> int:
        return self._file.size_bytes * self._rows.read_to // max(1, self._file.row_count)

    def find(self, keys: pa.RecordBatch) -> tuple[Found, Int64s]:
        found = list_of(self._rows.hits(keys))
        read_to = self._rows.read_to
        if self._rows.passed < keys.num_rows or read_to > self._file.row_count:
            self._file.check_rows(read_to)
        return found

    def close(self) -> None:
        self._rows.close()


def list_of(hits: Iterator[Hits]) -> tuple[Found, Int64s]:
    """The found rows as copies, and their positions."""
    none = np.empty(0, np.int64)
    places, positions, rows = [none], [none], []
    for each in hits:
        if len(each.places):
            places.append(each.places)
            positions.append(each.positions)
            rows.append(each.taken())
    return Found(np.concatenate(places), rows), np.concatenate(positions)
