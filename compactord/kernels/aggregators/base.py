"""The protocol of aggregators, and equality of values as in Java.

A slot is a key with several records (`kernels.columns.KeyedRecords`). Each call names slots, and
for each of them the row with its next value; a slot occurs at most once in a call.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from compactord.kernels.columns import Bools, Int64s, integer_words, is_text, validity
from compactord.paimon.options.merge import ColumnRule


class RuleViolation(Exception):
    """A value that the rules forbid, in row `row`; the caller names key and column."""

    def __init__(self, row: int, message: str) -> None:
        self.row = row
        super().__init__(message)


@dataclass(frozen=True)
class Values:
    """A column whose values are folded: `used` are the rows that may be named, `slots` the slot
    count.
    """

    column: pa.Array
    used: Int64s
    slots: int

    @cached_property
    def valid(self) -> Bools:
        """One bool per row: False where the value is null."""
        return validity(self.column)


class Accumulator(ABC):
    """The values of one column so far, one per slot, null at first."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        self._values = values
        self._rule = rule

    @abstractmethod
    def reset(self, slots: Int64s, rows: Int64s) -> None:
        """Replace the values with the rows' values."""

    @abstractmethod
    def add(self, slots: Int64s, rows: Int64s) -> None:
        """Aggregate values of later rows. Raises `RuleViolation`."""

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        """Aggregate values of rows that precede the rows added so far."""
        self.add(slots, rows)

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        """Take back the values of the rows. Raises `RuleViolation` if that is impossible."""
        if len(rows):
            raise RuleViolation(
                int(rows[0]),
                f"aggregate function {self._rule.aggregator} cannot take back a value (-U or -D);"
                " the option fields.<column>.ignore-retract=true makes it ignore such records",
            )

    @abstractmethod
    def result(self) -> Int64s | pa.Array:
        """The row of each slot's value, -1 for null; or the values themselves."""


class Walking(Accumulator):
    """Accumulators that process one value after the other, for rare aggregators.

    `_state` has a value per slot, None for null. Subclasses define `_value`, the value of a row,
    and `_added`, the aggregate of two values.
    """

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._state: list[Any] = [None] * values.slots

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in _slots_and_rows(slots, rows):
            self._state[slot] = self._value(row)

    def add(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in _slots_and_rows(slots, rows):
            self._state[slot] = self._named(row, self._added, self._state[slot], self._value(row))

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in _slots_and_rows(slots, rows):
            self._state[slot] = self._named(row, self._added, self._value(row), self._state[slot])

    @staticmethod
    def _named(row: int, rule: Callable[[Any, Any], Any], before: Any, value: Any) -> Any:
        """Apply the rule to two values, one of them from row `row`."""
        try:
            return rule(before, value)
        except ValueError as error:
            raise RuleViolation(row, str(error)) from error

    @abstractmethod
    def _value(self, row: int) -> Any: ...

    @abstractmethod
    def _added(self, before: Any, value: Any) -> Any:
        """Raises ValueError for a value that the rules forbid."""


class WalkingBack(Walking):
    """Accumulators that also take values back; `_retracted` returns the remainder of the first
    value.
    """

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in _slots_and_rows(slots, rows):
            before, value = self._state[slot], self._value(row)
            if before is not None and value is not None:
                self._state[slot] = self._named(row, self._retracted, before, value)

    @abstractmethod
    def _retracted(self, before: Any, value: Any) -> Any:
        """Raises as `_added`. Neither is null."""


class Scalars(Walking):
    """Accumulators of texts and binaries as Python values."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        found = values.column.take(pa.array(values.used)).to_pylist()
        self._by_row: dict[int, Any] = dict(zip(values.used.tolist(), found, strict=True))

    def _value(self, row: int) -> Any:
        return self._by_row[row]

    def result(self) -> pa.Array:
        type_ = self._values.column.type
        if pa.types.is_dictionary(type_):
            return pa.array(self._state, type_.value_type).dictionary_encode()
        return pa.array(self._state, type_)


class FoldedBytes(Scalars):
    """Accumulators of serialised sets, which are united. They cannot take values back.

    A key's first value stays unchanged until there is another.
    """

    @abstractmethod
    def united(self, before: Any, value: Any) -> Any:
        """The union of two sets: bytes of a file, or earlier unions. Raises `ValueError` for bytes
        that are no set of this kind.
        """

    def stored(self, union: Any) -> bytes:
        """The bytes of a union that is not stored yet."""
        raise NotImplementedError

    def _added(self, before: Any, value: Any) -> Any:
        if before is None or value is None:
            return value if before is None else before
        return self.united(before, value)

    def result(self) -> pa.Array:
        for slot, value in enumerate(self._state):
            if value is not None and not isinstance(value, bytes):
                self._state[slot] = self.stored(value)
        return super().result()


def _slots_and_rows(slots: Int64s, rows: Int64s) -> Sequence[tuple[int, int]]:
    return list(zip(slots.tolist(), rows.tolist(), strict=True))


class Unequal:
    """A value that equals no value, in Java not even itself: callers must check for it."""


def comparable(column: pa.Array) -> list[Hashable]:
    """One object per value, None for null.

    Floats are equal as Java compares them: NaN equals NaN, and -0.0 is not 0.0. Binaries are equal
    by their bytes. Maps are equal regardless of the order of entries. Fields of rows that are null
    are equal, but an array or a map with a null inside is `Unequal` (codegen/ScalarOperatorGens),
    and so is a value that contains it.
    """
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return comparable(column.dictionary_decode())
    if is_text(type_):
        return list(column.to_pylist())
    if pa.types.is_struct(type_):
        fields = [comparable(column.field(place)) for place in range(type_.num_fields)]
        rows = list(zip(*fields, strict=True)) if fields else [()] * len(column)
        found: list[Any] = [_whole(row, row) for row in rows]
    elif pa.types.is_map(type_):
        keys, items = comparable(column.keys), comparable(column.items)
        entries = list(zip(keys, items, strict=True))
        found = [
            Unequal()
            if None in items[start:end]
            else _whole(items[start:end], frozenset(entries[start:end]))
            for start, end in _ranges(column)
        ]
    elif pa.types.is_list(type_):
        elements = comparable(column.values)
        found = [
            Unequal()
            if None in elements[start:end]
            else _whole(elements[start:end], tuple(elements[start:end]))
            for start, end in _ranges(column)
        ]
    else:
        found = list(zip(*(word.tolist() for word in integer_words(column)), strict=True))
    if column.null_count:
        valid = column.is_valid().to_pylist()
        return [value if known else None for value, known in zip(found, valid, strict=True)]
    return found


def _whole(parts: Iterable[Hashable], value: Hashable) -> Hashable:
    """The value, or `Unequal` if one of its parts is."""
    return Unequal() if any(isinstance(part, Unequal) for part in parts) else value


def _ranges(column: pa.Array) -> list[tuple[int, int]]:
    offsets = column.offsets.to_pylist()
    return list(itertools.pairwise(offsets))
