"""A part of an object, read as if it was an object of its own."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from compactord.storage.base import Storage
from compactord.storage.ranges import FileForArrow


def with_part(storage: Storage, path: str, start: int, size_bytes: int) -> Storage:
    """A store in which the object at `path` is these bytes of it; only for reading that one."""
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

    def close(self) -> None:
        """Nothing is open."""
