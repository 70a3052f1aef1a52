"""Folds windows of inserts without a sort and without rounds: each column in a few numpy calls.

The row numbers of a key's records rise from its first to its last (`OrderedRecords.numbers`). Of
several assignments to a key numpy keeps the last, and `ufunc.at` takes values in the order of rows:
sums of floats are those of rounds bit for bit. Columns of other aggregators, and those whose fold
returns None (other types, sums that might overflow), are folded in rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.kernels.columns import Int64s, fixed_array, fixed_values, integer_values, validity
from compactord.kernels.functions.base import OrderedRecords
from compactord.kernels.functions.folding import Action, Step, folded, slots_of_round
from compactord.kernels.gather import taken, taken_valid
from compactord.kernels.keyed import KeyedRecords
from compactord.kernels.kinds import INSERT, SEQUENCE_NUMBER, VALUE_KIND
from compactord.paimon.options.merge import ColumnRule


class _Values:
    """The values of a column that are not null: their rows, and the numbers of their keys."""

    def __init__(self, column: pa.Array, numbers: Int64s, key_count: int) -> None:
        self._column = column
        self._key_count = key_count
        self._rows = np.flatnonzero(validity(column))
        self._keys: Int64s = numbers.take(self._rows)

    def latest(self) -> pa.Array:
        found = np.full(self._key_count, -1, np.int64)
        found[self._keys] = self._rows
        return taken_valid(self._column, found)

    def total(self) -> pa.Array | None:
        type_ = self._column.type
        if pa.types.is_floating(type_):
            floats = fixed_values(self._column, f"f{type_.bit_width // 8}").take(self._rows)
            # What is added to negative zero stays as it is; the bits of a NaN might not.
            return None if np.isnan(floats).any() else self._accumulated(np.add, -0.0, floats)
        if not pa.types.is_integer(type_):
            return None
        numbers = integer_values(self._column).take(self._rows)
        sizes = np.bincount(self._keys, np.abs(numbers.astype(np.float64)))
        may_overflow = sizes.max(initial=0) > np.iinfo(numbers.dtype).max / 2
        return None if may_overflow else self._accumulated(np.add, 0, numbers)

    def extreme(self, ufunc: np.ufunc) -> pa.Array | None:
        type_ = self._column.type
        if not (pa.types.is_integer(type_) or pa.types.is_temporal(type_)):
            return None
        numbers = integer_values(self._column).take(self._rows)
        bounds = np.iinfo(numbers.dtype)
        return self._accumulated(ufunc, bounds.min if ufunc is np.maximum else bounds.max, numbers)

    def _accumulated(self, ufunc: np.ufunc, first: float, values: npt.NDArray[Any]) -> pa.Array:
        """A column of what `ufunc` makes of each key's values; null for keys without any."""
        totals = np.full(self._key_count, first, values.dtype)
        with np.errstate(all="ignore"):
            ufunc.at(totals, self._keys, values)
        known = np.zeros(self._key_count, np.bool_)
        known[self._keys] = True
        return fixed_array(totals, known, self._column.type)


_LAST, _LAST_NON_NULL = ("primary-key", "last_value"), "last_non_null_value"
_FOLDS: Mapping[str, Callable[[_Values], pa.Array | None]] = {
    _LAST_NON_NULL: _Values.latest,
    "sum": _Values.total,
    "max": lambda values: values.extreme(np.maximum),
    "min": lambda values: values.extreme(np.minimum),
}


def merged_inserts(
    records: OrderedRecords,
    numbers: Int64s,
    rule_of: Callable[[str], ColumnRule],
    *,
    adds_null: bool,
) -> pa.RecordBatch:
    """The result rows. `rule_of` gives a column's rule; `adds_null` and errors as in `folded`."""
    last = np.empty(int(numbers.max()) + 1, np.int64)
    last[numbers] = np.arange(len(numbers))

    @cache
    def rounds() -> tuple[KeyedRecords, list[Step]]:
        [keyed] = records.keyed()
        return keyed, [Step(Action.ADD, slots_of_round(rows), rows) for rows in keyed.rounds]

    def result(field: pa.Field) -> pa.Array:
        column = records.column(field.name)
        if field.name == VALUE_KIND:
            kinds = fixed_values(column, np.int8).take(last)
            if kinds.any():
                kinds = np.where(np.bincount(numbers) == 1, kinds, INSERT).astype(np.int8)
            return pa.array(kinds)
        if field.name == SEQUENCE_NUMBER:
            return taken(column, last)
        rule = rule_of(field.name)
        has_nulls = column.null_count > 0
        if rule.aggregator in _LAST or (rule.aggregator == _LAST_NON_NULL and not has_nulls):
            return taken(column, last)
        fold = _FOLDS.get(rule.aggregator)
        is_checked = has_nulls and not adds_null and not field.nullable
        found = fold(_Values(column, numbers, len(last))) if fold and not is_checked else None
        if found is None:
            keyed, steps = rounds()
            found = folded(keyed, field.name, rule, steps, adds_null=adds_null)
        return found

    return pa.RecordBatch.from_arrays([result(f) for f in records.schema], schema=records.schema)
