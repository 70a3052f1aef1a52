"""Reads partition values as operators and folders write them, by their columns' types.

A value has two texts (`paimon/java_text.py`): as SQL casts it, and as folders of tables with
`partition.legacy-name` write it (a day is a number there). Both are read, strictly: reject a text
that no folder has, since a typo would look like success.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np

from compactord.errors import FormatError
from compactord.paimon import paths
from compactord.paimon.binary_row import Value
from compactord.paimon.types import AtomicType, DataField, DataType, TypeRoot, type_text
from compactord.rewrite.casting.moments import parse_date

_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_WHOLE = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")
_FLOATING = re.compile(r"NaN|-?(?:Infinity|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?)")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_BITS = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INT: 32, TypeRoot.BIGINT: 64}
_DIGITS_MAX = 400
_MS_PER_DAY = 86_400_000
_NANOS_PER_DAY = _MS_PER_DAY * 1_000_000


def unescaped(text: str) -> str:
    """The text of a folder's name: `%2C` is a comma. A `%` without two hex digits is itself."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def partition_value(text: str, type_: DataType) -> Value:
    """The value of a text. Raises `ValueError` with the expected form."""
    if not isinstance(type_, AtomicType) or type_.root not in _READERS:
        raise ValueError(
            f"another column: values of type {type_text(type_)} cannot be given as text"
        )
    if len(text) > _DIGITS_MAX and type_.root not in _TEXTUAL:
        raise ValueError("a shorter text")
    return _READERS[type_.root](text, type_)


def is_blank(row: bytes, field: DataField) -> bool:
    """Whether the one value of a row lies in the folder of null, by any name."""
    try:
        one, other = (
            paths.partition_spec(row, [field], default_name=name, legacy_name=False)
            for name in ("one", "other")
        )
    except FormatError:
        return False  # bytes that are not UTF-8 have no folder
    return one != other


def _textual(text: str, type_: AtomicType) -> Value:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text in UTF-8") from None
    return text


def _bytes(text: str, type_: AtomicType) -> Value:
    # Lone surrogates represent bytes of the command line that are not UTF-8.
    return text.encode(errors="surrogateescape")


def _boolean(text: str, type_: AtomicType) -> Value:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _whole(text: str, type_: AtomicType) -> Value:
    return _whole_of_bits(text, _BITS[type_.root])


def _whole_of_bits(text: str, bits: int) -> int:
    largest = 2 ** (bits - 1) - 1
    if _WHOLE.fullmatch(text) is None or not -largest - 1 <= int(text) <= largest:
        raise ValueError(f"a whole number from {-largest - 1} to {largest}")
    return int(text)


def _decimal(text: str, type_: AtomicType) -> Value:
    precision, scale = type_.precision or 0, type_.scale or 0
    found = _DECIMAL.fullmatch(text)
    whole, fraction = (found[1].lstrip("0"), (found[2] or "").rstrip("0")) if found else ("", "")
    if found is None or len(whole) > precision - scale or len(fraction) > scale:
        raise ValueError(
            f"a number of at most {precision - scale} digits before the point and {scale} after it"
        )
    return Decimal(text)


def _floating(text: str, type_: AtomicType) -> Value:
    if _FLOATING.fullmatch(text) is None:
        raise ValueError("a number such as 0.5 or 1.0E10, NaN, Infinity or -Infinity")
    number = float(text)
    if type_.root is TypeRoot.FLOAT:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if number in (float("inf"), float("-inf")) and "Infinity" not in text:
        raise ValueError(f"a number within the range of {type_.root.value}")
    return number


def _date(text: str, type_: AtomicType) -> Value:
    expected = "a day such as 2026-11-01, or its number as the folder may have it"
    try:
        return _whole_of_bits(text, 32) if _WHOLE.fullmatch(text) else _days(text)
    except ValueError:
        raise ValueError(expected) from None


def _days(text: str) -> int:
    if _DAY.fullmatch(text) is None:
        raise ValueError("no day")
    return parse_date(text)


def _time(text: str, type_: AtomicType) -> Value:
    expected = "a time such as 23:59:00, or its milliseconds as the folder may have them"
    millis, rest = divmod(_clock_nanos(text), 1_000_000)
    if _WHOLE.fullmatch(text) is not None:
        millis, rest = int(text), 0
    if rest or not 0 <= millis < _MS_PER_DAY:
        raise ValueError(expected)
    return millis


def _timestamp(text: str, type_: AtomicType) -> Value:
    day, _, clock = text.replace("T", " ", 1).partition(" ")
    expected = (
        f"a moment such as 2026-11-01 23:59:00 with at most {type_.precision} digits of a second"
    )
    nanos = _clock_nanos(clock)
    if nanos < 0 or nanos % 10 ** (9 - (type_.precision or 0)):
        raise ValueError(expected)
    try:
        return _days(day) * _NANOS_PER_DAY + nanos
    except ValueError:
        raise ValueError(expected) from None


def _clock_nanos(text: str) -> int:
    """Nanoseconds after midnight; negative when the text is not a time."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        return -1
    hour, minute, second = (int(number or 0) for number in found.groups()[:3])
    if hour > 23 or minute > 59 or second > 59:
        return -1
    nanos = int((found[4] or "").ljust(9, "0"))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nanos


_TEXTUAL = (TypeRoot.CHAR, TypeRoot.VARCHAR, TypeRoot.BINARY, TypeRoot.VARBINARY)
_READERS: dict[TypeRoot, Callable[[str, AtomicType], Value]] = {
    TypeRoot.BOOLEAN: _boolean,
    **dict.fromkeys(_BITS, _whole),
    TypeRoot.FLOAT: _floating,
    TypeRoot.DOUBLE: _floating,
    TypeRoot.DECIMAL: _decimal,
    TypeRoot.CHAR: _textual,
    TypeRoot.VARCHAR: _textual,
    TypeRoot.BINARY: _bytes,
    TypeRoot.VARBINARY: _bytes,
    TypeRoot.DATE: _date,
    TypeRoot.TIME: _time,
    TypeRoot.TIMESTAMP: _timestamp,
    TypeRoot.TIMESTAMP_LTZ: _timestamp,
}
