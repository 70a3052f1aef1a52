"""Aggregators that choose one of a key's values.

Sources: aggregate/Field{LastValue,LastNonNullValue,FirstValue,FirstNonNullValue,PrimaryKey,Max,
Min}Agg.java.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from compactord.kernels.aggregators.base import Accumulator, RuleViolation, Values
from compactord.kernels.codes import word_ranks
from compactord.kernels.columns import (
    Bools,
    Int64s,
    dense_ranks,
    dictionary_ranks,
    integer_words,
    is_text,
)
from compactord.paimon.options.merge import ColumnRule


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


class Max(_Selecting):
    """Keeps the first of equal values, and the value that is not null.

    Values are ordered as utils/InternalRowUtils.java compares them: as keys are.
    """

    _sign = 1

    @cached_property
    def _order(self) -> Int64s | None:
        """A number per row in the order of the values; None: values cannot be compared."""
        column, used = self._values.column, self._values.used
        type_ = column.type
        if pa.types.is_nested(type_) or pa.types.is_boolean(type_):
            return None
        if pa.types.is_dictionary(type_):
            numbers = dictionary_ranks(column)
        elif not is_text(type_) and len(words := integer_words(column)) == 1:
            numbers = words[0]
        else:
            numbers = np.zeros(len(column), np.int64)
            chosen = column.take(pa.array(used))
            numbers[used] = (
                dense_ranks(chosen) if is_text(type_) else word_ranks(integer_words(chosen))
            )
        return numbers if self._sign > 0 else ~numbers

    def add(self, slots: Int64s, rows: Int64s) -> None:
        is_null = self._is_null(slots)
        is_compared = ~is_null & self._values.valid[rows]
        if self._order is None:
            if is_compared.any():
                row = int(rows[is_compared][0])
                raise RuleViolation(row, f"values of type {self._values.column.type} have no order")
            takes = is_null
        else:
            takes = is_null | (is_compared & (self._order[rows] > self._order[self._rows[slots]]))
        self._rows[slots[takes]] = rows[takes]


class Min(Max):
    """As `Max`, in the opposite order."""

    _sign = -1
