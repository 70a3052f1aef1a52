"""Aggregators that select, concatenate and collect values.

A collected value is a list of places: indexes of elements or entries of the column. Elements are
copied once at the end and never converted. Where Java's results have the order of a hash map, these
have the order in which elements were added.

Sources: aggregate/Field{LastValue,LastNonNullValue,FirstValue,FirstNonNullValue,PrimaryKey,Max,Min,
Listagg,Collect,MergeMap,MergeMapWithKeyTime,NestedUpdate,NestedPartialUpdate}Agg.java.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.aggregators.base import (
    Accumulator,
    RuleViolation,
    Scalars,
    Unequal,
    Values,
    Walking,
    WalkingBack,
    comparable,
)
from compactord.kernels.codes import word_ranks
from compactord.kernels.columns import (
    Bools,
    Int64s,
    dense_ranks,
    dictionary_ranks,
    integer_words,
    is_text,
    taken,
)
from compactord.kernels.order import precedence_words
from compactord.paimon.java_text import is_blank
from compactord.paimon.options.merge import ColumnRule, NullKeys


class _Selecting(Accumulator):
    """Keeps the row of each slot's value, or -1 for null."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._rows = np.full(values.slots, -1, np.int64)

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        self._rows[slots] = rows

    def result(self) -> Int64s:
        return self._rows

    def _is_null(self, slots: Int64s) -> Bools:
        rows = self._rows[slots]
        # Row -1 is the last one: ignore its value.
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
    """All records of a key agree, including retracts."""

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
        self._has_first = np.zeros(values.slots, np.bool_)

    def add(self, slots: Int64s, rows: Int64s) -> None:
        first = ~self._has_first[slots] & self._counts(rows)
        self._rows[slots[first]] = rows[first]
        self._has_first[slots[first]] = True

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        """Swaps the arguments of `agg`, as Java does: the value so far counts as the new one.

        Without an earlier call it stays and is the first value. Otherwise the earlier value
        replaces it, without becoming the first if there is none.
        """
        held = self._rows[slots]
        begins = ~self._has_first[slots] & self._counts(held)
        self._has_first[slots[begins]] = True
        self._rows[slots[~begins]] = rows[~begins]

    def _counts(self, rows: Int64s) -> Bools:
        """A mask of rows whose values may be the first."""
        return np.ones(len(rows), np.bool_)


class FirstNonNullValue(FirstValue):
    """The first value that is not null."""

    def _counts(self, rows: Int64s) -> Bools:
        return (rows >= 0) & self._values.valid[rows]


class Max(_Selecting):
    """The largest value. Keeps the first of equal values, and ignores nulls.

    Values are ordered as in utils/InternalRowUtils.java, that is, like keys.
    """

    _sign = 1

    @cached_property
    def _order(self) -> Int64s | None:
        """A number per row in the order of the values, or None if values cannot be compared."""
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
    """The smallest value; otherwise as `Max`."""

    _sign = -1


class Listagg(Scalars):
    """Joins texts that are not blank. With `distinct`, skips parts that the text already has."""

    def _added(self, before: str | None, value: str | None) -> str | None:
        if value is None or is_blank(value):
            return before
        if before is None or is_blank(before):
            return value
        if not self._rule.distinct:
            return before + self._rule.delimiter + value
        known = set(self._parts(before))
        parts = [before]
        for part in self._parts(value):
            if not is_blank(part) and part not in known:
                known.add(part)
                parts.append(part)
        return self._rule.delimiter.join(parts)

    def _parts(self, text: str) -> list[str]:
        return text.split(self._rule.delimiter or " ") if text else []


Places = list[int]


class Elements(Walking):
    """Values that are lists of places in `_children`."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._offsets = values.column.offsets.to_numpy()

    @property
    def _children(self) -> pa.Array:
        """The values that are compared: elements of arrays, or keys of maps."""
        return self._values.column.values

    @cached_property
    def _used(self) -> Places:
        rows = self._values.used.tolist()
        return list(itertools.chain.from_iterable(self._range(row) for row in rows))

    def _range(self, row: int) -> range:
        if not self._values.valid[row]:
            return range(0)
        return range(int(self._offsets[row]), int(self._offsets[row + 1]))

    def _by_place(self, column: pa.Array) -> dict[int, Hashable]:
        """Comparable values of a column of children, by place."""
        used = self._used
        return dict(zip(used, comparable(column.take(pa.array(used, pa.int64()))), strict=True))

    @cached_property
    def _equal(self) -> dict[int, Hashable]:
        return self._by_place(self._children)

    def _is_in(self, place: int, others: Collection[Hashable]) -> bool:
        """Whether one of `others` equals the element."""
        value = self._equal[place]
        return not isinstance(value, Unequal) and value in others

    def _value(self, row: int) -> Places | None:
        return list(self._range(row)) if self._values.valid[row] else None

    def result(self) -> pa.Array:
        places = [[] if value is None else value for value in self._state]
        offsets = np.cumsum([0, *map(len, places)], dtype=np.int32)
        flat = pa.array(np.fromiter(itertools.chain.from_iterable(places), np.int64))
        return self._column(pa.array(offsets), flat, self._nulls())

    def _nulls(self) -> pa.Array | None:
        nulls = [value is None for value in self._state]
        return pa.array(nulls) if any(nulls) else None

    def _column(self, offsets: pa.Array, places: pa.Array, nulls: pa.Array | None) -> pa.Array:
        column = self._values.column
        return pa.ListArray.from_arrays(
            offsets, column.values.take(places), type=column.type, mask=nulls
        )


class Collect(Elements, WalkingBack):
    """All elements in order; with `distinct`, only new ones."""

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        # Java appends earlier elements as well, except under FieldIgnoreRetractAgg.
        if self._rule.ignore_retract:
            super().add_earlier(slots, rows)
        else:
            self.add(slots, rows)

    def _added(self, before: Places | None, value: Places | None) -> Places | None:
        if not self._rule.distinct:
            return value if before is None else before + (value or [])
        if before is None and value is None:
            return None
        if pa.types.is_nested(self._children.type):
            # Java assumes that these are different already.
            kept = list(before or [])
            return kept + self._new(value or [], {self._equal[place] for place in kept})
        return self._new([*(before or []), *(value or [])], set())

    def _new(self, places: Iterable[int], known: set[Hashable]) -> Places:
        new = []
        for place in places:
            if not self._is_in(place, known):
                known.add(self._equal[place])
                new.append(place)
        return new

    def _retracted(self, before: Places, value: Places) -> Places:
        """Removes one occurrence of each element."""
        gone = [self._equal[place] for place in value]
        kept = []
        for place in before:
            if self._is_in(place, gone):
                gone.remove(self._equal[place])
            else:
                kept.append(place)
        return kept


class _Maps(Elements):
    @property
    def _children(self) -> pa.Array:
        return self._values.column.keys

    def _column(self, offsets: pa.Array, places: pa.Array, nulls: pa.Array | None) -> pa.Array:
        column = self._values.column
        return pa.MapArray.from_arrays(
            offsets,
            column.keys.take(places),
            column.items.take(places),
            type=column.type,
            mask=nulls,
        )

    def _by_key(self, places: Places) -> dict[Hashable, int]:
        """The last entry of each key."""
        return {self._equal[place]: place for place in places}


class MergeMap(_Maps, WalkingBack):
    """The entries of all maps; the last entry of each key. Retracts remove keys."""

    def _retracted(self, before: Places, value: Places) -> Places:
        if not value:
            return before
        gone = {self._equal[place] for place in value}
        return [place for key, place in self._by_key(before).items() if key not in gone]

    def _added(self, before: Places | None, value: Places | None) -> Places | None:
        if before is None or value is None:
            return value if before is None else before
        return list(self._by_key([*before, *value]).values())


class MergeMapWithKeyTime(_Maps):
    """The newest entry of each key, by a text in its value; a null value removes the key."""

    @cached_property
    def _times(self) -> dict[int, bytes | None]:
        """The sort key of times, by place: Java compares UTF-16."""
        items = self._values.column.items
        name = self._rule.time_field
        field = items.type.num_fields - 1 if name is None else items.type.get_field_index(name)
        texts = pc.take(items.field(field), pa.array(self._used, pa.int64())).to_pylist()
        return {
            place: None if text is None else text.encode("utf-16-be", "surrogatepass")
            for place, text in zip(self._used, texts, strict=True)
        }

    @cached_property
    def _deleted_places(self) -> set[int]:
        """The places whose entry has no value."""
        valid = self._values.column.items.is_valid().to_numpy(zero_copy_only=False)
        return {place for place in self._used if not valid[place]}

    def _added(self, before: Places | None, value: Places | None) -> Places | None:
        if before is None or value is None:
            return value if before is None else before
        merged = self._by_key(before)
        for place in value:
            key = self._equal[place]
            time = self._times[place]
            if place in self._deleted_places:
                merged.pop(key, None)
            elif time is not None and self._is_newer(time, merged.get(key)):
                merged[key] = place
        return list(merged.values())

    def _is_newer(self, time: bytes, held: int | None) -> bool:
        if held is None or held in self._deleted_places:
            return True
        known = self._times[held]
        return known is None or time > known


# For each field the place of the row with its value, or None for a null row.
_Row: TypeAlias = tuple[int, ...] | None


class _Rows(Elements):
    @cached_property
    def _known(self) -> set[int]:
        """The places of rows that are not null."""
        valid = self._children.is_valid().to_numpy(zero_copy_only=False)
        return {place for place in self._used if valid[place]}

    @cached_property
    def _keys(self) -> dict[int, tuple[Hashable, ...]]:
        fields = [self._by_place(self._field(name)) for name in self._rule.nested_key]
        return {place: tuple(field[place] for field in fields) for place in self._used}

    def _field(self, name: str) -> pa.Array:
        return self._children.field(self._children.type.get_field_index(name))

    def _has_key(self, place: int) -> bool:
        """Whether a row takes part. Raises `ValueError` for a null in its key if that is an
        error.
        """
        if None not in self._keys[place] or self._rule.null_keys is NullKeys.MERGE:
            return True
        if self._rule.null_keys is NullKeys.ERROR:
            raise ValueError("a null in the nested key, with nested-key-null-strategy=error")
        return False


class NestedUpdate(_Rows, WalkingBack):
    """The rows of all arrays, or per nested key the last row or the one with the last sequence."""

    @cached_property
    def _sequences(self) -> dict[int, int]:
        """A number by place in the order of the nested sequence fields, nulls first."""
        used = np.array(self._used, np.int64)
        fields = [self._field(name) for name in self._rule.nested_sequence]
        words = list(precedence_words(fields, None, used, is_descending=False))
        return dict(zip(self._used, word_ranks(words).tolist(), strict=True))

    def _added(self, before: Places | None, value: Places | None) -> Places | None:
        if value is None:
            return before
        limit = self._rule.count_limit
        if self._rule.nested_key:
            merged: dict[Hashable, int] = {}
            self._put(merged, before or [], None)
            self._put(merged, value, limit)
            return list(merged.values())
        if before is None:
            return self._present(value, limit)
        if len(before) >= limit:
            return before
        return [*self._present(before), *self._present(value, limit - len(before))]

    def _present(self, places: Iterable[int], limit: int | None = None) -> Places:
        present = (place for place in places if place in self._known)
        return list(itertools.islice(present, None if limit is None else max(limit, 0)))

    def _put(self, merged: dict[Hashable, int], places: Places, limit: int | None) -> None:
        """Adds rows. With `limit`, no new keys beyond that number."""
        for place in self._present(places):
            if not self._has_key(place):
                continue
            key = self._keys[place]
            held = merged.get(key)
            if held is None:
                if limit is None or len(merged) < limit:
                    merged[key] = place
            elif not self._rule.nested_sequence or (
                self._sequences[place] >= self._sequences[held]
            ):
                merged[key] = place

    def _retracted(self, before: Places, value: Places) -> Places:
        if not self._rule.nested_key:
            gone = {self._equal[place] for place in self._present(value)}
            return [place for place in self._present(before) if not self._is_in(place, gone)]
        kept = {self._keys[place]: place for place in self._present(before) if self._has_key(place)}
        for place in self._present(value):
            if self._has_key(place):
                kept.pop(self._keys[place], None)
        return list(kept.values())


class NestedPartialUpdate(_Rows):
    """One row per nested key, filled up with the last values that are not null."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        type_ = self._children.type
        self._fields = [self._children.field(place) for place in range(type_.num_fields)]

    @cached_property
    def _present_fields(self) -> list[list[bool]]:
        return [field.is_valid().to_pylist() for field in self._fields]

    def _value(self, row: int) -> list[_Row] | None:  # type: ignore[override]
        if not self._values.valid[row]:
            return None
        width = len(self._fields)
        return [(place,) * width if place in self._known else None for place in self._range(row)]

    def _added(self, before: list[_Row] | None, value: list[_Row] | None) -> list[_Row] | None:
        if value is None:
            return before
        merged: dict[Hashable, list[int]] = {}
        for row in (*(before or []), *value):
            key = None if row is None else self._key(row)
            if row is None or key is None:
                continue
            filled = merged.setdefault(key, [-1] * len(row))
            for number, place in enumerate(row):
                if place >= 0 and self._present_fields[number][place]:
                    filled[number] = place
        return [tuple(filled) for filled in merged.values()]

    def _key(self, row: tuple[int, ...]) -> Hashable | None:
        """The nested key of a row, or None if the row does not take part."""
        type_ = self._children.type
        places = [row[type_.get_field_index(name)] for name in self._rule.nested_key]
        # The fields of a key come from one record, or are null in all.
        source = max(places)
        if source < 0:
            return (None,) * len(places)
        return self._keys[source] if self._has_key(source) else None

    def result(self) -> pa.Array:
        rows = list(itertools.chain.from_iterable(value or [] for value in self._state))
        offsets = np.cumsum([0, *(len(value or []) for value in self._state)], dtype=np.int32)
        absent = np.array([row is None for row in rows], np.bool_)
        # The fields of a null row may have any value.
        filler = (0,) * len(self._fields)
        places = np.array([filler if row is None else row for row in rows], np.int64)
        places = places.reshape(len(rows), len(self._fields))
        children = pa.StructArray.from_arrays(
            [taken(field, places[:, number]) for number, field in enumerate(self._fields)],
            fields=list(self._children.type),
            mask=pa.array(absent) if absent.any() else None,
        )
        return pa.ListArray.from_arrays(
            pa.array(offsets), children, type=self._values.column.type, mask=self._nulls()
        )
