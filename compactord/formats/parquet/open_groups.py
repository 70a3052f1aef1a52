"""An open file of which ranges of rows are read, row group by row group.

Pages are checked as in other reads: all headers of a local row group before its first row, those of
an object store as they arrive, against the page index. Checksums are verified.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pyarrow as pa

from compactord.formats.base import NumberedBatches, reading
from compactord.formats.layout import Layout
from compactord.formats.parquet import NAME
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.conversion import check_indices, converted
from compactord.formats.parquet.group_pages import is_flat, pages_by_index
from compactord.formats.parquet.headers import check_headers
from compactord.formats.parquet.page_runs import ColumnPages, GroupPages, read_runs
from compactord.formats.parquet.pages import Pages
from compactord.formats.parquet.ranged import extents, ranged_file, with_indexes
from compactord.formats.parquet.whole import arrow_file, read_groups
from compactord.model import InputFile
from compactord.storage.fetching import Fetcher, FileEnd

# Bytes that nobody needs between two ranges are fetched rather than asking twice.
_GAP_BYTES = 256 << 10


class OpenGroups:
    """A file with a checked footer. `read_bytes`: bytes of pages that were fetched or decoded.

    `held_bytes`: how many fetched bytes may be in memory at once.
    """

    def __init__(
        self, fetcher: Fetcher, file: InputFile, footer: Footer, batch_rows: int, held_bytes: int
    ) -> None:
        self.file = file
        self.footer = footer
        self.read_bytes = 0.0
        self._fetcher = fetcher
        self._batch_rows = batch_rows
        self._held_bytes = held_bytes
        self._opened = contextlib.ExitStack()
        self._stream: pa.NativeFile | None = None
        self._end = FileEnd(file.size_bytes, b"")
        if fetcher.is_ranged(file):
            self._end = with_indexes(fetcher, file, footer, fetcher.end(file))
        else:
            self._stream = self._opened.enter_context(fetcher.opened(file))
        fetcher.release(file)

    def read_index(self, start: int, size: int) -> bytes | memoryview | None:
        """Bytes of a page index; None if they were not fetched."""
        if self._stream is None:
            return self._end.read(start, size)
        return bytes(self._stream.read_at(size, start))

    def pages(self, group: int, schema: pa.Schema) -> Mapping[int, ColumnPages]:
        """The pages of these columns; none if the group can only be read as a whole."""
        flat = is_flat(self.footer, schema)
        if self._stream is None:
            return pages_by_index(self.footer, group, schema, self._end) if flat else {}
        pages = Pages.of(self._stream)
        found = check_headers(pages, self.footer, group, schema)
        return found if flat else {}

    def rows(self, of_group: GroupPages, layout: Layout) -> NumberedBatches:
        """The rows of the ranges; all rows of the group if its pages are not known.

        Batches come with the numbers of their first rows in the group.
        """
        for part in self._parts(of_group):
            yield from self._rows(part, layout)

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def _parts(self, whole: GroupPages) -> Iterator[GroupPages]:
        """As many ranges at once as may be in memory: all are asked for together."""
        if not whole.ranges:
            return
        if self._stream is not None or not whole.pages:
            yield whole
            return
        part, size = whole._replace(ranges=[]), 0
        for each in whole.ranges:
            one = whole._replace(ranges=[each])
            size += one.size_bytes
            if part.ranges and size > self._held_bytes:
                yield part
                part, size = one, one.size_bytes
            else:
                part = part._replace(ranges=[*part.ranges, each])
        yield part

    def _rows(self, of_group: GroupPages, layout: Layout) -> NumberedBatches:
        path, footer, group = self.file.path, self.footer, of_group.group
        with reading(path, NAME), contextlib.ExitStack() as stack:
            stream, ranged = self._stream, None
            if stream is None:
                ranged = ranged_file(
                    self._fetcher,
                    self.file,
                    footer,
                    self._end,
                    groups=[group],
                    paged=[of_group] if of_group.pages else (),
                    row_schema=layout.row_schema,
                    held_bytes=self._held_bytes,
                    gap_bytes=_GAP_BYTES,
                )
                stack.callback(ranged.close)
                stream = stack.enter_context(ranged.stream())
            rows = footer.arrow.row_group(group).num_rows
            size = sum(each.size for each in extents(footer, [group], layout.row_names))
            if of_group.pages:
                rows = sum(end - start for start, end in of_group.ranges)
                size = of_group.size_bytes
                batches = read_runs(stream, footer, of_group, layout, self._batch_rows)
            else:
                parquet = arrow_file(stream, footer, layout)
                batches = read_groups(parquet, [group], layout, self._batch_rows)
            try:
                for row, batch in batches:
                    check_indices(batch, layout.dictionaries, path)
                    if ranged is None:
                        self.read_bytes += size * batch.num_rows / rows
                    yield row, converted(batch, layout.row_schema, path)
            except GeneratorExit:
                if ranged is not None:
                    ranged.stop(group)
                raise
            finally:
                if ranged is not None:
                    self.read_bytes += ranged.fetched_bytes
            if ranged is not None:
                ranged.finish(group)
