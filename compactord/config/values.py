"""Types of single values: parsing, expectations in errors, display.

Durations and sizes are texts with units, stored as milliseconds and bytes. Units are Paimon's, but
required: a bare number would mean milliseconds or bytes, which is rarely intended. Only 0 needs
none. Options of tables keep Paimon's own rules (`paimon/options/values.py`). Every reader raises
ValueError with the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, JsonValue, PlainSerializer, WithJsonSchema

from compactord.paimon.options import values as option_values

_T = TypeVar("_T")
_LEAST_ORPHAN_GRACE_MS = 3_600_000
_DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_SIZE_UNITS = (("tb", 1 << 40), ("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10), ("b", 1))
_BARE = re.compile(r"[0-9]+")

# With less memory a merge cannot hold its own buffers.
LEAST_TASK_MEMORY_BYTES = 32 << 20


def duration_text(amount_ms: int) -> str:
    """`90000` → `90 s`: exact, in the largest unit without a remainder."""
    return _text(amount_ms, _DURATION_UNITS)


def size_text(amount_bytes: int) -> str:
    """`536870912` → `512 mb`: exact, in the largest unit without a remainder."""
    return _text(amount_bytes, _SIZE_UNITS)


def _text(amount: int, units: tuple[tuple[str, int], ...]) -> str:
    smallest = units[-1]
    unit, size = next((one for one in units if amount and amount % one[1] == 0), smallest)
    return f"{amount // size} {unit}"


def duration_ms(text: str) -> int:
    """Milliseconds of `10 min`; `0` needs no unit."""
    return _with_unit(text, option_values.duration_ms, "a duration", "s", "min")


def size_bytes(text: str) -> int:
    """Bytes of `512 mb`; `0` needs no unit."""
    return _with_unit(text, option_values.memory_size, "a size", "mb", "gb")


def orphan_grace_ms(text: str) -> int:
    """A duration of at least an hour, so files of living processes are safe; else `ValueError`."""
    grace_ms = duration_ms(text)
    if grace_ms < _LEAST_ORPHAN_GRACE_MS:
        raise ValueError("1 h or more: it must exceed the longest compaction")
    return grace_ms


def _with_unit(text: str, read: Callable[[str], int], kind: str, first: str, second: str) -> int:
    amount = text.strip()
    if _BARE.fullmatch(amount) and amount.strip("0"):
        shown = amount if len(amount) <= 20 else amount[:20] + "…"
        raise ValueError(f"{kind} with its unit, such as {shown} {first} or {shown} {second}")
    return read(amount)


def _amount(read: Callable[[str], int]) -> Callable[[object], int]:
    """A reader of texts, and of whole numbers as texts: 0 needs no unit."""

    def amount(value: object) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return read(str(value) if is_number or isinstance(value, str) else "")

    return amount


def _whole_number(value: object) -> object:
    """Digits from a reference or an environment variable as a number."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
        return int(value)
    return value


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ValueError("true or false")


def _words(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    if not value.strip():
        raise ValueError("a text that is not empty")
    return str(value)


def scalar_text(value: object) -> str:
    """A scalar as the text it was written as: `true`, `5`, `0.7`; ValueError for others."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a text, a number, true or false")


def _empty_if_null(value: object) -> object:
    """A key whose entries are all commented out is null, and means no entries."""
    return () if value is None else value


def no_entries_if_null(value: object) -> object:
    """No entries for a mapping that is null."""
    return {} if value is None else value


def zone_named(name: str) -> ZoneInfo:
    """The zone of an IANA name; ValueError for an unknown name."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError("a time zone's name such as Asia/Shanghai") from None


def _zone_name(value: object) -> str:
    zone_named(_words(value))
    return str(value)


def _zone_name_or_local(value: object) -> str:
    if value == "local":
        return "local"
    try:
        return _zone_name(value)
    except ValueError as error:
        raise ValueError(f"local, or {error}") from None


# Escapes that Python lacks or interprets differently from Java.
_JAVA_ESCAPES = frozenset("pPQEGhHvVRXzZeck0")
_ESCAPE_HINTS = {
    "z": "; the whole name is matched anyway",
    "Z": "; the whole name is matched anyway",
}


def table_pattern(value: object) -> re.Pattern[str]:
    """A pattern with the same meaning in Java's Matcher.matches and in re.fullmatch.

    Classes such as `\\w` are ASCII, as Java's are by default. Raises ValueError.
    """
    text = _words(value)
    _refuse_foreign_syntax(text)
    try:
        return re.compile(text, re.ASCII)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"a regular expression ({error})") from None


def _refuse_foreign_syntax(text: str) -> None:
    at, in_class = 0, False
    while at < len(text):
        sign, following = text[at], text[at + 1 : at + 2]
        if sign == "\\":
            if following in _JAVA_ESCAPES:
                raise ValueError(
                    f"a regular expression without \\{following}, which Java and Python "
                    f"read differently{_ESCAPE_HINTS.get(following, '')}"
                )
            at += 1
        elif in_class:
            if sign == "[" or text[at : at + 2] in ("&&", "||", "--", "~~"):
                raise ValueError(
                    "a regular expression without sets inside [...]; "
                    f"write \\{sign} for the sign itself"
                )
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
            at += following == "^"
        elif text.startswith("(?<", at) and text[at + 3 : at + 4] not in ("=", "!"):
            raise ValueError("a regular expression with unnamed groups")
        at += 1


def at_least(least: int, text: str) -> AfterValidator:
    """A lower bound of a duration or size; `text` is the bound as written."""

    def check(value: int) -> int:
        if value < least:
            raise ValueError(f"{text} or more")
        return value

    return AfterValidator(check)


# Only 0 needs no unit.
_AMOUNT_SCHEMA: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string", "pattern": r"^\s*([0-9]+\s*[^0-9\s].*|0+)\s*$"},
        {"type": "integer", "const": 0},
    ]
}

# Milliseconds.
OrphanGraceMs = Annotated[
    int,
    BeforeValidator(_amount(orphan_grace_ms)),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["1 d", "6 h"]}),
]
DurationMs = Annotated[
    int,
    BeforeValidator(_amount(duration_ms)),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({**_AMOUNT_SCHEMA, "examples": ["10 min", "30 s"]}),
]
# Bytes.
SizeBytes = Annotated[
    int,
    BeforeValidator(_amount(size_bytes)),
    PlainSerializer(size_text, return_type=str),
    WithJsonSchema({**_AMOUNT_SCHEMA, "examples": ["512 mb", "24 gb"]}),
]
# Unlike StrictInt, also accepts digits as text.
Digits = BeforeValidator(_whole_number)
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_words)]
ZoneName = Annotated[str, BeforeValidator(_zone_name)]
ZoneNameOrLocal = Annotated[str, BeforeValidator(_zone_name_or_local)]
# Matched against a whole name.
TablePattern = Annotated[
    re.Pattern[str],
    BeforeValidator(table_pattern),
    PlainSerializer(lambda pattern: pattern.pattern, return_type=str),
    WithJsonSchema({"type": "string", "format": "regex"}),
]
ScalarText = Annotated[
    str,
    BeforeValidator(scalar_text),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Several = Annotated[tuple[_T, ...], BeforeValidator(_empty_if_null)]
