"""The storage protocol: bytes under URL-like paths, and the one atomic operation of commits.

Paths are strings with `/`; a store gives them meaning. Every method raises `StorageError` or one
of its kinds, always with the path.

A file system or a gateway may answer wrongly that an object is missing. Before anything is deleted,
or given up for good, because of that, a listing of the object's folder confirms it.
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

# The time of an object of which the store tells none: as if it was just written, so that nothing
# deletes it for its age.
NO_TIME_MS = 1 << 53
# What Paimon hands to Hadoop's configuration (utils/HadoopUtils.java); the rest of the key is read.
HADOOP = "hadoop."


class Creation(enum.Enum):
    """What `create_if_absent` did. An unknown outcome raises `TransientStorageError`."""

    CREATED = "created"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """One object or folder: its name within its folder, size in bytes, time of its last change.

    `changed_ms` is since the epoch, by the store's clock: the change time of files, which a copy
    that keeps times does not set back; the time of the write for objects. `NO_TIME_MS`: unknown.
    `is_link`, of what was listed: the name leads elsewhere, where all else is said of.
    """

    name: str
    is_folder: bool
    size_bytes: int
    changed_ms: int
    is_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An object that somebody began to write and that is not there yet.

    `started_ms` is since the epoch, by the store's clock.
    """

    path: str
    upload_id: str
    started_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do; the defaults hold for one of which nothing is known.

    `behind_network`: each call is a request that takes milliseconds, so several run at once.
    `has_folders`: folders are there by themselves, may be made and removed, and Java does not call
    the store an object store (fs/FileIO.java, `isObjectStore`); elsewhere they are what names of
    objects have in common. `creates_exclusively`: `create_if_absent` needs no proof.
    `excludes_java_writers`: a snapshot that Java publishes without a lock is there at once, by a
    rename or a creation that replaces nothing; elsewhere it is copied, and replaces what was
    published since Java looked.
    `replaces_nothing`: nobody can put a snapshot in the place of another one, whatever they saw
    before, so what was published stays.
    `copies_may_look_old`: whoever copies a file may give it the time of the other, so that a new
    file may look old.
    """

    behind_network: bool = True
    has_folders: bool = False
    creates_exclusively: bool = False
    excludes_java_writers: bool = False
    replaces_nothing: bool = False
    copies_may_look_old: bool = False


class StorageSpec(Protocol):
    """How a store is opened, by the driver and by every worker for itself.

    A value that pickles and holds no secret: `open` finds credentials where it is called.
    """

    def open(self) -> Storage:
        """Raises `StorageError` when the store cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """A location: the spec of its store and its path there.

    Of the options, by their keys: `secrets` are those whose values nobody may see, `unknown` those
    without an effect, `known` those that may have one, given or not. `is_ambient`: the store is
    asked as the user that this process is, by variables, files or roles of the machine.
    `names_host`: the location itself names the host that is asked, one of its own choice.
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
    """A kind of store. Keys of its options begin with one of `prefixes`, or `HADOOP` before it.

    `locate` makes of a location of its `schemes`, and of its options alone, what opens the store;
    it raises `UsageError` for a location, `CatalogOptionInvalid` for an option that it refuses.
    `is_local`: its files are this machine's. `takes_served_options`: options that the server of a
    catalog answers count, too.
    """

    schemes: Sequence[str]
    locate: Callable[[str, Mapping[str, str]], StoreLocation]
    prefixes: Sequence[str] = ()
    is_local: bool = False
    takes_served_options: bool = False


def aside(path: str) -> str:
    """A new name beside `path` for what is renamed to it once it is whole.

    Should that not happen, sweeps find its owner in the name.
    """
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{ids.this_process().unique_name()}.tmp"


def whole_range(path: str, start: int, size: int, data: bytes) -> bytes:
    """What was read of a range. Raises `StorageError` where that is not `size` bytes."""
    if len(data) != size:
        raise StorageError(path, f"read failed ({len(data)} of {size} bytes from {start} on)")
    return data


class Storage(Protocol):
    """A store; what has a body here holds for most."""

    @property
    def spec(self) -> StorageSpec:
        """The spec that opens the same store in another process."""

    @property
    def capabilities(self) -> Capabilities: ...

    def read(self, path: str) -> bytes:
        """The whole object."""

    def read_range(self, path: str, start: int, size: int) -> bytes:
        """`size` bytes of the object from byte `start` on; any number of threads may ask.

        Raises `StorageError` where the object is shorter.
        """

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        """A seekable stream for Arrow readers; the caller closes it.

        `size_bytes`: the object's size, which the caller knows from elsewhere. A store may rely on
        it rather than ask.
        """

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """Create an object exclusively; it is durable once the context ends without an exception.

        An exception removes the object. Raises `StorageError` when the path exists. Parent folders
        are made.
        """

    def status(self, path: str) -> ObjectStatus | None:
        """The object at the path, or None; a file system says of folders, too."""

    def folder_exists(self, path: str) -> bool:
        """Whether there is such a folder; in an object store, whether it has anything in it."""
        found = self.status(path)
        return found is not None and found.is_folder

    def real_folder(self, path: str) -> str:
        """Where a folder really is: the path behind links, which only file systems have."""
        return path

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        """Direct children in no particular order; nothing when the folder does not exist.

        One thread may begin with them and another one go on.
        """

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        """As `list`, those whose names are wanted: a file system asks for no other's status."""
        return (status for status in self.list(folder) if is_wanted(status.name))

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """Publish `data` at `path` unless something is there; atomic between processes.

        Readers see nothing or all of it, and it is durable before they see it. `temporary` is the
        path that the call may use meanwhile (in the same folder) and removes before it ends.
        """

    def write_new(self, path: str, data: bytes) -> None:
        """A small new object, created exclusively and durable; raises when the path exists."""

    def overwrite(self, path: str, data: bytes) -> None:
        """Replace a hint; readers find the old content or the new one, whole.

        Not for files on which correctness depends.
        """

    def delete(self, path: str) -> None:
        """Remove one object; no error when it is not there."""

    def remove_empty_folder(self, path: str) -> bool:
        """Remove a folder unless something is in it; returns whether it is gone now."""

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        """Uploads of objects below a folder; nothing where the store has none or does not tell."""
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Free what an upload has sent. No error when it has been completed or aborted."""
        raise AssertionError("none has been listed")

    def may_write(self, folder: str) -> bool | None:
        """Whether this process may create and delete in a folder; None where only trying tells."""
        return None


@runtime_checkable
class Reconnects(Protocol):
    """A store that keeps a connection, with the credentials that were there when it was made."""

    def reconnect(self) -> None:
        """Resolve references to credentials again at the next call."""


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
