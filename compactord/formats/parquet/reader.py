"""Input files as batches of rows in the task's own types.

One batch of an open file is alive in here at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.keyrange import RowRange
from compactord.formats.layout import Layout
from compactord.formats.opening import check_rows, check_size, opened, reading
from compactord.formats.parquet.checked_footer import Footer, read_footer
from compactord.formats.parquet.conversion import check_convertible, converted
from compactord.formats.parquet.footer import check_file, check_sequences
from compactord.formats.parquet.headers import check_headers
from compactord.formats.parquet.pages import open_pages_bytes
from compactord.formats.parquet.row_groups import groups_in_range
from compactord.model import InputFile
from compactord.paimon.arrow import FIELD_ID
from compactord.paimon.types import SEQUENCE_NUMBER
from compactord.storage.base import Storage

NAME = "Parquet"
# Per open column chunk: more costs memory (times runs, times columns) and brings no speed. Pages
# are larger than this and are read past the buffer.
BUFFER_BYTES = 32 << 10
_NANOSECONDS = pa.timestamp("ns")


@dataclass(slots=True)
class ReadCounts:
    """What was read so far; the bytes of a part of a file are in proportion to its rows."""

    rows: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A small file in memory. `parquet` reads out of `content`, with checksums verified."""

    input: InputFile
    content: memoryview
    footer: Footer
    parquet: pq.ParquetFile


@dataclass(frozen=True, slots=True)
class InputReader:
    """Reads the inputs of one task.

    `row_range` None reads whole files. `counts` grows as rows are handed out.
    """

    storage: Storage
    layout: Layout
    row_range: RowRange | None = None
    footers: dict[str, Footer] = field(default_factory=dict)
    counts: ReadCounts = field(default_factory=ReadCounts)

    def footer(self, file: InputFile) -> pq.FileMetaData:
        """The file's footer, kept for when it is read."""
        if file.path not in self.footers:
            with reading(file.path, NAME), self.storage.open_input(file.path) as stream:
                self.footers[file.path] = _footer(stream, file)
        return self.footers[file.path].arrow

    def open_pages_bytes(self, file: InputFile) -> int:
        """Memory for one page of every column that is read, as stored and as decoded."""
        footer = self.footer(file)
        with reading(file.path, NAME), self.storage.open_input(file.path) as stream:
            return open_pages_bytes(stream, footer, self.layout.row_names)

    def batches(self, file: InputFile, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The file's rows in their order, in the layout's row schema.

        Raises `FormatError` when the file is not the one that `file` describes: another size,
        another number of rows, columns missing or of a type that is not the declared one.
        """
        with reading(file.path, NAME), opened(self.storage, file) as stream:
            footer, parquet = self._open(stream, file)
            columns = _matched(parquet.schema_arrow, self.layout, file.path)
            if SEQUENCE_NUMBER.name in columns:
                check_sequences(file, footer.arrow)
            groups = list(range(footer.arrow.num_row_groups))
            if self.row_range is not None:
                groups = groups_in_range(footer.arrow, self.row_range, file.path)
            check_headers(stream, footer, groups, self.layout.row_schema, file.path)
            yield from self._read(parquet, columns, groups, file, batch_rows)

    def whole(self, file: InputFile) -> WholeFile:
        """The file's bytes, checked as `batches` does but for its rows."""
        with reading(file.path, NAME):
            with self.storage.open_input(file.path) as stream:
                check_size(file, stream.size())
                content = stream.read_buffer()
            stream = pa.BufferReader(content)
            footer, parquet = self._open(stream, file)
            _matched(parquet.schema_arrow, self.layout, file.path)
            groups = range(len(footer.groups))
            check_headers(stream, footer, groups, self.layout.row_schema, file.path)
        self.counts.rows += file.row_count
        self.counts.size_bytes += file.size_bytes
        content = memoryview(content).cast("B")
        return WholeFile(input=file, content=content, footer=footer, parquet=parquet)

    def _open(self, stream: pa.NativeFile, file: InputFile) -> tuple[Footer, pq.ParquetFile]:
        footer = self.footers.pop(file.path, None) or _footer(stream, file)
        check_file(file, stream.size(), footer.arrow)
        parquet = pq.ParquetFile(
            stream,
            metadata=footer.arrow,
            read_dictionary=sorted(self.layout.dictionaries),
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            # Rewriting flipped bits would make them last; Java's files carry checksums, and ours.
            page_checksum_verification=True,
        )
        return footer, parquet

    def _read(
        self,
        parquet: pq.ParquetFile,
        columns: list[str],
        groups: list[int],
        file: InputFile,
        batch_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        schema = self.layout.row_schema
        footer = parquet.metadata
        row = sum(footer.row_group(i).num_rows for i in range(groups[0])) if groups else 0
        first = end = None
        seen = 0
        for batch in parquet.iter_batches(
            batch_size=batch_rows, row_groups=groups, columns=columns, use_threads=False
        ):
            if batch.num_rows == 0:
                continue
            check_indices(batch, self.layout.dictionaries, file.path)
            rows = converted(batch, schema, file.path)
            seen += rows.num_rows
            if self.row_range is None:
                self.counts.rows += rows.num_rows
                yield rows
                continue
            above = self.row_range.from_lower(rows)
            inside = self.row_range.below_upper(above)
            if inside.num_rows:
                start = row + rows.num_rows - above.num_rows
                first = start if first is None else first
                end = start + inside.num_rows
                self.counts.rows += inside.num_rows
                yield inside
            row += rows.num_rows
            if inside.num_rows < above.num_rows:
                break
        if self.row_range is None:
            check_rows(file, seen)
            self.counts.size_bytes += file.size_bytes
        elif first is not None and end is not None:
            # Rounded so that the parts of a file add up to the file.
            per_row = (file.size_bytes, file.row_count)
            self.counts.size_bytes += _share(end, *per_row) - _share(first, *per_row)


def check_indices(batch: pa.RecordBatch, dictionaries: Iterable[str], path: str) -> None:
    """Raise `FormatError` for indices that a column's dictionary does not have.

    Of a dictionary whose header says too few values Arrow hands out what there is, unlooked at.
    """
    for name in dictionaries:
        column = batch.column(name)
        if not isinstance(column, pa.DictionaryArray):
            continue
        indices, size = column.indices, len(column.dictionary)
        # What stands in the places of nulls may be anything, but rarely is.
        if not (_are_below(size, indices) or _are_below(size, indices.drop_null())):
            raise FormatError(path, f"column {name} has values outside of its dictionary")


def _are_below(size: int, indices: pa.Array) -> bool:
    """Whether 32-bit indices are from 0 to `size`, nulls or not; far quicker than Arrow's way."""
    numbers = np.frombuffer(indices.buffers()[1] or b"", np.uint32)
    numbers = numbers[indices.offset : indices.offset + len(indices)]
    return not numbers.size or bool(numbers.max() < size)


def _share(rows: int, size_bytes: int, row_count: int) -> int:
    return size_bytes * rows // row_count


def _footer(stream: pa.NativeFile, file: InputFile) -> Footer:
    size = stream.size()
    check_size(file, size)
    return read_footer(lambda start, length: stream.read_at(length, start), size, file.path)


def _matched(found: pa.Schema, layout: Layout, path: str) -> list[str]:
    """Check that the file has every row column; the names to read.

    Columns are found by name, as Java does (utils/FormatReaderMapping.java); a field id that is
    there and another one shows a file of an older schema in which the name meant something else.
    """
    for wanted in layout.row_schema:
        indices = found.get_all_field_indices(wanted.name)
        if len(indices) != 1:
            raise FormatError(path, f"the file has {len(indices)} columns named {wanted.name}")
        there = found.field(indices[0])
        own_id = (there.metadata or {}).get(FIELD_ID)
        if own_id is not None and own_id not in (b"-1", wanted.metadata[FIELD_ID]):
            raise FormatError(
                path,
                f"column {wanted.name} has field id {own_id.decode()} instead of"
                f" {wanted.metadata[FIELD_ID].decode()}: it was written with another schema",
            )
        check_convertible(there.type, wanted.type, path, wanted.name)
        if there.type == _NANOSECONDS and wanted.type.unit != "ns":
            # No writer of Paimon's makes them: bits of the unit have changed.
            raise FormatError(path, f"column {wanted.name} is of nanoseconds as 64 bits")
    return list(layout.row_names)
