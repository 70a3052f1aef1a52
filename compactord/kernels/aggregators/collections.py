"""Aggregators of arrays and maps.

A value is a list of places in the column's elements, or entries: what is collected is copied once
at the end and never converted. Where Java's results have the order of a hash map, these have the
order in which elements came.

Sources: aggregate/Field{Collect,MergeMap,MergeMapWithKeyTime}Agg.java.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.aggregators.base import Values, Walking, WalkingBack
from compactord.kernels.aggregators.equality import Unequal, comparable
from compactord.kernels.columns import Int64s
from compactord.paimon.options.merge import ColumnRule

Places = list[int]


class Elements(Walking):
    """Values that are lists of places in `_children`."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._offsets = values.column.offsets.to_numpy()

    @property
    def _children(self) -> pa.Array:
        """What arrays compare by: their elements, or the keys of maps."""
        return self._values.column.values

    @cached_property
    def _used(self) -> Places:
        """The places that may occur."""
        rows = self._values.used.tolist()
        return list(itertools.chain.from_iterable(self._range(row) for row in rows))

    def _range(self, row: int) -> range:
        if not self._values.valid[row]:
            return range(0)
        return range(int(self._offsets[row]), int(self._offsets[row + 1]))

    def _by_place(self, column: pa.Array) -> dict[int, Hashable]:
        """What the values of a column of children are compared by."""
        used = self._used
        return dict(zip(used, comparable(column.take(pa.array(used, pa.int64()))), strict=True))

    @cached_property
    def _equal(self) -> dict[int, Hashable]:
        return self._by_place(self._children)

    def _is_in(self, place: int, others: Collection[Hashable]) -> bool:
        """Whether one of the others equals the element."""
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
    """All elements, one after the other; `distinct`: those that are not there yet."""

    def add_earlier(self, slots: Int64s, rows: Int64s) -> None:
        # Java leaves earlier elements behind later ones, too, but not under FieldIgnoreRetractAgg.
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
            # Java takes it for granted that these are different already.
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
        """Without one occurrence of each element."""
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
    """The entries of all maps; of a key the last one. Retracts remove keys."""

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
        """By place what times are ordered by: Java compares UTF-16."""
        items = self._values.column.items
        name = self._rule.time_field
        field = items.type.num_fields - 1 if name is None else items.type.get_field_index(name)
        texts = pc.take(items.field(field), pa.array(self._used, pa.int64())).to_pylist()
        return {
            place: None if text is None else text.encode("utf-16-be", "surrogatepass")
            for place, text in zip(self._used, texts, strict=True)
        }

    @cached_property
    def _gone(self) -> set[int]:
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
            if place in self._gone:
                merged.pop(key, None)
            elif time is not None and self._is_newer(time, merged.get(key)):
                merged[key] = place
        return list(merged.values())

    def _is_newer(self, time: bytes, held: int | None) -> bool:
        if held is None or held in self._gone:
            return True
        known = self._times[held]
        return known is None or time > known
