"""Reads Parquet files as batches of rows in the types of the subcompaction's layout.

The reader keeps one batch of an open file in memory at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.base import FileReader, InputProfile, NumberedBatches, RowGroup
from compactord.formats.keyrange import RowRange
from compactord.formats.layout import Layout
from compactord.formats.opening import check_size, opened, reading
from compactord.formats.parquet import NAME
from compactord.formats.parquet.checked_footer import Footer, read_footer
from compactord.formats.parquet.conversion import check_convertible, converted
from compactord.formats.parquet.copying import ParquetCopier
from compactord.formats.parquet.dictionaries import check_indices
from compactord.formats.parquet.footer import check_file, check_sequences, profile
from compactord.formats.parquet.headers import check_headers
from compactord.formats.parquet.leaves import top_column
from compactord.formats.parquet.pages import open_pages_bytes
from compactord.formats.parquet.row_groups import groups_in_range, row_groups
from compactord.formats.parquet.whole_file import WholeFile
from compactord.model import InputFile, WriteSpec
from compactord.paimon.arrow import FIELD_ID
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.storage.base import Storage

# Bytes per open column chunk. A larger buffer costs memory (times runs, times columns) and is not
# faster: pages are larger than the buffer and are read without it.
BUFFER_BYTES = 32 << 10
_NANOSECONDS = pa.timestamp("ns")


class ParquetReader(FileReader):
    """A `FileReader` that reads each footer once: it is cached until the file is read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._footers: dict[str, Footer] = {}

    def footer(self, file: InputFile) -> pq.FileMetaData:
        """The file's footer, cached until the file is read."""
        if file.path not in self._footers:
            with (
                reading(file.path, NAME),
                self._storage.open_input(file.path, file.size_bytes) as stream,
            ):
                self._footers[file.path] = _footer(stream, file)
        return self._footers[file.path].arrow

    def profile(self, files: Sequence[InputFile], layout: Layout) -> InputProfile:
        return profile(files, layout, self.footer)

    def open_bytes(self, file: InputFile, layout: Layout) -> int:
        """Bytes of the buffers and of one page per column that is read, stored and decoded."""
        footer = self.footer(file)
        names = frozenset(layout.row_names)
        leaves = sum(
            top_column(footer.schema.column(leaf).path, names) is not None
            for leaf in range(footer.num_columns)
        )
        with (
            reading(file.path, NAME),
            self._storage.open_input(file.path, file.size_bytes) as stream,
        ):
            return leaves * BUFFER_BYTES + open_pages_bytes(stream, footer, names)

    def batches(
        self, file: InputFile, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        with reading(file.path, NAME), opened(self._storage, file) as stream:
            footer, parquet = self._open(stream, file, layout)
            columns = _matched(parquet.schema_arrow, layout, file.path)
            if SEQUENCE_NUMBER.name in columns:
                check_sequences(file, footer.arrow)
            groups = list(range(footer.arrow.num_row_groups))
            if row_range is not None:
                groups = groups_in_range(footer.arrow, row_range, file.path)
            check_headers(stream, footer, groups, layout.row_schema, file.path)
            row = sum(footer.arrow.row_group(i).num_rows for i in range(groups[0] if groups else 0))
            for batch in parquet.iter_batches(
                batch_size=batch_rows, row_groups=groups, columns=columns, use_threads=False
            ):
                check_indices(batch, layout.dictionaries, file.path)
                yield row, converted(batch, layout.row_schema, file.path)
                row += batch.num_rows

    def row_groups(self, file: InputFile, column: DataField | None) -> Sequence[RowGroup]:
        footer = self.footer(file)
        with reading(file.path, NAME):
            return row_groups(footer, column, file.path)

    def copier(
        self, layout: Layout, spec: WriteSpec, dictionary_columns: Sequence[str]
    ) -> ParquetCopier:
        return ParquetCopier(
            lambda file: self._whole(file, layout), layout, spec, dictionary_columns
        )

    def _whole(self, file: InputFile, layout: Layout) -> WholeFile:
        with reading(file.path, NAME):
            with self._storage.open_input(file.path, file.size_bytes) as stream:
                check_size(file, stream.size())
                content = stream.read_buffer()
            stream = pa.BufferReader(content)
            footer, parquet = self._open(stream, file, layout)
            _matched(parquet.schema_arrow, layout, file.path)
            groups = range(len(footer.groups))
            check_headers(stream, footer, groups, layout.row_schema, file.path)
        content = memoryview(content).cast("B")
        return WholeFile(input=file, content=content, footer=footer, parquet=parquet)

    def _open(
        self, stream: pa.NativeFile, file: InputFile, layout: Layout
    ) -> tuple[Footer, pq.ParquetFile]:
        footer = self._footers.pop(file.path, None) or _footer(stream, file)
        check_file(file, stream.size(), footer.arrow)
        parquet = pq.ParquetFile(
            stream,
            metadata=footer.arrow,
            read_dictionary=sorted(layout.dictionaries),
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            # A rewrite would make flipped bits permanent; files by Java and by us have checksums.
            page_checksum_verification=True,
        )
        return footer, parquet


def _footer(stream: pa.NativeFile, file: InputFile) -> Footer:
    size = stream.size()
    check_size(file, size)
    return read_footer(lambda start, length: stream.read_at(length, start), size, file.path)


def _matched(found: pa.Schema, layout: Layout, path: str) -> list[str]:
    """The names of the columns to read. Raises `FormatError` unless the file has every row column.

    Columns are found by name, as in Java (utils/FormatReaderMapping.java). A field id that differs
    shows that the file has an older schema in which the name belonged to another column.
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
            # No writer of Paimon stores this: the unit is damaged.
            raise FormatError(
                path,
                f"column {wanted.name} is stored as nanoseconds in 64 bits, not {wanted.type.unit}",
            )
    return list(layout.row_names)
