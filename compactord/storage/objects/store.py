"""Objects of S3, GCS, Azure and OSS. Imported only where such a store is used."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from opendal.exceptions import NotFound

from compactord.clock import SystemClock
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.storage.absence import read_back
from compactord.storage.attempts import RetryPolicy
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    UnfinishedUpload,
    whole_range,
)
from compactord.storage.breaker import Breaker
from compactord.storage.objects.bucket import Bucket
from compactord.storage.objects.calls import Calls, OtherKeys
from compactord.storage.objects.connection import connection_of, forget
from compactord.storage.objects.failures import (
    LIBRARY_ERRORS,
    Failure,
    failure_of,
    is_unsent,
    storage_error,
)
from compactord.storage.objects.listing import Listing, listed, status_of
from compactord.storage.objects.streams import Upload, pieces_in_time
from compactord.storage.objects.uploads import abort_upload, list_uploads
from compactord.storage.ranges import ranged_input
from compactord.storage.requests import Report, StorageOp, both

if TYPE_CHECKING:
    from opendal import Operator
    from opendal.types import Entry

T = TypeVar("T")
# Each output holds up to this many parts while they are sent.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
_PAGE_ENTRIES = 1000
# Whole objects are metadata. What is larger does not end.
_READ_BYTES_MAX = 1 << 29
# By which an upload whose outcome is unknown is recognised. Letters only: Azure takes no hyphen,
# some proxies no underscore.
_UPLOAD_MARK = "compactordupload"


class ObjectStorage(Storage):
    """One bucket. Paths are full URLs, as the user wrote the bucket's.

    Folders are what names have in common. Small calls are repeated here (`RetryPolicy`); what is
    streamed and listed, by the library, since parts and pages cannot be repeated from outside.
    """

    def __init__(
        self,
        spec: Bucket,
        policy: RetryPolicy | None = None,
        report: Report | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        policy = policy or RetryPolicy(clock=SystemClock())
        self._calls = Calls(spec=spec, policy=policy, report=report, breaker=breaker)
        self._spec = spec
        connection_of(spec)

    def reporting(self, report: Report) -> ObjectStorage:
        """The same store; `report` gets each request, too (`compactord/storage/requests.py`).

        An upload and a listing count as one request each, when they end: parts, pages and their
        repetitions are the library's. An upload that is given up is not reported.
        """
        told = both(self._calls.report, report)
        return ObjectStorage(self._spec, self._calls.policy, told, self._calls.breaker)

    def behind(self, breaker: Breaker) -> ObjectStorage:
        """The same store, whose attempts the breaker may refuse and is told of."""
        return ObjectStorage(self._spec, self._calls.policy, self._calls.report, breaker)

    def reconnect(self) -> None:
        """See `Reconnects`; what is streamed meanwhile goes on as it was."""
        forget(self._spec, connection_of(self._spec))

    @property
    def spec(self) -> Bucket:
        return self._spec

    @property
    def capabilities(self) -> Capabilities:
        return self._spec.capabilities

    def read(self, path: str) -> bytes:
        key = self._spec.key_of(path)

        def read(store: Operator) -> bytes:
            return self._whole(store, key, _READ_BYTES_MAX)

        return self._calls.tried(path, "read", StorageOp.GET, read)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if size == 0:
            return b""
        key = self._spec.key_of(path)

        def read(store: Operator) -> bytes:
            return self._whole(store, key, size, offset=start, size=size)

        data = self._calls.tried(path, "read", StorageOp.GET, read)
        return whole_range(path, start, size, data)

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        return ranged_input(self, path, size_bytes)

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        key = self._spec.key_of(path)
        mark = uuid.uuid4().hex
        connection = self._calls.connection(path)
        meter = self._calls.meter(StorageOp.PUT)
        with self._calls.named(path, "create", meter, connection):
            file = connection.retrying.open(
                key,
                "wb",
                chunk=_PART_BYTES,
                concurrent=_PARTS_AT_ONCE,
                if_not_exists=True,
                user_metadata={_UPLOAD_MARK: mark},
            )
        upload = Upload(file, lambda call: self._calls.send(path, call, meter, connection))
        del file
        try:
            with pa.PythonFile(upload, mode="w") as stream:
                yield stream
            self._publish(path, key, upload, mark)
        except BaseException:
            upload.drop()
            if upload.size_bytes > _PART_BYTES:
                self._abort(path, key)
            raise
        meter.report(size_bytes=upload.size_bytes)

    def status(self, path: str) -> ObjectStatus | None:
        key = self._spec.key_of(path)
        if not key:
            return None
        try:
            found = self._calls.tried(path, "status", StorageOp.HEAD, lambda store: store.stat(key))
        except ObjectNotFound:
            return None
        return status_of(key.rpartition("/")[2], found)

    def folder_exists(self, path: str) -> bool:
        return bool(self._first_names(path, 1))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        prefix = self._prefix(folder)
        pages = self._pages(folder, prefix)
        try:
            begun = next(pages, ())
        except OtherKeys:
            pages, begun = self._pages(folder, prefix), ()
        folders: set[str] = set()
        is_empty = True
        for entry in chain(begun, chain.from_iterable(pages)):
            is_empty = False
            found = listed(entry, prefix)
            # Some stores repeat a folder on each page, some programs mark one by an empty object of
            # its name.
            if found is None or (not found.size_bytes and found.name in folders):
                continue
            if found.is_folder:
                folders.add(found.name)
            yield found
        if is_empty:
            self._require_empty(folder)

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        """One conditional request; `temporary` is not used.

        The library would take its own first attempt for another's, so it repeats nothing. What an
        attempt without a clear answer did is found out by reading the object back.
        """
        return self._create(path, data, "publish", StorageOp.PUT_IF_ABSENT)

    def write_new(self, path: str, data: bytes) -> None:
        if self._create(path, data, "write", StorageOp.PUT) is Creation.EXISTS:
            raise StorageError(path, "write failed (exists)")

    def overwrite(self, path: str, data: bytes) -> None:
        key = self._spec.key_of(path)

        def write(store: Operator) -> None:
            store.write(key, data)

        self._calls.tried(path, "overwrite", StorageOp.PUT, write, size_bytes=len(data))

    def delete(self, path: str) -> None:
        key = self._spec.key_of(path)
        with contextlib.suppress(ObjectNotFound):
            self._calls.tried(path, "delete", StorageOp.DELETE, lambda store: store.delete(key))

    def remove_empty_folder(self, path: str) -> bool:
        """A folder without objects is not there."""
        return True

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        """Those of S3. MinIO tells only of those of one object, and removes old ones itself."""
        prefix = self._prefix(folder)
        if self._spec.service == "s3":
            yield from list_uploads(self._calls, folder, "" if prefix == "/" else prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        abort_upload(self._calls, upload)

    def _whole(self, store: Operator, key: str, bytes_max: int, **options: Any) -> bytes:
        """In pieces: the library waits for each of them alone, and takes whatever comes."""
        file = store.open(key, "rb", **options)
        try:
            return b"".join(pieces_in_time(file.read, self._spec.timeout_s, bytes_max))
        except OSError as error:
            if is_unsent(error):
                # A file does not say why. That HEAD finds no object says nothing.
                with contextlib.suppress(NotFound):
                    store.stat(key)
            raise

    def _pages(self, folder: str, prefix: str) -> Iterator[Sequence[Entry]]:
        connection = self._calls.connection(folder)
        store = connection.retrying.to_async_operator()
        meter = self._calls.meter(StorageOp.LIST)
        with Listing(store, prefix, _PAGE_ENTRIES) as listing:
            while True:
                with self._calls.named(folder, "list", meter, connection), connection.slots:
                    page = listing.page()
                if not page:
                    break
                yield page
        meter.report()

    def _require_empty(self, folder: str) -> None:
        """Raises `TransientStorageError` for a folder that the one above it names.

        The library takes any answer in XML for a listing, so that a gateway's page is an empty one.
        """
        at = folder
        while self._spec.key_of(at):
            above, _, name = at.rpartition("/")
            try:
                names = self._first_names(above, _PAGE_ENTRIES)
            except AccessDenied:
                return  # Whoever may list a part of the bucket alone.
            # A folder of Azure may be there with nothing in it; beyond a page it is not known.
            is_in_doubt = f"{name}/" in names or len(names) == _PAGE_ENTRIES
            if is_in_doubt and self._first_names(at, 1):
                raise TransientStorageError(folder, "list failed (nothing first, then something)")
            if names:
                return
            at = above

    def _first_names(self, folder: str, most: int) -> Sequence[str]:
        """The names of what a listing begins with; those of folders end with a slash."""
        prefix = self._prefix(folder)

        def look(store: Operator) -> Sequence[str]:
            with Listing(store.to_async_operator(), prefix, most) as listing:
                return [entry.path.removeprefix(prefix) for entry in listing.page()]

        return self._calls.tried(folder, "list", StorageOp.LIST, look)

    def _prefix(self, folder: str) -> str:
        key = self._spec.key_of(folder)
        return f"{key}/" if key else "/"

    def _create(self, path: str, data: bytes, action: str, op: StorageOp) -> Creation:
        key = self._spec.key_of(path)
        # Whether an earlier attempt may have its effect yet.
        is_pending = False
        for is_last in self._calls.policy.attempts():
            connection = self._calls.connection(path)
            meter = self._calls.meter(op)
            try:
                with connection.slots, meter:
                    connection.once.write(key, data, if_not_exists=True)
                meter.report(size_bytes=len(data))
                return Creation.CREATED
            except LIBRARY_ERRORS as error:
                failure, raised = failure_of(error), storage_error(error, path, action)
            is_over = not self._calls.may_pass(failure, connection) or is_last
            meter.report(failure, is_repeated=not is_over)
            if failure is Failure.EXISTS and not is_pending:
                return Creation.EXISTS
            if is_pending or not failure.had_no_effect:
                there = read_back(self, path, raised)
                if there is not None:
                    return Creation.CREATED if there == data else Creation.EXISTS
            is_pending = is_pending or (failure.may_pass and not failure.had_no_effect)
            if is_over and is_pending:
                raise TransientStorageError(path, f"{raised.message}; it may appear yet")
            if is_over:
                raise raised
        raise AssertionError("the last attempt returns or raises")

    def _publish(self, path: str, key: str, upload: Upload, mark: str) -> None:
        """Complete an upload; if that was not confirmed, by what is there afterwards.

        The library repeats the request, so that "exists" may mean this very upload.
        """
        try:
            upload.publish()
        except StorageError:
            try:
                found = self._calls.tried(
                    path, "status", StorageOp.HEAD, lambda store: store.stat(key)
                )
            except StorageError:
                found = None
            if found is None or found.content_length != upload.size_bytes:
                raise
            marks = {name.lower(): value for name, value in (found.user_metadata or {}).items()}
            # OSS keeps no marks of uploads in parts; their names are unique.
            unmarked = mark if self._spec.service == "oss" else None
            if marks.get(_UPLOAD_MARK, unmarked) != mark:
                raise

    def _abort(self, path: str, key: str) -> None:
        """Abort the uploads of one object, whose name nobody else uses; as far as that succeeds."""
        if self._spec.service == "s3":
            with contextlib.suppress(CompactordError):
                for upload in list_uploads(self._calls, path, key):
                    if upload.path == path:
                        abort_upload(self._calls, upload)
