"""Files of HDFS. A rename onto a name that exists fails, which is how a name is created once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import pyarrow as pa
from hdfs_native import Client, FileStatus

from compactord.clock import SystemClock
from compactord.errors import (
    AccessDenied,
    ObjectNotFound,
    StorageError,
    StoreSilent,
    TransientStorageError,
)
from compactord.storage.absence import read_back
from compactord.storage.attempts import RetryPolicy, TimedAttempts
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    aside,
    whole_range,
)
from compactord.storage.breaker import Breaker
from compactord.storage.hdfs.client import (
    Removal,
    client_of,
    create,
    named_errors,
    remove,
    rename,
)
from compactord.storage.hdfs.service import NameService
from compactord.storage.objects.streams import Upload
from compactord.storage.ranges import ranged_input

T = TypeVar("T")
# What is read and written takes longer the larger it is.
_BYTES_PER_S = 1 << 20
# What a name node lists at once, unless it is told otherwise.
_LISTED_AT_ONCE = 1000


class HdfsStorage(Storage):
    """One name service. Paths are full URLs, as the user wrote the service's."""

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
        """The same store, whose attempts the breaker may refuse and is told of."""
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
            # The listing of a file is the file.
            yield from (_status(entry) for entry in page if entry.path != own)
            page = self._once(folder, "list", lambda *_: list(islice(entries, _LISTED_AT_ONCE)))

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """Write a file aside and rename it.

        Whether a rename without a clear answer took place, the file aside tells: once that could
        be removed, it did not, and never will.
        """
        for number, is_last in enumerate(self._policy.attempts()):
            # Of its own for each attempt: what timed out may still be written.
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
        """One attempt; the error of one that did nothing and may be followed by another."""
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
            # What is gone was renamed, unless the answer to an earlier removal was lost.
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
        """A new file, whole and durable, or none as far as that is possible; in one attempt."""

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
