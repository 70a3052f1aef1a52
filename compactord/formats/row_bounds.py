"""Bounds of a file's columns from its rows: what a format needs whose files do not have them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from compactord.formats.layout import (
    FloatBounds,
    is_binary_like,
    scalar_value,
    text_bounds,
    value_order,
)
from compactord.paimon.binary_row import Value, text_of
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.types import FLOATS, TEXTS, AtomicType, DataField


class RowBounds:
    """Computes the bounds of one file's columns from its rows, for any format.

    `columns` are the file's columns, each with the name of its row column.
    """

    def __init__(self, columns: Sequence[tuple[DataField, str]]) -> None:
        self._columns = columns
        self._nested_nulls = {
            source: 0 for field, source in columns if not isinstance(field.type, AtomicType)
        }
        self._found: dict[str, FloatBounds | _ValueBounds] = {
            source: FloatBounds(field.type) if field.type.root in FLOATS else _ValueBounds(field)
            for field, source in columns
            if isinstance(field.type, AtomicType)
        }

    def add(self, rows: pa.Table) -> None:
        """Include the next rows."""
        for source, found in self._found.items():
            for chunk in rows.column(source).chunks:
                found.add(chunk)
        for source in self._nested_nulls:
            self._nested_nulls[source] += rows.column(source).null_count

    def result(self) -> list[ColumnBounds]:
        """The bounds of all columns of the file, in its order; nested columns have nulls only."""
        bounds = []
        for field, source in self._columns:
            if (found := self._found.get(source)) is None:
                nulls = self._nested_nulls[source]
                bounds.append(ColumnBounds(name=field.name, type=field.type, null_count=nulls))
                continue
            low, high = found.result()
            bounds.append(
                ColumnBounds(
                    name=field.name,
                    type=field.type,
                    minimum=low,
                    maximum=high,
                    null_count=found.nulls,
                )
            )
        return bounds


class _ValueBounds:
    """Bounds of a column of any type but floats."""

    def __init__(self, field: DataField) -> None:
        assert isinstance(field.type, AtomicType), "nested columns have no bounds"
        self._type = field.type
        self._is_text = is_binary_like(field)
        self._low: Value = None
        self._high: Value = None
        self.nulls = 0

    def add(self, column: pa.Array) -> None:
        self.nulls += column.null_count
        low, high = self._bounds(column)
        if low is None:
            return
        lows = [low] if self._low is None else [low, self._low]
        highs = [high] if self._high is None else [high, self._high]
        self._low = min(lows, key=lambda value: value_order(value, self._type))
        self._high = max(highs, key=lambda value: value_order(value, self._type))

    def _bounds(self, column: pa.Array) -> tuple[Value, Value]:
        if not self._is_text:
            found = pc.min_max(column)
            return scalar_value(found["min"], self._type), scalar_value(found["max"], self._type)
        low, high = text_bounds(pa.chunked_array([column]))
        if low is None or high is None or self._type.root not in TEXTS:
            return low, high
        return text_of(low), text_of(high)

    def result(self) -> tuple[Value, Value]:
        return self._low, self._high
