"""Parquet files of object stores: which bytes are read, and checks of headers as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa

from compactord.errors import (
    AccessDenied,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.formats.fetching import Fetcher, FileEnd
from compactord.formats.parquet.checked_footer import Footer, read_footer
from compactord.formats.parquet.headers import ChunkCheck, extent, read_leaves
from compactord.formats.parquet.page_headers import Pages
from compactord.formats.parquet.pages import page_locations
from compactord.formats.parquet.structs import Chunk
from compactord.formats.ranges import Extent, RangedFile
from compactord.model import InputFile


def extents(footer: Footer, groups: Iterable[int], names: Iterable[str]) -> list[Extent]:
    """The column chunks of these row groups and row columns; none of groups without rows."""
    leaves = read_leaves(footer, names)
    return [
        Extent(group, leaf, *extent(footer.chunk(group, leaf)[Chunk.META].value))
        for group in groups
        if footer.arrow.row_group(group).num_rows
        for leaf in leaves
    ]


def fetched_footer(fetcher: Fetcher, file: InputFile) -> Footer:
    """The footer of a file of an object store, mostly from one request.

    Raises `FormatError`, which says so if the file's size is not that in the manifest.
    """
    try:
        end = fetcher.end(file)

        def read(start: int, size: int) -> bytes | memoryview:
            known = end.read(start, size)
            return fetcher.range(file, start, size).result() if known is None else known

        return read_footer(read, file.size_bytes, file.path)
    except (ObjectNotFound, AccessDenied, TransientStorageError):
        raise
    except (FormatError, StorageError):
        # The store says how long a file is only if it is asked.
        fetcher.check_size(file)
        raise


class RangedParquet:
    """The ranges of one file that are read; they are fetched from now on.

    `row_schema`: the columns to read, as the table declares them. `end`: what is known of the
    file's end, with or without its page index. Raises `FormatError` when the
    footer places one of them outside the file.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        file: InputFile,
        footer: Footer,
        end: FileEnd,
        *,
        groups: Sequence[int],
        row_schema: pa.Schema,
        held_bytes: int,
    ) -> None:
        wanted = extents(footer, groups, row_schema.names)
        self._checks: dict[Extent, ChunkCheck] = {}
        for each in wanted:
            pages = Pages(partial(self._peek, each), file.size_bytes)
            locations = page_locations(footer.chunk(each.group, each.leaf), end.read)
            check = ChunkCheck(
                pages, footer, each.group, each.leaf, row_schema, file.path, locations
            )
            check.require_inside()
            self._checks[each] = check
        self.ranges = RangedFile(
            partial(fetcher.range, file),
            wanted,
            self._check,
            size_bytes=file.size_bytes,
            held_bytes=held_bytes,
        )

    def stream(self) -> pa.PythonFile:
        """The file for Arrow."""
        return pa.PythonFile(self.ranges, mode="r")

    def finish(self, group: int) -> None:
        """The rows of a group were read: check the headers that Arrow did not need."""
        for each in self._of(group):
            if not each.size:
                self._checks[each].advance(each.end)
        self.ranges.finish(self._of(group))

    def stop(self, group: int) -> None:
        """No more rows will be read of this group, nor of others: check those that were read."""
        self.ranges.stop()
        self.ranges.finish(each for each in self._of(group) if not self._checks[each].is_proved)

    def _of(self, group: int) -> list[Extent]:
        return [each for each in self._checks if each.group == group]

    def close(self) -> None:
        """Make no more requests."""
        self.ranges.close()

    def _check(self, chunk: Extent, limit: int) -> None:
        self._checks[chunk].advance(limit)

    def _peek(self, chunk: Extent, start: int, size: int) -> bytes:
        return self.ranges.peek(chunk, start, size)
