"""The part of the key space that one task reads.

Row groups outside are not decoded; of the batches at its ends the rows outside are cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet.footer import leaf_index
from compactord.formats.values import one_row, statistics_order, value_order
from compactord.kernels.keys import slice_range
from compactord.model import KeyRange
from compactord.paimon.arrow import arrow_type
from compactord.paimon.binary_row import decode_row
from compactord.paimon.types import AtomicType, DataField, TypeRoot

_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """`lower` (inclusive) and `upper` (exclusive) as batches of one row of the key columns.

    `first_lower` and `first_upper` are the bounds of the first key column alone, in the order of
    Parquet's statistics; None where statistics cannot be used.
    """

    key_columns: tuple[str, ...]
    lower: pa.RecordBatch | None
    upper: pa.RecordBatch | None
    first_type: AtomicType
    first_lower: Any
    first_upper: Any

    def from_lower(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are not below the range."""
        return slice_range(batch, self.key_columns, self.lower, None)

    def below_upper(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return slice_range(batch, self.key_columns, None, self.upper)


def row_range(bounds: KeyRange, key_fields: tuple[DataField, ...]) -> RowRange | None:
    """The range of serialised keys, decoded; None when it is open at both ends."""
    if bounds.lower is None and bounds.upper is None:
        return None
    types = [field.type for field in key_fields]
    first_type = types[0]
    assert isinstance(first_type, AtomicType), "keys are not nested"

    def decode(key: bytes | None) -> tuple[pa.RecordBatch | None, Any]:
        if key is None:
            return None, None
        values = decode_row(key, types, source="key range")
        # Parquet's statistics of floats leave NaN out.
        order = None if first_type.root in _FLOATS else value_order(values[0], first_type)
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


def groups_in_range(footer: pq.FileMetaData, bounds: RowRange, path: str) -> list[int]:
    """Row groups of a file that may hold keys of the range: neighbours, since files are sorted."""
    name = bounds.key_columns[0]
    if footer.schema.to_arrow_schema().field(name).type != arrow_type(bounds.first_type):
        # An older file with another unit or scale: its statistics are in that unit.
        return list(range(footer.num_row_groups))
    column = leaf_index(footer, name, path)
    kept = [
        index
        for index in range(footer.num_row_groups)
        if _may_overlap(footer.row_group(index).column(column), bounds)
    ]
    return list(range(kept[0], kept[-1] + 1)) if kept else []


def _may_overlap(chunk: pq.ColumnChunkMetaData, bounds: RowRange) -> bool:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    low = statistics_order(statistics.min_raw, bounds.first_type)
    high = statistics_order(statistics.max_raw, bounds.first_type)
    if bounds.first_lower is not None and high < bounds.first_lower:
        return False
    # The first column alone does not exclude equality with a longer key's first column.
    return bounds.first_upper is None or bool(low <= bounds.first_upper)
