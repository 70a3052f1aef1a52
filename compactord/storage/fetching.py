"""Opens files that are written once, and fetches those of object stores ahead, in threads.

A request takes ten milliseconds or more, whatever its size, so that many are under way at once:
ends of files with their footers, small files as a whole. Local files are not fetched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import pyarrow as pa

from compactord.errors import DataFileDamaged
from compactord.storage.base import Storage, whole_range
from compactord.storage.ranges import REQUEST_BYTES

P = ParamSpec("P")
T = TypeVar("T")

# Files of up to so many bytes are read as a whole, so that work with many small ones does not keep
# many open.
SMALL_FILE = 1 << 20
# Requests under way at once, over all files that are open.
_THREADS = 16
# The end of a file that is not small: most footers, with the page indexes before them.
END_BYTES = 64 << 10
# Ends that stay in memory until their files are read; beyond, they are fetched again.
KEPT_BYTES = 16 << 20


class KnownFile(Protocol):
    """A file of which a manifest tells the size."""

    @property
    def path(self) -> str:
        """Where it is in the store."""

    @property
    def size_bytes(self) -> int:
        """Its size by the manifest."""


@contextlib.contextmanager
def opened(storage: Storage, file: KnownFile) -> Iterator[pa.NativeFile]:
    """The open file. Raises `DataFileDamaged` when its size is not that in the manifest."""
    with storage.open_input(file.path, file.size_bytes) as stream:
        check_size(file, stream.size())
        if file.size_bytes > SMALL_FILE:
            yield stream
            return
        content = stream.read_buffer()
    yield pa.BufferReader(content)


def read_twice(read: Callable[[], T]) -> T:
    """What `read` returns; what looks damaged is read once more: bits may flip on their way."""
    try:
        return read()
    except DataFileDamaged:
        return read()


def check_size(file: KnownFile, size_bytes: int) -> None:
    """Raise `DataFileDamaged` unless `size_bytes`, that in the store, is that in the manifest."""
    if size_bytes != file.size_bytes:
        raise DataFileDamaged(
            file.path, f"the manifest says {file.size_bytes} bytes, the store {size_bytes}"
        )


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The bytes of a file from `start` on; of a small file all of them."""

    start: int
    data: bytes

    def read(self, start: int, size: int) -> memoryview | None:
        """Some bytes of the file; None if they are not all among these."""
        if start < self.start:
            return None
        return memoryview(self.data)[start - self.start : start - self.start + size]


class Fetcher:
    """Reads for one reader; fetches in threads of its own, which `close` ends."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pool: ThreadPoolExecutor | None = None
        self._ends: dict[str, Future[FileEnd]] = {}
        self._kept: dict[str, int] = {}
        self._bodies: dict[str, list[Future[bytes]]] = {}

    @property
    def is_needed(self) -> bool:
        """Whether files have to be fetched at all."""
        return self._storage.capabilities.behind_network

    @property
    def kept_bytes(self) -> int:
        """Bytes of ends that wait for their files to be read."""
        return sum(self._kept.values())

    def is_ranged(self, file: KnownFile) -> bool:
        """Whether the file is to be read by ranges: neither local nor small."""
        return self.is_needed and file.size_bytes > SMALL_FILE

    def expect(self, file: KnownFile) -> None:
        """Begin to fetch the file's end unless that was done; a local store is not asked."""
        if self.is_needed and file.path not in self._ends:
            self._ends[file.path] = self.submit(self._fetched_end, file)

    def expect_whole(self, files: Sequence[KnownFile]) -> None:
        """Begin to fetch all bytes of files; a local store is not asked."""
        for file in files if self.is_needed else ():
            self.expect(file)
            if file.path not in self._bodies:
                starts = range(0, file.size_bytes - end_bytes(file), REQUEST_BYTES)
                self._bodies[file.path] = [
                    self.range(file, start, min(REQUEST_BYTES, starts.stop - start))
                    for start in starts
                ]

    def end(self, file: KnownFile) -> FileEnd:
        """The end of a file of an object store, fetched unless it is there.

        It stays until `keep` or `release`. Raises what reading raises.
        """
        self.expect(file)
        return self._ends[file.path].result()

    def keep(self, file: KnownFile) -> None:
        """The file is read later: its end is kept unless too many bytes are."""
        size = end_bytes(file)
        if file.path in self._kept or self.kept_bytes + size <= KEPT_BYTES:
            self._kept[file.path] = size
        else:
            del self._ends[file.path]

    def taken_end(self, file: KnownFile) -> FileEnd:
        """The file's end if it is there, which is then forgotten; else no bytes."""
        found = self._ends.get(file.path)
        self.release(file)
        return FileEnd(file.size_bytes, b"") if found is None else found.result()

    def release(self, file: KnownFile) -> None:
        """Forget the file's end."""
        self._ends.pop(file.path, None)
        self._kept.pop(file.path, None)

    def range(self, file: KnownFile, start: int, size: int) -> Future[bytes]:
        """Begin to fetch some bytes."""
        return self.submit(self._storage.read_range, file.path, start, size)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin a call that fetches something."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "fetch")
        return self._pool.submit(call, *args, **kwargs)

    @contextlib.contextmanager
    def opened(self, file: KnownFile) -> Iterator[pa.NativeFile]:
        """A file that is not read by ranges; as the function, also for what it raises."""
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
        """After an error: raise `DataFileDamaged` if the size is not the manifest's."""
        status = self._storage.status(file.path)
        if status is not None:
            check_size(file, status.size_bytes)

    def close(self) -> None:
        """Wait for the requests under way; make no others."""
        self._ends.clear()
        self._kept.clear()
        self._bodies.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _fetched_end(self, file: KnownFile) -> FileEnd:
        if file.size_bytes <= SMALL_FILE:
            data = self._storage.read(file.path)
            if len(data) != file.size_bytes:
                # What was cut short on its way is no shorter in the store.
                self.check_size(file)
            return FileEnd(0, whole_range(file.path, 0, file.size_bytes, data))
        start = file.size_bytes - END_BYTES
        return FileEnd(start, self._storage.read_range(file.path, start, END_BYTES))


def end_bytes(file: KnownFile) -> int:
    """Bytes of a file that are fetched before anything else of it is known."""
    return file.size_bytes if file.size_bytes <= SMALL_FILE else END_BYTES
