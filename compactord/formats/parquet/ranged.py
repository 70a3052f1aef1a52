"""Parquet files of object stores: which bytes are read, and checks of headers as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa

from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.headers import ChunkCheck, extent, read_leaves
from compactord.formats.parquet.page_headers import Pages
from compactord.formats.parquet.pages import page_locations
from compactord.formats.parquet.structs import Chunk
from compactord.model import InputFile
from compactord.storage.fetching import Fetcher, FileEnd
from compactord.storage.ranges import Extent, Peek, RangedFile


def extents(footer: Footer, groups: Iterable[int], names: Iterable[str]) -> list[Extent]:
    """The column chunks of these row groups and row columns; none of groups without rows."""
    leaves = read_leaves(footer, names)
    return [
        Extent(group, leaf, *extent(footer.chunk(group, leaf)[Chunk.META].value))
        for group in groups
        if footer.arrow.row_group(group).num_rows
        for leaf in leaves
    ]


def ranged_file(
    fetcher: Fetcher,
    file: InputFile,
    footer: Footer,
    end: FileEnd,
    *,
    groups: Sequence[int],
    row_schema: pa.Schema,
    held_bytes: int,
) -> RangedFile:
    """A file of which these row groups and columns are read; they are fetched from now on.

    `row_schema`: the columns to read, as the table declares them. `end`: what is known of the
    file's end, with or without its page index. Raises `FormatError` when the footer places one of
    them outside the file.
    """

    def check_of(each: Extent, peek: Peek) -> ChunkCheck:
        pages = Pages(peek, file.size_bytes)
        locations = page_locations(footer.chunk(each.group, each.column), end.read)
        check = ChunkCheck(pages, footer, each.group, each.column, row_schema, file.path, locations)
        check.require_inside()
        return check

    return RangedFile(
        partial(fetcher.range, file),
        extents(footer, groups, row_schema.names),
        check_of,
        size_bytes=file.size_bytes,
        held_bytes=held_bytes,
    )
