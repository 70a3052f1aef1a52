"""Casts from and to dates, times and timestamps.

A timestamp is milliseconds since the epoch and nanoseconds of the millisecond, as in Java. Casts
between local times and instants use the time zone of the job, as Java uses its default zone.

Sources: casting/{TimestampTo*,DateTo*,TimeTo*}CastRule.java, casting/NumericPrimitiveToTimestamp,
utils/DateTimeUtils.java.
"""

from __future__ import annotations

import datetime
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

    A local time that occurs twice has the earlier offset, one that is skipped that of before.
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
    """A second at which any zone has the same offset, and that Python's dates have.

    They end with the year 9999. Zones repeat their rules every 400 years, which are a whole number
    of weeks, so that other years have the offsets of a year in between.
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
    """Toward zero to a multiple of `unit`."""
    result: Int64s = numbers - np.fmod(numbers, unit)
    return result


def moment_to_date(array: pa.Array, change: Change) -> pa.Array:
    """The day of the local time. Release 2.0.0 gives the day after for times before 1970."""
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
    """Of dates and times."""
    return by_value(array, lambda value: _text(value, change.source).encode(), pa.string())


def _text(value: int, type_: AtomicType) -> str:
    try:
        text = cast_text(value, type_)
    except FormatError as error:
        raise CastError(str(error)) from error
    assert text is not None, "nulls are left out"
    return text
