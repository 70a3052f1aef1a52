"""What a merge function is: the records of each key go in, in their order; result rows come out.

A window of rows of all runs is sorted and grouped by key before a function sees it, and the records
of a key are in a total order: user sequence fields, sequence numbers, ties as Java's merge tree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from compactord.kernels.columns import Int64s
from compactord.kernels.gather import gather, gather_keys


class Needs(enum.Enum):
    """Which records of a key a function is given. Finding only the last ones is much quicker."""

    LAST = "last"
    ALL = "all"


class OrderedRecords:
    """The records of a window that a function needs, by key, those of a key from first to last.

    A place is a position in this order.
    """

    def __init__(
        self,
        parts: Sequence[pa.RecordBatch],
        rows: Int64s,
        starts: Int64s | None,
        columns: Mapping[str, pa.Array],
    ) -> None:
        """`rows` are row numbers through all parts; `columns` are concatenated already.

        `starts` None: each key has one record.
        """
        self._parts = parts
        self._rows = rows
        self._columns = columns
        self._starts = starts

    @property
    def starts(self) -> Int64s:
        """The places where keys begin, ascending."""
        return np.arange(len(self._rows)) if self._starts is None else self._starts

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        """Every record as it is."""
        return gather(self._parts, self._rows, self._columns)

    def rows_at(self, places: Int64s) -> Iterator[pa.RecordBatch]:
        """The records at ascending places as they are; the others are not copied."""
        return gather(self._parts, self._rows.take(places), self._columns)

    def batches(self) -> Iterator[tuple[pa.RecordBatch, Int64s]]:
        """Every record, in batches that split no key, each with the rows where keys begin."""
        return gather_keys(self._parts, self._rows, self.starts, self._columns)


class MergeFunction(Protocol):
    """One value serves all merges of a process: it remembers nothing between calls."""

    @property
    def needs(self) -> Needs: ...

    @property
    def merges_again(self) -> bool:
        """Whether results may be merged as if they were records.

        Then a merge of several passes writes results to its temporary files: of a key, results of
        any of its records and other records meet in the next pass, ordered by the results' own
        sequence fields and numbers. Else temporary files hold every record. The last record of a
        key is such a result: true of what `needs` only that.
        """
        ...

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        """At most one row per key, in key order, with its sequence number and kind.

        Batches have the schema of the records' batches; text may be dictionary-encoded in it.
        A key's only record comes out as it is (mergetree/compact/ReducerMergeFunctionWrapper.java):
        the function is not asked about keys in a window whose rows all are of one run.
        """
        ...
