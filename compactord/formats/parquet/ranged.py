"""Parquet files of object stores: which bytes are read, and checks of headers as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial

import pyarrow as pa

from compactord.formats.parquet.assembly import Location
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.headers import ChunkCheck, extent, read_leaves
from compactord.formats.parquet.page_runs import GroupPages
from compactord.formats.parquet.pages import Pages, page_locations
from compactord.formats.parquet.structs import Chunk
from compactord.model import InputFile
from compactord.storage.ranges import (
    GAP_BYTES,
    Check,
    Extent,
    Fetcher,
    FileEnd,
    Peek,
    RangedFile,
    Unchecked,
)


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
    """The end of the file from its first page index on: `end`, or more that is fetched now.

    What has more than `most_bytes` is not fetched.
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
    """A file of which these row groups and columns are read; they are fetched from now on.

    `paged`: all these groups, if they are read by pages. `row_schema`: the columns to read, as the
    table declares them. `end`: what is known of the file's end, with or without its page index.
    Raises `FormatError` when the footer places one of them outside the file.
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
            locations(each.group, each.column),
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
    """The dictionary of a column and the pages that are read, as one if that is all of it."""
    if of_group is None or of_group.pages[whole.column].has_all(of_group.ranges):
        yield whole
        return
    for start, end in of_group.pages[whole.column].extents(of_group.ranges):
        yield whole._replace(start=start, end=end)
