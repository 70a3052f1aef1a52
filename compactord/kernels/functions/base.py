"""The protocol of merge functions, and functions that keep rows unchanged.

A window of rows of all runs is sorted and grouped by key before it reaches a function, and the
records of a key are in a total order: by user sequence fields, then by sequence number, then in the
order in which Java's merge tree returns tied records (see `order`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.columns import (
    VALUE_KIND,
    Int64s,
    KeyedRecords,
    KeyRows,
    concat_column,
    gather,
    is_retract,
    is_retract_kind,
    split_keys,
)


class Needs(enum.Enum):
    """The records of a key that a function needs. Finding only the last one is much faster.

    INSERTS: all; `OrderedRecords.numbers` is enough for a window without retracts. FIRST: all, but
    the first one decides.
    """

    LAST = "last"
    FIRST = "first"
    ALL = "all"
    INSERTS = "inserts"


class OrderedRecords:
    """The records of one window that a function needs, ordered by key, then from first to last.

    A place is a position in this order, from 0.
    """

    def __init__(
        self,
        parts: Sequence[pa.RecordBatch],
        rows: Int64s | None,
        starts: Int64s | None,
        columns: Mapping[str, pa.Array],
        key_columns: Sequence[str],
        *,
        numbers: Int64s | None = None,
        folds_all: bool = False,
    ) -> None:
        """Takes the window's batches (`parts`) and the order of its records.

        `rows` (int64, one per record) are row numbers counted over all parts. `starts` (int64, one
        per key) are the places where keys begin; it defaults to one record per key. `columns` maps
        names to columns that are concatenated already, including `key_columns`. `numbers` (in place
        of `rows` and `starts`) is the number of each row's key, from 0 in key order; no row is a
        retract, and the row numbers of a key's records rise from its first to its last. With
        `folds_all`, functions also fold keys with a single record.
        """
        self._parts = parts
        self._found = rows
        self._columns = columns
        self._starts = starts
        self._key_columns = tuple(key_columns)
        self.numbers = numbers
        self._folds_all = folds_all

    @cached_property
    def _rows(self) -> Int64s:
        if self._found is not None:
            return self._found
        assert self.numbers is not None, "numbers are given where rows are not"
        return np.argsort(self.numbers, kind="stable")

    @property
    def starts(self) -> Int64s:
        """The places where keys begin, ascending."""
        if self.numbers is not None:
            counts = np.bincount(self.numbers)
            return np.cumsum(counts) - counts
        return np.arange(len(self._rows)) if self._starts is None else self._starts

    @property
    def schema(self) -> pa.Schema:
        return self._parts[0].schema

    def column(self, name: str) -> pa.Array:
        """All rows of a column, in the order of the parts, not of keys; not too large for one."""
        if name in self._columns:
            return self._columns[name]
        return concat_column([part.column(name) for part in self._parts])

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        return gather(self._parts, self._rows, self._columns)

    def rows_at(self, places: Int64s) -> Iterator[pa.RecordBatch]:
        """The records at these ascending places, unchanged; other records are not copied."""
        return gather(self._parts, self._rows.take(places), self._columns)

    def keyed(self) -> Iterator[KeyedRecords]:
        """All records in key order, in parts that split no key, without copying."""
        whole = KeyRows(self._parts, self._rows, self.starts, self._columns)
        for part in split_keys(whole):
            yield KeyedRecords(part, self._key_columns, folds_all=self._folds_all)


class MergeFunction(Protocol):
    """A merge engine's rule. It is stateless: one instance serves all merges of a process."""

    @property
    def needs(self) -> Needs:
        """The records of a key that `merge` requires."""

    @property
    def ignores_deletes(self) -> bool:
        """Whether `ignore-delete` removes deletes before `merge`.

        Other functions have their own rule for deletes, or none.
        """

    @property
    def merges_again(self) -> bool:
        """Whether result rows may be merged again as if they were records.

        If so, a merge in several passes writes result rows to its temporary files: the next pass
        merges the results of some records of a key with other records of it, ordered by the
        results' own sequence fields and numbers. Otherwise temporary files hold every record.
        A function that `needs` only the last record always returns True.
        """

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        """Return at most one row per key, in key order, with its sequence number and kind.

        Batches have the schema of the records' batches, in which text may be dictionary-encoded.
        A key's only record is returned unchanged (mergetree/compact/
        ReducerMergeFunctionWrapper.java). So the function is not called for a window whose rows
        all come from one run.
        """


@dataclass(frozen=True)
class Unchanged:
    """A `MergeFunction` that returns the records that it `needs`."""

    needs: Needs
    ignores_deletes: bool
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        return records.all_rows()


# The merge engine `deduplicate` keeps a key's last record, even a retract
# (mergetree/compact/DeduplicateMergeFunction.java).
DEDUPLICATE = Unchanged(Needs.LAST, ignores_deletes=True)
# Not a merge engine, for temporary files of functions that need all records: a key has several rows
# in their order, so readers need `keys_repeat`.
EVERY_RECORD = Unchanged(Needs.ALL, ignores_deletes=False)


class FirstRow:
    """The `MergeFunction` of `first-row`. Raises `SubcompactionError` for deletes."""

    needs = Needs.FIRST
    ignores_deletes = True
    merges_again = True

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        if is_retract(records.column(VALUE_KIND)).any():
            for keyed in records.keyed():
                retracts = keyed.used[np.flatnonzero(is_retract_kind(keyed.kinds[keyed.used]))]
                if len(retracts):
                    raise SubcompactionError(
                        f"key {keyed.key_text(int(retracts[0]))}: a table that keeps first rows "
                        "cannot take deletes (-U or -D) by default: set ignore-delete to ignore "
                        "them"
                    )
        return records.rows_at(records.starts)
