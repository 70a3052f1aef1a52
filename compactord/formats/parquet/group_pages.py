"""The pages of one row group, found from its offsets or by ranges.

A part of a large merge begins at the page of keys that can hold its first key: the last page whose
smallest key, by the column index, is below the range. Each other column begins at its page with the
same row. The reader verifies this with the first key that it decodes: it must be below the range,
so that all earlier keys are too. If it is not, the index is wrong, and the row group is read from
its start. So are files without index and keys without usable bounds.

The rows of pages come from their headers. In an object store only the headers of the fetched pages
arrive, so the rows come from the page index and are compared with the headers later.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import pyarrow as pa

from compactord.formats.base import RowGroup
from compactord.formats.layout import RowRange
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import Location, moved
from compactord.formats.parquet.footer import Footer, as_arrow_reads
from compactord.formats.parquet.page_runs import ColumnPages, GroupPages, RowRanges
from compactord.formats.parquet.pages import (
    ChunkCheck,
    Pages,
    check_headers,
    extent,
    has_one_encoding,
    page_locations,
    read_leaves,
)
from compactord.formats.parquet.statistics import (
    ReadIndex,
    bound_order,
    indexed_bounds,
    is_stored_as,
)
from compactord.formats.parquet.thrift import Chunk, File, Group, Kind, Meta, Struct
from compactord.kernels.keys import BatchKeys
from compactord.model import InputFile
from compactord.paimon.types import AtomicType, DataField
from compactord.storage.ranges import (
    GAP_BYTES,
    Check,
    Extent,
    Fetcher,
    FileEnd,
    Peek,
    RangedFile,
    Span,
    Unchecked,
)

_PAGES_AT = (Meta.DATA_AT, Meta.DICTIONARY_AT)
_COLUMN_INDEX = {Chunk.COLUMN_INDEX_AT, Chunk.COLUMN_INDEX_LENGTH}


def is_flat(footer: Footer, schema: pa.Schema) -> bool:
    """Whether each row column is one Parquet column, with a value for each row."""
    columns = [footer.arrow.schema.column(leaf) for leaf in read_leaves(footer, schema.names)]
    return all(c.path in schema.names and not c.max_repetition_level for c in columns)


def checked_pages(
    stream: pa.NativeFile,
    footer: Footer,
    groups: Sequence[int],
    schema: pa.Schema,
    bounds: RowRange | None,
) -> Iterator[GroupPages]:
    """The pages of these groups of a flat file, by all page headers, which are checked.

    Without `bounds`, from the first page on. Raises `FormatError`.
    """

    stored = Pages.of(stream)
    for place, group in enumerate(groups):
        pages = check_headers(stored, footer, group, schema)
        if pages:
            inside = bounds is not None and not place
            row = _first_row(footer, group, pages, bounds, stored.read) if inside else 0
            yield GroupPages(group, pages, [(row, footer.arrow.row_group(group).num_rows)])


def indexed_pages(
    footer: Footer, groups: Sequence[int], schema: pa.Schema, bounds: RowRange, end: FileEnd
) -> list[GroupPages]:
    """The pages of these groups of a flat file, by the page indexes at its end; none if unknown."""
    found = []
    for place, group in enumerate(groups):
        rows = footer.arrow.row_group(group).num_rows
        if rows:
            pages = pages_by_index(footer, group, schema, end)
            if not pages:
                return []
            row = 0 if place else _first_row(footer, group, pages, bounds, end.read)
            found.append(GroupPages(group, pages, [(row, rows)]))
    return found


def pages_by_index(
    footer: Footer, group: int, schema: pa.Schema, end: FileEnd
) -> dict[int, ColumnPages]:
    """The pages; empty unless they are adjacent up to their chunk's end and have one encoding.

    With several encodings, reading a part of the pages does not show how many pages have each.
    """
    rows = footer.arrow.row_group(group).num_rows
    found = {}
    for leaf in read_leaves(footer, schema.names):
        chunk = footer.chunk(group, leaf)
        meta = chunk[Chunk.META].value
        start, chunk_end = extent(meta)
        locations = page_locations(chunk, end.read)
        offsets = [*(each.offset for each in locations), chunk_end]
        first_rows = [*(each.first_row for each in locations), rows]
        if (
            not locations
            or offsets[0] < start
            or first_rows[0]
            or [each.offset + each.size for each in locations] != offsets[1:]
            or any(row >= following for row, following in itertools.pairwise(first_rows))
            or not has_one_encoding(meta)
        ):
            return {}
        found[leaf] = ColumnPages(start, offsets, first_rows)
    return found


def _first_row(
    footer: Footer,
    group: int,
    pages: Mapping[int, ColumnPages],
    bounds: RowRange | None,
    read: ReadIndex,
) -> int:
    """The first row of the page of keys to begin with; 0 if bounds of pages are not known."""
    if bounds is None or bounds.first_lower is None:
        return 0
    name = bounds.key_columns[0]
    count = len(pages[footer.leaf(name)].offsets) - 1
    found = page_bounds(footer, group, name, count, type_=bounds.first_type, read=read)
    page = bisect.bisect_left(found, bounds.first_lower, key=lambda each: each[0])
    return pages[footer.leaf(name)].rows[max(0, page - 1)]


def page_bounds(
    footer: Footer,
    group: int,
    name: str,
    count: int,
    *,
    type_: AtomicType,
    read: ReadIndex,
) -> list[tuple[Any, Any]]:
    """The bounds of a column in each of its `count` pages, as `value_order` has them; none if
    unknown.
    """
    if not is_stored_as(footer, name, type_):
        return []
    leaf = footer.leaf(name)
    physical = footer.arrow.schema.column(leaf).physical_type
    found = []
    for each in indexed_bounds(footer.chunk(group, leaf), read, count) or ():
        if each.low is None or each.high is None:
            return []
        low, high = (bound_order(bound, physical, type_) for bound in (each.low, each.high))
        found.append((low, high))
    return found


def row_pages(footer: Footer, group: int, column: DataField, read: ReadIndex) -> list[RowGroup]:
    """The rows and bounds of a column's pages by its page index; none if unknown."""
    assert isinstance(column.type, AtomicType), "keys are not nested"
    locations = page_locations(footer.chunk(group, footer.leaf(column.name)), read)
    rows = [*(each.first_row for each in locations), footer.arrow.row_group(group).num_rows]
    counts = [end - start for start, end in itertools.pairwise(rows)]
    if rows[0] or min(counts, default=0) < 1:
        return []
    type_, count = column.type, len(locations)
    bounds = page_bounds(footer, group, column.name, count, type_=type_, read=read)
    return list(map(RowGroup, counts, bounds))


def ranges_with(
    firsts: BatchKeys, bounds: Sequence[tuple[Any, Any]], pages: ColumnPages, from_row: int
) -> list[tuple[int, int]]:
    """The rows from `from_row` on of the pages that may have some keys.

    `firsts`: the first columns of the keys, `bounds`: the bounds of each page. For a key between
    two pages both are included, because their rows show that it is absent.
    """
    begin = bisect.bisect_left(bounds, firsts[0], key=lambda each: (each[1],))
    chosen: list[int] = []
    below = up_to = 0
    for page in range(max(begin, pages.page_of(from_row)), len(bounds)):
        low, high = bounds[page]
        below = firsts.count_below((low,), below)
        if below > up_to:
            chosen += (page - 1, page)
        if below == firsts.row_count:
            break
        last = firsts.count_up_to((high,), below)
        if last > below:
            chosen.append(page)
        up_to = max(up_to, last)
    else:
        if up_to < firsts.row_count:
            chosen.append(len(bounds) - 1)
    found = [
        (max(pages.rows[n], from_row), pages.rows[n + 1]) for n in dict.fromkeys(chosen) if n >= 0
    ]
    return joined([each for each in found if each[0] < each[1]])


def joined(ranges: RowRanges) -> list[tuple[int, int]]:
    """The same rows, without ranges side by side."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        if found and start == found[-1][1]:
            start, _ = found.pop()
        found.append((start, end))
    return found


def extents(footer: Footer, groups: Iterable[int], names: Iterable[str]) -> list[Extent]:
    """The column chunks of these row groups and row columns; none of groups without rows."""
    leaves = read_leaves(footer, names)
    return [
        Extent(group, leaf, *extent(footer.chunk(group, leaf)[Chunk.META].value))
        for group in groups
        if footer.arrow.row_group(group).num_rows
        for leaf in leaves
    ]


def with_indexes(
    fetcher: Fetcher, file: InputFile, footer: Footer, end: FileEnd, *, most_bytes: int
) -> FileEnd:
    """The end of the file from its first page index on: `end`, or more bytes, fetched now.

    At most `most_bytes` are fetched.
    """
    starts = [
        chunk[at].value
        for group in range(len(footer.groups))
        for leaf in range(footer.arrow.num_columns)
        for at in (Chunk.COLUMN_INDEX_AT, Chunk.OFFSET_INDEX_AT)
        if at in (chunk := footer.chunk(group, leaf))
    ]
    size = file.size_bytes - min(starts, default=file.size_bytes)
    start = file.size_bytes - size
    if end.read(start, size) is None and 0 < size <= most_bytes:
        return FileEnd(start, fetcher.range(file, start, size).result())
    return end


def ranged_file(
    fetcher: Fetcher,
    file: InputFile,
    footer: Footer,
    end: FileEnd,
    *,
    groups: Sequence[int],
    paged: Sequence[GroupPages],
    row_schema: pa.Schema,
    held_bytes: int,
    gap_bytes: int = GAP_BYTES,
) -> RangedFile:
    """A file whose chunks in these row groups and columns are fetched from now on.

    `paged`: all these groups, if they are read by pages. `row_schema`: the columns to read, as the
    table declares them. `end`: the known bytes of the file's end, with or without its page index.
    Raises `FormatError` if the footer places a chunk outside the file.
    """
    by_group = {each.group: each for each in paged}

    @cache
    def locations(group: int, leaf: int) -> Sequence[Location]:
        return page_locations(footer.chunk(group, leaf), end.read)

    def check_of(each: Extent, peek: Peek) -> Check:
        of_group = by_group.get(each.group)
        if of_group is not None and each.end == of_group.pages[each.column].offsets[0]:
            return Unchecked(each, peek)
        check = ChunkCheck(
            Pages(peek, file.size_bytes),
            footer,
            each.group,
            each.column,
            row_schema,
            locations=locations(each.group, each.column),
            begin=each.start,
            needs_index=of_group is not None,
        )
        check.require_inside()
        return check

    return RangedFile(
        partial(fetcher.range, file),
        [
            part
            for whole in extents(footer, groups, row_schema.names)
            for part in _pages_of(whole, by_group.get(whole.group))
        ],
        check_of,
        size_bytes=file.size_bytes,
        held_bytes=held_bytes,
        gap_bytes=gap_bytes,
    )


def _pages_of(whole: Extent, of_group: GroupPages | None) -> Iterator[Extent]:
    """The dictionary of a column and the pages to read, as one extent if these are the whole
    chunk.
    """
    if of_group is None or of_group.pages[whole.column].has_all(of_group.ranges):
        yield whole
        return
    for start, end in of_group.pages[whole.column].extents(of_group.ranges):
        yield whole._replace(start=start, end=end)


def group_footer(footer: Footer, group: int, distance: int) -> Footer:
    """The footer of a file that has this row group only, its pages moved by `distance` bytes."""

    def moved_group(stored: Struct) -> Struct:
        chunks = [
            {
                **chunk,
                Chunk.META: thrift.struct(moved(chunk[Chunk.META].value, distance, *_PAGES_AT)),
            }
            for chunk in stored[Group.COLUMNS].value.values
        ]
        return {**stored, Group.COLUMNS: thrift.items(Kind.STRUCT, chunks)}

    seen = moved_group(footer.declared[File.GROUPS].value.values[group])
    declared = {
        **footer.declared,
        File.ROWS: seen[Group.ROWS],
        File.GROUPS: thrift.items(Kind.STRUCT, [seen]),
    }
    arrow = as_arrow_reads(thrift.encode(declared))
    return Footer(arrow, [moved_group(footer.groups[group])], declared, footer.path)


def group_spans(footer: Footer, group: int, names: Iterable[str]) -> tuple[Span, Span]:
    """Where the pages of these row columns are, and their column indexes."""
    pages = extents(footer, [group], names)
    indexes = [
        (
            start := chunk[Chunk.COLUMN_INDEX_AT].value,
            start + chunk[Chunk.COLUMN_INDEX_LENGTH].value,
        )
        for each in pages
        if (chunk := footer.chunk(group, each.column)).keys() >= _COLUMN_INDEX
    ]
    return _around((each.start, each.end) for each in pages), _around(indexes)


def _around(spans: Iterable[tuple[int, int]]) -> Span:
    starts, ends = zip(*spans, strict=True) if (spans := list(spans)) else ((0,), (0,))
    return Span(min(starts), max(ends))
