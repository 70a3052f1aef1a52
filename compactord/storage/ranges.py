"""A file of an object store, read by ranges that are planned before the first byte is asked for.

Readers of columnar formats know from a file's footer which bytes they will read: some columns of
some groups of rows, all columns of a group side by side. These bytes are cut into ranges, one
request each. Ranges are fetched ahead in the order in which they will be needed, as many as may be
in memory at once, and given back as soon as every column has passed them.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from compactord.errors import ObjectNotFound
from compactord.storage.base import Storage

# The most bytes of a request. Several small requests are quicker than a large one.
REQUEST_BYTES = 8 << 20
# Bytes that nobody reads between two columns are fetched rather than asking twice.
GAP_BYTES = 1 << 20
# A column that does not fit in is fetched in pieces: one being read and one ahead. Smaller ones
# would cost more in requests than they save in memory, larger ones bring nothing.
MIN_PIECE_BYTES = 64 << 10
MAX_PIECE_BYTES = 512 << 10
_PIECES = 2

Fetch: TypeAlias = Callable[[int, int], "Future[bytes]"]


class Extent(NamedTuple):
    """A column of a group of rows that will be read: bytes from `start` to before `end` of a file.

    A group is what a format reads at once: a row group, a stripe.
    """

    group: int
    column: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Span(NamedTuple):
    """The bytes of one request."""

    start: int
    end: int


# Bytes of a column from an offset of the file on, fewer at its end; they do not count as read.
Peek: TypeAlias = Callable[[int, int], bytes]


class Check(Protocol):
    """Checks a column as its bytes arrive, from its start to its end."""

    @property
    def is_proved(self) -> bool:
        """Whether what was checked is right, whatever follows."""

    def advance(self, limit: int) -> None:
        """Check what is before this offset of the file, which is handed out only then.

        Raises `FormatError`.
        """


class Unchecked:
    """The check of formats that need none."""

    is_proved = True

    def __init__(self, extent: Extent, peek: Peek) -> None:
        pass

    def advance(self, limit: int) -> None:
        pass


def ranged_input(storage: Storage, path: str, size_bytes: int | None) -> pa.NativeFile:
    """A stream of an object, with a request for each read.

    Without `size_bytes` the store is asked first. Raises `ObjectNotFound`.
    """
    if size_bytes is None:
        found = storage.status(path)
        if found is None:
            raise ObjectNotFound(path, "open failed (no such object)")
        size_bytes = found.size_bytes

    def fetch(start: int, size: int) -> Future[bytes]:
        answer: Future[bytes] = Future()
        answer.set_result(storage.read_range(path, start, size))
        return answer

    return RangedFile(fetch, (), size_bytes=size_bytes, held_bytes=0).stream()


def held_limits(extents: Sequence[Extent]) -> tuple[int, int]:
    """The bytes of ranges that an open file needs at least, and that it can use at most."""
    groups = _by_group(extents)
    if not groups:
        return 0, 0
    columns = max(len(group) for group in groups)
    whole = max(_size(groups[place : place + 2]) for place in range(len(groups)))
    return (
        min(whole, columns * _PIECES * MIN_PIECE_BYTES),
        min(whole, columns * _PIECES * MAX_PIECE_BYTES),
    )


def planned(extents: Sequence[Extent], held_bytes: int, gap_bytes: int = GAP_BYTES) -> list[Span]:
    """The requests for all extents, in the order in which their bytes are needed.

    If a row group and the next one fit into `held_bytes`, columns are fetched together. Otherwise
    each column is fetched in pieces, so that a part of each is in memory.
    """
    groups = _by_group(extents)
    spans: list[Span] = []
    for place, group in enumerate(groups):
        if _size(groups[place : place + 2], gap_bytes) <= held_bytes:
            spans += _joined(group, gap_bytes)
        else:
            spans += _pieces(group, held_bytes)
    return spans


def _by_group(extents: Sequence[Extent]) -> list[list[Extent]]:
    found = [extent for extent in extents if extent.size]
    ordered = sorted(found, key=lambda extent: (extent.group, extent.start))
    return [list(group) for _, group in itertools.groupby(ordered, lambda extent: extent.group)]


def _size(groups: Sequence[Sequence[Extent]], gap_bytes: int = GAP_BYTES) -> int:
    return sum(span.end - span.start for group in groups for span in _joined(group, gap_bytes))


def _joined(group: Sequence[Extent], gap_bytes: int) -> list[Span]:
    """The extents with the gaps between them, where those are small, in requests of even size."""
    joined: list[Span] = []
    for extent in group:
        if joined and extent.start - joined[-1].end <= gap_bytes:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, extent.end))
        else:
            joined.append(Span(extent.start, extent.end))
    return [part for span in joined for part in _cut(span, REQUEST_BYTES)]


def _cut(span: Span, most: int) -> list[Span]:
    size = span.end - span.start
    count = max(1, -(-size // most))
    edges = [span.start + size * place // count for place in range(count + 1)]
    return [Span(*pair) for pair in itertools.pairwise(edges)]


def _pieces(group: Sequence[Extent], held_bytes: int) -> list[Span]:
    """Each column in pieces; columns advance together, so the first pieces of all come first."""
    most = min(MAX_PIECE_BYTES, max(MIN_PIECE_BYTES, held_bytes // (_PIECES * len(group))))
    found: list[tuple[float, Span]] = []
    for extent in group:
        parts = _cut(Span(extent.start, extent.end), most)
        place, last = found[-1] if found else (0.0, Span(0, -1))
        is_next = place == 0.0 and last.end == extent.start
        if len(parts) == 1 and is_next and extent.end - last.start <= most:
            # Small columns side by side are in memory as a whole anyway.
            found[-1] = (0.0, Span(last.start, extent.end))
            continue
        found += [(place / len(parts), part) for place, part in enumerate(parts)]
    return [span for _, span in sorted(found)]


class _Range:
    """A span with its bytes, once they are asked for. `users`: columns that still need it."""

    __slots__ = ("data", "span", "users")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.users = 0
        self.data: Future[bytes] | None = None

    @property
    def size(self) -> int:
        return self.span.end - self.span.start


class _Column:
    """An extent and its ranges. `passed`: how many were read; `checked`: up to which byte."""

    __slots__ = ("check", "checked", "extent", "passed", "ranges")
    check: Check

    def __init__(self, extent: Extent, ranges: list[_Range]) -> None:
        self.extent = extent
        self.ranges = ranges
        self.passed = 0
        self.checked = extent.start


class FileForArrow:
    """A seekable file for Arrow, one thread at a time, without its `read`."""

    closed = False

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.position = 0

    def stream(self) -> pa.PythonFile:
        """The file for Arrow."""
        return pa.PythonFile(self, mode="r")

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """As files do."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size_bytes}
        self.position = base[whence] + position
        return self.position

    def tell(self) -> int:
        """The offset of the next byte."""
        return self.position


class RangedFile(FileForArrow):
    """A file that is read by ranges.

    `fetch` asks for bytes from an offset on. Each column is to be read from its start to its end;
    other bytes, and those given back, are asked for again. Reads end at the end of a column.
    `check_of` makes the check of each column before any byte is asked for.
    """

    def __init__(
        self,
        fetch: Fetch,
        extents: Sequence[Extent],
        check_of: Callable[[Extent, Peek], Check] = Unchecked,
        *,
        size_bytes: int,
        held_bytes: int,
        gap_bytes: int = GAP_BYTES,
    ) -> None:
        super().__init__(size_bytes)
        self.fetched_bytes = 0  # of columns
        self._fetch = fetch
        self._held = 0
        self._held_bytes = held_bytes
        self._ahead = [_Range(span) for span in planned(extents, held_bytes, gap_bytes)]
        self._ahead.reverse()
        by_start = sorted(self._ahead, key=lambda each: each.span.start)
        self._columns = [
            _Column(extent, _overlapping(by_start, extent))
            for extent in sorted(extents, key=lambda extent: extent.start)
        ]
        self._starts = [column.extent.start for column in self._columns]
        for column in self._columns:
            column.check = check_of(column.extent, partial(self._peek, column))
            for each in column.ranges:
                each.users += 1
        self._fetch_ahead()

    def read(self, size: int = -1) -> bytes | memoryview:
        """The next bytes, `size` at most, and fewer at the end of a column."""
        start = self.position
        end = self.size_bytes if size < 0 else min(start + size, self.size_bytes)
        if end <= start:
            return b""
        column = self._column_at(start)
        if column is None:
            data: bytes | memoryview = self._fetch(start, end - start).result()
        else:
            end = min(end, column.extent.end)
            self._check(column, end)
            data = self._bytes(column, start, end)
            self._pass(column, end)
        self.position = start + len(data)
        return data

    def finish(self, group: int) -> None:
        """The rows of a group were read: check what was not asked for, and give it back."""
        for column in self._columns:
            if column.extent.group == group:
                self._finish(column)

    def stop(self, group: int) -> None:
        """No more rows will be read of this group, nor of others: check those that were read."""
        self._ahead.clear()
        for column in self._columns:
            if column.extent.group == group and not column.check.is_proved:
                self._finish(column)

    def close(self) -> None:
        """Give back all ranges; requests that have not begun are not made."""
        self.closed = True
        self._ahead.clear()
        for column in self._columns:
            for each in column.ranges:
                if each.data is not None:
                    each.data.cancel()
                    each.data = None

    def _column_at(self, position: int) -> _Column | None:
        place = bisect.bisect_right(self._starts, position) - 1
        if place < 0 or position >= self._columns[place].extent.end:
            return None
        return self._columns[place]

    def _finish(self, column: _Column) -> None:
        if not column.extent.size:
            column.check.advance(column.extent.end)
        for each in column.ranges[column.passed :]:
            end = min(each.span.end, column.extent.end)
            self._check(column, end)
            self._pass(column, end)

    def _peek(self, column: _Column, start: int, size: int) -> bytes:
        return bytes(self._bytes(column, start, min(start + size, column.extent.end)))

    def _bytes(self, column: _Column, start: int, end: int) -> bytes | memoryview:
        pieces = []
        for each in column.ranges:
            low, high = max(start, each.span.start), min(end, each.span.end)
            if low < high:
                data = memoryview(self._data(each))
                pieces.append(data[low - each.span.start : high - each.span.start])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _data(self, wanted: _Range) -> bytes:
        if wanted.data is None:
            self._ask(wanted)
        assert wanted.data is not None, "just asked for"
        return wanted.data.result()

    def _check(self, column: _Column, end: int) -> None:
        for each in column.ranges[column.passed :]:
            if column.checked >= end:
                return
            limit = min(each.span.end, column.extent.end)
            if limit > column.checked:
                column.check.advance(limit)
                column.checked = limit

    def _pass(self, column: _Column, position: int) -> None:
        """The column was read up to `position`: give back what nobody needs any more."""
        before = self._held
        while column.passed < len(column.ranges):
            each = column.ranges[column.passed]
            if min(each.span.end, column.extent.end) > position:
                break
            column.passed += 1
            each.users -= 1
            if not each.users and each.data is not None:
                each.data.cancel()
                each.data = None
                self._held -= each.size
        if self._held < before:
            self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        while self._ahead:
            each = self._ahead[-1]
            if each.data is None and each.users:
                if self._held and self._held + each.size > self._held_bytes:
                    return
                self._ask(each)
            self._ahead.pop()

    def _ask(self, wanted: _Range) -> None:
        self._held += wanted.size
        self.fetched_bytes += wanted.size
        wanted.data = self._fetch(wanted.span.start, wanted.size)


def _overlapping(by_start: list[_Range], extent: Extent) -> list[_Range]:
    first = bisect.bisect_right(by_start, extent.start, key=lambda each: each.span.end)
    end = bisect.bisect_left(by_start, extent.end, key=lambda each: each.span.start)
    return by_start[first:end]
