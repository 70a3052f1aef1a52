"""The protocol of aggregators: they fold the values of a column for many keys at once.

A slot is a key with several records (`kernels.keyed`). Each call names slots, and for each of them
a row whose value is the next one; a slot occurs at most once in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from compactord.kernels.columns import Bools, Int64s, validity
from compactord.paimon.merge_rules import ColumnRule


class RuleViolation(Exception):
    """A value that the rules forbid, in row `row`; the caller names key and column."""

    def __init__(self, row: int, message: str) -> None:
        self.row = row
        super().__init__(message)


@dataclass(frozen=True)
class Values:
    """A column whose values are folded. `used`: the rows that may be named; `slots`: how many."""

    column: pa.Array
    used: Int64s
    slots: int

    @cached_property
    def valid(self) -> Bools:
        """One bool per row: False where the value is null."""
        return validity(self.column)

    @cached_property
    def plain(self) -> pa.Array:
        """The column, not dictionary-encoded."""
        if pa.types.is_dictionary(self.column.type):
            return self.column.dictionary_decode()
        return self.column


class Accumulator(Protocol):
    """The values of one column so far, one per slot, null at first."""

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        """Replace the values by those of the rows."""
        ...

    def add(self, slots: Int64s, rows: Int64s) -> None:
        """Aggregate the values of rows that come after those before."""
        ...

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        """Aggregate the values of rows that belong before those that were added already."""
        ...

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        """Take back the values of the rows. Raises `RuleViolation` if that is impossible."""
        ...

    def result(self) -> Int64s | pa.Array:
        """For each slot the row that has its value, -1 for null; or the values themselves."""
        ...


class MakeAccumulator(Protocol):
    def __call__(self, values: Values, rule: ColumnRule) -> Accumulator: ...


class Unretractable:
    """The `retract` of aggregators that have none."""

    def __init__(self, rule: ColumnRule) -> None:
        self._name = rule.aggregator

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        if len(rows):
            raise RuleViolation(
                int(rows[0]),
                f"aggregate function {self._name} cannot take back a value (-U or -D); the option"
                " fields.<column>.ignore-retract=true makes it ignore such records",
            )


class IgnoresRetracts:
    """An accumulator whose retracts have no effect (aggregate/FieldIgnoreRetractAgg.java).

    Java's wrapper passes `aggReversed` on as `agg` with its arguments exchanged, as all aggregators
    do themselves but for `collect`, which asks its rule.
    """

    def __init__(self, inner: Accumulator) -> None:
        self._inner = inner

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        self._inner.reset(slots, rows)

    def add(self, slots: Int64s, rows: Int64s) -> None:
        self._inner.add(slots, rows)

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        self._inner.add_earlier(slots, rows)

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        pass

    def result(self) -> Int64s | pa.Array:
        return self._inner.result()


class Walking:
    """Accumulators that take one value after the other, for rare aggregators.

    `_state` has a value per slot, None for null. Subclasses define `_value`, which returns a row's
    value, and `_added`, which returns what it makes of two values.
    """

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        self._values = values
        self._rule = rule
        self._state: list[Any] = [None] * values.slots

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in slots_and_rows(slots, rows):
            self._state[slot] = self._value(row)

    def add(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in slots_and_rows(slots, rows):
            self._state[slot] = self._named(row, self._added, self._state[slot], self._value(row))

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in slots_and_rows(slots, rows):
            self._state[slot] = self._named(row, self._added, self._value(row), self._state[slot])

    @staticmethod
    def _named(row: int, rule: Callable[[Any, Any], Any], before: Any, value: Any) -> Any:
        """What the rule makes of two values, the second of them that of a row."""
        try:
            return rule(before, value)
        except ValueError as error:
            raise RuleViolation(row, str(error)) from error

    def _value(self, row: int) -> Any:
        raise NotImplementedError

    def _added(self, before: Any, value: Any) -> Any:
        """Raises ValueError for a value that the rules forbid."""
        raise NotImplementedError


class FoldedBytes(Walking):
    """Accumulators of serialised sets, which are united; nothing is taken back from them.

    A key's first value stays as it is until there is another.
    """

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self.retract = Unretractable(rule).retract
        found = values.column.take(pa.array(values.used)).to_pylist()
        self._bytes: dict[int, bytes | None] = dict(zip(values.used.tolist(), found, strict=True))

    def united(self, before: bytes, value: bytes) -> bytes:
        """Raises ValueError for bytes that are no such set."""
        raise NotImplementedError

    def _value(self, row: int) -> bytes | None:
        return self._bytes[row]

    def _added(self, before: bytes | None, value: bytes | None) -> bytes | None:
        if before is None or value is None:
            return value if before is None else before
        return self.united(before, value)

    def result(self) -> pa.Array:
        found = pa.array(self._state, self._values.plain.type)
        if pa.types.is_dictionary(self._values.column.type):
            return found.dictionary_encode()
        return found


def slots_and_rows(slots: Int64s, rows: Int64s) -> Sequence[tuple[int, int]]:
    """Each slot with its row."""
    return list(zip(slots.tolist(), rows.tolist(), strict=True))
