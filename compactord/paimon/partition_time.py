"""The time that the values of a partition stand for, by the options `partition.timestamp-*`.

As partition/PartitionTimeExtractor.java. Of formatters those are understood that are made of
numbers; `formatter_trouble` says of others what is not.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache

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
    """The local time, in ms as if it were UTC; None for a partition that stands for none.

    `spec` has the texts of the values by column, as in the names of folders. Without a pattern the
    first one counts. Without a formatter parts may roll over: month 13 is the next January.
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
    """What of a formatter is not understood; None: nothing."""
    try:
        _compiled(formatter)
    except ValueError as error:
        return str(error)
    return None


def _filled(spec: Mapping[str, str], pattern: str | None) -> str | None:
    """The pattern with values for columns; None where Java's regular expressions would fail."""
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
    """Raises `ValueError` that says what is not understood."""
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
    return first + timedelta(days=int(parts["day"]) - 1) + _time(parts)


def _checked(parts: Mapping[str, str]) -> datetime:
    """Raises `ValueError` for parts out of range; a day that a month lacks is its last one."""
    year, month, day = int(parts["year"]), int(parts["month"]), int(parts["day"])
    if not 1 <= day <= 31:
        raise ValueError("no day")
    day = min(day, monthrange(year, month)[1])
    date = datetime(year, month, day, tzinfo=timezone.utc)
    time = _time(parts)
    limits = (("hour", 24), ("minute", 59), ("second", 59))
    if any(int(parts.get(name, 0)) > most for name, most in limits) or time > timedelta(days=1):
        raise ValueError("no time of a day")
    # Java takes the date alone where the time has a gap.
    given = [name in parts for name in ("hour", "minute", "second", "fraction")]
    has_time = given[0] and given == sorted(given, reverse=True)
    return date + time if has_time else date


def _time(parts: Mapping[str, str]) -> timedelta:
    return timedelta(
        hours=int(parts.get("hour", 0)),
        minutes=int(parts.get("minute", 0)),
        seconds=int(parts.get("second", 0)),
        milliseconds=int((parts.get("fraction", "") + "000")[:3]),
    )
