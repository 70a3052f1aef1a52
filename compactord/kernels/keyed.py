"""The records of a window by key, and the keys with several records in rounds.

A merge function that makes new rows folds the records of each key from first to last. It does so
for all keys at once: round n takes the n-th record of every key that has one. There are as many
rounds as the most records of a key, at most one per run, and a round costs a few numpy calls on
each column. Keys with a single record take part in no round: their record stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.columns import Int64s, fixed_values
from compactord.kernels.gather import KeyRows, concat_column, taken
from compactord.kernels.kinds import SEQUENCE_NUMBER, VALUE_KIND
from compactord.paimon.types import WIDE_TIMESTAMP, text_of

_SHOWN_CHARACTERS = 100


class KeyedRecords:
    """A window's records, or a part of them that splits no key.

    A row number counts the rows of the columns that `column` returns. A slot is the number of a key
    among those with several records (`folds_all`: or one), those with the most records first.
    """

    def __init__(
        self, records: KeyRows, key_columns: Sequence[str], *, folds_all: bool = False
    ) -> None:
        self._records = records
        self._key_columns = key_columns
        counts = np.diff(records.starts, append=len(records.rows))
        several = np.flatnonzero(counts > (0 if folds_all else 1))
        counts = counts[several]
        self._keys: Int64s = several[np.argsort(-counts, kind="stable")]
        self.slots = len(several)
        starts = records.starts[self._keys]
        # Slots are in descending order of their records.
        sizes = np.bincount(counts)[::-1].cumsum()[::-1] if len(counts) else np.zeros(1, np.int64)
        self.rounds: list[Int64s] = [
            records.rows[starts[: sizes[number + 1]] + number] for number in range(len(sizes) - 1)
        ]

    @property
    def schema(self) -> pa.Schema:
        return self._records.parts[0].schema

    def column(self, name: str) -> pa.Array:
        """All rows of a column, in the order of the parts, not of keys."""
        if name in self._records.concatenated:
            return self._records.concatenated[name]
        return concat_column([part.column(name) for part in self._records.parts])

    @cached_property
    def used(self) -> Int64s:
        """The row numbers of all records of keys with several."""
        return np.concatenate([np.empty(0, np.int64), *self.rounds])

    @cached_property
    def kinds(self) -> Int64s:
        """The kind of each row (int8)."""
        kinds: Int64s = fixed_values(self.column(VALUE_KIND), np.int8)
        return kinds

    @cached_property
    def sequences(self) -> Int64s:
        """The sequence number of each row."""
        numbers: Int64s = fixed_values(self.column(SEQUENCE_NUMBER), np.int64)
        return numbers

    def place(self, chosen: Int64s) -> Int64s:
        """Row numbers of all keys in key order: `chosen` by slot, else the key's only record."""
        rows: Int64s = self._records.rows.take(self._records.starts)
        rows[self._keys] = chosen
        return rows

    def selected(self, column: pa.Array, chosen: Int64s) -> pa.Array:
        """The result column with, for each slot, the value of row `chosen`; -1: null."""
        return taken(column, self.place(chosen))

    def computed(self, column: pa.Array, values: pa.Array) -> pa.Array:
        """The result column with, for each slot, the value of `values`."""
        rows = self.place(np.arange(len(values)) + len(column))
        return pc.take(pa.concat_arrays([column, values]), pa.array(rows), boundscheck=False)

    def key_text(self, row: int) -> str:
        """The key of a row, for errors."""
        return key_text({name: self.column(name)[row] for name in self._key_columns})


def key_text(key: Mapping[str, pa.Scalar]) -> str:
    """A key's columns, for errors."""
    texts = []
    for name, value in key.items():
        text = text_of(value) if value.type == WIDE_TIMESTAMP and value.is_valid else str(value)
        is_long = len(text) > _SHOWN_CHARACTERS
        texts.append(f"{name}={text[:_SHOWN_CHARACTERS]}…" if is_long else f"{name}={text}")
    return ", ".join(texts)
