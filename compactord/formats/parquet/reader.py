"""Reads Parquet files in batches, and estimates the memory that a file needs.

The reader keeps one batch of an open file in memory at a time. The profile is a sample of a few
inputs: it affects speed and memory, never the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import (
    AccessDenied,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.formats.base import InputProfile, NumberedBatches, OpenFile, RowGroup, reading
from compactord.formats.finding import Finder
from compactord.formats.layout import (
    Layout,
    RowRange,
    absent_columns,
    is_binary_like,
    partition_arrays,
)
from compactord.formats.parquet import NAME
from compactord.formats.parquet.conversion import check_indices, converted, top_column
from compactord.formats.parquet.finder import OpenGroups, ParquetFinder
from compactord.formats.parquet.footer import MAGIC, Footer, read_footer
from compactord.formats.parquet.group_pages import (
    checked_pages,
    extents,
    group_footer,
    group_spans,
    indexed_pages,
    is_flat,
    ranged_file,
    row_pages,
    with_indexes,
)
from compactord.formats.parquet.matching import check_column
from compactord.formats.parquet.page_runs import (
    BUFFER_BYTES,
    ColumnPages,
    GroupPages,
    Spans,
    StoredRows,
    WholeFile,
    arrow_file,
    read_groups,
    read_runs,
)
from compactord.formats.parquet.pages import Pages, check_headers, open_pages_bytes, read_leaves
from compactord.formats.parquet.statistics import (
    Bounds,
    ReadIndex,
    groups_in_range,
    indexed_bounds,
    row_groups,
)
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.storage.ranges import (
    REQUEST_BYTES,
    RangedFile,
    Span,
    check_size,
    end_bytes,
    held_limits,
)

# Page indexes of more bytes are not fetched for a range of keys: many files are open at once.
_INDEX_BYTES_MAX = 1 << 20

# Batches of fewer rows are taken from whole decoded pages: with many files open at once, a page
# that is decoded in pieces leaves the processor's cache between them. Most pages have 20,000 rows;
# rows so wide that a batch has a few hundred have smaller pages, and there memory is short.
_FEW_ROWS = range(500, 10_001)

# Rows of row groups, each with the number of the first group.
_Parts: TypeAlias = Iterable[tuple[int, NumberedBatches]]
# A file of an object store whose ranges are fetched, and its row groups if they are read by pages.
_Fetched: TypeAlias = tuple[RangedFile, Sequence[GroupPages]]


class _WrongIndexError(Exception):
    """The first decoded key is not below the range: keys of the range may precede it."""


class _CheckedGroup(NamedTuple):
    """A row group whose headers were checked: its pages and their bounds, as in `StoredRows`."""

    group: int
    pages: Mapping[int, ColumnPages]
    bounds: Mapping[int, Sequence[Bounds] | None]


class ParquetInput(OpenFile):
    """An `OpenFile` that reads its footer once: it is kept until the rows are read."""

    _footer: Footer | None = None
    _fetched: _Fetched | None = None
    _held_bytes = 0
    # The row group that was read in part last.
    _checked: _CheckedGroup | None = None

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
        leaves = read_leaves(footer, layout.row_names)
        with contextlib.ExitStack() as stack:
            stack.enter_context(reading(self.file.path, NAME))
            if self.fetcher.is_ranged(self.file):
                index: ReadIndex = self.fetcher.end(self.file).read
            else:
                index = Pages.of(stack.enter_context(self.fetcher.opened(self.file))).read
            pages = open_pages_bytes(footer, leaves, index)
        return len(leaves) * BUFFER_BYTES + pages

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
        if not self.fetcher.is_needed or self._fetched is not None:
            return
        self._held_bytes = held_bytes
        self.expect()
        if self.fetcher.is_ranged(self.file) and self._footer is not None:
            with reading(self.file.path, NAME):
                self._fetched = self._fetching(layout, row_range, by_index=True)

    def batches(
        self, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        try:
            yield from self._batches(layout, batch_rows, row_range, by_index=True)
        except _WrongIndexError:
            # No row was returned yet.
            yield from self._batches(layout, batch_rows, row_range, by_index=False)

    def group_batches(
        self,
        layout: Layout,
        batch_rows: int,
        groups: Sequence[int],
        held_bytes: int,
        *,
        rows: tuple[int, int] | None = None,
    ) -> NumberedBatches:
        self._held_bytes, footer = held_bytes, self.footer()
        if rows is None:
            yield from self._batches(layout, batch_rows, None, by_index=False, only=groups)
        else:
            yield from self._rows(layout, batch_rows, groups, rows)
        # Other row groups may be read as well.
        self._footer = footer

    def column_names(self) -> Sequence[str]:
        with reading(self.file.path, NAME):
            return list(self.footer().arrow.schema.to_arrow_schema().names)

    def _batches(
        self,
        layout: Layout,
        batch_rows: int,
        row_range: RowRange | None,
        *,
        by_index: bool,
        only: Sequence[int] | None = None,
    ) -> NumberedBatches:
        """As `batches`; `only`: the row groups to read, or None for all with rows of the range."""
        path, schema = self.file.path, layout.row_schema
        with contextlib.ExitStack() as stack:
            stack.enter_context(reading(path, NAME))
            ranged: RangedFile | None = None
            paged: Iterable[GroupPages] = ()
            if self.fetcher.is_ranged(self.file):
                fetched, self._fetched = self._fetched, None
                ranged, paged = fetched or self._fetching(
                    layout, row_range, by_index=by_index, only=only
                )
                stack.callback(ranged.close)
                stream = stack.enter_context(ranged.stream())
            else:
                stream = stack.enter_context(self.fetcher.opened(self.file))
            footer, parquet, absent = self._open(stream, layout)
            present, partition = layout.without(absent), partition_arrays(layout, absent)
            groups = _groups(footer, row_range) if only is None else only
            few = batch_rows in _FEW_ROWS and batch_rows < self.file.row_count
            is_by_pages = row_range is not None or (only is None and few)
            if ranged is None and is_by_pages and is_flat(footer, schema):
                bounds = row_range if by_index else None
                paged = checked_pages(stream, footer, groups, schema, bounds)
            elif ranged is None:
                for group in groups:
                    check_headers(Pages.of(stream), footer, group, schema)
            if paged:
                parts: _Parts = (
                    (one.group, read_runs(stream, footer, one, present, batch_rows))
                    for one in paged
                )
            else:
                # Ranges are released per row group, and rows are counted in each.
                are_one = ranged is None and only is None
                parts = _parts(parquet, groups, present, batch_rows, are_one=are_one)
            for group, batches in parts:
                before = sum(footer.arrow.row_group(place).num_rows for place in range(group))
                for number, (row, batch) in enumerate(batches):
                    check_indices(batch, present.dictionaries, path)
                    found = converted(batch, schema, path, partition)
                    begins_inside = not number and row > 0
                    if begins_inside and row_range is not None and _is_inside(found, row_range):
                        raise _WrongIndexError
                    if ranged is not None and _reaches_end(found, row_range):
                        ranged.stop(group)
                        yield before + row, found
                        return
                    yield before + row, found
                if ranged is not None:
                    ranged.finish(group)

    def _rows(
        self, layout: Layout, batch_rows: int, groups: Sequence[int], rows: tuple[int, int]
    ) -> NumberedBatches:
        """The rows with numbers in `rows` of these groups of a local file; they are in pages."""
        path, schema, footer = self.file.path, layout.row_schema, self.footer()
        with reading(path, NAME), self.fetcher.opened(self.file) as stream:
            absent = self._check(footer, layout)
            assert not absent, "files of tables with keys have all columns"
            for group in groups:
                before, end = self._rows_of(group)
                ranges = [(max(rows[0], before) - before, min(rows[1], end) - before)]
                pages = self._pages(stream, layout, group).pages
                of_group = GroupPages(group, pages, ranges)
                for row, batch in read_runs(stream, footer, of_group, layout, batch_rows):
                    check_indices(batch, layout.dictionaries, path)
                    yield before + row, converted(batch, schema, path)

    def _rows_of(self, group: int) -> tuple[int, int]:
        """The numbers of the first row of a group and of the row after its last in the file."""
        arrow = self.footer().arrow
        before = sum(arrow.row_group(place).num_rows for place in range(group))
        return before, before + arrow.row_group(group).num_rows

    def _pages(self, stream: pa.NativeFile, layout: Layout, group: int) -> _CheckedGroup:
        """The pages of a row group by all its headers, which are checked once for all its parts."""
        if self._checked is None or self._checked.group != group:
            stored, footer = Pages.of(stream), self.footer()
            pages = check_headers(stored, footer, group, layout.row_schema)
            bounds = {
                leaf: indexed_bounds(footer.chunk(group, leaf), stored.read, len(each.offsets) - 1)
                for leaf, each in pages.items()
            }
            self._checked = _CheckedGroup(group, pages, bounds)
        return self._checked

    def finder(self, layout: Layout, batch_rows: int, held_bytes: int) -> Finder:
        with reading(self.file.path, NAME):
            footer = self.footer()
            self._check(footer, layout)
            opened = OpenGroups(self.fetcher, self.file, footer, batch_rows, held_bytes)
        self._footer = None
        return ParquetFinder(opened, layout)

    def row_groups(self, column: DataField | None) -> Sequence[RowGroup]:
        footer = self.footer()
        with reading(self.file.path, NAME):
            return row_groups(footer, column)

    def row_pages(self, layout: Layout, group: int, column: DataField) -> Sequence[RowGroup]:
        footer = self.footer()
        # Only the headers of all pages show that each is right: many requests in an object store.
        if self.fetcher.is_needed or not is_flat(footer, layout.row_schema):
            return ()
        with reading(self.file.path, NAME), self.fetcher.opened(self.file) as stream:
            return row_pages(footer, group, column, Pages.of(stream).read)

    def whole(self, layout: Layout) -> WholeFile:
        """All bytes of the file; checks and errors as in `batches`."""
        path = self.file.path
        with reading(path, NAME):
            content = self.fetcher.whole(self.file)
            stream = pa.BufferReader(content)
            footer, parquet, absent = self._open(stream, layout)
            for group in range(len(footer.groups)):
                check_headers(Pages.of(stream), footer, group, layout.row_schema)
        return WholeFile(
            input=self.file,
            content=memoryview(content).cast("B"),
            footer=footer,
            parquet=parquet,
            absent=absent,
            partition=partition_arrays(layout, absent),
        )

    def group_bytes(self, layout: Layout) -> Sequence[int]:
        footer = self.footer()
        spans = [group_spans(footer, n, layout.row_names)[0] for n in range(len(footer.groups))]
        return [span.end - span.start for span in spans]

    def group(self, layout: Layout, group: int) -> WholeFile:
        """One row group as a file by itself; checks and errors as in `batches`."""
        path, whole = self.file.path, self.footer()
        with reading(path, NAME):
            absent = self._check(whole, layout)
            pages, indexes = group_spans(whole, group, layout.row_names)
            # A page at offset 0 would count as a missing one, so some bytes precede the first one.
            before = max(0, pages.start - len(MAGIC))
            if not 0 <= indexes.end - indexes.start <= _INDEX_BYTES_MAX:
                indexes = Span(0, 0)
            content, found = self._bytes([Span(before, pages.end), indexes])
            footer = group_footer(whole, group, -before)
            stream = pa.BufferReader(content)
            check_headers(Pages.of(stream), footer, 0, layout.row_schema)
            parquet = arrow_file(stream, footer, layout.without(absent))
        return WholeFile(
            input=replace(self.file, row_count=footer.arrow.num_rows),
            content=memoryview(content),
            footer=footer,
            parquet=parquet,
            absent=absent,
            partition=partition_arrays(layout, absent),
            indexes=(memoryview(found), indexes.start),
        )

    def stored_rows(self, layout: Layout, group: int, rows: tuple[int, int]) -> StoredRows:
        """The rows with these numbers of a row group that has `row_pages`; otherwise as `group`."""
        path, footer = self.file.path, self.footer()
        before, _ = self._rows_of(group)
        inside = (rows[0] - before, rows[1] - before)
        with reading(path, NAME), self.fetcher.opened(self.file) as stream:
            self._check(footer, layout)
            checked = self._pages(stream, layout, group)
            content = {
                start: stream.read_at(end - start, start)
                for each in checked.pages.values()
                for start, end in each.extents([inside])
            }
            size_bytes = stream.size()
        return StoredRows(
            input=replace(self.file, row_count=rows[1] - rows[0]),
            footer=footer,
            group=group,
            rows=inside,
            pages=checked.pages,
            bounds=checked.bounds,
            content=Spans(content, size_bytes),
            layout=layout,
        )

    def _bytes(self, spans: Sequence[Span]) -> list[bytes]:
        if not self.fetcher.is_ranged(self.file):
            with self.fetcher.opened(self.file) as stream:
                return [stream.read_at(end - start, start) for start, end in spans]
        found = [
            [
                self.fetcher.range(self.file, start, min(REQUEST_BYTES, span.end - start))
                for start in range(*span, REQUEST_BYTES)
            ]
            for span in spans
        ]
        return [b"".join(part.result() for part in parts) for parts in found]

    def check(self, layout: Layout) -> None:
        self._check(self.footer(), layout)

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
            # A file's length costs one request.
            self.fetcher.check_size(file)
            raise

    def _read_footer(self, stream: pa.NativeFile) -> Footer:
        size, path = stream.size(), self.file.path
        check_size(self.file, size)
        return read_footer(lambda start, length: stream.read_at(length, start), size, path)

    def _fetching(
        self,
        layout: Layout,
        row_range: RowRange | None,
        *,
        by_index: bool,
        only: Sequence[int] | None = None,
    ) -> _Fetched:
        """The ranges of a file that is not small; they are fetched from now on."""
        footer, schema = self.footer(), layout.row_schema
        end = self.fetcher.taken_end(self.file)
        groups = _groups(footer, row_range) if only is None else only
        paged: list[GroupPages] = []
        if by_index and row_range is not None and is_flat(footer, schema):
            most = _INDEX_BYTES_MAX
            end = with_indexes(self.fetcher, self.file, footer, end, most_bytes=most)
            paged = indexed_pages(footer, groups, schema, row_range, end)
        ranged = ranged_file(
            self.fetcher,
            self.file,
            footer,
            end,
            groups=groups,
            paged=paged,
            row_schema=schema,
            held_bytes=self._held_bytes,
        )
        return ranged, paged

    def _open(
        self, stream: pa.NativeFile, layout: Layout
    ) -> tuple[Footer, pq.ParquetFile, frozenset[str]]:
        """The footer, the open file, and the columns that are not read from it (`absent_columns`).

        Raises `FormatError` unless the file is the one that its record describes.
        """
        footer, self._footer = self._footer or self._read_footer(stream), None
        self.fetcher.release(self.file)
        check_size(self.file, stream.size())
        absent = self._check(footer, layout)
        return footer, arrow_file(stream, footer, layout.without(absent)), absent

    def _check(self, footer: Footer, layout: Layout) -> frozenset[str]:
        """Raise `FormatError` unless rows, columns and sequence numbers are as declared."""
        if footer.arrow.num_rows != self.file.row_count:
            raise FormatError(
                self.file.path,
                f"the manifest records {self.file.row_count} rows, the Parquet footer"
                f" {footer.arrow.num_rows}",
            )
        absent = absent_columns(
            layout,
            footer.arrow.schema.to_arrow_schema(),
            footer.path,
            partial(check_column, footer),
        )
        names = layout.row_names
        if SEQUENCE_NUMBER.name in names and self.file.sequence_number is None:
            self._check_sequences(footer)
        return absent

    def _check_sequences(self, footer: Footer) -> None:
        """Raise `FormatError` when rows have sequence numbers outside the manifest's range.

        Merges rely on the range: runs with disjoint ranges are merged without comparing numbers.
        """
        file = self.file
        column = footer.leaf(SEQUENCE_NUMBER.name)
        for index in range(len(footer.groups)):
            found = footer.arrow.row_group(index).column(column).statistics
            if found is None or not found.has_min_max:
                continue
            if found.min_raw < file.min_sequence_number or found.max_raw > file.max_sequence_number:
                raise FormatError(
                    file.path,
                    f"the manifest records sequence numbers {file.min_sequence_number} to"
                    f" {file.max_sequence_number}, the file has {found.min_raw} to {found.max_raw}",
                )


def _parts(
    parquet: pq.ParquetFile,
    groups: Sequence[int],
    layout: Layout,
    batch_rows: int,
    *,
    are_one: bool,
) -> _Parts:
    """The rows of row groups, together or of each by itself."""
    for part in [groups] if are_one else [[group] for group in groups]:
        if part:
            yield part[0], read_groups(parquet, part, layout, batch_rows)


def _groups(footer: Footer, row_range: RowRange | None) -> list[int]:
    if row_range is None:
        return list(range(footer.arrow.num_row_groups))
    return groups_in_range(footer, row_range)


def _is_inside(batch: pa.RecordBatch, row_range: RowRange) -> bool:
    """Whether the first row of the batch is not below the range."""
    return bool(row_range.from_lower(batch.slice(0, 1)).num_rows)


def _reaches_end(batch: pa.RecordBatch, row_range: RowRange | None) -> bool:
    """Whether the batch's last row is at or above the end of the range: no later one is in it."""
    if row_range is None or row_range.upper is None or not batch.num_rows:
        return False
    return not row_range.below_upper(batch.slice(batch.num_rows - 1)).num_rows


# Row groups that are sampled.
SAMPLE_GROUPS = 2
# A chunk is dictionary-encoded to its end if its values take less than this many bytes: indices
# take at most two and a half bytes, whereas plain values follow a full dictionary (1 MiB).
_DICTIONARY_BYTES = {"INT32": 2.5, "FLOAT": 2.5, "BYTE_ARRAY": 5.0}
_DEFAULT_DICTIONARY_BYTES = 4.0
_DICTIONARY_ENCODINGS = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}
_OFFSET_BYTES = 5
_INDEX_BYTES = 4


def profile(files: Sequence[ParquetInput], layout: Layout) -> InputProfile:
    """Profile the footers of `files` (see `InputProfile`).

    `dictionaries` are columns that are dictionary-encoded in every sampled chunk,
    `dictionary_paths` columns that are so in most of their rows. `plain_share` counts chunks
    without a dictionary of columns that are not nested.
    """
    names = frozenset(layout.row_names)
    leaves: dict[str, _Leaf] = {}
    for file in files:
        file.expect()
    for file in files:
        footer = file.footer().arrow
        for group_index in range(min(footer.num_row_groups, SAMPLE_GROUPS)):
            group = footer.row_group(group_index)
            for column_index in range(footer.num_columns):
                chunk = group.column(column_index)
                path = chunk.path_in_schema
                if top_column(path, names) is not None:
                    leaves.setdefault(path, _Leaf()).add(chunk, group.num_rows)
    binary = {field.name for field in layout.row_fields if is_binary_like(field)}
    dictionaries = frozenset(
        path for path, leaf in leaves.items() if path in binary and leaf.is_always_encoded
    )
    return InputProfile(
        dictionary_paths=tuple(path for path, leaf in leaves.items() if leaf.is_mostly_encoded),
        dictionaries=dictionaries,
        row_bytes=sum(
            _INDEX_BYTES if path in dictionaries else leaf.row_bytes
            for path, leaf in leaves.items()
        ),
        columns=max(1, len(leaves)),
        plain_share=sum(leaf.plain_bytes for path, leaf in leaves.items() if path in names)
        / max(1, sum(leaf.stored_bytes for leaf in leaves.values())),
    )


class _Leaf:
    """Sums over the sampled chunks of one leaf column."""

    __slots__ = ("_bytes", "_encoded_rows", "_rows", "_values", "plain_bytes", "stored_bytes")

    def __init__(self) -> None:
        self._rows = self._values = self._encoded_rows = 0
        self.plain_bytes = self.stored_bytes = 0
        self._bytes = 0.0

    def add(self, chunk: pq.ColumnChunkMetaData, rows: int) -> None:
        self._rows += rows
        self._values += chunk.num_values
        self.stored_bytes += chunk.total_compressed_size
        if not chunk.has_dictionary_page:
            self.plain_bytes += chunk.total_compressed_size
        encoded = _is_dictionary_encoded(chunk)
        if encoded:
            self._encoded_rows += rows
        width = _WIDTHS.get(chunk.physical_type)
        if width is not None:
            self._bytes += width * chunk.num_values
        else:
            # An encoded text is assumed to be as long as the smallest value.
            text = chunk.num_values * _typical_length(chunk) if encoded else 0
            self._bytes += max(text, chunk.total_uncompressed_size)
            self._bytes += _OFFSET_BYTES * chunk.num_values

    @property
    def is_always_encoded(self) -> bool:
        return 0 < self._rows == self._encoded_rows

    @property
    def is_mostly_encoded(self) -> bool:
        return 2 * self._encoded_rows > self._rows

    @property
    def row_bytes(self) -> float:
        return self._bytes / max(1, self._rows)


def _is_dictionary_encoded(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether the whole chunk is dictionary-encoded, and smaller for it.

    The list of encodings is not enough: a writer of Parquet format 2 lists PLAIN for the dictionary
    page, and also after falling back to plain pages.
    """
    if not _DICTIONARY_ENCODINGS.intersection(chunk.encodings):
        return False
    if "PLAIN_DICTIONARY" in chunk.encodings and "PLAIN" in chunk.encodings:
        return False
    limit = _DICTIONARY_BYTES.get(chunk.physical_type, _DEFAULT_DICTIONARY_BYTES)
    return bool(chunk.total_uncompressed_size <= limit * max(1, chunk.num_values) + 64)


def _typical_length(chunk: pq.ColumnChunkMetaData) -> int:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return 16
    low, high = statistics.min_raw, statistics.max_raw
    return max(len(low), len(high)) if isinstance(low, bytes) else 16
