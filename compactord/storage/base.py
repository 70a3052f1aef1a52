"""The storage protocol: bytes under URL-like paths, and the one atomic operation of commits.

Paths are strings with `/`; each store defines their meaning. Every method raises `StorageError` or
a subclass, always with the path.

A file system or a gateway may report an existing object as missing. Before code deletes or gives up
anything because of a missing object, a listing of the object's folder confirms it.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from compactord import ids
from compactord.errors import ObjectNotFound, StorageError, TransientStorageError

# Timestamp of objects for which the store reports none. It lies in the future, so such objects are
# never deleted for their age.
NO_TIME_MS = 1 << 53
# Prefix that Paimon removes from keys of Hadoop's configuration (utils/HadoopUtils.java).
HADOOP = "hadoop."


class Creation(enum.Enum):
    """Result of `create_if_absent`. An unknown outcome raises `TransientStorageError`."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """An object or folder: its name within its folder, size in bytes, time of its last change.

    `changed_ms` is milliseconds since the epoch by the store's clock, or `NO_TIME_MS` if unknown.
    For files it is the change time, which a copy that preserves times does not set back; for
    objects it is the time of the write. `is_link` is set by listings for symbolic links; all other
    fields describe the target.
    """

    name: str
    is_folder: bool
    size_bytes: int
    changed_ms: int
    is_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An upload that was started and neither completed nor aborted.

    `started_ms` is milliseconds since the epoch by the store's clock.
    """

    path: str
    upload_id: str
    started_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Properties of a store. The defaults are safe for an unknown store.

    `behind_network`: each call is a request that takes milliseconds, so several run at once.
    `has_folders`: folders exist independently of files and can be created and removed, and Java
    does not treat the store as an object store (fs/FileIO.java, `isObjectStore`). Otherwise a
    folder is a common prefix of object names.
    `creates_exclusively`: `create_if_absent` needs no proof.
    `excludes_java_writers`: Java publishes a snapshot without a lock by a rename or a creation that
    never replaces an object. Otherwise Java copies the snapshot, which replaces one published since
    Java checked.
    `replaces_nothing`: no writer can replace a snapshot, so a published snapshot stays.
    `copies_may_look_old`: a copy may take over the source's time, so a new file may look old.
    """

    behind_network: bool = True
    has_folders: bool = False
    creates_exclusively: bool = False
    excludes_java_writers: bool = False
    replaces_nothing: bool = False
    copies_may_look_old: bool = False


class StorageSpec(Protocol):
    """Opens a store, in the driver and in every worker.

    Can be pickled and holds no secrets: `open` finds credentials in the process that calls it.
    """

    def open(self) -> Storage:
        """The store. Raises `StorageError` if it cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """A location: the spec of its store and its path in the store.

    `secrets`, `unknown` and `known` are keys of options: with secret values, without an effect, and
    with a possible effect (given or not). `is_ambient` is true if requests use the identity of this
    process: variables, files or roles of the machine. `names_host` is true if the location itself
    names the host of the requests, so its author chooses it.
    """

    spec: StorageSpec
    path: str
    secrets: Sequence[str] = ()
    unknown: Sequence[str] = ()
    known: Sequence[str] = ()
    is_ambient: bool = True
    names_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A kind of store. The keys of its options start with `prefixes`, optionally after `HADOOP`.

    `locate` resolves a location of one of its `schemes`, given only its own options. It raises
    `UsageError` for an invalid location, and `CatalogOptionInvalid` for a refused option.
    `is_local`: its files are on this machine. `takes_served_options`: it also accepts options that
    the catalog's server returns.
    """

    schemes: Sequence[str]
    locate: Callable[[str, Mapping[str, str]], StoreLocation]
    prefixes: Sequence[str] = ()
    is_local: bool = False
    takes_served_options: bool = False


def aside(path: str) -> str:
    """A temporary name in the folder of `path`, for data that is renamed to `path` once complete.

    The name identifies its owner, so sweeps can remove it if the rename never happens.
    """
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{ids.this_process().unique_name()}.tmp"


def whole_range(path: str, start: int, size: int, data: bytes) -> bytes:
    """`data`, read from a range. Raises `StorageError` unless it has `size` bytes."""
    if len(data) != size:
        raise StorageError(path, f"read failed ({len(data)} of {size} bytes from {start} on)")
    return data


class Storage(Protocol):
    """A store. Methods with a body here suit most stores."""

    @property
    def spec(self) -> StorageSpec:
        """The spec that opens the same store in another process."""

    @property
    def capabilities(self) -> Capabilities: ...

    def read(self, path: str) -> bytes: ...

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """`size` bytes of the object from byte `start`. Thread-safe.

        Raises `StorageError` if the object is shorter.
        """

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        """A seekable stream for Arrow readers; the caller closes it.

        `size_bytes` is the object's size if the caller knows it. A store may rely on it and skip a
        request.
        """

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """Create an object exclusively; it is durable once the context ends without an exception.

        An exception removes the object. Raises `StorageError` if the path exists. Parent folders
        are created.
        """

    def status(self, path: str) -> ObjectStatus | None:
        """The object at the path, or None. File systems also return folders."""

    def folder_exists(self, path: str) -> bool:
        """Whether the folder exists; in an object store, whether it contains an object."""
        found = self.status(path)
        return found is not None and found.is_folder

    def real_folder(self, path: str) -> str:
        """The path of a folder after resolving symbolic links, which only file systems have."""
        return path

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        """Direct children in no particular order; empty if the folder does not exist.

        One thread may start the iteration and another continue it.
        """

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        """Children whose names are wanted. A file system reads the status of these only."""
        return (status for status in self.list(folder) if is_wanted(status.name))

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """Publish `data` at `path` unless the path exists; atomic between processes.

        Readers see no object or the whole one, and it is durable before they see it. `temporary` is
        a path in the same folder that the call may use and removes before it returns.
        """

    def write_new(self, path: str, data: bytes) -> None:
        """Create a small object exclusively, durably. Raises `StorageError` if the path exists."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Replace a hint. Readers see the old content or the new one, never a mixture.

        Not for files on which correctness depends.
        """

    def delete(self, path: str) -> None:
        """Remove one object. No error if it does not exist."""

    def remove_empty_folder(self, path: str) -> bool:
        """Remove a folder if it is empty. Returns whether it no longer exists."""

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        """Unfinished uploads below a folder; empty if the store has or reports none."""
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Release the parts of an upload. No error if it has been completed or aborted."""
        raise AssertionError("no upload was listed")

    def may_write(self, folder: str) -> bool | None:
        """Whether this process may create and delete in a folder, or None if unknown."""
        return None


@runtime_checkable
class Reconnects(Protocol):
    """A store that keeps a connection with the credentials it was opened with."""

    def reconnect(self) -> None:
        """Resolve references to credentials again at the next call."""


def require_absent(storage: Storage, path: str) -> None:
    """Raises `TransientStorageError` if the folder of a missing object still lists it."""
    Absences(storage).require_absent(path)


def listed_but_missing(path: str) -> TransientStorageError:
    """The error for an object that its folder lists but that reads as missing."""
    return TransientStorageError(
        path, "read failed (no such object), though its folder lists it; no file is deleted"
    )


def read_back(storage: Storage, path: str, error: StorageError) -> bytes | None:
    """The content at the path after a write of unknown outcome, or None if there is no object.

    `error` describes the write. Raises `TransientStorageError` if reading fails as well.
    """
    try:
        return storage.read(path)
    except ObjectNotFound:
        return None
    except StorageError as unread:
        message = f"{error.message}; whether it exists is unknown: {unread.message}"
        raise TransientStorageError(path, message) from error


class Absences:
    """Confirms that objects are gone, with at most one or two listings per folder.

    Only for objects whose names were known before this instance was created and never reused: if a
    listing lacks such a name, the object is gone for good.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names: dict[str, frozenset[str]] = {}

    def require_absent(self, path: str) -> None:
        """Raises `TransientStorageError` if the object is listed, and the errors of listing."""
        folder, _, name = path.rpartition("/")
        if name in self._names.get(folder, (name,)):
            self._names[folder] = frozenset(status.name for status in self._storage.list(folder))
        if name in self._names[folder]:
            raise listed_but_missing(path)

    def is_absent(self, path: str) -> bool:
        """Whether the listing of its folder lacks the object. Raises the errors of listing."""
        folder, _, name = path.rpartition("/")
        if folder not in self._names:
            self._names[folder] = frozenset(status.name for status in self._storage.list(folder))
        return name not in self._names[folder]

    @contextlib.contextmanager
    def ignore_absent(self) -> Iterator[None]:
        """Ends the block at an `ObjectNotFound` whose object is confirmed to be gone."""
        try:
            yield
        except ObjectNotFound as error:
            self.require_absent(error.path)
