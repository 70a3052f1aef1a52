"""What must not be shown: values under secret-like keys, and the credentials inside URIs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

HIDDEN = "***"

# A regular expression, for Java as well, to be searched without regard to case.
SECRET = (
    r"secret|passw(?:or)?d|passphrase|\bpwd\b|token|credential|signature|authorization"
    r"|(?:access|account|private|api|encryption).?key|\bsas\b"
)
_SECRET_KEY = re.compile(rf"{SECRET}|sas", re.IGNORECASE)
# In Azure's URLs the container stands there.
_USER_INFO = re.compile(r"((?!abfss?://|wasbs?://)\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#]*@")
# The parameters of a Spark Connect master: its token, and headers of any name.
_PARAMETERS = re.compile(r"(\bsc://[^\s;\"']*;)[^\s\"']+")
_QUERY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?\"'<>]*)\?[^\s\"'<>]*")
_ASSIGNED = re.compile(
    rf"((?:{SECRET})[\w.-]*[\"']?\s*[=:]\s*)"
    rf"(?:\"[^\"]*\"|'[^']*'|(?:(?:Bearer|Basic)\s+)?[^\s\"',;&)}}\]]+)",
    re.IGNORECASE,
)
_DEEPEST = 12


def is_secret_key(key: str) -> bool:
    """Whether a value under this key is hidden; a word inside the key is enough."""
    return _SECRET_KEY.search(key) is not None


def is_secret(key: str, text: str) -> bool:
    """Whether a value is a secret by its key, or has one in it that is recognised by its form."""
    return is_secret_key(key) or redact_text(text) != text


def redact_text(text: str) -> str:
    """The text without user info, query and parameters of URIs, and without `password=…`."""
    if "://" in text:
        text = _PARAMETERS.sub(rf"\1{HIDDEN}", text)
        text = _QUERY.sub(rf"\1?{HIDDEN}", _USER_INFO.sub(rf"\1{HIDDEN}@", text))
    return _ASSIGNED.sub(rf"\1{HIDDEN}", text)


def redacted(value: object, *, key: str = "", depth: int = 0) -> object:
    """A copy as plain JSON values with nothing secret in it.

    Bytes, exceptions and other objects become their redacted text, so that printing the result
    calls no `repr` of theirs. A flag or a missing value under a secret-like key is not a secret.
    """
    if value is None or isinstance(value, bool):
        return value
    if is_secret_key(key):
        return HIDDEN
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        # JSON knows neither NaN nor infinities.
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return redact_text(value)
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {
            redact_text(str(name)): redacted(item, key=str(name), depth=depth + 1)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple | AbstractSet):
        return [redacted(item, depth=depth + 1) for item in value]
    return redact_text(str(value) if isinstance(value, BaseException) else repr(value))
