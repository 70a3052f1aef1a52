"""Uploads that nobody has completed, in S3: the library can neither list nor abort them.

botocore can. It is imported only when a sweep, or an output that failed, asks for them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from compactord.errors import CompactordError, TransientStorageError, UsageError
from compactord.storage.attempts import TimedCalls
from compactord.storage.base import UnfinishedUpload
from compactord.storage.objects.bucket import INSTALL_STORES, Bucket
from compactord.storage.objects.calls import Calls
from compactord.storage.objects.failures import CallFailed, Failure, failure_of_code
from compactord.storage.objects.streams import pieces_in_time
from compactord.storage.requests import StorageOp
from compactord.text import ReferenceMissing, redact_text, resolve

T = TypeVar("T")
_Page = tuple[Sequence[UnfinishedUpload], Mapping[str, str]]
_ROLE_SESSION = "compactord"
# The keys of a role hold for an hour.
_CLIENT_AGE_S = 900.0
# Of one store and process; one that never ends keeps its place.
_CALLS_AT_ONCE = 8
# Of a thousand uploads each.
_PAGES_MAX = 10_000
_ANSWER_BYTES_MAX = 16 << 20
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")


def list_uploads(calls: Calls, path: str, prefix: str) -> Iterator[UnfinishedUpload]:
    """The uploads of keys that begin with `prefix`; `path` is named in errors.

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
    """No error when it has been completed or aborted meanwhile; else raises as `list_uploads`."""
    abort = partial(_abort, calls.spec, upload)
    _tried(calls, upload.path, "abort upload", StorageOp.DELETE, abort)


def _page(spec: Bucket, prefix: str, markers: Mapping[str, str], client: Any) -> _Page:
    """Some uploads, and what the request for the next ones has to name; empty: there are none."""
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
        raise CallFailed(Failure.TRANSIENT, "", "its pages lead nowhere")
    return uploads, following


def _abort(spec: Bucket, upload: UnfinishedUpload, client: Any) -> None:
    bucket, key = dict(spec.options)["bucket"], spec.key_of(upload.path)
    with contextlib.suppress(client.exceptions.NoSuchUpload):
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload.upload_id)


@dataclass(slots=True)
class _Known:
    """This process's client for a bucket, the options and the time that it was made with."""

    calls: TimedCalls = field(default_factory=lambda: TimedCalls(_CALLS_AT_ONCE))
    options: Mapping[str, str] = field(default_factory=dict)
    made_s: float = 0.0
    client: Any = None


_known: dict[Bucket, _Known] = {}
_lock = threading.Lock()


def _tried(calls: Calls, path: str, action: str, op: StorageOp, call: Callable[[Any], T]) -> T:
    """As `Calls.tried`, with botocore's client: each attempt ends in time, whatever comes."""
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

    return calls.tried(path, action, op, attempt)


def _client(spec: Bucket, known: _Known, path: str) -> Any:
    """A client with keys as they are now; `path` is named in errors.

    Raises `UsageError` without botocore, `TransientStorageError` where a reference has no value.
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
        # It was there when the store was opened.
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
        # Attempts are ours.
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
    """The client, whose answers end: a thread that nobody waits for must not fill the memory."""
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
    """The body of an answer as botocore reads it."""

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
    """The keys of the options, those of their role, or none: then botocore has its own chain."""
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
    # What got no answer has a response, too, which is None.
    response = getattr(error, "response", None) or {}
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    text = redact_text(str(error)) or type(error).__name__
    if type(error).__name__ in _NO_CREDENTIALS:
        return CallFailed(Failure.NO_CREDENTIALS, "", text)
    # A gateway's page has no code of a store, and botocore names it by its status.
    named = "" if code.isdigit() else code
    return CallFailed(failure_of_code(named, status), named, text)
