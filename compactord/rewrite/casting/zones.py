"""Local times of a time zone, as java.time has them: of any year.

Python's dates end with the year 9999. Zones repeat their rules every 400 years, which are a whole
number of weeks, so that other years have the offsets of a year in between.
"""

from __future__ import annotations

import datetime

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_CYCLE_S = 146_097 * 86_400
# 0001-01-03 and 9999-12-29, so that no offset leads out of the range.
_FIRST_S, _LAST_S = -62_135_596_800 + 2 * 86_400, 253_402_300_800 - 3 * 86_400


def offset_at_s(instant_s: int, zone: datetime.tzinfo) -> int:
    """The seconds from UTC to local time at an instant (seconds since the epoch)."""
    moment = _EPOCH + datetime.timedelta(seconds=_within_range(instant_s))
    return _seconds(moment.astimezone(zone).utcoffset())


def offset_of_local_s(local_s: int, zone: datetime.tzinfo) -> int:
    """The offset of a local time, which is given as if it were UTC.

    A local time that occurs twice has the earlier offset, one that is skipped that of before.
    """
    moment = _EPOCH + datetime.timedelta(seconds=_within_range(local_s))
    return _seconds(moment.replace(tzinfo=zone).utcoffset())


def _within_range(second: int) -> int:
    if second > _LAST_S:
        return second + (_LAST_S - second) // _CYCLE_S * _CYCLE_S
    if second < _FIRST_S:
        return second + -((second - _FIRST_S) // _CYCLE_S) * _CYCLE_S
    return second


def _seconds(offset: datetime.timedelta | None) -> int:
    assert offset is not None, "a zone has an offset at any time"
    return int(offset.total_seconds())
