"""Bounds of a file's columns, from its footer where the footer is right.

The Parquet writer collects these statistics anyway. In two cases bounds are computed from the
values instead: for floats, whose Parquet statistics exclude NaN and do not order zeros (Java's
readers compare with Double.compare and would skip files); and for columns with values of more than
4096 bytes, for which Arrow's writer omits the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.bounds import FloatBounds, TextBounds, text_bounds
from compactord.formats.layout import is_binary_like
from compactord.formats.parquet.leaves import leaf_count
from compactord.formats.parquet.statistics import from_statistics, statistics_order
from compactord.paimon.binary_row import Value
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.types import FLOATS, MOMENTS, AtomicType, DataField

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
        # For text columns whose footer will have no bounds of some row groups: those of these.
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
