"""Dates, times and timestamps read from texts, as Java reads them.

Sources: utils/BinaryStringUtils.java (toDate, toTime, toTimestamp), utils/DateTimeUtils.java, and
java.time.format.DateTimeFormatter for its pattern of timestamps.
"""

from __future__ import annotations

import calendar
import datetime
import re

from compactord.rewrite.casting.moments import MILLIS_PER_DAY
from compactord.rewrite.casting.values import CastError

BLANKS = "".join(map(chr, range(33)))
_DIGITS = re.compile(r"[0-9]+")
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_EPOCH_ORDINAL = 719_163
_CYCLE_DAYS = 146_097
_MAX_YEAR = 999_999_999
# Two digits, and if any follow, the same number once more; or one digit, or none.
_TWICE = "(?:[0-9]{2}[0-9]{0,19}|[0-9])?"
_MOMENT = re.compile(
    rf"(?P<year>[0-9]{{4}}|\+[0-9]{{5,19}})-(?P<month>{_TWICE})-(?P<day>{_TWICE})"
    rf"(?: (?P<hour>{_TWICE}):(?P<minute>{_TWICE}):(?P<second>{_TWICE})"
    r"(?:\.(?P<fraction>[0-9]{0,9}))?)?"
)
# Units of a number read as TIMESTAMP of this precision, and how many there are in a second.
_UNITS = {0: 1, 3: 1_000, 6: 1_000_000, 9: 1_000_000_000}


def not_a(kind: str, text: str) -> CastError:
    return CastError(f"{text!r} is not a {kind}")


def whole_number(text: str, low: int, high: int) -> int:
    """Digits with a sign; a fraction is cut off. Raises `CastError` outside `low` to `high`."""
    found = re.fullmatch(r"([+-]?)([0-9]*)(\.[0-9]*)?", text)
    if found is None or text in ("", "+", "-"):
        raise not_a("whole number", text)
    digits = found[2].lstrip("0")
    if len(digits) > len(str(high)):
        raise CastError(f"{text!r} overflows")
    value = int(found[1] + (digits or "0"))
    if not low <= value <= high:
        raise CastError(f"{text!r} overflows")
    return value


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def parse_date(text: str) -> int:
    """Days since the epoch; a text of digits only is that number.

    Raises `CastError` for other texts that are no dates.
    """
    if _is_number(text):
        return whole_number(text, -_INT_MAX - 1, _INT_MAX)
    blank = text.find(" ")
    parts = (text[:blank] if blank > 0 else text).split("-", 2)
    numbers = [_int(part, "date", text) for part in parts]
    year, month, day = (*numbers, 1, 1)[:3]
    is_date = 0 <= year <= 9999 and 1 <= month <= 12 and day >= 1
    if not is_date or day > _days_in_month(year, month):
        raise not_a("date", text)
    return _days(year, month, day)


def _int(part: str, kind: str, text: str) -> int:
    part = part.strip(BLANKS)
    if _DIGITS.fullmatch(part) is None:
        raise not_a(kind, text)
    value = int(part) if len(part.lstrip("0")) < 12 else _INT_MAX + 1
    if value > _INT_MAX:
        raise not_a(kind, text)
    return value


def _days_in_month(year: int, month: int) -> int:
    return calendar.monthrange(2000 + year % 400, month)[1]


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch of a date of any year."""
    cycles, rest = divmod(year, 400)
    ordinal = datetime.date(rest + 400, month, day).toordinal()
    return ordinal + (cycles - 1) * _CYCLE_DAYS - _EPOCH_ORDINAL


def parse_time(text: str) -> int:
    """Milliseconds of the day; an offset is added with its sign, the result may exceed a day."""
    if _is_number(text):
        return whole_number(text, -_INT_MAX - 1, _INT_MAX)
    zone = text.find("-")
    sign = -1
    if zone < 0:
        zone, sign = text.find("+"), 1
    clock, millis = (text, 0) if zone < 0 else (text[:zone], 0)
    hour_off = minute_off = 0
    if zone >= 0:
        hours, colon, minutes = text[zone + 1 :].partition(":")
        hour_off = _int(hours, "time", text)
        minute_off = _int(minutes, "time", text) if colon else 0
    parts = clock.split(":", 2)
    if len(parts) == 3 and "." in parts[2]:
        parts[2], _, fraction = parts[2].partition(".")
        millis = _fraction(fraction.strip(BLANKS))
    numbers = [_int(part, "time", text) for part in parts]
    hour, minute, second = (*numbers, 0, 0)[:3]
    total = (
        (hour + sign * hour_off) * 3_600_000
        + (minute + sign * minute_off) * 60_000
        + second * 1_000
        + millis
    )
    return (total + 2**31) % 2**32 - 2**31


def _fraction(digits: str) -> int:
    """Milliseconds, rounded by the fourth digit alone."""
    kept = [int(digit) if digit in "0123456789" else 0 for digit in digits[:3]]
    value = sum(digit * unit for digit, unit in zip(kept, (100, 10, 1), strict=False))
    return value + (len(digits) > 3 and digits[3] >= "5")


def parse_moment(text: str, precision: int, *, is_local: bool) -> tuple[int, int]:
    """Milliseconds and nanoseconds of a TIMESTAMP; a text of digits counts units since the epoch.

    `is_local`: the text is a local time of a TIMESTAMP_LTZ, for which digits are not read so.
    Raises `CastError` for other texts that are no times.
    """
    if _is_number(text) and not is_local:
        number = whole_number(text, -_LONG_MAX - 1, _LONG_MAX)
        if precision not in _UNITS:
            raise CastError(f"numbers cannot be read as TIMESTAMP({precision})")
        seconds, rest = divmod(number, _UNITS[precision])
        nanos = rest * (1_000_000_000 // _UNITS[precision])
        millis = (seconds * 1000 + nanos // 1_000_000 + 2**63) % 2**64 - 2**63
        return millis, nanos % 1_000_000
    days, second_of_day, nanos = _moment(text)
    nanos -= nanos % 10 ** (9 - precision)
    millis = days * MILLIS_PER_DAY + second_of_day * 1000 + nanos // 1_000_000
    return millis, nanos % 1_000_000


def _moment(text: str) -> tuple[int, int, int]:
    """Days since the epoch, second of the day, nanoseconds of the second.

    Reads `yyyy-[MM][M]-[dd][d][ [HH][H]:[mm][m]:[ss][s]fraction]`, smartly as Java says.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise not_a("timestamp", text)
    parts = []
    for name, least in (("month", 1), ("day", 1), ("hour", 0), ("minute", 0), ("second", 0)):
        digits = found[name] or f"{least}"
        if len(digits) > 2 and int(digits[:2]) != int(digits[2:]):
            raise not_a("timestamp", text)
        parts.append(int(digits[:2]))
    year, (month, day, hour, minute, second) = int(found["year"]), parts
    nanos = int((found["fraction"] or "").ljust(9, "0"))
    if not (1 <= year <= _MAX_YEAR and 1 <= month <= 12 and 1 <= day <= 31):
        raise not_a("timestamp", text)
    days = _days(year, month, min(day, _days_in_month(year, month)))
    if hour == 24 and not (minute or second or nanos):
        return days + 1, 0, 0
    if not (hour < 24 and minute < 60 and second < 60):
        raise not_a("timestamp", text)
    return days, hour * 3600 + minute * 60 + second, nanos
