"""Folds all records of a key: the merge engine `aggregation`, and its faster path for inserts.

The row numbers of a key's records rise from its first to its last (`OrderedRecords.numbers`). numpy
keeps the last of several assignments to a key, and `ufunc.at` takes values in the order of rows:
sums of floats equal the sums in rounds bit for bit. Columns of other aggregators, and columns whose
fold returns None (other types, sums that might overflow), are folded in rounds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators.base import RuleViolation, Values
from compactord.kernels.aggregators.inserts import Inserts, merged_values
from compactord.kernels.aggregators.registry import FOLDS, accumulator
from compactord.kernels.columns import (
    DELETE,
    INSERT,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    Bools,
    Int64s,
    KeyedRecords,
    fixed_array,
    fixed_values,
    integer_values,
    is_retract_kind,
    taken,
    taken_valid,
    validity,
)
from compactord.kernels.functions.base import Needs, OrderedRecords
from compactord.paimon.options.merge import ColumnRule, MergeRules


class Action(enum.Enum):
    """The effect of a record on the value of a column; see `aggregators.base.Accumulator`."""

    RESET = "reset"
    ADD = "add"
    ADD_EARLIER = "add earlier"
    RETRACT = "retract"


class Step(NamedTuple):
    """One action of the records `rows` on the values of the keys `slots`."""

    action: Action
    slots: Int64s
    rows: Int64s


class Steps(list[Step]):
    """Steps in the order in which records act; empty steps are dropped."""

    def take(self, action: Action, slots: Int64s, rows: Int64s, where: Bools) -> None:
        """Add the action of the records for which `where` is True."""
        if where.all():
            self.append(Step(action, slots, rows))
        elif where.any():
            self.append(Step(action, slots[where], rows[where]))


class KeyFacts(NamedTuple):
    """Per slot: the row that gives the result its sequence number (-1: it is 0), and its kind."""

    sequence_rows: Int64s
    deletes: Bools


def folded(
    keyed: KeyedRecords, name: str, rule: ColumnRule, steps: Iterable[Step], *, adds_null: bool
) -> pa.Array:
    """A result column: the steps folded by `rule`.

    Without `adds_null`, adding a null to a NOT NULL column is an error, even if a later value
    replaces it. Raises `SubcompactionError` with key and column for values that the rule forbids.
    """
    column = keyed.column(name)
    values = Values(column, keyed.used, keyed.slots)
    is_checked = not adds_null and column.null_count and not keyed.schema.field(name).nullable
    # As aggregate/FieldIgnoreRetractAgg.java.
    acting = [
        step for step in steps if step.action is not Action.RETRACT or not rule.ignore_retract
    ]
    try:
        if is_checked:
            for step in acting:
                if step.action is Action.ADD:
                    _refuse_nulls(values, step.rows)
        found = added_at_once(values, rule, acting)
        if found is None:
            found = stepwise(values, rule, acting)
    except RuleViolation as error:
        raise SubcompactionError(
            f"key {keyed.key_text(error.row)}, column {name}: {error}"
        ) from error
    if isinstance(found, np.ndarray):
        return keyed.selected(column, found)
    return keyed.computed(column, found)


def added_at_once(values: Values, rule: ColumnRule, steps: Sequence[Step]) -> pa.Array | None:
    """The values by slot; walks only from value to value where steps do more than add.

    None if the aggregator has no such fold, or cannot fold values of this form. Raises
    `RuleViolation`.
    """
    if (fold := FOLDS.get(rule.aggregator)) is None:
        return None
    others = np.zeros(values.slots, np.bool_)
    for action, slots, _ in steps:
        if action is not Action.ADD:
            others[slots] = True
    found = fold(_inserts(values, _steps_where(steps, ~others)), rule)
    if found is None or not others.any():
        return found
    left = _steps_where(steps, others)
    few = Values(values.column, np.concatenate([step.rows for step in left]), values.slots)
    return merged_values(found, stepwise(few, rule, left), others)


def stepwise(values: Values, rule: ColumnRule, steps: Iterable[Step]) -> Int64s | pa.Array:
    """The `Accumulator.result` after all steps. Raises `RuleViolation`."""
    state = accumulator(values, rule)
    acts = {
        Action.RESET: state.reset,
        Action.ADD: state.add,
        Action.ADD_EARLIER: state.add_earlier,
        Action.RETRACT: state.retract,
    }
    for action, slots, rows in steps:
        acts[action](slots, rows)
    return state.result()


def _steps_where(steps: Iterable[Step], chosen: Bools) -> Steps:
    found = Steps()
    for action, slots, rows in steps:
        found.take(action, slots, rows, chosen[slots])
    return found


def _inserts(values: Values, steps: Iterable[Step]) -> Inserts:
    """The rows of steps that add, without nulls. A step names a slot at most once."""
    present = Steps()
    for action, slots, rows in steps:
        present.take(action, slots, rows, values.valid[rows])
    counts = np.zeros(values.slots, np.int64)
    for _, slots, _ in present:
        counts[slots] += 1
    free = np.cumsum(counts) - counts
    found = np.empty(int(counts.sum()), np.int64)
    for _, slots, rows in present:
        found[free[slots]] = rows
        free[slots] += 1
    return Inserts(values, found, np.repeat(np.arange(values.slots), counts))


def result_rows(
    keyed: KeyedRecords, facts: KeyFacts, column: Callable[[str], pa.Array]
) -> pa.RecordBatch:
    """The rows of all keys. `column` makes the table's columns."""
    arrays = []
    for field in keyed.schema:
        if field.name == SEQUENCE_NUMBER:
            found = _sequences(keyed, facts.sequence_rows)
        elif field.name == VALUE_KIND:
            kinds = np.where(facts.deletes, DELETE, INSERT).astype(np.int8)
            found = keyed.computed(keyed.column(VALUE_KIND), pa.array(kinds))
        else:
            found = column(field.name)
        arrays.append(found)
    return pa.RecordBatch.from_arrays(arrays, schema=keyed.schema)


def _sequences(keyed: KeyedRecords, rows: Int64s) -> pa.Array:
    column = keyed.column(SEQUENCE_NUMBER)
    if (rows >= 0).all():
        return keyed.selected(column, rows)
    return keyed.computed(column, pa.array(np.where(rows < 0, 0, keyed.sequences[rows])))


def _refuse_nulls(values: Values, rows: Int64s) -> None:
    missing = rows[~values.valid[rows]]
    if len(missing):
        raise RuleViolation(int(missing[0]), "a null in a NOT NULL column")


def slots_of_round(rows: Sequence[int] | Int64s) -> Int64s:
    """The slots that have a record in the round: a prefix of all slots."""
    return np.arange(len(rows))


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
            # Adding to negative zero preserves every value, except possibly the bits of a NaN.
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
        """The `ufunc` over each key's values; null for keys without any."""
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


@dataclass(frozen=True)
class Aggregation:
    """The `MergeFunction` of the merge engine `aggregation`; all columns have a rule.

    Results are not merged again: a retract without an earlier value yields a row that does not
    record the retract.
    """

    rules: MergeRules
    needs = Needs.INSERTS
    ignores_deletes = False
    merges_again = False

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        rules = {rule.column: rule for rule in self.rules.columns}
        if records.numbers is not None:
            yield merged_inserts(records, records.numbers, rules.__getitem__, adds_null=True)
            return
        for keyed in records.keyed():
            steps, facts = self._steps(keyed)

            def column(keyed: KeyedRecords, steps: Steps, name: str) -> pa.Array:
                return folded(keyed, name, rules[name], steps, adds_null=True)

            yield result_rows(keyed, facts, partial(column, keyed, steps))

    def _steps(self, keyed: KeyedRecords) -> tuple[Steps, KeyFacts]:
        steps = Steps()
        last = np.full(keyed.slots, -1, np.int64)
        deletes = np.zeros(keyed.slots, np.bool_)
        for rows in keyed.rounds:
            slots = slots_of_round(rows)
            kinds = keyed.kinds[rows]
            retracts = is_retract_kind(kinds)
            removes = (kinds == DELETE) & self.rules.remove_on_delete
            steps.take(Action.RESET, slots, rows, removes)
            steps.take(Action.ADD, slots, rows, ~retracts)
            steps.take(Action.RETRACT, slots, rows, retracts & ~removes)
            last[slots] = rows
            deletes[slots] = removes
        return steps, KeyFacts(last, deletes)
