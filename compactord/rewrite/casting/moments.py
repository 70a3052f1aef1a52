"""Casts of dates, times and timestamps, and their text forms.

A timestamp is milliseconds since the epoch and nanoseconds of the millisecond, as in Java. Casts
between local times and instants use the time zone of the job, as Java uses its default zone.

Sources: casting/{TimestampTo*,DateTo*,TimeTo*}CastRule.java, casting/NumericPrimitiveToTimestamp,
utils/DateTimeUtils.java, utils/BinaryStringUtils.java (toDate, toTime, toTimestamp), and
java.time.format.DateTimeFormatter for its pattern of timestamps.
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError
from compactord.kernels.columns import Bools, Int64s
from compactord.paimon.java_text import cast_text
from compactord.paimon.types import (
    WIDE_TIMESTAMP,
    AtomicType,
    TypeRoot,
    arrow_type,
    from_parts,
    parts_of,
)
from compactord.rewrite.casting.values import (
    CastError,
    Change,
    by_value,
    from_numbers,
    nulls_of,
    numbers_of,
)

MILLIS_PER_DAY = 86_400_000
_MICROS_PER_MILLI = 1_000
_NANOS_PER_MILLI = 1_000_000
_INT64 = np.iinfo(np.int64)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_CYCLE_S = 146_097 * 86_400
# 0001-01-03 and 9999-12-29, so that no offset leads out of the range.
_FIRST_S, _LAST_S = -62_135_596_800 + 2 * 86_400, 253_402_300_800 - 3 * 86_400


@dataclass(frozen=True, slots=True)
class Moments:
    """Timestamps; `nanos` are 0 to 999,999. Values where `nulls` is set are undefined."""

    millis: Int64s
    nanos: Int64s
    nulls: Bools


def moments_of(array: pa.Array) -> Moments:
    """The timestamps of an array of any precision."""
    return Moments(*parts_of(array), nulls_of(array))


def stored(moments: Moments, target: AtomicType) -> pa.Array:
    """An array of `target`. Raises `CastError` for moments that its files cannot hold."""
    wanted = arrow_type(target)
    if wanted == WIDE_TIMESTAMP:
        return from_parts(moments.millis, moments.nanos, moments.nulls)
    ticks = moments.millis
    if wanted.unit != "ms":
        per_milli = _MICROS_PER_MILLI
        units = moments.nanos // (_NANOS_PER_MILLI // per_milli)
        limit = int(_INT64.max) // per_milli
        for row in np.flatnonzero((np.abs(ticks) >= limit) & ~moments.nulls):
            exact = int(ticks[row]) * per_milli + int(units[row])
            if not _INT64.min <= exact <= _INT64.max:
                raise CastError(f"{ticks[row]} milliseconds do not fit 64 bits of {wanted.unit}")
        ticks = np.where(moments.nulls, 0, ticks) * per_milli + units
    return from_numbers(ticks, moments.nulls, wanted)


def to_local(moments: Moments, zone: datetime.tzinfo) -> Moments:
    """Local times, as if they were UTC, of instants."""
    return _shifted(moments, lambda instant: instant.astimezone(zone), 1)


def to_instants(moments: Moments, zone: datetime.tzinfo) -> Moments:
    """Instants of local times.

    A local time that occurs twice has the earlier offset, a skipped one the offset before the gap.
    """
    return _shifted(moments, lambda local: local.replace(tzinfo=zone), -1)


def _shifted(
    moments: Moments, zoned: Callable[[datetime.datetime], datetime.datetime], sign: int
) -> Moments:
    """Each moment moved by the offset at its second, which `zoned` finds; `sign` is 1 or -1."""
    seconds = np.where(moments.nulls, 0, moments.millis // 1000)
    distinct, places = np.unique(seconds, return_inverse=True)
    offsets = np.empty(len(distinct), np.int64)
    for place, second in enumerate(distinct.tolist()):
        found = zoned(_EPOCH + datetime.timedelta(seconds=_within_range(second))).utcoffset()
        assert found is not None, "a zone has an offset at any time"
        offsets[place] = int(found.total_seconds())
    return Moments(moments.millis + sign * 1000 * offsets[places], moments.nanos, moments.nulls)


def _within_range(second: int) -> int:
    """A second at which any zone has the same offset, within the range of Python's dates.

    These end with the year 9999. Zones repeat their rules every 400 years, a whole number of weeks,
    so that other years have the offsets of a year in the range.
    """
    if second > _LAST_S:
        return second + (_LAST_S - second) // _CYCLE_S * _CYCLE_S
    if second < _FIRST_S:
        return second + -((second - _FIRST_S) // _CYCLE_S) * _CYCLE_S
    return second


def _local(array: pa.Array, change: Change) -> Moments:
    moments = moments_of(array)
    is_instant = change.source.root is TypeRoot.TIMESTAMP_LTZ
    return to_local(moments, change.zone) if is_instant else moments


def moment_to_moment(array: pa.Array, change: Change) -> pa.Array:
    """Digits beyond the target's precision are cut off, milliseconds toward zero."""
    moments = moments_of(array)
    if change.source.root is not change.target.root:
        is_local = change.source.root is TypeRoot.TIMESTAMP
        moments = to_instants(moments, change.zone) if is_local else to_local(moments, change.zone)
    precision = change.target.precision or 0
    if (change.source.precision or 0) > precision:
        moments = _cut_off(moments, precision)
    return stored(moments, change.target)


def _cut_off(moments: Moments, precision: int) -> Moments:
    millis, nanos = moments.millis, moments.nanos
    if precision <= 3:
        millis = _cut(millis, 10 ** (3 - precision))
        nanos = np.zeros_like(nanos)
    else:
        nanos = _cut(nanos, 10 ** (9 - precision))
    return Moments(millis, nanos, moments.nulls)


def _cut(numbers: Int64s, unit: int) -> Int64s:
    """Truncates toward zero to a multiple of `unit`."""
    result: Int64s = numbers - np.fmod(numbers, unit)
    return result


def moment_to_date(array: pa.Array, change: Change) -> pa.Array:
    """The day of the local time. Release 2.0.0 returns the next day for times before 1970."""
    moments = _local(array, change)
    days = (moments.millis // MILLIS_PER_DAY).astype(np.int32)
    return from_numbers(days, moments.nulls, pa.date32())


def moment_to_time(array: pa.Array, change: Change) -> pa.Array:
    moments = _local(array, change)
    times = (moments.millis % MILLIS_PER_DAY).astype(np.int32)
    return from_numbers(times, moments.nulls, pa.time32("ms"))


def moment_to_number(array: pa.Array, change: Change) -> pa.Array:
    """Seconds since the epoch, toward zero; INT wraps."""
    moments = moments_of(array)
    seconds = _cut(moments.millis, 1000) // 1000
    wanted = np.int32 if change.target.root is TypeRoot.INT else np.int64
    return from_numbers(seconds.astype(wanted), moments.nulls, arrow_type(change.target))


def number_to_moment(array: pa.Array, change: Change) -> pa.Array:
    """Numbers are seconds. With a local time zone Java stores the local time as if it were UTC."""
    seconds = numbers_of(array).astype(np.int64)
    moments = Moments(seconds * 1000, np.zeros_like(seconds), nulls_of(array))
    if change.target.root is TypeRoot.TIMESTAMP_LTZ:
        moments = to_local(moments, change.zone)
    return stored(moments, change.target)


def date_to_moment(array: pa.Array, change: Change) -> pa.Array:
    days = numbers_of(array).astype(np.int64)
    moments = Moments(days * MILLIS_PER_DAY, np.zeros_like(days), nulls_of(array))
    if change.target.root is TypeRoot.TIMESTAMP_LTZ:
        moments = to_instants(moments, change.zone)
    return stored(moments, change.target)


def time_to_moment(array: pa.Array, change: Change) -> pa.Array:
    """The time on 1970-01-01, in UTC in either case."""
    times = numbers_of(array).astype(np.int64)
    return stored(Moments(times, np.zeros_like(times), nulls_of(array)), change.target)


def moment_to_text(array: pa.Array, change: Change) -> pa.Array:
    moments = _local(array, change)
    as_local = AtomicType(root=TypeRoot.TIMESTAMP, precision=change.source.precision)
    texts = [
        None if null else _text(milli * _NANOS_PER_MILLI + nano, as_local)
        for milli, nano, null in zip(
            moments.millis.tolist(), moments.nanos.tolist(), moments.nulls.tolist(), strict=True
        )
    ]
    return pa.array(texts, pa.string())


def clock_to_text(array: pa.Array, change: Change) -> pa.Array:
    return by_value(array, lambda value: _text(value, change.source).encode(), pa.string())


def _text(value: int, type_: AtomicType) -> str:
    try:
        text = cast_text(value, type_)
    except FormatError as error:
        raise CastError(str(error)) from error
    assert text is not None, "nulls never reach this"
    return text


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
    """Milliseconds, rounded by the fourth digit only."""
    kept = [int(digit) if digit in "0123456789" else 0 for digit in digits[:3]]
    value = sum(digit * unit for digit, unit in zip(kept, (100, 10, 1), strict=False))
    return value + (len(digits) > 3 and digits[3] >= "5")


def parse_moment(text: str, precision: int, *, is_local: bool) -> tuple[int, int]:
    """Milliseconds and nanoseconds of a TIMESTAMP; a text of digits counts units since the epoch.

    `is_local`: the text is a local time of a TIMESTAMP_LTZ, which does not accept numbers. Raises
    `CastError` for other texts that are no times.
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

    Reads `yyyy-[MM][M]-[dd][d][ [HH][H]:[mm][m]:[ss][s]fraction]` with Java's smart resolver style.
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
