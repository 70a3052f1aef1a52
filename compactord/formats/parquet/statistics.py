"""Bounds of a column: in statistics (`min_raw`, `max_raw`), row groups and the column index.

No checksum covers the column index: who relies on it proves it by what is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pyarrow.parquet as pq

from compactord.formats.base import RowGroup
from compactord.formats.keyrange import RowRange
from compactord.formats.parquet import thrift
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.structs import Chunk, ColumnIndex
from compactord.formats.parquet.thrift import Kind, Struct, required, required_list
from compactord.formats.values import nanos_per_unit
from compactord.paimon.binary_row import Value, scaled, text_of
from compactord.paimon.types import MOMENTS, TEXTS, AtomicType, DataField, TypeRoot, arrow_type

# A damaged footer may say anything of an index's size.
_MOST_BYTES = 1 << 20

# Bytes of a file from an offset on; None where they are not known.
ReadIndex: TypeAlias = Callable[[int, int], bytes | memoryview | None]


def from_statistics(raw: Any, type_: AtomicType) -> Value:
    """The bound in its Python form (`formats.values`)."""
    root = type_.root
    if root is TypeRoot.DECIMAL:
        number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return scaled(number, type_.scale or 0)
    if root in TEXTS:
        return text_of(raw)
    if root in MOMENTS:
        return raw * nanos_per_unit(type_)
    return raw


def statistics_order(raw: Any, type_: AtomicType) -> Any:
    """The sort key of a bound, comparable with `value_order` of a value."""
    if type_.root is TypeRoot.DECIMAL and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


class Bounds(NamedTuple):
    """Bounds of a chunk or page, encoded as PLAIN; None if all values are null."""

    low: bytes | None
    high: bytes | None
    nulls: int | None


def indexed_bounds(chunk: Struct, read: ReadIndex, pages: int) -> list[Bounds] | None:
    """The bounds of a chunk's pages; None if it has no usable index, or `read` not its bytes."""
    try:
        at = required(chunk, Chunk.COLUMN_INDEX_AT, Kind.I64)
        size = required(chunk, Chunk.COLUMN_INDEX_LENGTH, Kind.I32)
        encoded = read(at, size) if at >= 0 and 0 < size <= _MOST_BYTES else None
        index, _ = thrift.decode(encoded or b"")
        is_null = required_list(index, ColumnIndex.NULL_PAGES, Kind.TRUE, Kind.FALSE)
        lows = required_list(index, ColumnIndex.LOWS, Kind.BINARY)
        highs = required_list(index, ColumnIndex.HIGHS, Kind.BINARY)
        nulls: list[int | None] = [None] * pages
        if ColumnIndex.NULL_COUNTS in index:
            nulls = required_list(index, ColumnIndex.NULL_COUNTS, Kind.I64)
    except ValueError:
        return None
    if any(len(column) != pages for column in (is_null, lows, highs, nulls)):
        return None
    return [
        Bounds(None, None, count) if null == Kind.TRUE else Bounds(low, high, count)
        for null, low, high, count in zip(is_null, lows, highs, nulls, strict=True)
    ]


def bound_order(bound: bytes, physical_type: str, type_: AtomicType) -> Any:
    """The sort key of an encoded bound, comparable with `value_order` of a value."""
    if physical_type in ("INT32", "INT64", "BOOLEAN"):
        return int.from_bytes(bound, "little", signed=physical_type != "BOOLEAN")
    return statistics_order(bound, type_)


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
