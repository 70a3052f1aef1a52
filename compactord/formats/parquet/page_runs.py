"""Reads a row group by runs of whole pages, from any row on.

Arrow reads a column chunk from its first page. So each run of pages is shown to it as a chunk of
its own, in a footer made for that: its row group n has the n-th run of every column. Columns whose
pages have the same rows are decoded together. Where they differ, what a column has beyond the
others stays in memory until they have come as far. Nothing else is kept from run to run.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet import thrift
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.structs import File, Meta
from compactord.formats.parquet.tail import as_arrow_reads
from compactord.formats.parquet.thrift import Kind

# A dictionary is decoded with each run of its column, which has a row for so many of its bytes.
_DICTIONARY_BYTES_PER_ROW = 4
# Heads of fields: the distance from the field before, and the kind.
_I64, _LIST, _STRUCT = 1 << 4 | Kind.I64, 1 << 4 | Kind.LIST, 1 << 4 | Kind.STRUCT
_I64_AFTER_NEXT = 2 << 4 | Kind.I64
_OF_ALL_RUNS = (Meta.TYPE, Meta.ENCODINGS, Meta.PATH, Meta.CODEC)


class ColumnPages(NamedTuple):
    """The data pages of a flat column in a row group: offset and first row of each, then the ends.

    `start` is the offset of its dictionary page, or of the first data page if it has none.
    """

    start: int
    offsets: Sequence[int]
    rows: Sequence[int]

    @property
    def dictionary_bytes(self) -> int:
        return self.offsets[0] - self.start

    def page_of(self, row: int) -> int:
        """The page with this row."""
        return bisect.bisect_right(self.rows, row) - 1

    def runs(self, row: int, most_rows: int) -> list[int]:
        """The first pages of the runs from the page with this row on, and the end of the last run.

        A run has at most `most_rows` rows unless it is one page, or the dictionary is large.
        """
        most_rows = max(most_rows, self.dictionary_bytes // _DICTIONARY_BYTES_PER_ROW)
        page, end = self.page_of(row), len(self.rows) - 1
        found = [page]
        while page < end:
            reached = bisect.bisect_right(self.rows, self.rows[page] + most_rows) - 1
            page = max(page + 1, reached)
            found.append(page)
        return found


class GroupPages(NamedTuple):
    """The pages of columns that are read of a row group, from the one with `row` on."""

    group: int
    pages: Mapping[int, ColumnPages]
    row: int


class _Column:
    """A column that is read. `place`: the number of its next run; `held`: rows decoded so far."""

    __slots__ = ("held", "name", "pages", "place", "runs")

    def __init__(self, name: str, pages: ColumnPages, row: int, most_rows: int) -> None:
        self.name = name
        self.pages = pages
        self.runs = pages.runs(row, most_rows)
        self.place = 0
        self.held: pa.ChunkedArray | None = None

    def run(self, place: int) -> tuple[int, int, int] | None:
        """The offsets at both ends of a run, and its rows; None if there are not so many runs."""
        if place + 1 >= len(self.runs):
            return None
        first, end = self.runs[place : place + 2]
        offsets, rows = self.pages.offsets, self.pages.rows
        return offsets[first], offsets[end], rows[end] - rows[first]

    def take(self, rows: pa.ChunkedArray, row: int) -> None:
        """Hold the rows of the next run from `row` on."""
        self.held = rows.slice(max(0, row - self.pages.rows[self.runs[self.place]]))
        self.place += 1

    def cut(self, count: int) -> pa.ChunkedArray:
        """Remove and return the first rows that are held."""
        assert self.held is not None, "a run was read"
        found, left = self.held.slice(0, count), self.held.slice(count)
        self.held = left if len(left) else None
        return found


def read_runs(
    stream: pa.NativeFile,
    footer: Footer,
    of_group: GroupPages,
    *,
    names: Sequence[str],
    dictionaries: Collection[str],
    batch_rows: int,
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a row group, `batch_rows` at most in a batch.

    `of_group` has the pages of the columns `names`, which are not nested.
    """
    group, pages, row = of_group
    columns = {
        leaf: _Column(footer.arrow.schema.column(leaf).path, each, row, batch_rows)
        for leaf, each in pages.items()
    }
    parquet = pq.ParquetFile(
        pa.PythonFile(_Chunks(stream, pages), mode="r"),
        metadata=as_arrow_reads(_footer_of_runs(footer, group, columns, stream.size())),
        read_dictionary=sorted(dictionaries),
        pre_buffer=False,
        # Each chunk is read as a whole.
        buffer_size=0,
        page_checksum_verification=True,
    )
    by_name = {column.name: column for column in columns.values()}
    ordered = [by_name[name] for name in names]
    schema = pa.schema([parquet.schema_arrow.field(name) for name in names])
    end = footer.arrow.row_group(group).num_rows
    while row < end:
        _read_next(parquet, ordered, row)
        count = min(len(column.held or ()) for column in ordered)
        table = pa.Table.from_arrays([column.cut(count) for column in ordered], schema=schema)
        yield from table.to_batches(max_chunksize=batch_rows)
        row += count


def _read_next(parquet: pq.ParquetFile, columns: Sequence[_Column], row: int) -> None:
    """Decode the next run of each column that holds no row."""
    together: dict[tuple[int, int], list[_Column]] = {}
    for column in columns:
        if column.held is None:
            run = column.run(column.place)
            assert run is not None, "the pages of a column have all its rows"
            together.setdefault((column.place, run[2]), []).append(column)
    for (place, _), found in together.items():
        names = [column.name for column in found]
        rows = parquet.read_row_group(place, columns=names, use_threads=False)
        for column in found:
            column.take(rows.column(column.name), row)


class _Chunks:
    """The file as Arrow sees it: with the dictionary of a column before each of its runs.

    After the bytes of the file come as many for each Parquet column. What is read there begins with
    the column's dictionary; the rest is from the same place of the file.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile, pages: Mapping[int, ColumnPages]) -> None:
        self._stream = stream
        self._size_bytes = size_bytes = stream.size()
        self._dictionaries = {
            leaf: stream.read_at(each.dictionary_bytes, each.start)
            for leaf, each in pages.items()
            if each.dictionary_bytes
        }
        self._end = _region(max(pages) + 1, size_bytes)
        self._position = 0

    def read(self, size: int) -> bytes:
        region, start = divmod(self._position, self._size_bytes)
        self._position += size
        if not region:
            return bytes(self._stream.read_at(size, start))
        dictionary = self._dictionaries[region - 1]
        length = len(dictionary)
        return b"".join((dictionary, self._stream.read_at(size - length, start + length)))

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}
        self._position = base[whence] + position
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


def _region(leaf: int, size_bytes: int) -> int:
    """Where the bytes begin that Arrow sees of a column with a dictionary."""
    return size_bytes * (leaf + 1)


def _footer_of_runs(
    footer: Footer, group: int, columns: Mapping[int, _Column], size_bytes: int
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
    count = max(len(column.runs) for column in columns.values()) - 1
    _put_list(out, count)
    for place in range(count):
        most_rows = 0
        _put_list(out, len(leaves))
        for leaf in leaves:
            column = columns.get(leaf)
            # ColumnChunk: an offset that is not used, and ColumnMetaData.
            _put_number(out, _I64_AFTER_NEXT, 0)
            out.append(_STRUCT)
            out += memoryview(of_chunks[leaf])[:-1]
            run = (None if column is None else column.run(place)) or (0, 0, 0)
            dictionary_bytes = 0 if column is None else column.pages.dictionary_bytes
            _put_run(out, run, dictionary_bytes, _region(leaf, size_bytes))
            out += b"\0\0"
            most_rows = max(most_rows, run[2])
        # Bytes, which nothing reads, and rows: a column of fewer ends with its chunk.
        _put_number(out, _I64, 0)
        _put_number(out, _I64, most_rows)
        out.append(0)
    out.append(0)
    return bytes(out)


def _put_run(out: bytearray, run: tuple[int, int, int], dictionary_bytes: int, region: int) -> None:
    """The number of values, both sizes and the offsets of ColumnMetaData."""
    start, end, rows = run
    size = dictionary_bytes + end - start
    _put_number(out, _I64, rows)
    _put_number(out, _I64, size)
    _put_number(out, _I64, size)
    _put_number(out, _I64_AFTER_NEXT, start + region if dictionary_bytes else start)
    if dictionary_bytes:
        _put_number(out, _I64_AFTER_NEXT, start + region - dictionary_bytes)


def _put_number(out: bytearray, head: int, number: int) -> None:
    out.append(head)
    thrift.put_signed(out, number)


def _put_list(out: bytearray, count: int) -> None:
    out.append(_LIST)
    thrift.put_list_head(out, Kind.STRUCT, count)
