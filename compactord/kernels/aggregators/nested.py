"""Aggregators of tables in a column: arrays of rows.

Sources: aggregate/Field{NestedUpdate,NestedPartialUpdate}Agg.java.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from compactord.kernels.aggregators.base import Values, WalkingBack
from compactord.kernels.aggregators.collections import Elements, Places
from compactord.kernels.codes import word_ranks
from compactord.kernels.gather import taken
from compactord.kernels.order import precedence_words
from compactord.paimon.options.merge import ColumnRule, NullKeys

# For each field the place of the row that has its value; None: the row is null.
_Row: TypeAlias = tuple[int, ...] | None


class _Rows(Elements):
    @cached_property
    def _known(self) -> set[int]:
        """The places of rows that are not null."""
        valid = self._children.is_valid().to_numpy(zero_copy_only=False)
        return {place for place in self._used if valid[place]}

    @cached_property
    def _keys(self) -> dict[int, tuple[Hashable, ...]]:
        """The nested key by place."""
        fields = [self._by_place(self._field(name)) for name in self._rule.nested_key]
        return {place: tuple(field[place] for field in fields) for place in self._used}

    def _field(self, name: str) -> pa.Array:
        return self._children.field(self._children.type.get_field_index(name))

    def _has_key(self, place: int) -> bool:
        """Whether a row takes part. Raises ValueError for a null in its key if that is an error."""
        if None not in self._keys[place] or self._rule.null_keys is NullKeys.MERGE:
            return True
        if self._rule.null_keys is NullKeys.ERROR:
            raise ValueError("a null in the nested key, with nested-key-null-strategy=error")
        return False


class NestedUpdate(_Rows, WalkingBack):
    """The rows of all arrays, or of each nested key the last one, or that of the last sequence."""

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
        """`limit`: no new keys when there are so many; None: no limit."""
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
    """Of each nested key one row, filled up with the last values that are not null."""

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
        """The nested key of a row; None: the row does not take part."""
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
        # What stands in the fields of a null row means nothing.
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
