"""Uploads that nobody has completed, in S3: the library can neither list nor abort them.

botocore can. It is imported only when a sweep, or an output that failed, asks for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from compactord.errors import (
    AccessDenied,
    StorageError,
    TransientStorageError,
    UsageError,
)
from compactord.redaction import redact_text
from compactord.references import ReferenceMissing, resolve
from compactord.storage.base import UnfinishedUpload
from compactord.storage.objects.bucket import INSTALL_STORES, Bucket

_ATTEMPTS_MAX = 5
_ROLE_SESSION = "compactord"
_LONGEST_TEXT = 200
# The keys of a role hold for an hour.
_CLIENT_AGE_S = 900.0
# With the options and the monotonic time at which each was made: references may have new values.
_clients: dict[Bucket, tuple[Mapping[str, str], float, Any]] = {}
_locks: dict[Bucket, threading.Lock] = {}
_lock = threading.Lock()


def list_uploads(spec: Bucket, path: str, prefix: str) -> Iterator[UnfinishedUpload]:
    """The uploads of keys that begin with `prefix`; `path` is named in errors.

    Raises `StorageError`, and `UsageError` without botocore.
    """
    client = _client(spec, path)
    pages = client.get_paginator("list_multipart_uploads")
    bucket = dict(spec.options)["bucket"]
    try:
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            for upload in page.get("Uploads", ()):
                yield UnfinishedUpload(
                    path=f"{spec.root}/{upload['Key']}",
                    upload_id=upload["UploadId"],
                    started_ms=int(upload["Initiated"].timestamp() * 1000),
                )
    except _client_errors() as error:
        raise _named(error, path, "list uploads") from None


def abort_upload(spec: Bucket, upload: UnfinishedUpload) -> None:
    """No error when it has been completed or aborted meanwhile; else raises as `list_uploads`."""
    client = _client(spec, upload.path)
    bucket, key = dict(spec.options)["bucket"], spec.key_of(upload.path)
    try:
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload.upload_id)
    except _client_errors() as error:
        if _code(error) != "NoSuchUpload":
            raise _named(error, upload.path, "abort upload") from None


def _client(spec: Bucket, path: str) -> Any:
    """This process's client for a bucket, with keys as they are now; `path` is named in errors.

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
    with _lock:
        # To assume a role is a request: a service that hangs keeps no other store waiting.
        own = _locks.setdefault(spec, threading.Lock())
    with own:
        known, made_s, client = _clients.get(spec, ({}, 0.0, None))
        if known != options or time.monotonic() - made_s > _CLIENT_AGE_S:
            try:
                client = _connected(spec, options, botocore.session.get_session())
            except _client_errors() as error:
                raise _named(error, path, "connect") from None
            _clients[spec] = options, time.monotonic(), client
        return client


def _connected(spec: Bucket, options: Mapping[str, str], session: Any) -> Any:
    import botocore
    from botocore.config import Config

    is_virtual = options.get("enable_virtual_host_style") == "true"
    unsigned = {"signature_version": botocore.UNSIGNED} if _is_anonymous(options) else {}
    config = Config(
        s3={"addressing_style": "virtual" if is_virtual else "path"},
        connect_timeout=spec.timeout_s,
        read_timeout=spec.timeout_s,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS_MAX},
        **unsigned,
    )
    return session.create_client(
        "s3",
        endpoint_url=options.get("endpoint"),
        region_name=options.get("region") or os.environ.get("AWS_REGION"),
        config=config,
        **_credentials(session, options),
    )


def _is_anonymous(options: Mapping[str, str]) -> bool:
    return options.get("skip_signature") == "true"


def _credentials(session: Any, options: Mapping[str, str]) -> dict[str, str]:
    """The keys of the options, those of their role, or none: then botocore has its own chain."""
    keys = {
        "aws_access_key_id": options.get("access_key_id"),
        "aws_secret_access_key": options.get("secret_access_key"),
        "aws_session_token": options.get("session_token"),
    }
    given = {name: value for name, value in keys.items() if value}
    if "role_arn" not in options:
        return given
    service = session.create_client("sts", region_name=options.get("region"), **given)
    more = {"ExternalId": options["external_id"]} if "external_id" in options else {}
    assumed = service.assume_role(
        RoleArn=options["role_arn"],
        RoleSessionName=options.get("role_session_name", _ROLE_SESSION),
        **more,
    )["Credentials"]
    return {
        "aws_access_key_id": assumed["AccessKeyId"],
        "aws_secret_access_key": assumed["SecretAccessKey"],
        "aws_session_token": assumed["SessionToken"],
    }


def _client_errors() -> tuple[type[Exception], ...]:
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


def _code(error: Exception) -> str:
    response = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Code", ""))


def _named(error: Exception, path: str, action: str) -> StorageError:
    code = _code(error)
    if code in ("AccessDenied", "AllAccessDisabled", "403"):
        return AccessDenied(path, f"{action} failed ({code})")
    reason = code or redact_text(str(error))[:_LONGEST_TEXT]
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    kind = TransientStorageError if status >= 500 or status == 429 else StorageError
    return kind(path, f"{action} failed ({reason})")
