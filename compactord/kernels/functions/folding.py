"""Folds the records of keys column by column: what merge engines that make new rows share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators.base import RuleViolation, Values
from compactord.kernels.aggregators.registry import accumulator
from compactord.kernels.columns import Bools, Int64s
from compactord.kernels.keyed import KeyedRecords
from compactord.kernels.kinds import DELETE, INSERT, SEQUENCE_NUMBER, VALUE_KIND
from compactord.paimon.options.merge import ColumnRule


class Action(enum.Enum):
    """What a record does to the value of a column; see `aggregators.base.Accumulator`."""

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
    """Steps in the order in which records act; those without records are left out."""

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
    """A result column, the steps folded as `rule` says.

    `adds_null` False: adding a null to a NOT NULL column is an error, even if a later value
    replaces it. Raises `SubcompactionError` that names key and column for values that the rule
    forbids.
    """
    column = keyed.column(name)
    values = Values(column, keyed.used, keyed.slots)
    state = accumulator(values, rule)
    is_checked = not adds_null and column.null_count and not keyed.schema.field(name).nullable
    try:
        for action, slots, rows in steps:
            match action:
                case Action.RESET:
                    state.reset(slots, rows)
                case Action.ADD:
                    if is_checked:
                        _refuse_nulls(values, rows)
                    state.add(slots, rows)
                case Action.ADD_EARLIER:
                    state.add_earlier(slots, rows)
                case Action.RETRACT if not rule.ignore_retract:
                    # Else as aggregate/FieldIgnoreRetractAgg.java.
                    state.retract(slots, rows)
    except RuleViolation as error:
        raise SubcompactionError(
            f"key {keyed.key_text(error.row)}, column {name}: {error}"
        ) from error
    found = state.result()
    if isinstance(found, np.ndarray):
        return keyed.selected(column, found)
    return keyed.computed(column, found)


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
    """The slots whose records a round has: the first ones."""
    return np.arange(len(rows))
