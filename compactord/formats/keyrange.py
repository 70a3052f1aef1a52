"""The part of the key space that one subcompaction reads.

Parts of files outside the range are not decoded if the format's metadata shows that they are.
From the batches at both ends the rows outside are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from compactord.formats.values import one_row, value_order
from compactord.kernels.keys import slice_range
from compactord.model import KeyRange
from compactord.paimon.binary_row import decode_row
from compactord.paimon.types import FLOATS, AtomicType, DataField


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """`lower` (inclusive) and `upper` (exclusive) as batches of one row of the key columns.

    `first_lower` and `first_upper` are the bounds of the first key column, as `value_order` returns
    them, to compare with statistics of files; None if statistics cannot be used.
    """

    key_columns: tuple[str, ...]
    lower: pa.RecordBatch | None
    upper: pa.RecordBatch | None
    first_type: AtomicType
    first_lower: Any
    first_upper: Any

    def renamed(self, key_columns: Sequence[str]) -> RowRange:
        """The same range of a file that has other names for the key columns, in the same order."""

        def bound(key: pa.RecordBatch | None) -> pa.RecordBatch | None:
            if key is None:
                return None
            return pa.RecordBatch.from_arrays(key.columns, names=list(key_columns))

        return replace(
            self,
            key_columns=tuple(key_columns),
            lower=bound(self.lower),
            upper=bound(self.upper),
        )

    def from_lower(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without rows below the range."""
        return slice_range(batch, self.key_columns, self.lower, None)

    def below_upper(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without rows at or above the end of the range."""
        return slice_range(batch, self.key_columns, None, self.upper)


def row_range(bounds: KeyRange, key_fields: tuple[DataField, ...]) -> RowRange | None:
    """The decoded range of serialised keys; None if it is open at both ends."""
    if bounds.lower is None and bounds.upper is None:
        return None
    types = [field.type for field in key_fields]
    first_type = types[0]
    assert isinstance(first_type, AtomicType), "keys are not nested"

    def decode(key: bytes | None) -> tuple[pa.RecordBatch | None, Any]:
        if key is None:
            return None, None
        values = decode_row(key, types, source="key range")
        # Statistics of floats may exclude NaN.
        order = None if first_type.root in FLOATS else value_order(values[0], first_type)
        return one_row(values, key_fields), order

    lower, first_lower = decode(bounds.lower)
    upper, first_upper = decode(bounds.upper)
    return RowRange(
        key_columns=tuple(field.name for field in key_fields),
        lower=lower,
        upper=upper,
        first_type=first_type,
        first_lower=first_lower,
        first_upper=first_upper,
    )
