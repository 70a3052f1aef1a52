"""Bounds of the keys in each row group, from its statistics."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from compactord.formats.base import RowGroup
from compactord.formats.keyrange import RowRange
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.statistics import statistics_order
from compactord.paimon.arrow import arrow_type
from compactord.paimon.types import AtomicType, DataField


def groups_in_range(footer: Footer, bounds: RowRange) -> list[int]:
    """The row groups that may have keys in the range: consecutive, because files are sorted."""
    name = bounds.key_columns[0]
    if not is_stored_as(footer, name, bounds.first_type):
        return list(range(len(footer.groups)))
    column = footer.leaf(name)
    kept = [
        index
        for index in range(len(footer.groups))
        if _may_overlap(footer.arrow.row_group(index).column(column), bounds)
    ]
    return list(range(kept[0], kept[-1] + 1)) if kept else []


def is_stored_as(footer: Footer, name: str, type_: AtomicType) -> bool:
    """Whether a column's statistics have the unit and scale of the type; older files may not."""
    return bool(footer.arrow.schema.to_arrow_schema().field(name).type == arrow_type(type_))


def _may_overlap(chunk: pq.ColumnChunkMetaData, bounds: RowRange) -> bool:
    found = _bounds(chunk, bounds.first_type)
    if found is None:
        return True
    low, high = found
    if bounds.first_lower is not None and high < bounds.first_lower:
        return False
    # The upper bound's first column is included: longer keys may share it.
    return bounds.first_upper is None or bool(low <= bounds.first_upper)


def row_groups(footer: Footer, column: DataField | None) -> list[RowGroup]:
    """All row groups, with the bounds of a column that is not nested; None: without bounds.

    Raises `FormatError` when the file does not have the column.
    """
    groups = [footer.arrow.row_group(index) for index in range(len(footer.groups))]
    if column is None:
        return [RowGroup(group.num_rows) for group in groups]
    leaf = footer.leaf(column.name)
    assert isinstance(column.type, AtomicType), "keys are not nested"
    if not is_stored_as(footer, column.name, column.type):
        return [RowGroup(group.num_rows) for group in groups]
    return [RowGroup(group.num_rows, _bounds(group.column(leaf), column.type)) for group in groups]


def _bounds(chunk: pq.ColumnChunkMetaData, type_: AtomicType) -> tuple[Any, Any] | None:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return None
    return statistics_order(statistics.min_raw, type_), statistics_order(statistics.max_raw, type_)
