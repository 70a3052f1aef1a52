"""The protocol of aggregators, and equality of values as Java has it.

A slot is a key with several records (`kernels.keyed`). Each call names slots, and for each of them
a row whose value is the next one; a slot occurs at most once in a call.
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
    """A column whose values are folded. `used`: the rows that may be named; `slots`: how many."""

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
        """Replace the values by those of the rows."""

    @abstractmethod
    def add(self, slots: Int64s, rows: Int64s) -> None:
        """Aggregate the values of rows that come after those before; or `RuleViolation`."""

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        """Aggregate the values of rows that belong before those that were added already."""
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
        """For each slot the row that has its value, -1 for null; or the values themselves."""


class Walking(Accumulator):
    """Accumulators that take one value after the other, for rare aggregators.

    `_state` has a value per slot, None for null. Subclasses define `_value`, which returns a row's
    value, and `_added`, which returns what it makes of two values.
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
        """What the rule makes of two values, one of them that of a row."""
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
    """Those that take values back, too; `_retracted` returns what is left of the first of two."""

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        for slot, row in _slots_and_rows(slots, rows):
            before, value = self._state[slot], self._value(row)
            if before is not None and value is not None:
                self._state[slot] = self._named(row, self._retracted, before, value)

    @abstractmethod
    def _retracted(self, before: Any, value: Any) -> Any:
        """Raises as `_added`. Neither is null."""


class Scalars(Walking):
    """Accumulators of texts and binaries, as Python has them."""

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
    """Accumulators of serialised sets, which are united; nothing is taken back from them.

    A key's first value stays as it is until there is another.
    """

    @abstractmethod
    def united(self, before: bytes, value: bytes) -> bytes:
        """Raises ValueError for bytes that are no such set."""

    def _added(self, before: bytes | None, value: bytes | None) -> bytes | None:
        if before is None or value is None:
            return value if before is None else before
        return self.united(before, value)


def _slots_and_rows(slots: Int64s, rows: Int64s) -> Sequence[tuple[int, int]]:
    """Each slot with its row."""
    return list(zip(slots.tolist(), rows.tolist(), strict=True))


class Unequal:
    """A value that equals nothing, in Java not even itself: callers must look for it."""


def comparable(column: pa.Array) -> list[Hashable]:
    """One object per value, None for null.

    Floats are equal as Java compares them: NaN equals NaN, and -0.0 is not 0.0. Binaries are equal
    by their bytes. Of maps the order of entries does not count. Fields of rows that are null are
    equal, but an array or a map with a null inside is `Unequal` (codegen/ScalarOperatorGens), and
    so is what contains it.
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
    """The value, unless one of its parts equals nothing."""
    return Unequal() if any(isinstance(part, Unequal) for part in parts) else value


def _ranges(column: pa.Array) -> list[tuple[int, int]]:
    offsets = column.offsets.to_pylist()
    return list(itertools.pairwise(offsets))
