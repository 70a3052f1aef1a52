"""Reads Parquet files as batches of rows in the types of the subcompaction's layout.

The reader keeps one batch of an open file in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import (
    AccessDenied,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.formats.base import NumberedBatches, OpenFile, RowGroup
from compactord.formats.keyrange import RowRange
from compactord.formats.layout import Layout
from compactord.formats.opening import reading
from compactord.formats.parquet import NAME
from compactord.formats.parquet.checked_footer import Footer, read_footer
from compactord.formats.parquet.conversion import check_convertible, converted
from compactord.formats.parquet.dictionaries import check_indices
from compactord.formats.parquet.headers import check_headers, read_leaves
from compactord.formats.parquet.leaves import leaf_index
from compactord.formats.parquet.page_headers import Pages
from compactord.formats.parquet.pages import estimated_pages_bytes, open_pages_bytes
from compactord.formats.parquet.ranged import extents, ranged_file
from compactord.formats.parquet.row_groups import groups_in_range, row_groups
from compactord.formats.parquet.whole_file import WholeFile
from compactord.paimon.arrow import FIELD_ID
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.storage.fetching import check_size, end_bytes
from compactord.storage.ranges import RangedFile, held_limits

# Bytes per open column chunk. A larger buffer costs memory (times runs, times columns) and is not
# faster: pages are larger than the buffer and are read without it.
BUFFER_BYTES = 32 << 10
_NANOSECONDS = pa.timestamp("ns")


class ParquetInput(OpenFile):
    """An `OpenFile` that reads its footer once: it is kept until the rows are read."""

    _footer: Footer | None = None
    _ranged: RangedFile | None = None
    _held_bytes = 0

    def footer(self) -> Footer:
        """The file's footer, kept until the rows are read."""
        file = self.file
        if self._footer is None:
            with reading(file.path, NAME):
                if self.fetcher.is_needed:
                    self._footer = self._fetched_footer()
                    self.fetcher.keep(file)
                else:
                    with self.storage.open_input(file.path, file.size_bytes) as stream:
                        self._footer = self._read_footer(stream)
        return self._footer

    def expect(self) -> None:
        if self._footer is None:
            self.fetcher.expect(self.file)

    def expect_whole(self) -> None:
        """Begin to fetch all bytes of the file."""
        self.fetcher.expect_whole([self.file])

    def open_bytes(self, layout: Layout) -> int:
        """Bytes of the buffers and of one page per column that is read, stored and decoded."""
        footer = self.footer()
        names = frozenset(layout.row_names)
        leaves = read_leaves(footer, names)
        buffers = len(leaves) * BUFFER_BYTES
        if self.fetcher.is_ranged(self.file):
            index = self.fetcher.end(self.file).read
            return buffers + estimated_pages_bytes(footer, leaves, index)
        with reading(self.file.path, NAME), self.fetcher.opened(self.file) as stream:
            return buffers + open_pages_bytes(stream, footer.arrow, names)

    def held_bytes(self, layout: Layout) -> tuple[int, int]:
        if not self.fetcher.is_needed:
            return 0, 0
        least = most = end_bytes(self.file)
        if self.fetcher.is_ranged(self.file):
            footer = self.footer()
            found = held_limits(extents(footer, range(len(footer.groups)), layout.row_names))
            least, most = least + found[0], most + found[1]
        return least, most

    def start(self, layout: Layout, row_range: RowRange | None, held_bytes: int) -> None:
        if not self.fetcher.is_needed or self._ranged is not None:
            return
        self._held_bytes = held_bytes
        self.expect()
        if self.fetcher.is_ranged(self.file) and self._footer is not None:
            with reading(self.file.path, NAME):
                self._ranged = self._fetching(layout, row_range)

    def batches(
        self, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        path = self.file.path
        with contextlib.ExitStack() as stack:
            stack.enter_context(reading(path, NAME))
            ranged: RangedFile | None = None
            if self.fetcher.is_ranged(self.file):
                ranged, self._ranged = self._ranged or self._fetching(layout, row_range), None
                stack.callback(ranged.close)
                stream = stack.enter_context(ranged.stream())
            else:
                stream = stack.enter_context(self.fetcher.opened(self.file))
            footer, parquet = self._open(stream, layout)
            columns = _matched(parquet.schema_arrow, layout, path)
            if SEQUENCE_NUMBER.name in columns and self.file.sequence_number is None:
                self._check_sequences(footer.arrow)
            groups = _groups(footer, row_range, path)
            if ranged is None:
                check_headers(Pages.of(stream), footer, groups, layout.row_schema, path)
            row = sum(footer.arrow.row_group(i).num_rows for i in range(groups[0] if groups else 0))
            # Ranges are given back group by group.
            for part in [groups] if ranged is None else [[group] for group in groups]:
                for batch in parquet.iter_batches(
                    batch_size=batch_rows, row_groups=part, columns=columns, use_threads=False
                ):
                    check_indices(batch, layout.dictionaries, path)
                    found = converted(batch, layout.row_schema, path)
                    if ranged is not None and _reaches_end(found, row_range):
                        ranged.stop(part[0])
                        yield row, found
                        return
                    yield row, found
                    row += batch.num_rows
                if ranged is not None:
                    ranged.finish(part[0])

    def row_groups(self, column: DataField | None) -> Sequence[RowGroup]:
        footer = self.footer().arrow
        with reading(self.file.path, NAME):
            return row_groups(footer, column, self.file.path)

    def whole(self, layout: Layout) -> WholeFile:
        """All bytes of the file; checks and errors as in `batches`."""
        path = self.file.path
        with reading(path, NAME):
            content = self.fetcher.whole(self.file)
            stream = pa.BufferReader(content)
            footer, parquet = self._open(stream, layout)
            _matched(parquet.schema_arrow, layout, path)
            groups = range(len(footer.groups))
            check_headers(Pages.of(stream), footer, groups, layout.row_schema, path)
        content = memoryview(content).cast("B")
        return WholeFile(input=self.file, content=content, footer=footer, parquet=parquet)

    def _fetched_footer(self) -> Footer:
        """The footer of a file of an object store, mostly from one request."""
        file = self.file
        try:
            end = self.fetcher.end(file)

            def read(start: int, size: int) -> bytes | memoryview:
                known = end.read(start, size)
                return self.fetcher.range(file, start, size).result() if known is None else known

            return read_footer(read, file.size_bytes, file.path)
        except (ObjectNotFound, AccessDenied, TransientStorageError):
            raise
        except (FormatError, StorageError):
            # The store says how long a file is only if it is asked.
            self.fetcher.check_size(file)
            raise

    def _read_footer(self, stream: pa.NativeFile) -> Footer:
        size, path = stream.size(), self.file.path
        check_size(self.file, size)
        return read_footer(lambda start, length: stream.read_at(length, start), size, path)

    def _fetching(self, layout: Layout, row_range: RowRange | None) -> RangedFile:
        """The ranges of a file that is not small; they are fetched from now on."""
        footer = self.footer()
        return ranged_file(
            self.fetcher,
            self.file,
            footer,
            self.fetcher.taken_end(self.file),
            groups=_groups(footer, row_range, self.file.path),
            row_schema=layout.row_schema,
            held_bytes=self._held_bytes,
        )

    def _open(self, stream: pa.NativeFile, layout: Layout) -> tuple[Footer, pq.ParquetFile]:
        """Raises `FormatError` unless size and row count are those in the manifest."""
        footer, self._footer = self._footer or self._read_footer(stream), None
        self.fetcher.release(self.file)
        check_size(self.file, stream.size())
        if footer.arrow.num_rows != self.file.row_count:
            raise FormatError(
                self.file.path,
                f"the manifest says {self.file.row_count} rows, the Parquet footer"
                f" {footer.arrow.num_rows}",
            )
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

    def _check_sequences(self, footer: pq.FileMetaData) -> None:
        """Raise `FormatError` when rows have sequence numbers outside the manifest's range.

        Merges rely on the range: runs with disjoint ranges are merged without comparing numbers.
        """
        file = self.file
        column = leaf_index(footer, SEQUENCE_NUMBER.name, file.path)
        for index in range(footer.num_row_groups):
            found = footer.row_group(index).column(column).statistics
            if found is None or not found.has_min_max:
                continue
            if found.min_raw < file.min_sequence_number or found.max_raw > file.max_sequence_number:
                raise FormatError(
                    file.path,
                    f"the manifest says sequence numbers {file.min_sequence_number} to"
                    f" {file.max_sequence_number}, the file has {found.min_raw} to {found.max_raw}",
                )


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
