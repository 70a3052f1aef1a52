"""Objects as the streams that Arrow reads, made of ranges."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa

from compactord.errors import ObjectNotFound
from compactord.storage.base import Storage

# A Parquet footer is read in one request, mostly.
TAIL_BYTES = 64 << 10


def ranged_input(storage: Storage, path: str, size_bytes: int | None) -> pa.NativeFile:
    """A stream over a store's `read_range`; without `size_bytes` the store is asked first.

    Raises `ObjectNotFound` then, and what the store raises.
    """
    if size_bytes is None:
        found = storage.status(path)
        if found is None:
            raise ObjectNotFound(path, "open failed (no such object)")
        size_bytes = found.size_bytes
    reader = RangeReader(lambda start, size: storage.read_range(path, start, size), size_bytes)
    return pa.PythonFile(reader, mode="r")


class RangeReader(io.RawIOBase):
    """A seekable stream over `read_range(start, size)`.

    The last 64 KiB are fetched once and kept. Used by one thread at a time, as by `pa.PythonFile`.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size_bytes: int) -> None:
        super().__init__()
        self._read_range = read_range
        self._size = size_bytes
        self._position = 0
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        if count == 0:
            return b""
        data = self._fetch(self._position, count)
        self._position += count
        return data

    def _fetch(self, start: int, count: int) -> bytes:
        tail_start = max(0, self._size - TAIL_BYTES)
        if start < tail_start:
            return self._read_range(start, count)
        if self._tail is None:
            self._tail = self._read_range(tail_start, self._size - tail_start)
        return self._tail[start - tail_start : start - tail_start + count]
