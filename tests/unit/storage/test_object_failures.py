"""What the texts of opendal's errors mean. They are as its release 0.47 writes them."""

from __future__ import annotations

import pytest

pytest.importorskip("opendal")

from opendal import exceptions

from compactord.errors import (
    AccessDenied,
    ObjectNotFound,
    StorageError,
    StoreFull,
    StoreMissing,
    TransientStorageError,
)
from compactord.storage.objects.failures import (
    Failure,
    failure_of,
    failure_of_code,
    is_unsent,
    storage_error,
)

SECRET = "s3same"


def answered(kind: str, permanence: str, detail: str) -> str:
    return (
        f"{kind} ({permanence}) at read => {detail}\n\nContext:\n"
        f"   uri: https://h/b/k?sig={SECRET}\n"
        f'   response: Parts {{ status: 400, headers: {{"authorization": "{SECRET}"}} }}\n'
        "   service: s3\n   path: k\n\nBacktrace:\n   0: <unknown>\n"
    )


def unanswered(source: str) -> str:
    return (
        "Unexpected (temporary) at read => send http request\n\nContext:\n"
        f"   url: https://h/b/k?sig={SECRET}\n   called: reqwest::send\n\n"
        f"Source:\n   error sending request: {source}\n\nBacktrace:\n   0: <unknown>\n"
    )


def coded(code: str, *, kind: str = "Unexpected", permanence: str = "permanent") -> str:
    detail = f'S3Error {{ code: "{code}", message: "{SECRET}", resource: "", request_id: "R" }}'
    return answered(kind, permanence, detail)


CASES: list[tuple[str, Failure, type[StorageError], str]] = [
    (coded("NoSuchKey", kind="NotFound"), Failure.NOT_FOUND, ObjectNotFound, "no such object"),
    (coded("NoSuchBucket", kind="NotFound"), Failure.NO_STORE, StoreMissing, "no such bucket"),
    (coded("ContainerNotFound", kind="NotFound"), Failure.NO_STORE, StoreMissing, "container"),
    (
        answered("NotFound", "permanent", '{"desc": "The specified bucket does not exist"}'),
        Failure.NO_STORE,
        StoreMissing,
        "no such bucket",
    ),
    (coded("BlobNotFound", kind="NotFound"), Failure.NOT_FOUND, ObjectNotFound, "no such object"),
    (
        answered("NotFound", "permanent", "No such object: b/k"),
        Failure.NOT_FOUND,
        ObjectNotFound,
        "no such object",
    ),
    # HEAD: nothing was said.
    (
        "NotFound (permanent) at stat\n\nContext:\n   service_operation: HeadObject\n",
        Failure.NOT_FOUND,
        ObjectNotFound,
        "no such object",
    ),
    # Answers of something between us and the store.
    (
        answered("NotFound", "permanent", "default backend - 404"),
        Failure.TRANSIENT,
        TransientStorageError,
        "default backend - 404",
    ),
    (
        answered("NotFound", "permanent", "default backend - 404").replace("read", "stat"),
        Failure.TRANSIENT,
        TransientStorageError,
        "default backend - 404",
    ),
    (
        "NotFound (permanent) at read\n\nContext:\n   uri: https://h/NoSuchKey\n",
        Failure.TRANSIENT,
        TransientStorageError,
        "NotFound",
    ),
    (coded("PreconditionFailed", kind="ConditionNotMatch"), Failure.EXISTS, StorageError, "exists"),
    (
        coded("ConditionalRequestConflict", kind="Conflict"),
        Failure.TRANSIENT,
        TransientStorageError,
        "ConditionalRequestConflict",
    ),
    (coded("AccessDenied", kind="PermissionDenied"), Failure.DENIED, AccessDenied, "permission"),
    (coded("SignatureDoesNotMatch", kind="PermissionDenied"), Failure.DENIED, AccessDenied, "key"),
    (coded("RequestTimeTooSkewed", kind="PermissionDenied"), Failure.DENIED, AccessDenied, "clock"),
    (
        answered("Unexpected", "permanent", "who are you?").replace("status: 400", "status: 401"),
        Failure.DENIED,
        AccessDenied,
        "permission",
    ),
    (coded("ExpiredToken"), Failure.EXPIRED, AccessDenied, "renew"),
    (coded("PermanentRedirect"), Failure.FATAL, StorageError, "another region"),
    (
        coded("SlowDown", kind="RateLimited", permanence="temporary"),
        Failure.THROTTLED,
        TransientStorageError,
        "SlowDown",
    ),
    # As the library's own retries leave it.
    (
        answered("RateLimited", "persistent", "too many"),
        Failure.THROTTLED,
        TransientStorageError,
        "too many",
    ),
    (coded("QuotaExceeded"), Failure.FULL, StoreFull, "QuotaExceeded"),
    (coded("NoSuchUpload", kind="NotFound"), Failure.TRANSIENT, TransientStorageError, "lifecycle"),
    (
        unanswered("client error (Connect): tcp connect error: Connection refused (os error 111)"),
        Failure.TRANSIENT,
        TransientStorageError,
        "Connection refused .*check the endpoint",
    ),
    (
        unanswered("client error (Connect): invalid peer certificate: UnknownIssuer"),
        Failure.FATAL,
        StorageError,
        "check the endpoint and the certificates",
    ),
    (
        "Unexpected (persistent) at list => io operation timeout reached",
        Failure.TRANSIENT,
        TransientStorageError,
        "timeout",
    ),
    (
        "Unexpected (permanent) at read\n\nSource:\n   failed to load signing credential\n",
        Failure.NO_CREDENTIALS,
        StorageError,
        "no credentials were found",
    ),
    ("Unexpected (permanent) at read => odd", Failure.FATAL, StorageError, "odd"),
]


@pytest.mark.parametrize(("text", "failure", "kind", "why"), CASES)
def test_an_error_becomes_the_kind_that_callers_know(
    text: str, failure: Failure, kind: type[StorageError], why: str
) -> None:
    name = text.split(" ", 1)[0]
    raised = getattr(exceptions, name)(text)
    assert failure_of(raised) is failure
    found = storage_error(raised, "s3://b/k", "read")
    assert type(found) is kind
    assert found.path == "s3://b/k"
    with pytest.raises(kind, match=f"read failed .*{why}.*: s3://b/k"):
        raise found
    assert SECRET not in str(found)


def test_files_of_the_library_raise_the_same_on_one_line() -> None:
    text = (
        "ConditionNotMatch (persistent) at write, context: { uri: https://h/b/k?uploads, response: "
        f'Parts {{ status: 409, headers: {{"x": "{SECRET}"}} }} }} => OSSError '
        f'{{ code: "FileAlreadyExists", message: "{SECRET}" }}'
    )
    assert failure_of(OSError(text)) is Failure.EXISTS
    assert str(storage_error(OSError(text), "oss://b/k", "write")) == (
        "write failed (FileAlreadyExists: it exists): oss://b/k"
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("io operation timeout reached", "at read => io operation timeout reached"),
        ("send http request, source: error sending request", "source: error sending request"),
    ],
)
def test_a_file_without_an_answer_says_what_happened_and_not_where(said: str, why: str) -> None:
    text = f"Unexpected (temporary) at read, context: {{ url: https://h/k?sig={SECRET} }} => {said}"
    error = OSError(text)
    assert failure_of(error) is Failure.TRANSIENT
    assert is_unsent(error) is ("sending" in said)
    found = str(storage_error(error, "s3://b/k", "read"))
    assert why in found
    assert SECRET not in found


@pytest.mark.parametrize(
    ("code", "status", "failure"),
    [
        ("", 0, Failure.TRANSIENT),
        ("", 200, Failure.TRANSIENT),
        ("", 404, Failure.TRANSIENT),
        ("", 502, Failure.TRANSIENT),
        ("InternalError", 500, Failure.TRANSIENT),
        ("SlowDown", 503, Failure.THROTTLED),
        ("", 429, Failure.THROTTLED),
        ("AccessDenied", 403, Failure.DENIED),
        ("", 403, Failure.DENIED),
        ("ExpiredToken", 400, Failure.EXPIRED),
        ("NoSuchBucket", 404, Failure.NO_STORE),
        ("InvalidArgument", 400, Failure.FATAL),
        ("NotImplemented", 501, Failure.FATAL),
    ],
)
def test_an_answer_to_another_library_is_known_by_code_and_status(
    code: str, status: int, failure: Failure
) -> None:
    assert failure_of_code(code, status) is failure


@pytest.mark.parametrize("action", ["create", "list", "overwrite", "publish", "write"])
def test_where_no_object_is_needed_not_found_is_the_bucket(action: str) -> None:
    text = answered("NotFound", "permanent", "GcsError { code: 404 }")
    found = storage_error(exceptions.NotFound(text), "gs://b/k", action)
    assert type(found) is StoreMissing
    assert "check its name" in str(found)


def test_only_what_may_heal_is_tried_again_and_only_refusals_had_no_effect() -> None:
    assert {each for each in Failure if each.may_pass} == {
        *(Failure.THROTTLED, Failure.EXPIRED, Failure.TRANSIENT, Failure.NO_CREDENTIALS)
    }
    assert {each for each in Failure if not each.had_no_effect} == {
        *(Failure.THROTTLED, Failure.TRANSIENT, Failure.FULL, Failure.FATAL)
    }
