"""Smallest and largest values of a file's columns, before they are truncated for the manifest."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.paimon.binary_row import Value
from compactord.paimon.types import TypeRoot

TextBounds: TypeAlias = tuple[bytes | None, bytes | None]


class FloatBounds:
    """Bounds in the order of Java's Double.compare: -0.0 before 0.0, NaN above all others."""

    def __init__(self, type_: Any) -> None:
        single = type_.root is TypeRoot.FLOAT
        self._integer = np.int32 if single else np.int64
        self._float = np.float32 if single else np.float64
        # Crossed as long as there is no value.
        self._low, self._high = 1 << 63, -(1 << 63) - 1
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
        if low == 0 or high == 0:
            low, high = self._signed_zeros(values, low, high)
        self._low = min(self._low, self._order(low))
        self._high = max(self._high, self._order(high))

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
        if self._low > self._high:
            return (nan, nan) if self._has_nan else (None, None)
        return self._value(self._low), nan if self._has_nan else self._value(self._high)


def text_bounds(column: pa.ChunkedArray) -> TextBounds:
    """Bounds of the values that rows have; both None if all rows are null."""
    if pa.types.is_dictionary(column.type):
        column = column.drop_null().cast(column.type.value_type)
    found = pc.min_max(column.cast(pa.binary()))
    return found["min"].as_py(), found["max"].as_py()
