"""Classification of the library's errors.

They share no base class, and only their texts show whether a retry may help. The texts contain URLs
and answers, so only parts known to be safe are passed on.
"""

from __future__ import annotations

import enum
import re

from opendal import exceptions

from compactord.errors import (
    AccessDenied,
    ObjectNotFound,
    StorageError,
    StoreFull,
    StoreMissing,
    TransientStorageError,
)
from compactord.text import redact_text

_KIND = re.compile(r"(\w+) \((temporary|permanent|persistent)\)")
_CODE = re.compile(r"<Code>(\w+)</Code>|\bcode: \"([A-Za-z]\w*)|\breason\"?: ?\"([A-Za-z]\w*)")
_SOURCE = re.compile(r"\nSource:\n((?:   .*\n?)+)")
# A missing object in the words of S3, OSS and Azure, and of GCS, which has no codes here.
_NO_OBJECT_CODES = ("NoSuchKey", "BlobNotFound")
_NO_OBJECT = re.compile(r"No such object|GcsError \{ code: 404\b")
# The library does not classify this as a refusal.
_UNAUTHORIZED = "response: Parts { status: 401,"
_NO_CREDENTIALS = "failed to load signing credential"
# The library classifies this as a temporary connection error.
_UNTRUSTED = "invalid peer certificate"
_SENDING = "source: error sending request"
_LONGEST_TEXT = 200


class Failure(enum.Enum):
    NOT_FOUND = "not found"
    EXISTS = "exists"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    TRANSIENT = "transient"
    DENIED = "denied"
    FULL = "full"
    NO_STORE = "no such bucket"
    NO_CREDENTIALS = "no credentials"
    FATAL = "fatal"

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may succeed."""
        return self in _MAY_HEAL

    @property
    def had_no_effect(self) -> bool:
        """Whether the store's answer proves that the request did nothing."""
        return self in _REFUSALS


class CallFailed(Exception):
    """A failed call of another library. `code` is the store's name for the error, or empty."""

    def __init__(self, failure: Failure, code: str, text: str) -> None:
        self.failure, self.code = failure, code
        super().__init__(text)


# Files of the library raise OSError, with the same texts on one line.
LIBRARY_ERRORS: tuple[type[Exception], ...] = (
    CallFailed,
    OSError,
    *(
        found
        for found in vars(exceptions).values()
        if isinstance(found, type) and issubclass(found, Exception)
    ),
)

_BY_KIND = {
    "ConditionNotMatch": Failure.EXISTS,
    "AlreadyExists": Failure.EXISTS,
    "PermissionDenied": Failure.DENIED,
    "RateLimited": Failure.THROTTLED,
    "Conflict": Failure.TRANSIENT,
}
_BY_CODE = {
    "NoSuchBucket": Failure.NO_STORE,
    "ContainerNotFound": Failure.NO_STORE,
    "ContainerBeingDeleted": Failure.TRANSIENT,
    "ExpiredToken": Failure.EXPIRED,
    "ExpiredTokenException": Failure.EXPIRED,
    "SecurityTokenExpired": Failure.EXPIRED,
    "TokenRefreshRequired": Failure.EXPIRED,
    "SlowDown": Failure.THROTTLED,
    "TooManyRequests": Failure.THROTTLED,
    "ServerBusy": Failure.THROTTLED,
    "Throttling": Failure.THROTTLED,
    "RequestTimeout": Failure.TRANSIENT,
    "InternalError": Failure.TRANSIENT,
    "NoSuchUpload": Failure.TRANSIENT,
    "ConditionalRequestConflict": Failure.TRANSIENT,
    "QuotaExceeded": Failure.FULL,
    "XMinioStorageFull": Failure.FULL,
    "RequestTimeTooSkewed": Failure.DENIED,
}
_MAY_HEAL = (Failure.THROTTLED, Failure.EXPIRED, Failure.TRANSIENT, Failure.NO_CREDENTIALS)
_REFUSALS = (
    Failure.NOT_FOUND,
    Failure.EXISTS,
    Failure.EXPIRED,
    Failure.DENIED,
    Failure.NO_STORE,
    Failure.NO_CREDENTIALS,
)
_NO_STORE = "there is no such bucket: check its name and the endpoint"
_MEANINGS = {
    Failure.NOT_FOUND: "no such object",
    Failure.NO_STORE: _NO_STORE,
    Failure.EXISTS: "it exists",
    Failure.DENIED: "permission denied: check the credentials and what they may do",
    Failure.EXPIRED: "the credentials have expired: renew them",
    Failure.NO_CREDENTIALS: "no credentials were found: set keys in the catalog's options, or "
    "run it where the environment, a profile or the machine's identity has some",
}
# Actions for which a 404 means a missing bucket, not a missing object.
_NEED_NO_OBJECT = ("create", "list", "overwrite", "publish", "write")
_REMEDIES = {
    "NoSuchBucket": _NO_STORE,
    "ContainerNotFound": "there is no such container: check its name and the account",
    "RequestTimeTooSkewed": "this machine's clock differs from the store's: synchronise it (NTP)",
    "InvalidAccessKeyId": "the store does not know the access key: check the credentials",
    "SignatureDoesNotMatch": "the secret key does not fit: check the credentials",
    "AuthenticationFailed": "the store refuses the credentials: check them, and the clock",
    "AuthorizationFailure": "the store refuses the credentials: check them",
    "NoSuchUpload": "the upload was aborted, for example by a lifecycle rule of the bucket",
    "PermanentRedirect": "the bucket is in another region: set the region or the endpoint",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set the region",
}


def failure_of(error: Exception) -> Failure:
    """The kind of one of `LIBRARY_ERRORS`."""
    if isinstance(error, CallFailed):
        return error.failure
    code = _code(error)
    if code in _BY_CODE:
        return _BY_CODE[code]
    text = str(error)
    if _NO_CREDENTIALS in text:
        return Failure.NO_CREDENTIALS
    if _UNTRUSTED in text:
        return Failure.FATAL
    if _UNAUTHORIZED in text:
        return Failure.DENIED
    kind, permanence = _kind(error)
    if kind == "NotFound":
        return _not_found(text, code)
    if kind in _BY_KIND:
        return _BY_KIND[kind]
    return Failure.FATAL if permanence == "permanent" else Failure.TRANSIENT


def is_unsent(error: OSError) -> bool:
    """Whether a file of the library got no answer, without a reason in the error."""
    return _SENDING in str(error)


def failure_of_code(code: str, status: int) -> Failure:
    """The kind of an S3 answer by its code and status; 0 if there was no status."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in (401, 403):
        return Failure.DENIED
    if status == 429:
        return Failure.THROTTLED
    is_refusal = status == 501 or (code and 400 <= status < 500)
    return Failure.FATAL if is_refusal else Failure.TRANSIENT


def storage_error(error: Exception, path: str, action: str) -> StorageError:
    """One of `LIBRARY_ERRORS` as our error: action, reason and remedy if there is one."""
    failure = failure_of(error)
    if failure is Failure.NOT_FOUND and action in _NEED_NO_OBJECT:
        failure = Failure.NO_STORE
    message = f"{action} failed ({_reason(error, failure)})"
    match failure:
        case Failure.NOT_FOUND:
            return ObjectNotFound(path, message)
        case Failure.DENIED | Failure.EXPIRED:
            return AccessDenied(path, message)
        case Failure.FULL:
            return StoreFull(path, message)
        case Failure.NO_STORE:
            return StoreMissing(path, message)
        case Failure.THROTTLED | Failure.TRANSIENT:
            return TransientStorageError(path, message)
    return StorageError(path, message)


def _not_found(text: str, code: str) -> Failure:
    """The kind of an answer with status 404.

    A gateway or a proxy may answer 404 for a store that it cannot reach, so only the store's own
    error text proves a missing object. The answer to HEAD has no text; before irreversible steps a
    listing confirms it (`storage/base.py`).
    """
    if "bucket does not exist" in text:
        return Failure.NO_STORE
    head, _, said = text.split("\n\nContext:", 1)[0].partition(" => ")
    is_head = not said and " at stat" in head
    if is_head or code in _NO_OBJECT_CODES or _NO_OBJECT.search(said):
        return Failure.NOT_FOUND
    return Failure.TRANSIENT


def _kind(error: Exception) -> tuple[str, str]:
    """The library's name of the error, and whether the library considers it temporary."""
    found = _KIND.match(str(error))
    return (found[1], found[2]) if found else (type(error).__name__, "")


def _code(error: Exception) -> str:
    """The store's code of the error, or empty if the answer had none."""
    if isinstance(error, CallFailed):
        return error.code
    found = _CODE.search(str(error))
    return next(filter(None, found.groups()), "") if found else ""


def _reason(error: Exception, failure: Failure) -> str:
    code = _code(error)
    remedy = _REMEDIES.get(code) or _MEANINGS.get(failure)
    if code:
        return f"{code}: {remedy}" if remedy else code
    if remedy:
        return remedy
    source = _SOURCE.search(str(error))
    if source is not None:
        return _transport_reason(source[1])
    # In the single line of file errors, the action and the answer have URLs between them.
    what, is_file, rest = str(error).split("\n", 1)[0].partition(", context: {")
    text = f"{what} => {rest.rpartition(' } => ')[2]}" if is_file else what
    return redact_text(text)[:_LONGEST_TEXT]


def _transport_reason(source: str) -> str:
    """The reason of a request without an answer; without headers and queries."""
    text = redact_text(" ".join(source.split()))
    lowered = text.lower()
    if "certificate" in lowered:
        text += "; check the endpoint and the certificates that this machine trusts"
    elif "connection refused" in lowered or "dns" in lowered:
        text += "; check the endpoint"
    return text[:_LONGEST_TEXT]
