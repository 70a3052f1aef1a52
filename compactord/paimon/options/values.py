"""Parsers of option values that follow Paimon's; all raise `ValueError`.

The error's text is the expected form, for a message with key and value. Sources:
options/{OptionsUtils,MemorySize,StructuredOptionsSplitter}.java, utils/TimeUtils.java.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from datetime import timedelta, timezone, tzinfo
from typing import TypeVar
from zoneinfo import ZoneInfo

_E = TypeVar("_E", bound=enum.Enum)

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_AMOUNT = re.compile(r"([0-9]+)\s*(.*)", re.DOTALL)
_INT_MAX = 2**31 - 1
# The levels of zstd, which replaces a level outside of them by the nearest one.
ZSTD_LEVELS = (-131_072, 22)
# A name has 255 bytes at most; the rest of our names takes less than 75.
_NAME_PART_BYTES_MAX = 180
_LONG_MAX = 2**63 - 1

_SIZE_UNITS = {
    unit: 1 << 10 * power
    for power, units in enumerate(
        (
            ("", "b", "bytes"),
            ("k", "kb", "kibibytes"),
            ("m", "mb", "mebibytes"),
            ("g", "gb", "gibibytes"),
            ("t", "tb", "tebibytes"),
        )
    )
    for unit in units
}
# java.time.ZoneId: a name, or an offset with or without one of three prefixes.
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2})"
    r"(?:(?P<colon>:?)(?P<minutes>[0-5][0-9])(?:(?P=colon)(?P<seconds>[0-5][0-9]))?)?"
)
_OFFSET_MAX = timedelta(hours=18)
# A part of a text between delimiters. Quotes within quotes are doubled.
_PIECE = (
    r"(?P<quoted>(?P<quote>['\"])(?:(?!(?P=quote)).|(?P=quote){{2}})*(?P=quote)(?!(?P=quote)))"
    r"|(?P<open>['\"])|(?P<delimiter>{0})|\s+|(?P<plain>[^{0}]+)"
)
_NANOS_PER_MS = 1_000_000
_DURATION_NANOS = {
    unit: nanos
    for units, nanos in (
        (("d", "day", "days"), 86_400_000 * _NANOS_PER_MS),
        (("h", "hour", "hours"), 3_600_000 * _NANOS_PER_MS),
        (("min", "m", "minute", "minutes"), 60_000 * _NANOS_PER_MS),
        (("s", "sec", "secs", "second", "seconds"), 1000 * _NANOS_PER_MS),
        (("", "ms", "milli", "millis", "millisecond", "milliseconds"), _NANOS_PER_MS),
        (("µs", "micro", "micros", "microsecond", "microseconds"), 1000),
        (("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
    )
    for unit in units
}


def integer_within(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if _INTEGER.fullmatch(text) is None or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return read


integer = integer_within(-_INT_MAX - 1, _INT_MAX)
long = integer_within(-_LONG_MAX - 1, _LONG_MAX)


def positive(read: Callable[[str], int]) -> Callable[[str], int]:
    """A reader that refuses a size of 0, which would make endlessly many files."""

    def above_zero(text: str) -> int:
        number = read(text)
        if number <= 0:
            raise ValueError("a number above 0")
        return number

    return above_zero


def codec(text: str) -> str:
    """A compression of data files by Paimon's name."""
    lower = text.lower()
    return "none" if lower == "uncompressed" else lower


def zstd_level(text: str) -> int:
    """The level in effect: zstd (and so Java) replaces an unknown level by the nearest one."""
    least, most = ZSTD_LEVELS
    return min(max(integer(text), least), most)


def name_part(text: str) -> str:
    """Text that file names begin or end with.

    Manifests record a name without its folder, so a separator would lose the file. Java parses text
    before a colon as the scheme of a URL, and cannot read a file of such a name.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError("text without unpaired surrogates") from None
    if any(character in "/\\:" or character < " " or character == "\x7f" for character in text):
        raise ValueError("part of a file's name, without / \\ : and control characters")
    if not text.strip() or size > _NAME_PART_BYTES_MAX:
        raise ValueError(f"part of a file's name, of 1 to {_NAME_PART_BYTES_MAX} bytes, not blank")
    return text


def double(text: str) -> float:
    trimmed = text.strip()
    if _DOUBLE.fullmatch(trimmed) is None:
        raise ValueError("a number such as 0.7")
    return float(trimmed.rstrip("fFdD") if trimmed[-1] in "fFdD" else trimmed)


def share(text: str) -> float:
    """A number between 0 and 1, without them."""
    number = double(text)
    if not 0 < number < 1:
        raise ValueError("a number above 0 and below 1")
    return number


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def memory_size(text: str) -> int:
    """Bytes from texts such as `128 mb`; a number without a unit is bytes."""
    amount = _AMOUNT.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(amount[2].lower()) if amount else None
    if amount is None or unit is None or int(amount[1]) * unit > _LONG_MAX:
        raise ValueError("a size such as 128 mb (units b, kb, mb, gb, tb)")
    return int(amount[1]) * unit


def duration_ms(text: str) -> int:
    """Milliseconds, rounded down, from texts such as `10 min`; a number without a unit is
    milliseconds.
    """
    amount = _AMOUNT.fullmatch(text.strip())
    unit = _DURATION_NANOS.get(amount[2].lower()) if amount else None
    if amount is None or unit is None or int(amount[1]) * unit // _NANOS_PER_MS > _LONG_MAX:
        raise ValueError("a duration such as 10 min (one of d, h, min, s, ms, µs, ns)")
    return int(amount[1]) * unit // _NANOS_PER_MS


def enumeration(kind: type[_E]) -> Callable[[str], _E]:
    """A reader of one of the values of `kind`, in any case."""
    read = one_of(tuple(member.value for member in kind))
    return lambda text: kind(read(text))


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError("one of " + ", ".join(choices))

    return read


def zone(text: str) -> tzinfo:
    """A time zone by its name, such as `Asia/Shanghai`, or by its offset, such as `GMT-08:00`."""
    offset = _OFFSET.fullmatch(text)
    if text in ("Z", "UTC", "GMT", "UT"):
        return timezone.utc
    try:
        if offset is None:
            return ZoneInfo(text)
        parts = [int(offset[name] or 0) for name in ("hours", "minutes", "seconds")]
        size = timedelta(hours=parts[0], minutes=parts[1], seconds=parts[2])
        if size <= _OFFSET_MAX and (len(offset["hours"]) == 2 or offset["minutes"] is None):
            return timezone(-size if offset["sign"] == "-" else size)
    except (ValueError, OSError, LookupError):
        pass
    raise ValueError("a time zone such as Asia/Shanghai or GMT-08:00")


def mapping(text: str) -> dict[str, str]:
    """A map from `k:v,k2:v2`. Quotes protect separators and are doubled inside."""
    result: dict[str, str] = {}
    for item in _split(text, ","):
        pair = _split(item, ":")
        if len(pair) != 2 or pair[0] in result:
            raise ValueError("pairs such as 0:zstd,5:gzip, each key once")
        result[pair[0]] = pair[1]
    return result


def _split(text: str, delimiter: str) -> list[str]:
    tokens: list[str | None] = []  # None is a delimiter
    for found in re.finditer(_PIECE.format(delimiter), text, re.DOTALL):
        if found.lastgroup == "open":
            raise ValueError("closed quotes")
        if found.lastgroup == "quoted":
            quote = found["quote"]
            tokens.append(found["quoted"][1:-1].replace(2 * quote, quote))
        elif found.lastgroup is not None:
            tokens.append(found["plain"].strip() if found.lastgroup == "plain" else None)
    parts: list[str] = []
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token is not None:
            if following is not None and index + 1 < len(tokens):
                raise ValueError(f"a {delimiter!r} after each quoted part")
            parts.append(token)
        elif following is None:
            parts.append("")
    return parts
