"""What must not be shown: secrets, by their keys or forms, and what would control a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

HIDDEN = "***"

# A regular expression, for Java as well, to be searched without regard to case. Environments of
# Spark's processes and options of fsspec have names that others choose: any may be a secret.
SECRET = (
    r"secret|passw(?:or)?d|passphrase|(?<![a-z])pass(?![a-z])|pgpass|\bpwd\b|token|credential"
    r"|signature|authorization|cookie|(?:access|account|private|api|encryption).?key|\bsas\b|\bsig\b"
    r"|(?:executor|appMaster|driver)Env\.|\bfsspec\.(?!enabled\b)|headers\."
)
# The last words are common in texts.
_SECRET_KEY = re.compile(
    rf"{SECRET}|sas|(?:^|[._])(?:auth|login|connect_args|headers(?:\..*)?)$", re.IGNORECASE
)
_OF_CATALOG = re.compile(r"^catalogs\.[^.]+\.(options\.)?")
# How the names of options of catalogs and stores end that say where, how, how much or as whom. Any
# other option may be a secret: stores take more names than anybody knows.
_HARMLESS_OPTION = re.compile(
    r"(?:^|[.-])(?:uri|url|endpoint|region|authority|tenant|user|catalog-key|arn|id|name|impl|type"
    r"|algorithm|mode|version|provider|class|enabled?|access|path|dir|keyfile|ssl\w*|currentschema"
    r"|size|length|timeout|sleep|max|min|maximum|num|number|interval|count|period|threads|depth)$",
    re.IGNORECASE,
)
# In URLs of Azure the container stands where others have the user.
_AZURE = re.compile(r"(?:abfs|wasb)s?://", re.IGNORECASE)
_URL = re.compile(r"(\b(?:[A-Za-z][A-Za-z0-9+.-]*://)+)((?:[^\s/?#]*@)?[^\s\"'<>]*)")
_HOST = r"(?:[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_HOST_ONLY = re.compile(_HOST)
# The parameters of a Spark Connect master: its token, and headers of any name.
_PARAMETERS = re.compile(r"(\bsc://[^\s;\"']{0,300};)[^\s\"']+")
# Bounded, so that a long text without a sign takes no time that grows with its square.
_ASSIGNED = re.compile(
    rf"(?P<key>(?:{SECRET})[\w.-]{{0,200}})(?P<sign>\\*[\"']?\s*[=:]\s*)"
    r"(?P<value>\\+\"[^\"]*\"|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[{\[][^}\]]*[}\]]?"
    r"|(?:(?:Bearer|Basic|Digest|Negotiate|Token|SharedKey|AWS|OSS)\s+)?[^\s\"',;&)}\]]+)",
    re.IGNORECASE,
)
# What a person types may be a word; what a machine makes is none.
_TYPED = re.compile(r"passw|passphrase|pwd", re.IGNORECASE)
_WORD = r"(?:[A-Z]?[a-z']+|[A-Z]{1,5})[.,;:!?)]*"
# What we say of a value ourselves.
_EXPECTED = re.compile(r"expected\s")
_ONE_WORD, _TWO_WORDS = re.compile(rf"{_WORD}(?=\s|$)"), re.compile(rf"{_WORD}\s+{_WORD}(?=\s|$)")
_ERROR = re.compile(
    r"invalid|expired|unknown|missing|malformed|mismatch|not|denied|fail|error|exception|required",
    re.IGNORECASE,
)
_NAME_BEFORE = re.compile(r"[A-Za-z]*$")
_NAME_CHARACTERS_MAX = 40
_URI_KEY = re.compile(r"(?:^|\.)uri$")
_SQLITE = re.compile(r"(jdbc:sqlite:[^?]*)(\?.*)?", re.DOTALL | re.IGNORECASE)
_DATABASE = re.compile(
    r"((?:jdbc:)?[a-z][a-z0-9+.-]*://)([^?;#]*@)?"
    rf"({_HOST}(?:,{_HOST})*(?:/[^/?;#@]*)?)([/?;#].*)?",
    re.DOTALL | re.IGNORECASE,
)
_SCHEME = re.compile(r"(?:jdbc:)?[a-z][a-z0-9+.-]*:(?://)?", re.IGNORECASE)
_FLAGS = ("true", "false")
_DEEPEST = 12
_LOOKED_AT_MAX, _SHOWN_MAX = 3000, 300


def is_secret_key(key: str) -> bool:
    """Whether a value under this key is hidden; a word inside the key is enough.

    Of options of catalogs, `catalogs.lake.options.…`, all are but those that are known.
    """
    of_catalog = _OF_CATALOG.match(key)
    # A catalog's own name says nothing about its values.
    name = key[of_catalog.end() :] if of_catalog else key
    if of_catalog and of_catalog[1] and not _HARMLESS_OPTION.search(name):
        return name != "fsspec.enabled"
    return _SECRET_KEY.search(name) is not None


def is_secret_option(key: str) -> bool:
    """Whether a catalog's option is surely a secret: others only might be one, or name one."""
    return is_secret_key(key) and not _HARMLESS_OPTION.search(key)


def is_secret(key: str, text: str) -> bool:
    """Whether a value is a secret by its key, or has one in it that is recognised by its form."""
    return text not in _FLAGS and (is_secret_key(key) or redact_text(text) != text)


def has_credentials(location: str) -> bool:
    """Whether a URL begins with a user and a password: `s3://key:secret@bucket`.

    A secret may have slashes. `host:9000/a@b` has none: what looks like a port is one.
    """
    _, mark, rest = location.partition("://")
    before = rest.rpartition("@")[0]
    authority = before.partition("/")[0]
    return (
        bool(mark) and ":" in authority and not ("/" in before and _HOST_ONLY.fullmatch(authority))
    )


def redact_text(text: str) -> str:
    """The text without user info, query and parameters of URIs, and without `password=…`.

    Of a URL all is hidden up to its last `@` if a colon precedes that: passwords may have slashes.
    Words after a colon stay: `InvalidToken: the store does not know it` is no value.
    """
    if "://" in text:
        text = _URL.sub(_url, _PARAMETERS.sub(rf"\1{HIDDEN}", text))
    return _ASSIGNED.sub(_assigned, text)


def redact_value(key: str, text: str) -> str:
    """The value of a setting as it may be shown; of a `uri` scheme, host, port and database."""
    if text not in _FLAGS and is_secret_key(key):
        return HIDDEN
    return _database(text) if _URI_KEY.search(key) else redact_text(text)


def shown_text(text: str) -> str:
    """What another program says, as far as it can be shown: 300 characters without secrets."""
    # The last word may have been cut in a secret; to look at all of a long text would take long.
    text = text if len(text) <= _LOOKED_AT_MAX else text[:_LOOKED_AT_MAX].rpartition(" ")[0]
    return printable(redact_text(text))[:_SHOWN_MAX]


def printable(text: str) -> str:
    """One line as people may see it, whatever names are in it.

    Control and format characters are escaped as in Python: `\\x1b`, `\\n`, `\\u202e`. They would
    move the cursor, begin a line of their own, or turn the order of letters around.
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def printable_lines(text: str) -> str:
    """As `printable`, for texts of several lines."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _url(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    base, mark, query = rest.partition("?")
    authority = re.split("[/#]", base, maxsplit=1)[0]
    if "@" in query and "@" not in base and not _HOST_ONLY.fullmatch(authority):
        return f"{scheme}{HIDDEN}"  # a password with a question mark
    user, at, host = base.rpartition("@")
    if at and (":" in user or ("@" in authority and not _AZURE.match(scheme))):
        base = f"{HIDDEN}@{host}"
    return f"{scheme}{base}?{HIDDEN}" if mark else f"{scheme}{base}"


def _assigned(found: re.Match[str]) -> str:
    sign, value = found["sign"], found["value"]
    # A space within the value: a scheme such as Bearer begins it.
    if re.fullmatch(r":\s+", sign) and not re.search(r"\s", value) and _is_prose(found):
        return found[0]
    return f"{found['key']}{sign}{HIDDEN}"


def _is_prose(found: re.Match[str]) -> bool:
    """Whether words follow the colon: two, or one after the name of an error."""
    text, start, at = found.string, found.start(), found.start("value")
    if _EXPECTED.match(text, at):
        return True
    name = _NAME_BEFORE.search(text[max(0, start - _NAME_CHARACTERS_MAX) : start])
    if _ERROR.search((name[0] if name else "") + found["key"]):
        return _ONE_WORD.match(text, at) is not None
    return not _TYPED.search(found["key"]) and _TWO_WORDS.match(text, at) is not None


def _database(text: str) -> str:
    """Scheme, host, port and database of an address, or the file of SQLite."""
    if found := _SQLITE.fullmatch(text):
        return found[1] + (f"?{HIDDEN}" if found[2] else "")
    if found := _DATABASE.fullmatch(text):
        user = f"{HIDDEN}@" if found[2] else ""
        rest = f"{found[4][0]}{HIDDEN}" if found[4] else ""
        return f"{found[1]}{user}{found[3]}{rest}"
    scheme = _SCHEME.match(text)
    return f"{scheme[0] if scheme else ''}{HIDDEN}"


def redacted(value: object, *, key: str = "", depth: int = 0) -> object:
    """A copy as plain JSON values with nothing secret in it.

    Bytes, exceptions and other objects become their redacted text, so that printing the result
    calls no `repr` of theirs. A flag or a missing value under a secret-like key is not a secret.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return redact_value(key, value)
    if is_secret_key(key):
        return HIDDEN
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        # JSON knows neither NaN nor infinities.
        return float(value) if math.isfinite(value) else str(value)
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
