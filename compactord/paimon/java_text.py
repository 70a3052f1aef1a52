"""Values as Java prints them: partition folders are named with these texts.

Floating-point numbers are printed as by Java 19 and later (the shortest text that reads back).
Older Java prints some of them with more digits, so the path of such a partition depends on the
writer's Java.

Sources: java.lang.Double.toString, java.time.LocalDateTime.toString, casting/*ToStringCastRule.java
and utils/DateTimeUtils.java.
"""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from compactord.errors import FormatError
from compactord.paimon.binary_row import Value
from compactord.paimon.type_texts import type_text
from compactord.paimon.types import INTEGERS, MOMENTS, TEXTS, AtomicType, DataType, TypeRoot

_NANOS_PER_S = 1_000_000_000
_SECONDS_PER_DAY = 86_400
_EPOCH_ORDINAL = datetime(1970, 1, 1, tzinfo=timezone.utc).toordinal()
_CYCLE_DAYS = 146_097
# Java's Character.isWhitespace, which leaves out the spaces that do not break.
_BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)


def is_blank(text: str) -> bool:
    """Whether all characters, if there are any, are blanks."""
    return not text.strip(_BLANKS)


def to_string(value: Value, type_: DataType) -> str | None:
    """What `toString` of Paimon's internal value gives; None for null.

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
    """What SQL's CAST to STRING gives; None for null. Errors as `to_string`."""
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
    """`shortest` holds the fewest digits that read back, in scientific form."""
    if value != value:
        return "NaN"
    sign = "-" if shortest.startswith("-") else ""
    if value in (float("inf"), float("-inf")):
        return sign + "Infinity"
    if value == 0:
        return sign + "0.0"
    mantissa, exponent = shortest.removeprefix("-").split("e")
    if len(mantissa.replace(".", "").rstrip("0")) == 1:
        # Java takes the nearest of two digits when one would do: 4.9E-324, not 5.0E-324.
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
    """Seconds only if there are any, fractions in groups of three digits."""
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
    # Java prints the last four digits of a year, whatever it is.
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
