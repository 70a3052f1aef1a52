"""What the library's errors mean.

They share no base class, and whether another try may help stands in their text alone. Their texts
contain URLs and answers, so only the parts known to be safe are passed on.
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
    TransientStorageError,
)
from compactord.redaction import redact_text

LIBRARY_ERRORS: tuple[type[Exception], ...] = tuple(
    found
    for found in vars(exceptions).values()
    if isinstance(found, type) and issubclass(found, Exception)
)
_CODE = re.compile(r"<Code>(\w+)</Code>|\bcode: \"?(\w+)|\"reason\": ?\"(\w+)\"")
_SOURCE = re.compile(r"\nSource:\n((?:   .*\n?)+)")
_LONGEST_TEXT = 200


class Failure(enum.Enum):
    """How a request failed."""

    NOT_FOUND = "not found"
    EXISTS = "exists"
    THROTTLED = "throttled"
    EXPIRED = "expired"
    TRANSIENT = "transient"
    DENIED = "denied"
    FULL = "full"
    NO_STORE = "no such bucket"
    FATAL = "fatal"

    @property
    def may_heal(self) -> bool:
        """Whether another attempt may succeed."""
        return self in (Failure.THROTTLED, Failure.EXPIRED, Failure.TRANSIENT)


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
    "ConditionalRequestConflict": Failure.TRANSIENT,
    "QuotaExceeded": Failure.FULL,
    "XMinioStorageFull": Failure.FULL,
    "RequestTimeTooSkewed": Failure.DENIED,
}
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket: check its name and the endpoint",
    "ContainerNotFound": "there is no such container: check its name and the account",
    "RequestTimeTooSkewed": "this machine's clock differs from the store's: set it right (NTP)",
    "InvalidAccessKeyId": "the store does not know the access key: check the credentials",
    "SignatureDoesNotMatch": "the secret key does not fit: check the credentials",
    "AuthenticationFailed": "the store refuses the credentials: check them, and the clock",
    "ExpiredToken": "the session token has expired: renew it",
    "PermanentRedirect": "the bucket is in another region: set the region or the endpoint",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set the region",
}


def failure_of(error: Exception) -> Failure:
    """The kind of one of `LIBRARY_ERRORS`."""
    code = _code(error)
    if code in _BY_CODE:
        return _BY_CODE[code]
    match error:
        case exceptions.NotFound():
            has_no_bucket = "bucket does not exist" in str(error)
            return Failure.NO_STORE if has_no_bucket else Failure.NOT_FOUND
        case exceptions.ConditionNotMatch() | exceptions.AlreadyExists():
            return Failure.EXISTS
        case exceptions.PermissionDenied():
            return Failure.DENIED
        case exceptions.RateLimited():
            return Failure.THROTTLED
        case exceptions.Conflict():
            return Failure.TRANSIENT
    is_permanent = "(permanent)" in str(error).split("\n", 1)[0]
    return Failure.FATAL if is_permanent else Failure.TRANSIENT


def storage_error(error: Exception, path: str, action: str) -> StorageError:
    """One of `LIBRARY_ERRORS` as ours: what failed, why, and the remedy where there is one."""
    message = f"{action} failed ({_reason(error)})"
    match failure_of(error):
        case Failure.NOT_FOUND:
            return ObjectNotFound(path, message)
        case Failure.DENIED | Failure.EXPIRED:
            return AccessDenied(path, message)
        case Failure.FULL:
            return StoreFull(path, message)
        case Failure.THROTTLED | Failure.TRANSIENT:
            return TransientStorageError(path, message)
    return StorageError(path, message)


def _code(error: Exception) -> str:
    """The store's own name for what went wrong; empty when the answer had none."""
    found = _CODE.search(str(error))
    return next(filter(None, found.groups()), "") if found else ""


def _reason(error: Exception) -> str:
    code = _code(error)
    if code:
        return f"{code}: {_REMEDIES[code]}" if code in _REMEDIES else code
    source = _SOURCE.search(str(error))
    if source is not None:
        return _transport_reason(source[1])
    match error:
        case exceptions.NotFound():
            return "no such object"
        case exceptions.PermissionDenied():
            return "permission denied: check the credentials and what they may do"
        case exceptions.ConfigInvalid():
            return f"invalid configuration: {_first_line(error)}"
    return _first_line(error)


def _transport_reason(source: str) -> str:
    """Of a request that got no answer; the lines name no header and no query."""
    text = redact_text(" ".join(source.split()))
    lowered = text.lower()
    if "certificate" in lowered:
        text += "; check the endpoint and the certificates that this machine trusts"
    elif "connection refused" in lowered or "dns" in lowered:
        text += "; check the endpoint"
    return text[:_LONGEST_TEXT]


def _first_line(error: Exception) -> str:
    return redact_text(str(error).split("\n", 1)[0])[:_LONGEST_TEXT]
