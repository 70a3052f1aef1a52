"""What statistics tell of the keys in each row group."""

from __future__ import annotations

import pyarrow.parquet as pq

from compactord.formats.keyrange import RowRange
from compactord.formats.parquet.leaves import leaf_index
from compactord.formats.parquet.statistics import statistics_order
from compactord.paimon.arrow import arrow_type


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
