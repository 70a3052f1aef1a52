"""Objects of S3, GCS, Azure and OSS, and unfinished uploads of S3.

Imported only when such a store is opened. The library cannot list unfinished uploads; botocore can.
It is imported only when a sweep, or an output that failed, needs them.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    UsageError,
)
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    UnfinishedUpload,
    read_back,
    whole_range,
)
from compactord.storage.calls import Breaker, RetryPolicy, TimedCalls
from compactord.storage.objects.calls import Calls, CredentialsChanged
from compactord.storage.objects.connection import Listing, connection_of, forget, listed, status_of
from compactord.storage.objects.failures import (
    LIBRARY_ERRORS,
    CallFailed,
    Failure,
    failure_of,
    failure_of_code,
    is_unsent,
    storage_error,
)
from compactord.storage.objects.options import INSTALL_STORES, Bucket
from compactord.storage.ranges import ranged_input
from compactord.storage.requests import Report, StorageOp, both
from compactord.text import ReferenceMissing, redact_text, resolve

if TYPE_CHECKING:
    from opendal import Operator
    from opendal.types import Entry
if TYPE_CHECKING:
    from opendal.file import File


# Bytes written to the library at once; it cuts its own parts from them.
_WRITE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
# Minimum rate of an answer that takes longer than the time limit.
_SLOWEST_BYTES_PER_S = 1 << 16
_LONGEST_FACTOR = 10


def pieces_in_time(read: Callable[[int], bytes], seconds: float, bytes_max: int) -> Iterator[bytes]:
    """The results of `read` until one is empty. `read` waits at most for one piece.

    Raises `TimeoutError` if it takes longer than `seconds` plus the time that its bytes need, at
    most ten times `seconds`, and `OSError` beyond `bytes_max`. Uses the machine's clock, like the
    libraries.
    """
    began_s, count = time.monotonic(), 0
    while piece := read(min(_PIECE_BYTES, bytes_max + 1 - count)):
        count += len(piece)
        if count > bytes_max:
            raise OSError(f"an answer of more than {bytes_max} bytes")
        yield piece
        spent_s = time.monotonic() - began_s
        if spent_s > min(seconds + count / _SLOWEST_BYTES_PER_S, seconds * _LONGEST_FACTOR):
            raise TimeoutError(f"no whole answer within {spent_s:.0f} s")


class Upload(io.RawIOBase):
    """A stream into an upload that is invisible until `publish`.

    Closing the library's file publishes the bytes written so far, so this stream never closes it:
    `drop` leaves the upload unfinished.
    """

    def __init__(self, file: File, attempted: Callable[[Callable[[], object]], None]) -> None:
        super().__init__()
        self._file: File | None = file
        self._attempted = attempted
        self._pending = bytearray()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        self._pending += view
        self.size_bytes += len(view)
        if len(self._pending) >= _WRITE_BYTES:
            self._hand_over()
        return len(view)

    def publish(self) -> None:
        """Complete the upload. If it raises, as `attempted` does, the upload may be complete."""
        self._hand_over()
        assert self._file is not None, "an upload is published once"
        self._attempted(self._file.close)
        self._file = None

    def drop(self) -> None:
        self._file = None
        self._pending.clear()

    def _hand_over(self) -> None:
        file, data = self._file, bytes(self._pending)
        assert file is not None, "the upload has not ended"
        self._pending.clear()
        if data:
            self._attempted(lambda: file.write(data))


T = TypeVar("T")
_Page = tuple[Sequence[UnfinishedUpload], Mapping[str, str]]
_ROLE_SESSION = "compactord"
# Keys of a role are valid for an hour.
_CLIENT_AGE_S = 900.0
# Limit for one store and process; a call that hangs keeps its place.
_CALLS_AT_ONCE = 8
# Pages of a thousand uploads each.
_PAGES_MAX = 10_000
_ANSWER_BYTES_MAX = 16 << 20
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")


def list_uploads(calls: Calls, path: str, prefix: str) -> Iterator[UnfinishedUpload]:
    """The uploads of keys with this `prefix`; errors name `path`.

    Raises `StorageError`, and `UsageError` without botocore.
    """
    markers: Mapping[str, str] = {}
    for _ in range(_PAGES_MAX):
        read = partial(_page, calls.spec, prefix, markers)
        page, markers = _tried(calls, path, "list uploads", StorageOp.LIST, read)
        yield from page
        if not markers:
            return
    raise TransientStorageError(path, f"list uploads failed (more than {_PAGES_MAX:,} pages)")


def abort_upload(calls: Calls, upload: UnfinishedUpload) -> None:
    """Abort an upload; no error if it has ended meanwhile. Raises as `list_uploads`."""
    abort = partial(_abort, calls.spec, upload)
    _tried(calls, upload.path, "abort upload", StorageOp.DELETE, abort)


def _page(spec: Bucket, prefix: str, markers: Mapping[str, str], client: Any) -> _Page:
    """Some uploads, and the markers of the next request, empty at the end."""
    bucket = dict(spec.options)["bucket"]
    found = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **markers)
    uploads = [
        UnfinishedUpload(
            path=f"{spec.root}/{upload['Key']}",
            upload_id=upload["UploadId"],
            started_ms=int(upload["Initiated"].timestamp() * 1000),
        )
        for upload in found.get("Uploads", ())
    ]
    if not found.get("IsTruncated"):
        return uploads, {}
    names = ("KeyMarker", "UploadIdMarker")
    following = {name: found[f"Next{name}"] for name in names if found.get(f"Next{name}")}
    if following in ({}, markers):
        raise CallFailed(Failure.TRANSIENT, "", "its pages do not advance")
    return uploads, following


def _abort(spec: Bucket, upload: UnfinishedUpload, client: Any) -> None:
    bucket, key = dict(spec.options)["bucket"], spec.key_of(upload.path)
    with contextlib.suppress(client.exceptions.NoSuchUpload):
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload.upload_id)


@dataclass(slots=True)
class _Known:
    """This process's client for a bucket, with the options and time of its creation."""

    calls: TimedCalls = field(default_factory=lambda: TimedCalls(_CALLS_AT_ONCE))
    options: Mapping[str, str] = field(default_factory=dict)
    made_s: float = 0.0
    client: Any = None


_known: dict[Bucket, _Known] = {}
_lock = threading.Lock()


def _tried(calls: Calls, path: str, action: str, op: StorageOp, call: Callable[[Any], T]) -> T:
    """`Calls.tried` with botocore's client; each attempt has a time limit."""
    spec = calls.spec
    with _lock:
        known = _known.setdefault(spec, _Known())

    def attempt(_: object) -> T:
        try:
            return known.calls.within(spec.timeout_s, lambda: call(_client(spec, known, path)))
        except (CallFailed, CompactordError):
            raise
        except Exception as error:  # noqa: BLE001 - botocore passes on what it is built upon
            failed = _failed(error)
            if failed.failure is Failure.EXPIRED:
                known.client = None
            raise failed from None

    return calls.call_with_retry(path, action, op, attempt)


def _client(spec: Bucket, known: _Known, path: str) -> Any:
    """A client with the current keys; errors name `path`.

    Raises `UsageError` without botocore, `TransientStorageError` if a reference has no value.
    """
    try:
        import botocore.session
    except ImportError as error:
        raise UsageError(
            f"{spec.root}: unfinished uploads need packages that are not installed "
            f"({error.name}): {INSTALL_STORES}"
        ) from None
    try:
        options = {key: resolve(value) for key, value in spec.options}
    except ReferenceMissing as error:
        # The reference had a value when the store was opened.
        raise TransientStorageError(path, f"connect failed ({error})") from None
    client, now_s = known.client, time.monotonic()
    if client is None or known.options != options or now_s - known.made_s > _CLIENT_AGE_S:
        client = _connected(spec, options, botocore.session.get_session())
        known.options, known.made_s, known.client = options, now_s, client
    return client


def _connected(spec: Bucket, options: Mapping[str, str], session: Any) -> Any:
    import botocore
    from botocore.config import Config

    is_virtual = options.get("enable_virtual_host_style") == "true"
    unsigned = {"signature_version": botocore.UNSIGNED} if _is_anonymous(options) else {}
    limits = Config(
        connect_timeout=spec.timeout_s,
        read_timeout=spec.timeout_s,
        # Attempts are made here, not by the library.
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    config = Config(s3={"addressing_style": "virtual" if is_virtual else "path"}, **unsigned)
    client = session.create_client(
        "s3",
        endpoint_url=options.get("endpoint"),
        region_name=options.get("region") or os.environ.get("AWS_REGION"),
        config=limits.merge(config),
        **_credentials(spec, session, options, limits),
    )
    return _bounded(client, spec.timeout_s)


def _bounded(client: Any, seconds: float) -> Any:
    """The client with bounded answers: an abandoned thread must not fill the memory."""
    session = client._endpoint.http_session

    def send(request: Any, **_: object) -> Any:
        request.stream_output = True
        answer = session.send(request)
        answer.raw = _Bounded(answer.raw, seconds)
        return answer

    client.meta.events.register("before-send", send)
    return client


@dataclass(frozen=True, slots=True)
class _Bounded:
    """The body of an answer, as botocore reads it."""

    body: Any
    seconds: float

    def stream(self) -> Iterator[bytes]:
        try:
            yield from pieces_in_time(self.body.read1, self.seconds, _ANSWER_BYTES_MAX)
        except BaseException:
            self.body.close()
            raise


def _is_anonymous(options: Mapping[str, str]) -> bool:
    return options.get("skip_signature") == "true"


def _credentials(
    spec: Bucket, session: Any, options: Mapping[str, str], limits: Any
) -> dict[str, str]:
    """The keys of the options or of their role; empty to use botocore's own chain."""
    keys = {
        "aws_access_key_id": options.get("access_key_id"),
        "aws_secret_access_key": options.get("secret_access_key"),
        "aws_session_token": options.get("session_token"),
    }
    given = {name: value for name, value in keys.items() if value}
    if "role_arn" not in options:
        return given
    region = options.get("region")
    service = session.create_client("sts", region_name=region, config=limits, **given)
    more = {"ExternalId": options["external_id"]} if "external_id" in options else {}
    assumed = _bounded(service, spec.timeout_s).assume_role(
        RoleArn=options["role_arn"],
        RoleSessionName=options.get("role_session_name", _ROLE_SESSION),
        **more,
    )["Credentials"]
    return {
        "aws_access_key_id": assumed["AccessKeyId"],
        "aws_secret_access_key": assumed["SecretAccessKey"],
        "aws_session_token": assumed["SessionToken"],
    }


def _failed(error: Exception) -> CallFailed:
    # Errors without an answer also have a response, which is None.
    response = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = redact_text(str(error)) or type(error).__name__
    if type(error).__name__ in _NO_CREDENTIALS:
        return CallFailed(Failure.NO_CREDENTIALS, "", text)
    # For a gateway's page without a code, botocore uses the status as the name.
    named = "" if code.isdigit() else code
    return CallFailed(failure_of_code(named, status), named, text)


# Each output holds up to this many parts while they are sent.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 2
_PAGE_ENTRIES = 1000
# Only metadata is read as whole objects. A larger answer is treated as endless.
_READ_BYTES_MAX = 1 << 29
# Mark that identifies an upload whose outcome is unknown. Letters only: Azure refuses hyphens, some
# proxies underscores.
_UPLOAD_MARK = "compactordupload"


class ObjectStorage(Storage):
    """One bucket. Paths are full URLs, with the bucket as the user wrote it.

    Folders are common prefixes of names. Small calls are repeated here (`RetryPolicy`); streams and
    listings by the library, because parts and pages cannot be repeated from outside.
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
        """The same store, which also reports each request to `report`.

        An upload and a listing count as one request each, when they end: the library handles their
        parts, pages and retries. An abandoned upload is not reported.
        """
        reported = both(self._calls.report, report)
        return ObjectStorage(self._spec, self._calls.policy, reported, self._calls.breaker)

    def behind(self, breaker: Breaker) -> ObjectStorage:
        return ObjectStorage(self._spec, self._calls.policy, self._calls.report, breaker)

    def reconnect(self) -> None:
        """See `Reconnects`. Streams under way continue unchanged."""
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

        return self._calls.call_with_retry(path, "read", StorageOp.GET, read)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        if size == 0:
            return b""
        key = self._spec.key_of(path)

        def read(store: Operator) -> bytes:
            return self._whole(store, key, size, offset=start, size=size)

        data = self._calls.call_with_retry(path, "read", StorageOp.GET, read)
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
            found = self._calls.call_with_retry(
                path, "status", StorageOp.HEAD, lambda store: store.stat(key)
            )
        except ObjectNotFound:
            return None
        return status_of(key.rpartition("/")[2], found)

    def folder_exists(self, path: str) -> bool:
        return bool(self._first_names(path, 1))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        prefix = self._prefix(folder)
        pages = self._pages(folder, prefix)
        try:
            first = next(pages, ())
        except CredentialsChanged:
            pages, first = self._pages(folder, prefix), ()
        folders: set[str] = set()
        is_empty = True
        for entry in chain(first, chain.from_iterable(pages)):
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
        """Makes one conditional request; `temporary` is not used.

        A retry inside the library could mistake its own first attempt for another writer's, so
        there is none. After an unclear answer, the object is read back.
        """
        return self._create(path, data, "publish", StorageOp.PUT_IF_ABSENT)

    def write_new(self, path: str, data: bytes) -> None:
        if self._create(path, data, "write", StorageOp.PUT) is Creation.EXISTS:
            raise StorageError(path, "write failed (exists)")

    def overwrite(self, path: str, data: bytes) -> None:
        key = self._spec.key_of(path)

        def write(store: Operator) -> None:
            store.write(key, data)

        self._calls.call_with_retry(path, "overwrite", StorageOp.PUT, write, size_bytes=len(data))

    def delete(self, path: str) -> None:
        key = self._spec.key_of(path)
        with contextlib.suppress(ObjectNotFound):
            self._calls.call_with_retry(
                path, "delete", StorageOp.DELETE, lambda store: store.delete(key)
            )

    def remove_empty_folder(self, path: str) -> bool:
        """A folder without objects does not exist."""
        return True

    def unfinished_uploads(self, folder: str) -> Iterator[UnfinishedUpload]:
        """Uploads of S3. MinIO lists uploads of one object only, and removes old ones itself."""
        prefix = self._prefix(folder)
        if self._spec.service == "s3":
            yield from list_uploads(self._calls, folder, "" if prefix == "/" else prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        abort_upload(self._calls, upload)

    def _whole(self, store: Operator, key: str, bytes_max: int, **options: Any) -> bytes:
        """Read in pieces: the library's time limit covers one piece, and it has no size limit."""
        file = store.open(key, "rb", **options)
        try:
            return b"".join(pieces_in_time(file.read, self._spec.timeout_s, bytes_max))
        except OSError as error:
            if is_unsent(error):
                # A file does not report the reason. A HEAD request without an object proves
                # nothing.
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
        """Raises `TransientStorageError` for a folder that its parent lists.

        The library accepts any XML as a listing, so a gateway's page reads as an empty listing.
        """
        at = folder
        while self._spec.key_of(at):
            above, _, name = at.rpartition("/")
            try:
                names = self._first_names(above, _PAGE_ENTRIES)
            except AccessDenied:
                return  # The user may list only a part of the bucket.
            # An empty folder may exist in Azure; beyond one page its existence is unknown.
            is_in_doubt = f"{name}/" in names or len(names) == _PAGE_ENTRIES
            if is_in_doubt and self._first_names(at, 1):
                raise TransientStorageError(folder, "list failed (first empty, then not)")
            if names:
                return
            at = above

    def _first_names(self, folder: str, most: int) -> Sequence[str]:
        """The first names of a listing; names of folders end with a slash."""
        prefix = self._prefix(folder)

        def look(store: Operator) -> Sequence[str]:
            with Listing(store.to_async_operator(), prefix, most) as listing:
                return [entry.path.removeprefix(prefix) for entry in listing.page()]

        return self._calls.call_with_retry(folder, "list", StorageOp.LIST, look)

    def _prefix(self, folder: str) -> str:
        key = self._spec.key_of(folder)
        return f"{key}/" if key else "/"

    def _create(self, path: str, data: bytes, action: str, op: StorageOp) -> Creation:
        key = self._spec.key_of(path)
        # Whether an earlier attempt may still take effect.
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
        """Complete an upload. Without a confirmation, check the object afterwards.

        The library repeats the request, so "exists" may refer to this very upload.
        """
        try:
            upload.publish()
        except StorageError:
            try:
                found = self._calls.call_with_retry(
                    path, "status", StorageOp.HEAD, lambda store: store.stat(key)
                )
            except StorageError:
                found = None
            if found is None or found.content_length != upload.size_bytes:
                raise
            marks = {name.lower(): value for name, value in (found.user_metadata or {}).items()}
            # OSS drops the marks of multipart uploads; their names are unique.
            unmarked = mark if self._spec.service == "oss" else None
            if marks.get(_UPLOAD_MARK, unmarked) != mark:
                raise

    def _abort(self, path: str, key: str) -> None:
        """Try to abort the uploads of one object, whose name no other writer uses."""
        if self._spec.service == "s3":
            with contextlib.suppress(CompactordError):
                for upload in list_uploads(self._calls, path, key):
                    if upload.path == path:
                        abort_upload(self._calls, upload)
