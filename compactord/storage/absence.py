"""Whether what could not be read is gone, or what could not be confirmed is there.

A file system or a gateway may answer wrongly that an object is missing. Before anything is deleted,
or given up for good, because of that, a listing of the object's folder confirms it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from compactord.errors import ObjectNotFound, StorageError, TransientStorageError
from compactord.storage.base import Storage


def require_gone(storage: Storage, path: str) -> None:
    """Raises `TransientStorageError` if the folder of the object that was missing lists it."""
    Absences(storage).require_gone(path)


def listed_but_missing(path: str) -> TransientStorageError:
    """The error for an object that its folder lists and that cannot be found."""
    return TransientStorageError(
        path, "read failed (no such object), though its folder lists it; nothing is deleted"
    )


def read_back(storage: Storage, path: str, error: StorageError) -> bytes | None:
    """What is at the path after an attempt of unknown outcome, which `error` describes.

    Raises `TransientStorageError` where that cannot be read either.
    """
    try:
        return storage.read(path)
    except ObjectNotFound:
        return None
    except StorageError as unread:
        message = f"{error.message}; whether it exists is unknown: {unread.message}"
        raise TransientStorageError(path, message) from error


class Absences:
    """Confirms that objects are gone, for which each folder is listed once at most, or twice.

    Objects whose names were known before this was made, and that never come back under their
    names: what the listing lacks then is gone for good.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names: dict[str, frozenset[str]] = {}

    def require_gone(self, path: str) -> None:
        """Raises `TransientStorageError` if the object is listed, and what listing raises."""
        folder, _, name = path.rpartition("/")
        if name in self._names.get(folder, (name,)):
            self._names[folder] = frozenset(status.name for status in self._storage.list(folder))
        if name in self._names[folder]:
            raise listed_but_missing(path)

    def is_gone(self, path: str) -> bool:
        """Whether the listing of its folder lacks the object. Raises what listing raises."""
        folder, _, name = path.rpartition("/")
        if folder not in self._names:
            self._names[folder] = frozenset(status.name for status in self._storage.list(folder))
        return name not in self._names[folder]

    @contextlib.contextmanager
    def suppressed(self) -> Iterator[None]:
        """Ends the block at an object that is not found, if it is gone."""
        try:
            yield
        except ObjectNotFound as error:
            self.require_gone(error.path)
