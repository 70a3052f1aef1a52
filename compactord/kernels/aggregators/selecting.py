"""Aggregators that choose one of a key's values.

Sources: in aggregate/, FieldLastValueAgg.java, FieldLastNonNullValueAgg.java,
FieldFirstValueAgg.java, FieldFirstNonNullValueAgg.java, FieldPrimaryKeyAgg.java.
"""

from __future__ import annotations

import numpy as np

from compactord.kernels.aggregators.base import Accumulator, Values
from compactord.kernels.columns import Bools, Int64s
from compactord.paimon.merge_rules import ColumnRule


class _Selecting(Accumulator):
    """Keeps the row of each slot's value; -1: null."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._rows = np.full(values.slots, -1, np.int64)

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots] = rows

    def result(self) -> Int64s:
        return self._rows

    def _is_null(self, slots: Int64s) -> Bools:
        rows = self._rows[slots]
        # Row -1 is the last one: its value does not count.
        return (rows < 0) | ~self._values.valid[rows]


class LastValue(_Selecting):
    """The last value, null or not."""

    def add(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots] = rows

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        pass

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots] = -1


class PrimaryKey(LastValue):
    """All records of a key agree, retracts too."""

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots] = rows


class LastNonNullValue(_Selecting):
    """The last value that is not null."""

    def add(self, slots: Int64s, rows: Int64s) -> None:
        found = self._values.valid[rows]
        self._rows[slots[found]] = rows[found]

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        fills = self._is_null(slots)
        self._rows[slots[fills]] = rows[fills]

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots[self._values.valid[rows]]] = -1


class FirstValue(_Selecting):
    """The first value, null or not; an earlier one that comes later replaces it."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._has_begun = np.zeros(values.slots, np.bool_)

    def add(self, slots: Int64s, rows: Int64s) -> None:
        first = ~self._has_begun[slots] & self._counts(rows)
        self._rows[slots[first]] = rows[first]
        self._has_begun[slots[first]] = True

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        """As Java calls `agg` with its arguments exchanged: the value so far counts as the new one.

        If nothing was added before, it stays and is the first; otherwise the earlier one replaces
        it, without becoming the first if there is none.
        """
        held = self._rows[slots]
        begins = ~self._has_begun[slots] & self._counts(held)
        self._has_begun[slots[begins]] = True
        self._rows[slots[~begins]] = rows[~begins]

    def _counts(self, rows: Int64s) -> Bools:
        """Whether the values of rows may be the first."""
        return np.ones(len(rows), np.bool_)


class FirstNonNullValue(FirstValue):
    """The first value that is not null."""

    def _counts(self, rows: Int64s) -> Bools:
        return (rows >= 0) & self._values.valid[rows]
