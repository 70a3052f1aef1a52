"""Reads Parquet files as batches of rows in the types of the subcompaction's layout.

The reader keeps one batch of an open file in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.base import FileReader, InputProfile, NumberedBatches, RowGroup
from compactord.formats.keyrange import RowRange
from compactord.formats.layout import Layout
from compactord.formats.opening import reading
from compactord.formats.parquet import NAME
from compactord.formats.parquet.checked_footer import Footer, read_footer
from compactord.formats.parquet.conversion import check_convertible, converted
from compactord.formats.parquet.copying import ParquetCopier
from compactord.formats.parquet.dictionaries import check_indices
from compactord.formats.parquet.footer import check_file, check_sequences, profile
from compactord.formats.parquet.headers import check_headers, read_leaves
from compactord.formats.parquet.options import ParquetEncoding
from compactord.formats.parquet.page_headers import Pages
from compactord.formats.parquet.pages import estimated_pages_bytes, open_pages_bytes
from compactord.formats.parquet.ranged import extents, fetched_footer, ranged_file
from compactord.formats.parquet.row_groups import groups_in_range, row_groups
from compactord.formats.parquet.whole_file import WholeFile
from compactord.model import InputFile
from compactord.paimon.arrow import FIELD_ID
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.storage.base import Storage
from compactord.storage.fetching import Fetcher, check_size, end_bytes
from compactord.storage.ranges import RangedFile, held_limits

# Bytes per open column chunk. A larger buffer costs memory (times runs, times columns) and is not
# faster: pages are larger than the buffer and are read without it.
BUFFER_BYTES = 32 << 10
_NANOSECONDS = pa.timestamp("ns")


class ParquetReader(FileReader):
    """A `FileReader` that reads each footer once: it is cached until the file is read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._footers: dict[str, Footer] = {}
        self._fetcher = Fetcher(storage)
        self._ranged: dict[str, RangedFile] = {}
        self._held_bytes: dict[str, int] = {}

    def footer(self, file: InputFile) -> pq.FileMetaData:
        """The file's footer, cached until the file is read."""
        return self._footer(file).arrow

    def _footer(self, file: InputFile) -> Footer:
        if file.path not in self._footers:
            with reading(file.path, NAME):
                if self._fetcher.is_needed:
                    self._footers[file.path] = fetched_footer(self._fetcher, file)
                    self._fetcher.keep(file)
                else:
                    with self._storage.open_input(file.path, file.size_bytes) as stream:
                        self._footers[file.path] = _read_footer(stream, file)
        return self._footers[file.path]

    def profile(self, files: Sequence[InputFile], layout: Layout) -> InputProfile:
        self.expect(files)
        return profile(files, layout, self.footer)

    def expect(self, files: Sequence[InputFile]) -> None:
        for file in files:
            if file.path not in self._footers:
                self._fetcher.expect(file)

    def open_bytes(self, file: InputFile, layout: Layout) -> int:
        """Bytes of the buffers and of one page per column that is read, stored and decoded."""
        footer = self._footer(file)
        names = frozenset(layout.row_names)
        leaves = read_leaves(footer, names)
        buffers = len(leaves) * BUFFER_BYTES
        if self._fetcher.is_ranged(file):
            index = self._fetcher.end(file).read
            return buffers + estimated_pages_bytes(footer, leaves, index)
        with reading(file.path, NAME), self._fetcher.opened(file) as stream:
            return buffers + open_pages_bytes(stream, footer.arrow, names)

    def held_bytes(self, file: InputFile, layout: Layout) -> tuple[int, int]:
        if not self._fetcher.is_needed:
            return 0, 0
        least, most = end_bytes(file), end_bytes(file)
        if self._fetcher.is_ranged(file):
            footer = self._footer(file)
            found = held_limits(extents(footer, range(len(footer.groups)), layout.row_names))
            least, most = least + found[0], most + found[1]
        return least, most

    def kept_bytes(self) -> int:
        return self._fetcher.kept_bytes

    def start(
        self, file: InputFile, layout: Layout, row_range: RowRange | None, held_bytes: int
    ) -> None:
        if not self._fetcher.is_needed or file.path in self._ranged:
            return
        self._held_bytes[file.path] = held_bytes
        self.expect([file])
        if self._fetcher.is_ranged(file) and file.path in self._footers:
            with reading(file.path, NAME):
                self._ranged[file.path] = self._fetching(file, layout, row_range)

    def batches(
        self, file: InputFile, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        with contextlib.ExitStack() as stack:
            stack.enter_context(reading(file.path, NAME))
            ranged: RangedFile | None = None
            if self._fetcher.is_ranged(file):
                ranged = self._ranged.pop(file.path, None) or self._fetching(
                    file, layout, row_range
                )
                stack.callback(ranged.close)
                stream = stack.enter_context(ranged.stream())
            else:
                stream = stack.enter_context(self._fetcher.opened(file))
            footer, parquet = self._open(stream, file, layout)
            columns = _matched(parquet.schema_arrow, layout, file.path)
            if SEQUENCE_NUMBER.name in columns and file.sequence_number is None:
                check_sequences(file, footer.arrow)
            groups = _groups(footer, row_range, file.path)
            if ranged is None:
                check_headers(Pages.of(stream), footer, groups, layout.row_schema, file.path)
            row = sum(footer.arrow.row_group(i).num_rows for i in range(groups[0] if groups else 0))
            # Ranges are given back group by group.
            for part in [groups] if ranged is None else [[group] for group in groups]:
                for batch in parquet.iter_batches(
                    batch_size=batch_rows, row_groups=part, columns=columns, use_threads=False
                ):
                    check_indices(batch, layout.dictionaries, file.path)
                    found = converted(batch, layout.row_schema, file.path)
                    if ranged is not None and _reaches_end(found, row_range):
                        ranged.stop(part[0])
                        yield row, found
                        return
                    yield row, found
                    row += batch.num_rows
                if ranged is not None:
                    ranged.finish(part[0])

    def close(self) -> None:
        for ranged in self._ranged.values():
            ranged.close()
        self._fetcher.close()

    def row_groups(self, file: InputFile, column: DataField | None) -> Sequence[RowGroup]:
        footer = self.footer(file)
        with reading(file.path, NAME):
            return row_groups(footer, column, file.path)

    def copier(
        self, layout: Layout, encoding: ParquetEncoding, dictionary_columns: Sequence[str]
    ) -> ParquetCopier:
        return ParquetCopier(
            self._fetcher.expect_whole,
            lambda file: self._whole(file, layout),
            layout,
            encoding,
            dictionary_columns,
        )

    def _whole(self, file: InputFile, layout: Layout) -> WholeFile:
        with reading(file.path, NAME):
            content = self._fetcher.whole(file)
            stream = pa.BufferReader(content)
            footer, parquet = self._open(stream, file, layout)
            _matched(parquet.schema_arrow, layout, file.path)
            groups = range(len(footer.groups))
            check_headers(Pages.of(stream), footer, groups, layout.row_schema, file.path)
        content = memoryview(content).cast("B")
        return WholeFile(input=file, content=content, footer=footer, parquet=parquet)

    def _fetching(self, file: InputFile, layout: Layout, row_range: RowRange | None) -> RangedFile:
        """The ranges of a file that is not small; they are fetched from now on."""
        footer = self._footer(file)
        return ranged_file(
            self._fetcher,
            file,
            footer,
            self._fetcher.taken_end(file),
            groups=_groups(footer, row_range, file.path),
            row_schema=layout.row_schema,
            held_bytes=self._held_bytes.pop(file.path, 0),
        )

    def _open(
        self, stream: pa.NativeFile, file: InputFile, layout: Layout
    ) -> tuple[Footer, pq.ParquetFile]:
        footer = self._footers.pop(file.path, None) or _read_footer(stream, file)
        self._fetcher.release(file)
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


def _read_footer(stream: pa.NativeFile, file: InputFile) -> Footer:
    size = stream.size()
    check_size(file, size)
    return read_footer(lambda start, length: stream.read_at(length, start), size, file.path)


def _groups(footer: Footer, row_range: RowRange | None, path: str) -> list[int]:
    """The row groups to read."""
    if row_range is None:
        return list(range(footer.arrow.num_row_groups))
    return groups_in_range(footer.arrow, row_range, path)


def _reaches_end(batch: pa.RecordBatch, row_range: RowRange | None) -> bool:
    """Whether the batch's last row is at or above the end of the range: no later one is in it."""
    if row_range is None or row_range.upper is None or not batch.num_rows:
        return False
    return not row_range.below_upper(batch.slice(batch.num_rows - 1)).num_rows


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
        if there.type == _NANOSECONDS and pa.types.is_timestamp(wanted.type):
            # No writer of Paimon stores this: the unit is damaged.
            raise FormatError(
                path,
                f"column {wanted.name} is stored as nanoseconds in 64 bits, not {wanted.type.unit}",
            )
    return list(layout.row_names)
