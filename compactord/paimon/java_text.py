"""Values as Java prints and parses them, and times in partition values.

Floating-point numbers are printed as by Java 19 and later (the shortest text that reads back).
Older Java prints some of them with more digits, so the path of such a partition depends on the
writer's Java. Times in partition values follow partition/PartitionTimeExtractor.java; only
formatters made of numbers are supported (`formatter_trouble`).

Sources: java.lang.Double.toString, java.time.LocalDateTime.toString, casting/*ToStringCastRule.java
and utils/DateTimeUtils.java.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from compactord.errors import FormatError
from compactord.paimon.binary_row import Value
from compactord.paimon.types import (
    INTEGERS,
    MOMENTS,
    TEXTS,
    AtomicType,
    DataType,
    TypeRoot,
    type_text,
)

_NANOS_PER_S = 1_000_000_000
_SECONDS_PER_DAY = 86_400
_EPOCH_ORDINAL = datetime(1970, 1, 1, tzinfo=timezone.utc).toordinal()
_CYCLE_DAYS = 146_097
# Java's Character.isWhitespace, which excludes non-breaking spaces.
BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)


def is_blank(text: str) -> bool:
    """Whether the text is empty or only blanks."""
    return not text.strip(BLANKS)


def to_string(value: Value, type_: DataType) -> str | None:
    """The result of `toString` on Paimon's internal value, or None for null.

    Raises `FormatError` for values whose text is not a function of the value (binaries).
    """
    if value is None:
        return None
    root = type_.root if isinstance(type_, AtomicType) else None
    if root in (TypeRoot.DATE, TypeRoot.TIME):
        return str(value)
    if root in MOMENTS:
        return _iso_local(value)
    return _same_in_both(value, type_)


def cast_text(value: Value, type_: DataType) -> str | None:
    """The result of SQL's CAST to STRING, or None for null. Raises as `to_string`."""
    if value is None:
        return None
    match type_:
        case AtomicType(root=TypeRoot.DATE):
            return _calendar_day(_civil(value))
        case AtomicType(root=TypeRoot.TIME, precision=precision):
            return _time(value, precision or 0)
        case AtomicType(root=TypeRoot.TIMESTAMP, precision=precision):
            return _timestamp(value, precision or 0)
        case AtomicType(root=TypeRoot.BINARY | TypeRoot.VARBINARY):
            return _utf8(value)
        case _:
            return _same_in_both(value, type_)


def _same_in_both(value: Value, type_: DataType) -> str:
    root = type_.root if isinstance(type_, AtomicType) else None
    if root is TypeRoot.BOOLEAN:
        return "true" if value else "false"
    if root in TEXTS:
        return _utf8(value) if isinstance(value, bytes) else str(value)
    if root in INTEGERS:
        return str(value)
    if root is TypeRoot.DECIMAL:
        return f"{Decimal(value):f}"
    if root is TypeRoot.FLOAT:
        return _floating(value, np.format_float_scientific(np.float32(value), unique=True))
    if root is TypeRoot.DOUBLE:
        return _floating(value, np.format_float_scientific(np.float64(value), unique=True))
    raise FormatError("partition", f"a value of type {type_text(type_)} cannot be written as text")


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise FormatError("partition", f"the bytes {value.hex()} are not UTF-8") from error


def _floating(value: float, shortest: str) -> str:
    """`shortest` has the fewest digits that read back, in scientific form."""
    if value != value:
        return "NaN"
    sign = "-" if shortest.startswith("-") else ""
    if value in (float("inf"), float("-inf")):
        return sign + "Infinity"
    if value == 0:
        return sign + "0.0"
    mantissa, exponent = shortest.removeprefix("-").split("e")
    if len(mantissa.replace(".", "").rstrip("0")) == 1:
        # Java takes the nearest text of two digits if one digit is enough: 4.9E-324, not 5.0E-324.
        mantissa, exponent = f"{abs(value):.1e}".split("e")
    digits, power = mantissa.replace(".", "").rstrip("0"), int(exponent)
    if 1e-3 <= abs(value) < 1e7:
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{digits}"
        digits = digits.ljust(power + 2, "0")
        return f"{sign}{digits[: power + 1]}.{digits[power + 1 :]}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


class _Civil(NamedTuple):
    """A moment on the proleptic Gregorian calendar, of any year."""

    year: int
    month: int
    day: int
    second_of_day: int
    nanos: int

    @property
    def clock(self) -> tuple[int, int, int]:
        minutes, second = divmod(self.second_of_day, 60)
        hour, minute = divmod(minutes, 60)
        return hour, minute, second


def _civil(days: int, second_of_day: int = 0, nanos: int = 0) -> _Civil:
    # Python's dates have the years 1 to 9999; after 400 years the calendar is the same again.
    cycles, day_of_cycle = divmod(days + _EPOCH_ORDINAL - 1, _CYCLE_DAYS)
    date = datetime.fromordinal(day_of_cycle + 1)
    return _Civil(date.year + 400 * cycles, date.month, date.day, second_of_day, nanos)


def _moment(nanos: int) -> _Civil:
    seconds, rest = divmod(nanos, _NANOS_PER_S)
    return _civil(*divmod(seconds, _SECONDS_PER_DAY), rest)


def _iso_local(nanos: int) -> str:
    """Omits seconds of 0; fractions have groups of three digits."""
    moment = _moment(nanos)
    hour, minute, second = moment.clock
    year = f"{abs(moment.year):04d}"
    year = f"-{year}" if moment.year < 0 else f"+{year}" if moment.year > 9999 else year
    text = f"{year}-{moment.month:02d}-{moment.day:02d}T{hour:02d}:{minute:02d}"
    if second or moment.nanos:
        text += f":{second:02d}"
    if moment.nanos:
        digits = f"{moment.nanos:09d}"
        while digits.endswith("000"):
            digits = digits[:-3]
        text += f".{digits}"
    return text


def _calendar_day(moment: _Civil) -> str:
    if moment.year < 0:
        raise FormatError("partition", f"the year {moment.year} cannot be written as text")
    # Java prints only the last four digits of a year.
    return f"{moment.year % 10_000:04d}-{moment.month:02d}-{moment.day:02d}"


def _time(milliseconds: int, precision: int) -> str:
    hour, minute, second = _civil(0, milliseconds // 1000 % _SECONDS_PER_DAY).clock
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    if precision == 0:
        return text
    # At least one digit, then no more trailing zeros than needed.
    digits = f"{milliseconds % 1000:03d}"[:precision]
    return f"{text}.{digits[0]}{digits[1:].rstrip('0')}"


def _timestamp(nanos: int, precision: int) -> str:
    moment = _moment(nanos)
    hour, minute, second = moment.clock
    digits = f"{moment.nanos:09d}"
    while len(digits) > precision and digits.endswith("0"):
        digits = digits[:-1]
    fraction = f".{digits}" if digits else ""
    return f"{_calendar_day(moment)} {hour:02d}:{minute:02d}:{second:02d}{fraction}"


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_USUAL = re.compile(
    r"(?P<year>\d{1,10})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?: (?P<hour>\d{1,2}):(?P<minute>\d{1,2}):(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,9}))?)?",
    re.ASCII,
)
_FIELDS = {
    "y": "year",
    "u": "year",
    "M": "month",
    "d": "day",
    "H": "hour",
    "m": "minute",
    "s": "second",
    "S": "fraction",
}
_TOKEN = re.compile(
    r"(?P<letters>([A-Za-z])\2*)|'(?P<quoted>(?:[^']|'')*)'|(?P<other>.)", re.DOTALL
)


def partition_time_ms(
    spec: Mapping[str, str], pattern: str | None, formatter: str | None
) -> int | None:
    """The local time that a partition encodes, in ms as if it were UTC, or None if it encodes none.

    `spec` has the texts of the values by column, as in the names of folders. The pattern defaults
    to the first value. Without a formatter parts may roll over: month 13 is the next January.
    """
    text = _filled(spec, pattern)
    if text is None:
        return None
    found = (_USUAL if formatter is None else _compiled(formatter)).fullmatch(text)
    if found is None:
        return None
    parts = {name: part for name, part in found.groupdict().items() if part is not None}
    try:
        moment = _rolled(parts) if formatter is None else _checked(parts)
    except (KeyError, ValueError, OverflowError):
        return None
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def formatter_trouble(formatter: str) -> str | None:
    """The unsupported part of a formatter, or None if all of it is supported."""
    try:
        _compiled(formatter)
    except ValueError as error:
        return str(error)
    return None


def _filled(spec: Mapping[str, str], pattern: str | None) -> str | None:
    """The pattern with values for columns, or None where Java's regular expressions would fail."""
    if pattern is None:
        return next(iter(spec.values()), None)
    for name, value in spec.items():
        if f"${name}" not in pattern:
            continue
        if "$" in value or "\\" in value:
            return None
        pattern = pattern.replace(f"${name}", value)
    return pattern


@lru_cache(maxsize=256)
def _compiled(formatter: str) -> re.Pattern[str]:
    """The formatter as a pattern. Raises `ValueError` with the unsupported part."""
    text, before, depth = "", "", 0
    for token in _TOKEN.finditer(formatter):
        letters, other = token["letters"], token["other"]
        if letters:
            part = _number(letters)
            # Releases of Java differ in where such numbers end.
            if before and (len(before) == 1 or len(letters) == 1 or letters[0] == "S"):
                raise ValueError(before + letters)
            before, text = letters, text + part
            continue
        before = ""
        if other is None:
            text += re.escape(token["quoted"].replace("''", "'") or "'")
        elif other == "[":
            text, depth = f"{text}(?:", depth + 1
        elif other == "]" and depth:
            text, depth = f"{text})?", depth - 1
        elif other in "]{}#'":
            raise ValueError(other)
        else:
            text += re.escape(other)
    try:
        return re.compile(text + ")?" * depth, re.ASCII)
    except re.error as error:
        raise ValueError(f"a field that occurs twice ({error})") from None


def _number(letters: str) -> str:
    letter, count = letters[0], len(letters)
    name = _FIELDS.get(letter)
    if name == "fraction" and count <= 9:
        digits = str(count)
    elif name == "year" and count == 4:
        digits = "4"
    elif name not in (None, "fraction", "year") and count <= 2:
        digits = "2" if count == 2 else "1,2"
    else:
        raise ValueError(letters)
    return rf"(?P<{name}>\d{{{digits}}})"


def _rolled(parts: Mapping[str, str]) -> datetime:
    months = int(parts["year"]) * 12 + int(parts["month"]) - 1
    first = datetime(months // 12, months % 12 + 1, 1, tzinfo=timezone.utc)
    return first + timedelta(days=int(parts["day"]) - 1) + _time_of_day(parts)


def _checked(parts: Mapping[str, str]) -> datetime:
    """Raises `ValueError` for parts out of range; a day that the month lacks becomes its last
    day.
    """
    year, month, day = int(parts["year"]), int(parts["month"]), int(parts["day"])
    if not 1 <= day <= 31:
        raise ValueError("no day")
    day = min(day, monthrange(year, month)[1])
    date = datetime(year, month, day, tzinfo=timezone.utc)
    time = _time_of_day(parts)
    limits = (("hour", 24), ("minute", 59), ("second", 59))
    if any(int(parts.get(name, 0)) > most for name, most in limits) or time > timedelta(days=1):
        raise ValueError("no time of a day")
    # Java uses the date only if a part of the time is missing.
    given = [name in parts for name in ("hour", "minute", "second", "fraction")]
    has_time = given[0] and given == sorted(given, reverse=True)
    return date + time if has_time else date


def _time_of_day(parts: Mapping[str, str]) -> timedelta:
    return timedelta(
        hours=int(parts.get("hour", 0)),
        minutes=int(parts.get("minute", 0)),
        seconds=int(parts.get("second", 0)),
        milliseconds=int((parts.get("fraction", "") + "000")[:3]),
    )
