"""Finds rows by their keys with as few pages as possible.

The statistics of a row group bound its keys; they are trusted, as in the parts of a large merge.
The column index bounds the keys of each page. No checksum covers it, so it is trusted only if the
decoded keys confirm it (`SortedRows`): each wanted key is either below or above all skipped rows.
Otherwise the row group is read without it.

Key columns are decoded first, then all columns of the pages with a hit. If recent hits show that
most bytes would be read anyway, all columns are read at once, as in a merge. A layout of only key
columns needs no second read.

Pages are checked as in other reads: in a local file all headers of a row group before its first
row, in an object store each header as it arrives, against the page index. Checksums are verified.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.formats.base import NumberedBatches, reading
from compactord.formats.finding import Finder, Hits, SkippedError, SortedRows, list_of
from compactord.formats.layout import Layout
from compactord.formats.parquet import NAME
from compactord.formats.parquet.conversion import check_indices, converted
from compactord.formats.parquet.footer import Footer
from compactord.formats.parquet.group_pages import (
    extents,
    is_flat,
    joined,
    page_bounds,
    pages_by_index,
    ranged_file,
    ranges_with,
    with_indexes,
)
from compactord.formats.parquet.page_runs import (
    ColumnPages,
    GroupPages,
    RowRanges,
    arrow_file,
    read_groups,
    read_runs,
)
from compactord.formats.parquet.pages import MOST_INDEX_BYTES, Pages, check_headers, read_leaves
from compactord.formats.parquet.statistics import row_groups
from compactord.kernels.columns import Int64s
from compactord.kernels.keys import BatchKeys, Found
from compactord.model import InputFile
from compactord.paimon.types import FLOATS, AtomicType
from compactord.storage.ranges import Fetcher, FileEnd

# Gaps up to this size are fetched: cheaper than another request.
_GAP_BYTES = 256 << 10
# Keys that are looked up together. After each step the reads adapt to the hits so far.
_KEYS_AT_ONCE = 64 << 10
# Reading single pages takes more time for each byte than reading all.
_MOST_SHARE = 0.5


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
            self._end = with_indexes(
                fetcher, file, footer, fetcher.end(file), most_bytes=MOST_INDEX_BYTES
            )
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
        self._opened.close()

    def _parts(self, whole: GroupPages) -> Iterator[GroupPages]:
        """Batches of ranges that fit into memory; the ranges of a batch are fetched together."""
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


class _Group:
    """A row group. `bounds` are for its pages of the first key column; empty if every page is
    read.
    """

    def __init__(self, number: int, pages: Mapping[int, ColumnPages], rows: int) -> None:
        self.number = number
        self.pages = pages
        self.rows = rows
        self.bounds: Sequence[tuple[Any, Any]] = ()
        # The first row that is not below the keys to come.
        self.row = 0
        # All its rows from some row on, where all columns are read.
        self.stream: SortedRows | None = None

    def ranges_of(self, rows: Int64s) -> list[tuple[int, int]]:
        """The rows of pages with one of these, by the column with the most pages."""
        firsts = max((each.rows for each in self.pages.values()), key=len)
        places = np.unique(np.searchsorted(np.asarray(firsts), rows, side="right") - 1)
        return joined([(firsts[place], firsts[place + 1]) for place in places.tolist()])

    def leave(self) -> None:
        """End the reading of all columns."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()


class ParquetFinder(Finder):
    def __init__(self, opened: OpenGroups, layout: Layout) -> None:
        self._opened = opened
        self._layout = layout
        keys = layout.key_fields
        self._names = [field.name for field in keys]
        self._of_keys = layout.of_keys
        self._has_values = layout.row_names != self._of_keys.row_names
        first = keys[0].type
        assert isinstance(first, AtomicType), "keys are not nested"
        # Bounds of floats may exclude NaN.
        self._first_type = None if first.root in FLOATS else first
        column = None if self._first_type is None else keys[0]
        self._groups = row_groups(opened.footer, column)
        self._number = 0
        # The number of the row group's first row.
        self._first_row = 0
        self._group: _Group | None = None
        # Keys of the last step that are not above the row group; share of pages that had a hit.
        self._passed = 0
        self._share = 0.0

    @property
    def read_bytes(self) -> int:
        return round(self._opened.read_bytes)

    def find(self, keys: pa.RecordBatch) -> tuple[Found, Int64s]:
        with reading(self._opened.file.path, NAME):
            return list_of(self._hits(keys))

    def close(self) -> None:
        try:
            self._leave()
        finally:
            self._opened.close()

    def _hits(self, keys: pa.RecordBatch) -> Iterator[Hits]:
        firsts = BatchKeys(keys, self._names[:1])
        place = 0
        while self._number < len(self._groups):
            rows, bounds = self._groups[self._number]
            end = keys.num_rows
            if bounds is not None:
                place = firsts.count_below((bounds[0],), place)
                end = firsts.count_up_to((bounds[1],), place)
            while rows and place < end:
                part = keys.slice(place, min(end - place, _KEYS_AT_ONCE))
                for hits in self._in_group(part, rows):
                    yield hits._replace(
                        places=hits.places + place, positions=hits.positions + self._first_row
                    )
                place += self._passed
                if self._passed < part.num_rows:
                    break
            if place == keys.num_rows:
                return
            self._leave()
            self._number += 1
            self._first_row += rows

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.leave()

    def _in_group(self, keys: pa.RecordBatch, rows: int) -> Iterator[Hits]:
        group = self._group = self._group or self._opened_group(rows)
        for ranges in self._ranges(group, keys):
            try:
                if self._reads_all(group, ranges):
                    yield from self._streamed(group, keys, ranges[0][0])
                else:
                    yield from self._selected(group, keys, ranges)
                return
            except SkippedError:
                # no hit so far
                group.leave()
        # There are no bounds, or they are wrong.
        group.bounds = ()
        yield from self._streamed(group, keys, group.row)

    def _ranges(self, group: _Group, keys: pa.RecordBatch) -> Iterator[RowRanges]:
        """The rows to read, then more of them while a key is in doubt; without ranges, all rows."""
        if not group.bounds:
            return
        pages = self._key_pages(group)
        firsts = BatchKeys(keys, self._names[:1])
        ranges = ranges_with(firsts, group.bounds, pages, group.row)
        yield ranges
        if len(self._names) > 1:
            # Bounds cover the first column only: the next page may show that a key is absent.
            yield pages.with_neighbours(ranges, group.row)

    def _opened_group(self, rows: int) -> _Group:
        opened, name = self._opened, self._names[0]
        pages = opened.pages(self._number, self._layout.row_schema)
        group = _Group(self._number, pages, rows)
        if pages and self._first_type is not None:
            group.bounds = page_bounds(
                opened.footer,
                self._number,
                name,
                len(self._key_pages(group).offsets) - 1,
                type_=self._first_type,
                read=opened.read_index,
            )
        return group

    def _key_pages(self, group: _Group) -> ColumnPages:
        return group.pages[self._opened.footer.leaf(self._names[0])]

    def _pages(self, group: _Group, ranges: RowRanges, layout: Layout) -> GroupPages:
        leaves = read_leaves(self._opened.footer, layout.row_names) if group.pages else ()
        return GroupPages(group.number, {leaf: group.pages[leaf] for leaf in leaves}, ranges)

    def _rows(self, group: _Group, ranges: RowRanges, layout: Layout) -> SortedRows:
        batches = self._opened.rows(self._pages(group, ranges, layout), layout)
        return SortedRows(batches, self._names, self._opened.file.path, group.row, group.rows)

    def _reads_all(self, group: _Group, ranges: RowRanges) -> bool:
        """Whether most bytes from the first range to the last would be read anyway.

        Only close to the last read: a larger distance is fetched ahead.
        """
        keys = self._key_pages(group)
        if not ranges or keys.page_of(ranges[0][0]) > keys.page_of(group.row) + 1:
            return False
        of_keys = self._pages(group, ranges, self._of_keys).size_bytes
        chosen = self._pages(group, ranges, self._layout).size_bytes if self._has_values else 0
        span = [(ranges[0][0], ranges[-1][1])]
        most = self._pages(group, span, self._layout).size_bytes * _MOST_SHARE
        return of_keys + chosen * self._share > most

    def _selected(self, group: _Group, keys: pa.RecordBatch, ranges: RowRanges) -> Iterator[Hits]:
        group.leave()
        with closing(self._rows(group, ranges, self._of_keys)) as seen:
            found = [(each.places, each.positions) for each in seen.hits(keys)]
        group.row, self._passed = seen.row, seen.passed
        read = sum(max(0, min(end, seen.read_to) - start) for start, end in ranges)
        if not found:
            self._share = 0.0
            return
        places, rows = (np.concatenate(each) for each in zip(*found, strict=True))
        if not self._has_values:
            yield Hits(places, places, rows, keys.select(self._names))
            return
        chosen = group.ranges_of(rows)
        self._share = _count(chosen) / read
        of_chosen = self._pages(group, chosen, self._layout)
        for row, batch in self._opened.rows(of_chosen, self._layout):
            first, end = np.searchsorted(rows, (row, row + batch.num_rows))
            if first < end:
                those = rows[first:end]
                yield Hits(places[first:end], those - row, those, batch)

    def _streamed(self, group: _Group, keys: pa.RecordBatch, start: int) -> Iterator[Hits]:
        if group.stream is None or start > group.stream.read_to:
            group.leave()
            group.stream = self._rows(group, [(start, group.rows)], self._layout)
        stream, before, found = group.stream, max(group.row, start), [np.empty(0, np.int64)]
        for hits in stream.hits(keys):
            found.append(hits.positions)
            yield hits
        group.row, self._passed = stream.row, stream.passed
        if group.bounds:
            chosen = _count(group.ranges_of(np.concatenate(found)))
            self._share = min(1.0, chosen / max(1, stream.row - before))


def _count(ranges: RowRanges) -> int:
    return sum(end - start for start, end in ranges)
