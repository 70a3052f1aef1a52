"""The largest and the smallest value (aggregate/Field{Max,Min}Agg.java).

Values are ordered as utils/InternalRowUtils.java compares them: as keys are.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from compactord.kernels.aggregators.base import Accumulator, RuleViolation, Values
from compactord.kernels.codes import word_ranks
from compactord.kernels.columns import (
    Int64s,
    dense_ranks,
    dictionary_ranks,
    integer_words,
    is_text,
)
from compactord.paimon.merge_rules import ColumnRule


class Max(Accumulator):
    """Keeps the first of equal values, and the value that is not null."""

    _sign = 1

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._rows = np.full(values.slots, -1, np.int64)

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

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots] = rows

    def add(self, slots: Int64s, rows: Int64s) -> None:
        valid = self._values.valid
        held = self._rows[slots]
        # Row -1 is the last one: its value does not count.
        is_null = (held < 0) | ~valid[held]
        is_compared = ~is_null & valid[rows]
        if self._order is None:
            if is_compared.any():
                row = int(rows[is_compared][0])
                raise RuleViolation(row, f"values of type {self._values.column.type} have no order")
            takes = is_null
        else:
            takes = is_null | (is_compared & (self._order[rows] > self._order[held]))
        self._rows[slots[takes]] = rows[takes]

    def result(self) -> Int64s:
        return self._rows


class Min(Max):
    """As `Max`, in the opposite order."""

    _sign = -1
