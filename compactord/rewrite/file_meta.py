"""The manifest's record of a file that was just written.

Agrees with io/KeyValueDataFileWriter.java and io/RowDataFileWriter.java: keys of the first and last
row, statistics, sequence numbers, retracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from compactord.formats.layout import Layout
from compactord.formats.values import cell
from compactord.model import ConcatSpec, WriteSpec
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import EMPTY_ROW, EMPTY_STATS, DataFile, FileSource
from compactord.paimon.stats import ColumnBounds, build_stats
from compactord.paimon.types import SEQUENCE_NUMBER, VALUE_KIND


class FileFacts:
    """Collects a file's first and last key and its retracts from its row groups."""

    def __init__(self, layout: Layout) -> None:
        self._keys = layout.key_fields
        self._types = [field.type for field in self._keys]
        self.min_key = EMPTY_ROW
        self.max_key = EMPTY_ROW
        self.retracts = 0

    def add_group(self, rows: pa.Table) -> None:
        """Include the next row group, in the layout's row columns."""
        if not self._keys:
            return
        if self.min_key == EMPTY_ROW:
            self.min_key = self._key(rows, 0)
        self.max_key = self._key(rows, rows.num_rows - 1)
        for kinds in rows.column(VALUE_KIND.name).chunks:
            self.retracts += int(np.count_nonzero(kinds.to_numpy() & 1))

    def _key(self, rows: pa.Table, index: int) -> bytes:
        values = [cell(rows.column(field.name), index, field.type) for field in self._keys]
        return encode_row(values, self._types)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A completed file of `size_bytes` bytes; `bounds` are those of its columns, in their order."""

    name: str
    size_bytes: int
    rows: int
    facts: FileFacts
    bounds: Sequence[ColumnBounds]
    now_ms: int


# Makes the manifest's record of a file.
Describe: TypeAlias = Callable[[WrittenFile], DataFile]


class MergedFile:
    """Describes files of primary-key tables. `source` is who adds their rows, for readers."""

    def __init__(self, write: WriteSpec, layout: Layout, source: FileSource) -> None:
        self._write = write
        self._layout = layout
        self._file_source = source
        self._modes = dict(write.stats_modes)

    def __call__(self, file: WrittenFile) -> DataFile:
        by_name = {column.name: column for column in file.bounds}
        sequence = by_name[SEQUENCE_NUMBER.name]
        # `_KEY_` columns come first; thin files have no such columns.
        copies = len(self._layout.file_columns) - len(self._layout.row_fields)
        key_names = [field.name for field, _ in self._layout.file_columns[:copies]]
        key_names = key_names or [field.name for field in self._layout.key_fields]
        key_stats, _ = build_stats([by_name[key] for key in key_names], self._modes, dense=False)
        return _data_file(
            file,
            self._write,
            [by_name[field.name] for field in self._layout.value_fields],
            key_stats=key_stats,
            min_sequence_number=sequence.minimum,
            max_sequence_number=sequence.maximum,
            level=self._write.level,
            file_source=self._file_source,
        )


class AppendedFile:
    """Describes files of append tables, in the order in which they are written.

    Sequence numbers count the rows. Java restarts the count for every output of a rewrite
    (append/AppendCompactTask.java); with `continues_across_outputs` the ranges are disjoint.
    """

    def __init__(self, write: WriteSpec, source: ConcatSpec) -> None:
        self._write = write
        self._source = source
        self._next_sequence = source.first_sequence_number

    def __call__(self, file: WrittenFile) -> DataFile:
        first = self._next_sequence
        if self._source.continues_across_outputs:
            self._next_sequence += file.rows
        return _data_file(
            file,
            self._write,
            file.bounds,
            key_stats=EMPTY_STATS,
            min_sequence_number=first,
            max_sequence_number=first + file.rows - 1,
            level=0,
            file_source=FileSource.COMPACT,
        )


def _data_file(
    file: WrittenFile, write: WriteSpec, values: Sequence[ColumnBounds], **more: Any
) -> DataFile:
    """With statistics of the columns `values`."""
    modes = dict(write.stats_modes)
    value_stats, stats_columns = build_stats(values, modes, dense=write.stats_dense)
    return DataFile(
        file_name=file.name,
        file_size=file.size_bytes,
        row_count=file.rows,
        min_key=file.facts.min_key,
        max_key=file.facts.max_key,
        value_stats=value_stats,
        schema_id=write.schema_id,
        creation_time_ms=file.now_ms + write.creation_zone_offset_ms,
        delete_row_count=file.facts.retracts,
        value_stats_columns=stats_columns,
        **more,
    )
