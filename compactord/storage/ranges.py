"""Reads of objects in prefetched ranges.

A file's footer determines the bytes that a reader of a columnar format needs: some columns of some
groups of rows, all columns of a group in parallel. These bytes are cut into ranges, one request
each. Ranges are fetched ahead in the order of use, up to a limit of memory, and released once every
column has passed them.

A request of any size takes at least ten milliseconds. Many run at once: ends of files with their
footers, and whole small files. Local files are not prefetched.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa

from compactord.errors import DataFileDamaged, ObjectNotFound
from compactord.storage.base import Storage, whole_range

# Maximum bytes of a request. Several small requests are faster than a large one.
REQUEST_BYTES = 8 << 20
# Unused bytes between two columns are fetched to save a request, up to this size.
GAP_BYTES = 1 << 20
# A column that does not fit into memory is fetched in pieces: the one being read and the next.
# Smaller pieces cost more in requests than they save in memory; larger ones gain nothing.
MIN_PIECE_BYTES = 64 << 10
MAX_PIECE_BYTES = 512 << 10
_PIECES = 2

Fetch: TypeAlias = Callable[[int, int], "Future[bytes]"]


class Extent(NamedTuple):
    """A column of a group of rows that will be read: bytes from `start` to before `end` of a file.

    A group is the unit of reading in a format: a row group or a stripe.
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


# Returns bytes of a column from a file offset, fewer at its end, without marking them as read.
Peek: TypeAlias = Callable[[int, int], bytes]


class Check(Protocol):
    """Checks a column as its bytes arrive, from its start to its end."""

    @property
    def is_proved(self) -> bool:
        """Whether the column is proved correct without the remaining bytes."""

    def advance(self, limit: int) -> None:
        """Check the bytes before this file offset; the reader gets them only afterwards.

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
    """A stream of an object, with one request per read.

    Without `size_bytes` it requests the size first. Raises `ObjectNotFound`.
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
    """The minimum and the maximum bytes of ranges that an open file can use."""
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
    each column is fetched in pieces, so a part of each is in memory.
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
    """The extents, joined across small gaps, in requests of even size."""
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
    """Each column in pieces. Columns advance in parallel, so the first pieces of all come first."""
    most = min(MAX_PIECE_BYTES, max(MIN_PIECE_BYTES, held_bytes // (_PIECES * len(group))))
    found: list[tuple[float, Span]] = []
    for extent in group:
        parts = _cut(Span(extent.start, extent.end), most)
        place, last = found[-1] if found else (0.0, Span(0, -1))
        is_next = place == 0.0 and last.end == extent.start
        if len(parts) == 1 and is_next and extent.end - last.start <= most:
            # Small adjacent columns are in memory as a whole anyway.
            found[-1] = (0.0, Span(last.start, extent.end))
            continue
        found += [(place / len(parts), part) for place, part in enumerate(parts)]
    return [span for _, span in sorted(found)]


class _Range:
    """A span with its bytes once requested. `users` counts the columns that still need it."""

    __slots__ = ("data", "span", "users")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.users = 0
        self.data: Future[bytes] | None = None

    @property
    def size(self) -> int:
        return self.span.end - self.span.start


class _Column:
    """An extent and its ranges. `passed` counts ranges read; `checked` is an offset of the file."""

    __slots__ = ("check", "checked", "extent", "passed", "ranges")
    check: Check

    def __init__(self, extent: Extent, ranges: list[_Range]) -> None:
        self.extent = extent
        self.ranges = ranges
        self.passed = 0
        self.checked = extent.start


class FileForArrow:
    """A seekable file for Arrow, one thread at a time; subclasses add `read`."""

    closed = False

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.position = 0

    def stream(self) -> pa.PythonFile:
        return pa.PythonFile(self, mode="r")

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size_bytes}
        self.position = base[whence] + position
        return self.position

    def tell(self) -> int:
        return self.position


class RangedFile(FileForArrow):
    """A file that is read by ranges.

    `fetch` requests bytes from an offset. Columns are read from start to end; other bytes, and
    released ones, are requested again. Reads stop at the end of a column. `check_of` creates the
    check of each column before the first request.
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
        """The next bytes, at most `size`, and fewer at the end of a column."""
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
        """The rows of a group were read: check and release its remaining bytes."""
        for column in self._columns:
            if column.extent.group == group:
                self._finish(column)

    def stop(self, group: int) -> None:
        """No more rows are read of this or any other group: check the columns read so far."""
        self._ahead.clear()
        for column in self._columns:
            if column.extent.group == group and not column.check.is_proved:
                self._finish(column)

    def close(self) -> None:
        """Release all ranges and cancel requests that have not started."""
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
        assert wanted.data is not None, "just requested"
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
        """The column was read up to `position`: release ranges without other users."""
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


P = ParamSpec("P")
T = TypeVar("T")

# Files up to this size are read as a whole, so that work on many small files keeps few open.
SMALL_FILE = 1 << 20
# Concurrent requests over all open files of a reader.
_THREADS = 16
# The end of a larger file: most footers, and the page indexes before them.
END_BYTES = 64 << 10
# Limit for ends kept in memory until their files are read; more are fetched again.
KEPT_BYTES = 16 << 20


class KnownFile(Protocol):
    """A file whose size is known from a manifest."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...


@contextlib.contextmanager
def opened(storage: Storage, file: KnownFile) -> Iterator[pa.NativeFile]:
    """The open file. Raises `DataFileDamaged` if its size differs from the manifest's."""
    with storage.open_input(file.path, file.size_bytes) as stream:
        check_size(file, stream.size())
        if file.size_bytes > SMALL_FILE:
            yield stream
            return
        content = stream.read_buffer()
    yield pa.BufferReader(content)


def read_twice(read: Callable[[], T]) -> T:
    """The result of `read`, repeated once if the data looks damaged: bits may flip in transit."""
    try:
        return read()
    except DataFileDamaged:
        return read()


def check_size(file: KnownFile, size_bytes: int) -> None:
    """Raises `DataFileDamaged` unless `size_bytes`, the size in the store, is the manifest's."""
    if size_bytes != file.size_bytes:
        raise DataFileDamaged(
            file.path, f"size is {file.size_bytes} bytes in the manifest, {size_bytes} in the store"
        )


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The bytes of a file from `start` to its end; for a small file, all of them."""

    start: int
    data: bytes

    def read(self, start: int, size: int) -> memoryview | None:
        """Bytes of the file, or None unless all are among these."""
        if start < self.start:
            return None
        return memoryview(self.data)[start - self.start : start - self.start + size]


class Fetcher:
    """Prefetches for one reader, in its own threads, which `close` ends."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pool: ThreadPoolExecutor | None = None
        self._ends: dict[str, Future[FileEnd]] = {}
        self._kept: dict[str, int] = {}
        self._bodies: dict[str, list[Future[bytes]]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether files are fetched at all: local ones are not."""
        return self._storage.capabilities.behind_network

    @property
    def kept_bytes(self) -> int:
        """Bytes of ends kept until their files are read."""
        return sum(self._kept.values())

    def is_ranged(self, file: KnownFile) -> bool:
        """Whether the file is read by ranges: neither local nor small."""
        return self.is_needed and file.size_bytes > SMALL_FILE

    def expect(self, file: KnownFile) -> None:
        """Start to fetch the file's end unless already started. Does nothing for local files."""
        if self.is_needed and file.path not in self._ends:
            self._ends[file.path] = self.submit(self._fetched_end, file)

    def expect_whole(self, files: Sequence[KnownFile]) -> None:
        """Start to fetch all bytes of files. Does nothing for local files."""
        for file in files if self.is_needed else ():
            self.expect(file)
            if file.path not in self._bodies:
                starts = range(0, file.size_bytes - end_bytes(file), REQUEST_BYTES)
                self._bodies[file.path] = [
                    self.range(file, start, min(REQUEST_BYTES, starts.stop - start))
                    for start in starts
                ]

    def end(self, file: KnownFile) -> FileEnd:
        """The end of a file of an object store, fetched if it is not in memory.

        It stays in memory until `keep` or `release`. Raises the errors of reading.
        """
        self.expect(file)
        return self._ends[file.path].result()

    def keep(self, file: KnownFile) -> None:
        """Keep the end of a file that is read later, unless too many bytes are kept."""
        size = end_bytes(file)
        if file.path in self._kept or self.kept_bytes + size <= KEPT_BYTES:
            self._kept[file.path] = size
        else:
            del self._ends[file.path]

    def taken_end(self, file: KnownFile) -> FileEnd:
        """The file's end if it is in memory, which releases it; otherwise no bytes."""
        found = self._ends.get(file.path)
        self.release(file)
        return FileEnd(file.size_bytes, b"") if found is None else found.result()

    def release(self, file: KnownFile) -> None:
        self._ends.pop(file.path, None)
        self._kept.pop(file.path, None)

    def range(self, file: KnownFile, start: int, size: int) -> Future[bytes]:
        """Start to fetch some bytes."""
        return self.submit(self._storage.read_range, file.path, start, size)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a call in a thread of the pool."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "fetch")
        return self._pool.submit(call, *args, **kwargs)

    @contextlib.contextmanager
    def opened(self, file: KnownFile) -> Iterator[pa.NativeFile]:
        """The open file, if it is not read by ranges. Raises as the function `opened`."""
        if self.is_needed:
            yield pa.BufferReader(self.end(file).data)
            return
        with opened(self._storage, file) as stream:
            yield stream

    def whole(self, file: KnownFile) -> pa.Buffer:
        """All bytes of a file. Raises `DataFileDamaged` unless its size is the manifest's."""
        if not self.is_needed:
            with self._storage.open_input(file.path, file.size_bytes) as stream:
                check_size(file, stream.size())
                return stream.read_buffer()
        self.expect_whole([file])
        end, body = self.end(file), self._bodies.pop(file.path)
        self.release(file)
        return pa.py_buffer(
            b"".join([*(part.result() for part in body), end.data]) if body else end.data
        )

    def check_size(self, file: KnownFile) -> None:
        """After an error: raises `DataFileDamaged` if the size is not the manifest's."""
        status = self._storage.status(file.path)
        if status is not None:
            check_size(file, status.size_bytes)

    def close(self) -> None:
        """Wait for the requests under way. Start no more."""
        self._ends.clear()
        self._kept.clear()
        self._bodies.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _fetched_end(self, file: KnownFile) -> FileEnd:
        if file.size_bytes <= SMALL_FILE:
            data = self._storage.read(file.path)
            if len(data) != file.size_bytes:
                # A truncated answer does not mean a truncated object.
                self.check_size(file)
            return FileEnd(0, whole_range(file.path, 0, file.size_bytes, data))
        start = file.size_bytes - END_BYTES
        return FileEnd(start, self._storage.read_range(file.path, start, END_BYTES))


def end_bytes(file: KnownFile) -> int:
    """Bytes that are fetched from the end of a file before anything else is known about it."""
    return file.size_bytes if file.size_bytes <= SMALL_FILE else END_BYTES


def with_part(storage: Storage, path: str, start: int, size_bytes: int) -> Storage:
    """A store in which the object at `path` is a range of the real one. Only for reading it."""
    return cast(Storage, _WithPart(storage, path, start, size_bytes))


class _WithPart:
    def __init__(self, inner: Storage, path: str, start: int, size_bytes: int) -> None:
        self._inner = inner
        self._path = path
        self._start = start
        self._size_bytes = size_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str) -> bytes:
        return self.read_range(path, 0, self._size_bytes)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._inner.read_range(self._path, self._start + start, size)

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return _Part(self, path, self._size_bytes).stream()


class _Part(FileForArrow):
    def __init__(self, storage: _WithPart, path: str, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._storage = storage
        self._path = path

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.size_bytes - self.position)
        size = left if size < 0 else min(size, left)
        start, self.position = self.position, self.position + size
        return self._storage.read_range(self._path, start, size) if size else b""

    def close(self) -> None: ...
