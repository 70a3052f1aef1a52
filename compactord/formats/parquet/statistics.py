"""Statistics of data files from Parquet footers: counts, and bounds as Paimon's types.

No checksum covers the column index: callers verify it with the keys that they decode.

The Parquet writer collects these statistics anyway. In two cases bounds are computed from the
values instead: for floats, whose Parquet statistics exclude NaN and do not order zeros (Java's
readers compare with Double.compare and would skip files); and for columns with values of more than
4096 bytes, for which Arrow's writer omits the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.base import RowGroup
from compactord.formats.layout import (
    FloatBounds,
    RowRange,
    TextBounds,
    is_binary_like,
    nanos_per_unit,
    text_bounds,
)
from compactord.formats.parquet import thrift
from compactord.formats.parquet.conversion import leaf_count
from compactord.formats.parquet.footer import Footer
from compactord.formats.parquet.thrift import (
    Chunk,
    ColumnIndex,
    Kind,
    Struct,
    required,
    required_list,
)
from compactord.paimon.binary_row import Value, scaled, text_of
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.types import (
    FLOATS,
    MOMENTS,
    TEXTS,
    AtomicType,
    DataField,
    TypeRoot,
    arrow_type,
)

# A damaged footer may have any size of an index.
_MOST_BYTES = 1 << 20

# Bytes of a file from an offset on, or None if they were not fetched.
ReadIndex: TypeAlias = Callable[[int, int], bytes | memoryview | None]


def from_statistics(raw: Any, type_: AtomicType) -> Value:
    """The bound in its Python form (`layout`)."""
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
    """The bounds of a chunk's pages, or None without a usable index or without its bytes."""
    try:
        at = required(chunk, Chunk.COLUMN_INDEX_AT, Kind.I64)
        size = required(chunk, Chunk.COLUMN_INDEX_LENGTH, Kind.I32)
    except ValueError:
        return None
    return (
        decoded_bounds(read(at, size) or b"", pages)
        if at >= 0 and 0 < size <= _MOST_BYTES
        else None
    )


def decoded_bounds(column_index: bytes | memoryview, pages: int) -> list[Bounds] | None:
    """The bounds of all pages from an encoded ColumnIndex, or None if it is not one of `pages`."""
    try:
        index, _ = thrift.decode(column_index)
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
    """All row groups, with the bounds of `column`, which is not nested, if it is given.

    Raises `FormatError` if the file does not have the column.
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


# Arrow's limit for a bound in the footer (parquet/properties.h, DEFAULT_MAX_STATISTICS_SIZE).
MAX_FOOTER_BOUND = 4096
# TIMESTAMP(7..9) is INT96 in Java's files, which have no statistics for it.
_MAX_BOUNDED_PRECISION = 6


class FileBounds:
    """Collects the bounds of one file's columns; each comes with the name of its row column."""

    def __init__(self, columns: Sequence[tuple[DataField, str]]) -> None:
        self._columns = columns
        self._floats = {
            source: FloatBounds(field.type)
            for field, source in columns
            if isinstance(field.type, AtomicType) and field.type.root in FLOATS
        }
        self._texts = sorted({source for field, source in columns if is_binary_like(field)})
        # Bounds of text columns, from row groups for which the footer will have no bounds.
        self._long: dict[str, TextBounds] = {}
        self._long_groups: dict[str, set[int]] = {name: set() for name in self._texts}
        self._groups = 0

    def add_group(self, rows: pa.Table) -> None:
        """Include the rows of the next row group.

        Text columns may be missing if the footer is known to have their bounds.
        """
        for name, floats in self._floats.items():
            for chunk in rows.column(name).chunks:
                floats.add(chunk)
        for name in self._texts:
            if name not in rows.column_names:
                continue
            column = rows.column(name)
            if _has_long_values(column) or _has_unused_words(column):
                self._long_groups[name].add(self._groups)
                # Values may have megabytes: two are kept, not two of each row group.
                both = (self._long.get(name, (None, None)), text_bounds(column))
                self._long[name] = (
                    min((low for low, _ in both if low is not None), default=None),
                    max((high for _, high in both if high is not None), default=None),
                )
        self._groups += 1

    def result(self, footer: pq.FileMetaData) -> list[ColumnBounds]:
        """The bounds of all columns of the file, in its order."""
        found = []
        leaf = 0
        for field, source in self._columns:
            found.append(self._column(field, source, footer, leaf))
            leaf += leaf_count(field)
        assert leaf == footer.num_columns, "the file has the columns of its layout"
        return found

    def _column(
        self, field: DataField, source: str, footer: pq.FileMetaData, leaf: int
    ) -> ColumnBounds:
        if not isinstance(field.type, AtomicType):
            return ColumnBounds(name=field.name, type=field.type)
        chunks = [
            footer.row_group(group).column(leaf).statistics
            for group in range(footer.num_row_groups)
        ]
        low, high = self._extremes(field.type, source, chunks)
        return ColumnBounds(
            name=field.name,
            type=field.type,
            minimum=low,
            maximum=high,
            null_count=self._floats[source].nulls
            if source in self._floats
            else sum(chunk.null_count for chunk in chunks),
        )

    def _extremes(
        self, type_: AtomicType, source: str, chunks: Sequence[pq.Statistics]
    ) -> tuple[Value, Value]:
        if source in self._floats:
            return self._floats[source].result()
        if type_.root in MOMENTS and (type_.precision or 0) > _MAX_BOUNDED_PRECISION:
            return None, None
        pairs: list[tuple[Any, Any]] = []
        computed = self._long.get(source, (None, None))
        # Chunks with nulls only have no bounds.
        if computed[0] is not None:
            pairs.append(computed)
        for group, chunk in enumerate(chunks):
            if group in self._long_groups.get(source, ()):
                continue
            if chunk.has_min_max:
                pairs.append((chunk.min_raw, chunk.max_raw))
            elif chunk.num_values:
                return None, None
        if not pairs:
            return None, None
        low = min((pair[0] for pair in pairs), key=lambda raw: statistics_order(raw, type_))
        high = max((pair[1] for pair in pairs), key=lambda raw: statistics_order(raw, type_))
        return from_statistics(low, type_), from_statistics(high, type_)


def _has_long_values(column: pa.ChunkedArray) -> bool:
    """Whether a value may be longer than the longest bound in a footer."""
    for chunk in column.chunks:
        texts = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if texts.nbytes <= MAX_FOOTER_BOUND:
            continue
        offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4)
        if int(np.diff(offsets).max(initial=0)) > MAX_FOOTER_BOUND:
            return True
    return False


def _has_unused_words(column: pa.ChunkedArray) -> bool:
    """Whether Arrow's bounds may include dictionary values that no row has.

    Arrow's writer uses the whole dictionary if the number of distinct indices equals the number of
    dictionary values, and it counts null as an index.
    """
    return column.null_count > 0 and bool(pa.types.is_dictionary(column.type))
