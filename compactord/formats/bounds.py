"""Smallest and largest values of a file's columns, before they are truncated for the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.formats.layout import is_binary_like
from compactord.formats.values import scalar_value, value_order
from compactord.paimon.binary_row import Value, text_of
from compactord.paimon.stats import ColumnBounds
from compactord.paimon.types import FLOATS, TEXTS, AtomicType, DataField, TypeRoot

TextBounds: TypeAlias = tuple[bytes | None, bytes | None]


class RowBounds:
    """Computes the bounds of one file's columns from its rows, for any format.

    `columns` are the file's columns, each with the name of its row column.
    """

    def __init__(self, columns: Sequence[tuple[DataField, str]]) -> None:
        self._columns = columns
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

    def result(self) -> list[ColumnBounds]:
        """The bounds of all columns of the file, in its order; nested columns have none."""
        bounds = []
        for field, source in self._columns:
            if (found := self._found.get(source)) is None:
                bounds.append(ColumnBounds(name=field.name, type=field.type))
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


class FloatBounds:
    """Bounds in the order of Java's Double.compare: -0.0 before 0.0, NaN above all others."""

    def __init__(self, type_: Any) -> None:
        single = type_.root is TypeRoot.FLOAT
        self._integer = np.int32 if single else np.int64
        self._float = np.float32 if single else np.float64
        self._low: int | None = None
        self._high: int | None = None
        self._has_nan = False
        self.nulls = 0

    def add(self, column: pa.Array) -> None:
        """Include the next values (float32 or float64); nulls are counted in `nulls`."""
        self.nulls += column.null_count
        values = (column.drop_null() if column.null_count else column).to_numpy()
        if not values.size:
            return
        # fmin and fmax ignore NaN unless all values are NaN.
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        self._has_nan = self._has_nan or bool(np.isnan(values).any())
        if np.isnan(low):
            return
        for zero in (low, high):
            if zero == 0:
                low, high = self._signed_zeros(values, low, high)
                break
        self._low = _smaller(self._low, self._order(low))
        self._high = _greater(self._high, self._order(high))

    def _signed_zeros(self, values: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """The bounds with the right sign of zero where they are zero."""
        negative = np.signbit(values[values == 0])
        if low == 0:
            low = self._float(-0.0 if negative.any() else 0.0)
        if high == 0:
            high = self._float(-0.0 if negative.all() else 0.0)
        return low, high

    def _order(self, value: Any) -> int:
        bits = int(np.asarray(value, self._float).view(self._integer))
        return bits if bits >= 0 else bits ^ int(np.iinfo(self._integer).max)

    def _value(self, order: int) -> float:
        bits = order if order >= 0 else order ^ int(np.iinfo(self._integer).max)
        return float(np.asarray(bits, self._integer).view(self._float))

    def result(self) -> tuple[Value, Value]:
        """The smallest and the largest value; NaN counts as largest; both None without values."""
        nan = float("nan")
        if self._low is None or self._high is None:
            return (nan, nan) if self._has_nan else (None, None)
        return self._value(self._low), nan if self._has_nan else self._value(self._high)


def _smaller(left: int | None, right: int) -> int:
    return right if left is None else min(left, right)


def _greater(left: int | None, right: int) -> int:
    return right if left is None else max(left, right)


def text_bounds(column: pa.ChunkedArray) -> TextBounds:
    """Bounds of the values that rows have; both None if all rows are null."""
    if pa.types.is_dictionary(column.type):
        column = column.drop_null().cast(column.type.value_type)
    found = pc.min_max(column.cast(pa.binary()))
    return found["min"].as_py(), found["max"].as_py()
