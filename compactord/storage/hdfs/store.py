"""Files of HDFS. Creates a name only once by a rename, which fails if the target exists."""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
from hdfs_native import Client, FileStatus, WriteOptions

from compactord.clock import SystemClock
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    StoreFull,
    StoreSilent,
    TransientStorageError,
)
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    aside,
    read_back,
    whole_range,
)
from compactord.storage.calls import Breaker, RetryPolicy, TimedAttempts
from compactord.storage.hdfs.settings import ATTEMPTS, REPLICATION, NameService
from compactord.storage.objects.store import Upload
from compactord.storage.ranges import ranged_input
from compactord.text import redact_text

# The class of a name node's exception appears only in the text of the error.
_REMOTE = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*)"\)', re.DOTALL)
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"
_DENIED = {"AccessControlException", "AuthorizationException", "InvalidToken", "SaslException"}
_FULL = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"}
_REFUSED = {"InvalidPathException", "ParentNotDirectoryException", "PathComponentTooLongException"}
# Texts of the library's errors when authentication fails.
_UNKNOWN_USER = ("GSSAPIError", "SASLError", "NoSASLMechanism", "libgssapi")
_TICKET = "; get a ticket into the cache that KRB5CCNAME names (kinit), on each machine"
_LOOKUP = "failed to lookup address"
_SERVICE = (
    "; check the name; a name service must be defined in Hadoop's files (hadoop-conf-dir, "
    "HADOOP_CONF_DIR)"
)
_LONGEST_TEXT = 200
# The library's threads do not exist in a forked child, so each process has its own clients.
_clients: dict[tuple[int, NameService], Client] = {}


class Removal(enum.Enum):
    """The name node's answer to a removal."""

    DONE = "done"
    NOTHING_THERE = "nothing there"
    NOT_EMPTY = "not empty"


def client_of(spec: NameService) -> Client:
    """This process's client of a name service. It connects at its first call."""
    key = os.getpid(), spec
    if key not in _clients:
        with named_errors(spec.root, "open"):
            # Not the files that the environment names: the settings already contain them.
            client = Client(spec.address, {ATTEMPTS: "1", **dict(spec.settings)}, os.devnull)
        _clients.setdefault(key, client)
    return _clients[key]


def create(client: Client, name: str, spec: NameService) -> Any:
    """A new file, with its folders. It is complete only after it was closed.

    Not the library's own stream: its destructor closes the file and so completes it.
    """
    replication = dict(spec.settings).get(REPLICATION)
    options = WriteOptions(replication=None if replication is None else int(replication))
    return client.inner.create(name, options)


def rename(client: Client, source: str, target: str, *, replaces: bool = False) -> bool:
    """Whether it was done; False if the target exists."""
    try:
        client.rename(source, target, overwrite=replaces)
    except FileExistsError:
        return False
    return True


def remove(client: Client, name: str) -> Removal:
    """Remove a file, or a folder if it is empty."""
    try:
        return Removal.DONE if client.delete(name) else Removal.NOTHING_THERE
    except RuntimeError as error:
        if _NOT_EMPTY not in str(error):
            raise
        return Removal.NOT_EMPTY


@contextlib.contextmanager
def named_errors(path: str, action: str) -> Iterator[None]:
    """Raises the library's errors as `StorageError`. It has no error classes, and may panic."""
    try:
        yield
    except CompactordError:
        raise
    except FileNotFoundError:
        raise ObjectNotFound(path, f"{action} failed (no such file)") from None
    except FileExistsError:
        raise StorageError(path, f"{action} failed (it exists)") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _error(path, action, error) from None


def _error(path: str, action: str, error: BaseException) -> StorageError:
    text = str(error)
    remote = _REMOTE.search(text)
    kind, said = (remote[1], remote[2]) if remote else (type(error).__name__, text)
    # The rest is Java's stack trace.
    said = redact_text(said.split("\n", 1)[0].split("\\n", 1)[0])[:_LONGEST_TEXT]
    message = f"{action} failed ({kind}{': ' if said else ''}{said})"
    if kind in _DENIED:
        return AccessDenied(path, message)
    if any(name in text for name in _UNKNOWN_USER):
        return AccessDenied(path, message + _TICKET)
    if kind in _FULL:
        return StoreFull(path, message)
    if kind in _REFUSED or isinstance(error, NotImplementedError | ValueError):
        return StorageError(path, message)
    return TransientStorageError(path, message + (_SERVICE if _LOOKUP in text else ""))


T = TypeVar("T")
# Larger reads and writes take longer.
_BYTES_PER_S = 1 << 20
# Default number of entries per page of a name node.
_LISTED_AT_ONCE = 1000


class HdfsStorage(Storage):
    """One name service. Paths are full URLs, with the service as the user wrote it."""

    capabilities = Capabilities(
        has_folders=True,
        creates_exclusively=True,
        excludes_java_writers=True,
        replaces_nothing=True,
        copies_may_look_old=True,
    )

    def __init__(
        self, spec: NameService, policy: RetryPolicy | None = None, breaker: Breaker | None = None
    ) -> None:
        self._spec = spec
        self._policy = policy or RetryPolicy(clock=SystemClock())
        self._attempts = TimedAttempts(breaker, named_errors)
        client_of(spec)

    def behind(self, breaker: Breaker) -> HdfsStorage:
        return HdfsStorage(self._spec, self._policy, breaker)

    @property
    def spec(self) -> NameService:
        return self._spec

    def read(self, path: str) -> bytes:
        return self._tried(path, "read", lambda client, name: bytes(client.read(name).read()))

    def read_range(self, path: str, start: int, size: int) -> bytes:
        def read(client: Client, name: str) -> bytes:
            file = client.read(name)
            there = max(0, len(file) - start)
            return bytes(file.read_range(start, min(size, there))) if size and there else b""

        return whole_range(path, start, size, self._tried(path, "read", read, size_bytes=size))

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return ranged_input(self, path, size_bytes)

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        file = self._tried(path, "create", lambda client, name: create(client, name, self._spec))

        def hand_over(call: Callable[[], object]) -> None:
            self._once(path, "write", lambda *_: call())

        upload = Upload(file, hand_over)
        del file
        try:
            with pa.PythonFile(upload, mode="w") as stream:
                yield stream
            upload.publish()
        except BaseException:
            upload.drop()
            with contextlib.suppress(StorageError):
                self.delete(path)
            raise

    def status(self, path: str) -> ObjectStatus | None:
        try:
            found = self._tried(path, "status", lambda client, name: client.get_file_info(name))
        except ObjectNotFound:
            return None
        return _status(found)

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        def begin(client: Client, name: str) -> tuple[Iterator[FileStatus], list[FileStatus]]:
            entries = client.list_status(name)
            return entries, list(islice(entries, _LISTED_AT_ONCE))

        own = self._name(folder, "list")
        try:
            entries, page = self._tried(folder, "list", begin)
        except ObjectNotFound:
            return
        while page:
            # The listing of a file is the file itself.
            yield from (_status(entry) for entry in page if entry.path != own)
            page = self._once(folder, "list", lambda *_: list(islice(entries, _LISTED_AT_ONCE)))

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """Writes a temporary file and renames it.

        If a rename got no clear answer, removing the temporary file decides: if that succeeds, the
        rename did not happen and never will.
        """
        for number, is_last in enumerate(self._policy.attempts()):
            # A new name for each attempt: a write that timed out may still continue.
            found = self._create(path, data, f"{temporary}.{number}")
            if isinstance(found, Creation):
                return found
            if is_last:
                raise found
        raise AssertionError("the last attempt returns or raises")

    def write_new(self, path: str, data: bytes) -> None:
        created = self.create_if_absent(path, data, temporary=aside(path))
        if created is Creation.EXISTS:
            raise StorageError(path, "write failed (exists)")

    def overwrite(self, path: str, data: bytes) -> None:
        temporary = aside(path)
        own = self._name(temporary, "overwrite")
        try:
            self._write(temporary, data)
            self._once(path, "overwrite", lambda client, to: rename(client, own, to, replaces=True))
        except StorageError:
            self._remove_quietly(temporary)
            raise

    def delete(self, path: str) -> None:
        self._tried(path, "delete", remove)

    def remove_empty_folder(self, path: str) -> bool:
        return self._tried(path, "remove folder", remove) is not Removal.NOT_EMPTY

    def _create(self, path: str, data: bytes, temporary: str) -> Creation | TransientStorageError:
        """One attempt. Returns the error of an attempt without effect, which may be repeated."""
        try:
            self._write(temporary, data)
        except StoreSilent:
            raise
        except TransientStorageError as error:
            return error
        own, is_taken = self._name(temporary, "publish"), False
        try:
            if self._once(path, "publish", lambda client, to: rename(client, own, to)):
                return Creation.CREATED
            failed, is_taken = StorageError(path, "publish failed (exists)"), True
        except AccessDenied:
            self._remove_quietly(temporary)
            raise
        except StorageError as error:
            failed = error
        try:
            # A missing file was renamed, unless the answer to an earlier removal was lost.
            was_aside = self._tried(temporary, "delete", remove) is Removal.DONE
            there = None if was_aside else read_back(self, path, failed)
        except StorageError as error:
            message = f"{failed.message}; it may appear yet: {error.message}"
            raise TransientStorageError(path, message) from failed
        if there is not None:
            return Creation.CREATED if there == data else Creation.EXISTS
        if is_taken:
            return Creation.EXISTS
        if isinstance(failed, TransientStorageError):
            return failed
        raise failed

    def _write(self, path: str, data: bytes) -> None:
        """Writes a new file in one attempt. On failure it tries to remove the file."""

        def write(client: Client, name: str) -> None:
            file = create(client, name, self._spec)
            if data:
                file.write(data)
            file.close()

        try:
            self._once(path, "write", write, size_bytes=len(data))
        except StorageError:
            self._remove_quietly(path)
            raise

    def _remove_quietly(self, path: str) -> None:
        with contextlib.suppress(StorageError):
            self._once(path, "delete", remove)

    def _tried(
        self, path: str, action: str, call: Callable[[Client, str], T], *, size_bytes: int = 0
    ) -> T:
        for is_last in self._policy.attempts():
            try:
                return self._once(path, action, call, size_bytes=size_bytes)
            except TransientStorageError as error:
                if is_last or isinstance(error, StoreSilent):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _once(
        self, path: str, action: str, call: Callable[[Client, str], T], *, size_bytes: int = 0
    ) -> T:
        name = self._name(path, action)
        seconds = self._spec.answer_s + size_bytes / _BYTES_PER_S
        return self._attempts.one(path, action, lambda: call(client_of(self._spec), name), seconds)

    def _name(self, path: str, action: str) -> str:
        """The path within the name service."""
        root = self._spec.root
        if path != root and not path.startswith(f"{root}/"):
            raise StorageError(path, f"{action} failed (outside the store {root})")
        return path[len(root) :] or "/"


def _status(found: FileStatus) -> ObjectStatus:
    return ObjectStatus(
        name=found.path.rpartition("/")[2],
        is_folder=found.isdir,
        size_bytes=found.length,
        changed_ms=found.modification_time,
    )
