"""Texts for messages: amounts, redaction of secrets, references to variables and files.

References are `${env:NAME}` and `${file:/path}`, resolved when they are needed. `$${` is an escaped
`${`. Values are not searched for references again.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from compactord.errors import CatalogOptionInvalid, UsageError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


# Minimum similarity, from 0 to 1, of a word and the one suggested for it.
_LIKENESS_MIN = 0.6


def did_you_mean(word: str, known: Iterable[str], *, count: int = 1) -> str:
    """`; did you mean a or b?` with up to `count` similar words in any case, or an empty text."""
    return _after_text(suggestion(word, known, count=count))


def did_you_mean_table(name: str, full_names: Collection[str]) -> str:
    """As `did_you_mean`, for tables; suggests a table of the same name in another database too."""
    same = [full for full in full_names if full.partition(".")[2] == name.rpartition(".")[2]]
    found = [*_similar(name, full_names, 3, _LIKENESS_MIN), *same]
    return _after_text(_question(list(dict.fromkeys(found))[:3]))


def suggestion(
    word: str, known: Iterable[str], *, count: int = 1, likeness_min: float = _LIKENESS_MIN
) -> str:
    """As `did_you_mean`, without the leading semicolon: for a text of its own."""
    return _question(_similar(word, known, count, likeness_min))


def _similar(word: str, known: Iterable[str], count: int, likeness_min: float) -> list[str]:
    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), lower, n=count, cutoff=likeness_min)
    return [lower[text] for text in near]


def _question(found: list[str]) -> str:
    return f"did you mean {' or '.join(found)}?" if found else ""


def _after_text(question: str) -> str:
    return f"; {question}" if question else ""


def columns_text(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """Rows under each other; the columns `right` are aligned to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def bucket_text(partition: str, bucket: int) -> str:
    """A bucket's text: `dt=2026-01-01 bucket 3`."""
    return f"{partition} bucket {bucket}" if partition else f"bucket {bucket}"


def size_text(size_bytes: float) -> str:
    """`1.5 MiB`: three significant digits at most."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    digits = 0 if unit == "B" or size_bytes >= 100 else 1
    return f"{size_bytes:.{digits}f} {unit}"


def age_text(milliseconds: int) -> str:
    """The two largest units of a span of time: `3 d 4 h`, `2 min 5 s`, `0 s`."""
    seconds = max(0, milliseconds) // 1000
    for unit, inner, unit_s, inner_s in (
        ("d", "h", 86_400, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if seconds >= unit_s:
            whole, rest = divmod(seconds, unit_s)
            return (
                f"{whole} {unit} {rest // inner_s} {inner}"
                if rest // inner_s
                else (f"{whole} {unit}")
            )
    return f"{seconds} s"


def interval_text(milliseconds: int) -> str:
    """As `age_text`, but with fractions of seconds where there are any: `0.5 s`."""
    return f"{milliseconds / 1000:g} s" if milliseconds % 1000 else age_text(milliseconds)


def count_text(count: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


HIDDEN = "***"

# A regular expression, also used in Java, matched in any case. Variables of Spark's processes and
# options of fsspec have names that other programs choose: any may be a secret.
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
# Ends of names of catalog and store options for places, methods, amounts and users. Any other
# option may be a secret, because the list of options is open.
_HARMLESS_OPTION = re.compile(
    r"(?:^|[.-])(?:uri|url|endpoint|region|authority|tenant|user|catalog-key|arn|id|name|impl|type"
    r"|algorithm|mode|version|provider|class|enabled?|access|path|dir|keyfile|ssl\w*|currentschema"
    r"|size|length|timeout|sleep|max|min|maximum|num|number|interval|count|period|threads|depth)$",
    re.IGNORECASE,
)
# In URLs of Azure the container has the place of the user.
_AZURE = re.compile(r"(?:abfs|wasb)s?://", re.IGNORECASE)
_URL = re.compile(r"(\b(?:[A-Za-z][A-Za-z0-9+.-]*://)+)((?:[^\s/?#]*@)?[^\s\"'<>]*)")
_HOST = r"(?:[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_HOST_ONLY = re.compile(_HOST)
# The parameters of a Spark Connect master: its token, and headers of any name.
_PARAMETERS = re.compile(r"(\bsc://[^\s;\"']{0,300};)[^\s\"']+")
# Bounded, so that the time for a long text without a match is not quadratic.
_ASSIGNED = re.compile(
    rf"(?P<key>(?:{SECRET})[\w.-]{{0,200}})(?P<sign>\\*[\"']?\s*[=:]\s*)"
    r"(?P<value>\\+\"[^\"]*\"|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[{\[][^}\]]*[}\]]?"
    r"|(?:(?:Bearer|Basic|Digest|Negotiate|Token|SharedKey|AWS|OSS)\s+)?[^\s\"',;&)}\]]+)",
    re.IGNORECASE,
)
# A password that a person chose may be a word; a generated one is not.
_TYPED = re.compile(r"passw|passphrase|pwd", re.IGNORECASE)
_WORD = r"(?:[A-Z]?[a-z']+|[A-Z]{1,5})[.,;:!?)]*"
# Our own messages about a value.
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
    """Whether a value under this key is hidden; a secret word inside the key is enough.

    Options of catalogs, `catalogs.lake.options.…`, are hidden unless they are known to be harmless.
    """
    of_catalog = _OF_CATALOG.match(key)
    # A catalog's own name does not describe its values.
    name = key[of_catalog.end() :] if of_catalog else key
    if of_catalog and of_catalog[1] and not _HARMLESS_OPTION.search(name):
        return name != "fsspec.enabled"
    return _SECRET_KEY.search(name) is not None


def is_secret_option(key: str) -> bool:
    """Whether a catalog's option is certainly a secret, as opposed to possibly one."""
    return is_secret_key(key) and not _HARMLESS_OPTION.search(key)


def is_secret(key: str, text: str) -> bool:
    """Whether a value is a secret by its key, or contains a recognisable secret."""
    return text not in _FLAGS and (is_secret_key(key) or redact_text(text) != text)


def has_credentials(location: str) -> bool:
    """Whether a URL starts with a user and a password: `s3://key:secret@bucket`.

    A secret may contain slashes. `host:9000/a@b` has no secret: digits after the colon are a port.
    """
    _, mark, rest = location.partition("://")
    before = rest.rpartition("@")[0]
    authority = before.partition("/")[0]
    return (
        bool(mark) and ":" in authority and not ("/" in before and _HOST_ONLY.fullmatch(authority))
    )


def redact_text(text: str) -> str:
    """The text without user info, query and parameters of URIs, and without `password=…`.

    In a URL, everything up to the last `@` is hidden if a colon precedes it, because passwords may
    contain slashes. Words after a colon stay: `InvalidToken: the store does not know it` has no
    value.
    """
    if "://" in text:
        text = _URL.sub(_url, _PARAMETERS.sub(rf"\1{HIDDEN}", text))
    return _ASSIGNED.sub(_assigned, text)


def redact_value(key: str, text: str) -> str:
    """The shown value of a setting; for a `uri`, its scheme, host, port and database."""
    if text not in _FLAGS and is_secret_key(key):
        return HIDDEN
    return _database(text) if _URI_KEY.search(key) else redact_text(text)


def shown_text(text: str) -> str:
    """The shown part of another program's text: 300 characters without secrets."""
    # The cut may split a secret in the last word. Redacting a whole long text would be slow.
    text = text if len(text) <= _LOOKED_AT_MAX else text[:_LOOKED_AT_MAX].rpartition(" ")[0]
    return printable(redact_text(text))[:_SHOWN_MAX]


def printable(text: str) -> str:
    """One line that is safe to print, for any names in it.

    Control and format characters are escaped as in Python: `\\x1b`, `\\n`, `\\u202e`. They could
    move the cursor, start a new line, or reverse the order of letters.
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def printable_lines(text: str) -> str:
    """The same as `printable`, for texts of several lines."""
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
    # A space within the value: it starts with a scheme such as Bearer.
    if re.fullmatch(r":\s+", sign) and not re.search(r"\s", value) and _is_prose(found):
        return found[0]
    return f"{found['key']}{sign}{HIDDEN}"


def _is_prose(found: re.Match[str]) -> bool:
    """Whether prose follows the colon: two words, or one after the name of an error."""
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
    """A copy as plain JSON values without secrets.

    Bytes, exceptions and other objects become their redacted text, so printing the result calls
    none of their `repr`. A flag or a missing value under a secret-like key is not a secret.
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
        # JSON has neither NaN nor infinities.
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


_REFERENCE = re.compile(r"\$(?:(\$)(?=\{)|\{([^{}]*)\})")
# Not `COMPACTORD__`, the prefix of configuration keys.
_HANDED = "COMPACTORD_SECRET_"
_FORMS = "${env:NAME} or ${file:/path}; $${ for the signs themselves"
# Interval of checks for replaced values.
_LOOK_S = 60.0
_lock = threading.Lock()
_handed: dict[str, str] = {}
_KEPT = "kept"
_kept: dict[str, str] = {}


class ReferenceMissing(UsageError):
    """The target of `reference`, as written, is missing; `expected` describes it."""

    def __init__(self, reference: str, expected: str) -> None:
        self.reference = reference
        self.expected = expected
        super().__init__(f"{reference}: expected {expected}")

    def __reduce__(self) -> tuple[type[ReferenceMissing], tuple[str, str]]:
        return ReferenceMissing, (self.reference, self.expected)


def has_reference(text: str) -> bool:
    """Whether the text has a reference, resolvable or not."""
    return any(found[2] is not None for found in _REFERENCE.finditer(text))


def resolve(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text with references replaced by values; `environ` defaults to this process's.

    Raises `ReferenceMissing` for the first that has no value.
    """
    variables = os.environ if environ is None else environ
    return filled(text, lambda reference: value_of(reference, variables))


def resolve_option(key: str, text: str) -> str:
    """The same as `resolve`, for an option of a catalog. Raises `CatalogOptionInvalid`."""
    try:
        return resolve(text)
    except ReferenceMissing as error:
        raise CatalogOptionInvalid(key, error.expected) from None


def filled(text: str, value: Callable[[str], str]) -> str:
    """The text with each reference, such as `env:NAME`, replaced by `value` of it."""
    return _REFERENCE.sub(lambda found: "$" if found[1] else value(found[2]), text)


def value_of(reference: str, environ: Mapping[str, str]) -> str:
    """The value of `env:NAME` or `file:/path`, or of one of `kept`. Raises `ReferenceMissing`."""
    kind, _, name = reference.partition(":")
    shown = f"${{{reference}}}"
    if kind == _KEPT and name in _kept:
        return _kept[name]
    if kind == "env" and name:
        value = environ.get(name)
        if value is None:
            raise ReferenceMissing(shown, f"the variable {name} to be set")
        return value
    if kind == "file" and os.path.isabs(name):
        try:
            with open(name, encoding="utf-8") as file:
                return file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ReferenceMissing(shown, f"a file that can be read ({why})") from None
    raise ReferenceMissing(shown, _FORMS)


class LateValues:
    """Texts by name, with the values of their references when they were last read.

    Detects that a key in a file was replaced. Thread-safe.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._values: dict[str, str] = {}
        self._looked_s = -math.inf

    def read(self) -> Mapping[str, str]:
        """The texts with their references resolved. Raises `ReferenceMissing`."""
        self._values = {name: resolve(text) for name, text in self._texts.items()}
        return self._values

    def forget(self) -> None:
        """The values read last are not in use: any value counts as changed."""
        self._values = {}

    def have_changed(self, now_s: float) -> bool:
        """Whether a credential that was just refused has been replaced since it was read.

        Checks at most once a minute, because refusals also have other reasons and come in large
        numbers. False in between, and while a reference has no value. `now_s` is monotonic.
        """
        if now_s - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now_s
        try:
            return self._values != {name: resolve(text) for name, text in self._texts.items()}
        except ReferenceMissing:
            return False


def escaped(text: str) -> str:
    """The text for which `resolve` returns `text`: its `${` are escaped."""
    return text.replace("${", "$${")


def handed_over(text: str) -> str:
    """A reference to the value of `text`, for this process and the processes it starts.

    A text with references stays unchanged. Another value is moved to an environment variable of
    this process, one variable per value, so it appears nowhere else.
    """
    if has_reference(text):
        return text
    value = resolve(text)
    with _lock:
        name = _handed.get(value)
        if name is None:
            name = _handed[value] = _HANDED + secrets.token_hex(8).upper()
            os.environ[name] = value
    return f"${{env:{name}}}"


def kept(name: str, value: str) -> str:
    """A reference to a value known only to this process. A later call may replace the value.

    For large numbers of values: an environment is copied to each new process, and is limited to two
    megabytes.
    """
    _kept[name] = value
    return f"${{{_KEPT}:{name}}}"


def forget(reference: str) -> None:
    """Drop the value of a reference that `kept` returned."""
    _kept.pop(reference[len(f"${{{_KEPT}:") : -1], None)
