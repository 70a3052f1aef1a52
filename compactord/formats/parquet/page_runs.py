"""Runs of pages that are read together, from whole column chunks or parts of them.

Arrow reads a column chunk from its first page. So each run of pages is presented to Arrow as a
chunk, in a footer made for that: its row group n has the n-th run of every column. Columns whose
runs have equal row counts are decoded together. Otherwise the surplus rows of a column stay in
memory until the other columns reach them; runs share no other state. Pages without a row of the
ranges are not read.
"""

from __future__ import annotations

import bisect
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.base import NumberedBatches, reading
from compactord.formats.layout import Layout
from compactord.formats.parquet import NAME, thrift
from compactord.formats.parquet.conversion import check_indices, converted
from compactord.formats.parquet.footer import Footer, as_arrow_reads
from compactord.formats.parquet.statistics import Bounds
from compactord.formats.parquet.thrift import File, Kind, Meta
from compactord.model import InputFile
from compactord.storage.ranges import FileForArrow

# A dictionary is decoded again with each run of its column; a run has at least a row for this many
# bytes of it.
_DICTIONARY_BYTES_PER_ROW = 4
# Heads of fields: the distance from the field before, and the kind.
_I64, _LIST, _STRUCT = 1 << 4 | Kind.I64, 1 << 4 | Kind.LIST, 1 << 4 | Kind.STRUCT
_I64_AFTER_NEXT = 2 << 4 | Kind.I64
_OF_ALL_RUNS = (Meta.TYPE, Meta.ENCODINGS, Meta.PATH, Meta.CODEC)


# The first row of each range and the row after its last; they ascend, and none is empty.
RowRanges: TypeAlias = Sequence[tuple[int, int]]


class _Run(NamedTuple):
    """Pages side by side: the offsets of their ends, the first row, the number of rows."""

    start: int
    end: int
    first_row: int
    rows: int


_NO_RUN = _Run(0, 0, 0, 0)


class ColumnPages(NamedTuple):
    """The data pages of a flat column in a row group: offset and first row of each, then the ends.

    `start` is the offset of its dictionary page, or of the first data page if it has none.
    `are_sized`: the decoded sizes in all headers are known to add up to the footer's.
    """

    start: int
    offsets: Sequence[int]
    rows: Sequence[int]
    are_sized: bool = False

    @property
    def dictionary_bytes(self) -> int:
        return self.offsets[0] - self.start

    def page_of(self, row: int) -> int:
        return bisect.bisect_right(self.rows, row) - 1

    def spans(self, ranges: RowRanges) -> list[tuple[int, int]]:
        """Index ranges of the pages with these rows: first page, and the page after the last, per
        stretch.
        """
        found: list[tuple[int, int]] = []
        for start, end in ranges:
            first, last = self.page_of(start), self.page_of(end - 1) + 1
            if found and first <= found[-1][1]:
                first, _ = found.pop()
            found.append((first, last))
        return found

    def inside(self, rows: tuple[int, int]) -> tuple[int, int]:
        """The first of the pages whose rows are all among these, and the page after the last; both
        are the same if there are none.
        """
        first = bisect.bisect_left(self.rows, rows[0])
        return first, max(first, bisect.bisect_right(self.rows, rows[1]) - 1)

    def with_neighbours(self, ranges: RowRanges, from_row: int) -> list[tuple[int, int]]:
        """The rows from `from_row` on of the pages with these rows and of their neighbours."""
        end = len(self.rows) - 1
        wider = [
            (self.rows[max(0, first - 1)], self.rows[min(end, last + 1)])
            for first, last in self.spans(ranges)
        ]
        spans = self.spans(wider)
        return [(max(self.rows[first], from_row), self.rows[last]) for first, last in spans]

    def has_all(self, ranges: RowRanges) -> bool:
        """Whether all pages have one of these rows."""
        return self.spans(ranges) == [(0, len(self.rows) - 1)]

    def extents(self, ranges: RowRanges) -> list[tuple[int, int]]:
        """Start and end offsets of the bytes to read for these rows, with a dictionary by
        itself.
        """
        spans = self.spans(ranges)
        found = [(self.offsets[first], self.offsets[last]) for first, last in spans]
        return [(self.start, self.offsets[0]), *found] if self.dictionary_bytes else found


class GroupPages(NamedTuple):
    """The pages of a row group's columns that have a row of `ranges`."""

    group: int
    pages: Mapping[int, ColumnPages]
    ranges: RowRanges

    @property
    def size_bytes(self) -> int:
        """The bytes to read, with dictionaries."""
        columns = self.pages.values()
        return sum(end - start for each in columns for start, end in each.extents(self.ranges))


class _Column:
    """A column that is read. `place`: the number of its next run; `held`: rows from `row` on."""

    __slots__ = ("dictionary_bytes", "held", "name", "place", "row", "runs")

    def __init__(self, name: str, pages: ColumnPages, ranges: RowRanges, batch_rows: int) -> None:
        self.name = name
        self.dictionary_bytes = pages.dictionary_bytes
        self.place = 0
        self.held: pa.ChunkedArray | None = None
        self.row = 0
        self.runs: list[_Run] = []
        offsets, rows = pages.offsets, pages.rows
        most_rows = max(batch_rows, pages.dictionary_bytes // _DICTIONARY_BYTES_PER_ROW)
        for page, last in pages.spans(ranges):
            while page < last:
                end = bisect.bisect_right(rows, rows[page] + most_rows, page, last + 1) - 1
                end = max(page + 1, end)
                run = _Run(offsets[page], offsets[end], rows[page], rows[end] - rows[page])
                self.runs.append(run)
                page = end

    @property
    def end(self) -> int:
        """The row after the held rows."""
        return self.row + (0 if self.held is None else len(self.held))

    def run(self, place: int) -> _Run:
        return self.runs[place] if place < len(self.runs) else _NO_RUN

    def rows(self, start: int, count: int) -> pa.ChunkedArray:
        """Some of the held rows. Drops them all if these are the last."""
        assert self.held is not None, "a run was read"
        found = self.held.slice(start - self.row, count)
        if start + count == self.end:
            self.held = None
        return found


def read_runs(
    stream: pa.NativeFile | Spans,
    footer: Footer,
    of_group: GroupPages,
    layout: Layout,
    batch_rows: int,
) -> Generator[tuple[int, pa.RecordBatch], None, None]:
    """The rows of a row group in the ranges, in the layout's columns, which are flat.

    Each batch comes with the number of its first row in the group.
    """
    group, pages, ranges = of_group
    columns = {
        leaf: _Column(footer.arrow.schema.column(leaf).path, each, ranges, batch_rows)
        for leaf, each in pages.items()
    }
    parquet = pq.ParquetFile(
        _Chunks(stream, pages).stream(),
        metadata=as_arrow_reads(_footer_of_runs(footer, group, columns, stream.size())),
        read_dictionary=sorted(layout.dictionaries),
        pre_buffer=False,
        # Each chunk is read as a whole.
        buffer_size=0,
        page_checksum_verification=True,
    )
    by_name = {column.name: column for column in columns.values()}
    ordered = [by_name[name] for name in layout.row_names]
    schema = pa.schema([parquet.schema_arrow.field(column.name) for column in ordered])
    for start, end in ranges:
        row = start
        while row < end:
            _read_next(parquet, ordered, row)
            count = min(end, *(column.end for column in ordered)) - row
            arrays = [column.rows(row, count) for column in ordered]
            table = pa.Table.from_arrays(arrays, schema=schema)
            for batch in table.to_batches(max_chunksize=batch_rows):
                yield row, batch
                row += batch.num_rows


def _read_next(parquet: pq.ParquetFile, columns: Sequence[_Column], row: int) -> None:
    """Decode the next run, which has this row, of each column that does not hold it."""
    together: dict[tuple[int, int], list[_Column]] = {}
    for column in columns:
        if column.end <= row:
            together.setdefault((column.place, column.run(column.place).rows), []).append(column)
    for (place, _), found in together.items():
        names = [column.name for column in found]
        rows = parquet.read_row_group(place, columns=names, use_threads=False)
        for column in found:
            column.row = column.run(place).first_row
            column.held = rows.column(column.name)
            column.place += 1


class Spans:
    """Some bytes of a file in memory, by their offsets in the file."""

    def __init__(self, spans: Mapping[int, bytes], size_bytes: int) -> None:
        self._starts = sorted(spans)
        self._spans = [memoryview(spans[start]) for start in self._starts]
        self._size_bytes = size_bytes

    def size(self) -> int:
        """The size of the file."""
        return self._size_bytes

    def view(self, start: int, end: int) -> memoryview:
        """The bytes between two offsets, fewer if they are not all in memory."""
        place = bisect.bisect_right(self._starts, start) - 1
        if place < 0:
            return memoryview(b"")
        first = self._starts[place]
        return self._spans[place][start - first : end - first]

    def read_at(self, size: int, start: int) -> memoryview:
        """As `view`."""
        return self.view(start, start + size)


class _Chunks(FileForArrow):
    """The file as Arrow sees it: with the dictionary of a column before each of its runs.

    A virtual region per Parquet column follows the file's bytes, each as long as the file. A region
    begins with the column's dictionary; its other bytes equal the file's at the same position.
    """

    def __init__(self, stream: pa.NativeFile | Spans, pages: Mapping[int, ColumnPages]) -> None:
        self._file = stream
        self._file_bytes = stream.size()
        super().__init__(_region(max(pages) + 1, self._file_bytes))
        self._dictionaries = {
            leaf: stream.read_at(each.dictionary_bytes, each.start)
            for leaf, each in pages.items()
            if each.dictionary_bytes
        }

    def read(self, size: int = -1) -> bytes:
        region, start = divmod(self.position, self._file_bytes)
        self.position += size
        if not region:
            return bytes(self._file.read_at(size, start))
        dictionary = self._dictionaries[region - 1]
        length = len(dictionary)
        return b"".join((dictionary, self._file.read_at(size - length, start + length)))


def _region(leaf: int, file_bytes: int) -> int:
    """Offset of the region for a column with a dictionary."""
    return file_bytes * (leaf + 1)


def _footer_of_runs(
    footer: Footer, group: int, columns: Mapping[int, _Column], file_bytes: int
) -> bytes:
    """An encoded footer with the runs as chunks. By hand, as there is a chunk for each page."""
    of_file = {field: footer.declared[field] for field in (File.VERSION, File.SCHEMA)}
    out = bytearray(thrift.encode(of_file)[:-1])
    _put_number(out, _I64, 0)
    leaves = range(footer.arrow.num_columns)
    of_chunks = [
        thrift.encode({field: footer.declared_meta(group, leaf)[field] for field in _OF_ALL_RUNS})
        for leaf in leaves
    ]
    count = max(len(column.runs) for column in columns.values())
    _put_list(out, count)
    for place in range(count):
        _put_list(out, len(leaves))
        for leaf in leaves:
            # ColumnChunk: an offset that is not used, and ColumnMetaData.
            _put_number(out, _I64_AFTER_NEXT, 0)
            out.append(_STRUCT)
            out += memoryview(of_chunks[leaf])[:-1]
            column = columns.get(leaf)
            if column is None:
                _put_run(out, _NO_RUN, 0, 0)
            else:
                region = _region(leaf, file_bytes)
                _put_run(out, column.run(place), column.dictionary_bytes, region)
            out += b"\0\0"
        # Bytes, which nothing reads, and rows: a column of fewer ends with its chunk.
        _put_number(out, _I64, 0)
        _put_number(out, _I64, max(column.run(place).rows for column in columns.values()))
        out.append(0)
    out.append(0)
    return bytes(out)


def _put_run(out: bytearray, run: _Run, dictionary_bytes: int, region: int) -> None:
    """The number of values, both sizes and the offsets of ColumnMetaData."""
    size = dictionary_bytes + run.end - run.start
    _put_number(out, _I64, run.rows)
    _put_number(out, _I64, size)
    _put_number(out, _I64, size)
    _put_number(out, _I64_AFTER_NEXT, run.start + (region if dictionary_bytes else 0))
    if dictionary_bytes:
        _put_number(out, _I64_AFTER_NEXT, region + run.start - dictionary_bytes)


def _put_number(out: bytearray, head: int, number: int) -> None:
    out.append(head)
    thrift.put_signed(out, number)


def _put_list(out: bytearray, count: int) -> None:
    out.append(_LIST)
    thrift.put_list_head(out, Kind.STRUCT, count)


# Bytes per open column chunk. A larger buffer costs memory (times runs, times columns) and is not
# faster: pages are larger than the buffer and are read without it.
BUFFER_BYTES = 32 << 10
# Batch size for a file in memory.
_BATCH_ROWS = 64 << 10


def arrow_file(stream: pa.NativeFile, footer: Footer, layout: Layout) -> pq.ParquetFile:
    """The open file, whose pages are checked as they are read."""
    return pq.ParquetFile(
        stream,
        metadata=footer.arrow,
        read_dictionary=sorted(layout.dictionaries),
        pre_buffer=False,
        buffer_size=BUFFER_BYTES,
        # A rewrite would make flipped bits permanent; files by Java and by us have checksums.
        page_checksum_verification=True,
    )


def read_groups(
    parquet: pq.ParquetFile, groups: Sequence[int], layout: Layout, batch_rows: int
) -> NumberedBatches:
    """All rows of row groups, counted from 0."""
    row = 0
    for batch in parquet.iter_batches(
        batch_size=batch_rows,
        row_groups=groups,
        columns=list(layout.row_names),
        use_threads=False,
    ):
        yield row, batch
        row += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeFile:
    """A small file in memory. `parquet` reads from `content` and verifies checksums.

    `absent` columns are null, or have the one value that `partition` has for them. `indexes`: the
    bytes of the column indexes and their offset, if the file is a single row group of a larger one.
    """

    input: InputFile
    content: memoryview
    footer: Footer
    parquet: pq.ParquetFile
    absent: frozenset[str] = frozenset()
    partition: Mapping[str, pa.Array] = field(default_factory=dict)
    indexes: tuple[memoryview, int] | None = None

    def index_bytes(self, start: int, size: int) -> memoryview:
        """The bytes of a column index, fewer if they are not in memory."""
        content, begin = self.indexes or (self.content, 0)
        return content[max(0, start - begin) : max(0, start - begin + size)]

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of these columns. Raises `FormatError` as `OpenFile.batches` does."""
        path, rows = self.input.path, 0
        present = [each for each in schema if each.name not in self.absent]
        names = [each.name for each in present]
        dictionaries = [each.name for each in present if pa.types.is_dictionary(each.type)]
        with reading(path, NAME):
            for batch in self.parquet.iter_batches(
                batch_size=_BATCH_ROWS, columns=names, use_threads=False
            ):
                rows += batch.num_rows
                check_indices(batch, dictionaries, path)
                yield converted(batch, schema, path, self.partition)
        self.input.check_rows(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Some rows of a row group in memory, to be copied or decoded: the pages that have them.

    `rows` are the numbers in the group of the first row and of the row after the last. `pages` has
    all pages of the group, with checked headers; checksums are verified when bytes are used.
    `bounds` are from the column indexes, for all pages; None without a usable index.
    """

    input: InputFile
    footer: Footer
    group: int
    rows: tuple[int, int]
    pages: Mapping[int, ColumnPages]
    bounds: Mapping[int, Sequence[Bounds] | None]
    content: Spans
    layout: Layout

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows in these columns. Raises `FormatError` as `OpenFile.batches` does."""
        return self.rows_of(schema, [self.rows])

    def rows_of(self, schema: pa.Schema, ranges: RowRanges) -> Iterator[pa.RecordBatch]:
        """Some of the rows; otherwise as `batches`."""
        path = self.input.path
        layout = self.layout.without(set(self.layout.row_names).difference(schema.names))
        leaves = [self.footer.leaf(name) for name in schema.names]
        pages = {leaf: self.pages[leaf] for leaf in leaves}
        of_group = GroupPages(self.group, pages, ranges)
        with reading(path, NAME):
            for _, batch in read_runs(self.content, self.footer, of_group, layout, _BATCH_ROWS):
                check_indices(batch, layout.dictionaries, path)
                yield converted(batch, schema, path)
