"""Objects of S3, GCS, Azure and OSS."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from compactord.clock import Clock, SystemClock
from compactord.errors import ObjectNotFound, StorageError, TransientStorageError
from compactord.storage.base import Creation, ObjectStatus
from compactord.storage.objects.connection import connection_of, forget
from compactord.storage.objects.spec import ObjectSpec
from compactord.storage.objects.streams import RangeReader, Upload
from compactord.storage.retry import RetryPolicy

if TYPE_CHECKING:
    from opendal import Operator
    from opendal.types import Entry, Metadata

T = TypeVar("T")
# Each output holds up to this many parts while they are sent.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
_PAGE_ENTRIES = 1000
# By which an upload whose outcome is unknown is recognised.
# Letters only: Azure takes no hyphen, some proxies no underscore.
_UPLOAD_MARK = "compactordupload"
_FOLDER_MARK = "hdi_isfolder"
# An object that the store gives no time counts as just written: nothing deletes it for its age.
_NEVER_OLD_MS = 1 << 53


class ObjectStorage:
    """One bucket. Paths are full URLs, as the user wrote the bucket's.

    Folders are what names have in common. Small calls are repeated here (`RetryPolicy`); what is
    streamed and listed, by the library, since parts and pages cannot be repeated from outside.
    """

    def __init__(
        self, spec: ObjectSpec, clock: Clock | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self._spec = spec
        self._policy = policy or RetryPolicy(clock=clock or SystemClock())
        connection_of(spec)

    @property
    def spec(self) -> ObjectSpec:
        return self._spec

    @property
    def is_object_store(self) -> bool:
        return True

    def read(self, path: str) -> bytes:
        key = self._spec.key_of(path)
        return self._tried(path, "read", lambda store: store.read(key))

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if size == 0:
            return b""
        key = self._spec.key_of(path)
        data = self._tried(path, "read", lambda store: store.read(key, offset=start, size=size))
        if len(data) != size:
            raise StorageError(path, f"read failed ({len(data)} of {size} bytes from {start} on)")
        return data

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        if size_bytes is None:
            found = self.status(path)
            if found is None:
                raise ObjectNotFound(path, "open failed (no such object)")
            size_bytes = found.size_bytes
        reader = RangeReader(lambda start, size: self.read_range(path, start, size), size_bytes)
        return pa.PythonFile(reader, mode="r")

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        key = self._spec.key_of(path)
        mark = uuid.uuid4().hex
        store = connection_of(self._spec).retrying
        with self._named(path, "create"):
            file = store.open(
                key,
                "wb",
                chunk=_PART_BYTES,
                concurrent=_PARTS_AT_ONCE,
                if_not_exists=True,
                user_metadata={_UPLOAD_MARK: mark},
            )
        upload = Upload(file, lambda call: self._guarded(path, call))
        del file
        try:
            with pa.PythonFile(upload, mode="w") as stream:
                yield stream
            self._publish(path, key, upload, mark)
        finally:
            upload.drop()

    def status(self, path: str) -> ObjectStatus | None:
        key = self._spec.key_of(path)
        if not key:
            return None
        try:
            found = self._tried(path, "status", lambda store: store.stat(key))
        except ObjectNotFound:
            return None
        return _status(key.rpartition("/")[2], found)

    def folder_exists(self, path: str) -> bool:
        prefix = self._prefix(path)

        def look(store: Operator) -> bool:
            return next(iter(store.list(prefix, limit=1)), None) is not None

        return self._tried(path, "list", look)

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        prefix = self._prefix(folder)
        store = connection_of(self._spec).retrying
        folders: set[str] = set()
        with self._named(folder, "list"):
            for entry in store.list(prefix, limit=_PAGE_ENTRIES):
                found = _listed(entry, prefix)
                if found is None:
                    continue
                if found.is_folder:
                    if found.name in folders:
                        continue
                    folders.add(found.name)
                # Some programs mark a folder by an empty object of its name.
                elif not found.size_bytes and found.name in folders:
                    continue
                yield found

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """One conditional request; `temporary` is not used.

        The library would take its own first attempt for another's, so it repeats nothing. What an
        attempt without a clear answer did is found out by reading the object back.
        """
        return self._create(path, data, "publish")

    def write_new(self, path: str, data: bytes) -> None:
        if self._create(path, data, "write") is Creation.EXISTS:
            raise StorageError(path, "write failed (exists)")

    def overwrite(self, path: str, data: bytes) -> None:
        key = self._spec.key_of(path)
        self._tried(path, "overwrite", lambda store: store.write(key, data))

    def delete(self, path: str) -> None:
        key = self._spec.key_of(path)
        with contextlib.suppress(ObjectNotFound):
            self._tried(path, "delete", lambda store: store.delete(key))

    def remove_empty_folder(self, path: str) -> bool:
        """A folder without objects is not there."""
        return True

    def may_write(self, folder: str) -> bool | None:
        return None

    def _prefix(self, folder: str) -> str:
        key = self._spec.key_of(folder)
        return f"{key}/" if key else "/"

    def _create(self, path: str, data: bytes, action: str) -> Creation:
        from compactord.storage.objects.failures import LIBRARY_ERRORS, Failure, failure_of

        key = self._spec.key_of(path)
        is_first = True
        for is_last in self._policy.attempts():
            connection = connection_of(self._spec)
            try:
                with connection.slots:
                    connection.once.write(key, data, if_not_exists=True)
                return Creation.CREATED
            except LIBRARY_ERRORS as error:
                failure, raised = failure_of(error), self._error(error, path, action)
            if failure is Failure.EXISTS and is_first:
                return Creation.EXISTS
            if failure in (Failure.DENIED, Failure.NOT_FOUND, Failure.NO_STORE):
                raise raised
            is_first = False
            if failure is Failure.EXPIRED:
                forget(self._spec, connection)
            elif (there := self._read_back(path, raised)) is not None:
                return Creation.CREATED if there == data else Creation.EXISTS
            if not failure.may_heal:
                raise raised
            if is_last:
                raise TransientStorageError(path, f"{raised.message}; it may appear yet")
        raise AssertionError("the last attempt returns or raises")

    def _read_back(self, path: str, error: StorageError) -> bytes | None:
        """What is at the path after an attempt of unknown outcome, which `error` describes."""
        try:
            return self.read(path)
        except ObjectNotFound:
            return None
        except StorageError as unread:
            message = f"{error.message}; whether it exists is unknown: {unread.message}"
            raise TransientStorageError(path, message) from error

    def _publish(self, path: str, key: str, upload: Upload, mark: str) -> None:
        """Complete an upload; if that was not confirmed, by what is there afterwards.

        The library repeats the request, so that "exists" may mean this very upload.
        """
        try:
            upload.publish()
        except StorageError:
            try:
                found = self._tried(path, "status", lambda store: store.stat(key))
            except StorageError:
                found = None
            if found is None or found.content_length != upload.size_bytes:
                raise
            marks = {name.lower(): value for name, value in (found.user_metadata or {}).items()}
            # OSS keeps no marks of uploads in parts; their names are unique.
            unmarked = mark if self._spec.service == "oss" else None
            if marks.get(_UPLOAD_MARK, unmarked) != mark:
                raise

    def _tried(self, path: str, action: str, call: Callable[[Operator], T]) -> T:
        """A call that may be repeated: nothing is different if its effect comes twice."""
        from compactord.storage.objects.failures import LIBRARY_ERRORS, Failure, failure_of

        for is_last in self._policy.attempts():
            connection = connection_of(self._spec)
            try:
                with connection.slots:
                    return call(connection.once)
            except LIBRARY_ERRORS as error:
                failure = failure_of(error)
                if is_last or not failure.may_heal:
                    raise self._error(error, path, action) from None
            if failure is Failure.EXPIRED:
                forget(self._spec, connection)
        raise AssertionError("the last attempt returns or raises")

    def _guarded(self, path: str, call: Callable[[], object]) -> None:
        with self._named(path, "write"), connection_of(self._spec).slots:
            call()

    @contextlib.contextmanager
    def _named(self, path: str, action: str) -> Iterator[None]:
        from compactord.storage.objects.failures import LIBRARY_ERRORS

        try:
            yield
        except LIBRARY_ERRORS as error:
            raise self._error(error, path, action) from None

    @staticmethod
    def _error(error: Exception, path: str, action: str) -> StorageError:
        from compactord.storage.objects.failures import storage_error

        return storage_error(error, path, action)


def _listed(entry: Entry, prefix: str) -> ObjectStatus | None:
    """An entry of a listing; None for the object that marks the folder itself."""
    name = entry.path.removeprefix("" if prefix == "/" else prefix).removesuffix("/")
    if name in ("", "/"):
        return None
    if entry.metadata.is_dir:
        return ObjectStatus(name=name, is_folder=True, size_bytes=0, changed_ms=0)
    return _status(name, entry.metadata)


def _status(name: str, found: Metadata) -> ObjectStatus:
    changed: datetime | None = found.last_modified
    marks = found.user_metadata or {}
    return ObjectStatus(
        name=name,
        is_folder=marks.get(_FOLDER_MARK) == "true",
        size_bytes=found.content_length,
        changed_ms=_NEVER_OLD_MS if changed is None else int(changed.timestamp() * 1000),
    )
