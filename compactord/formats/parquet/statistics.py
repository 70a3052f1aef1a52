"""Converts bounds of Parquet's statistics (`min_raw`, `max_raw`)."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

from compactord.formats.values import nanos_per_unit
from compactord.paimon.binary_row import Value, text_of
from compactord.paimon.types import AtomicType, TypeRoot

_TIMES = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_STRINGS = (TypeRoot.CHAR, TypeRoot.VARCHAR)
_EXACT = Context(prec=80)


def from_statistics(raw: Any, type_: AtomicType) -> Value:
    """The bound in its Python form (`formats.values`)."""
    root = type_.root
    if root is TypeRoot.DECIMAL:
        number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return Decimal(number).scaleb(-(type_.scale or 0), _EXACT)
    if root in _STRINGS:
        return text_of(raw)
    if root in _TIMES:
        return raw * nanos_per_unit(type_)
    return raw


def statistics_order(raw: Any, type_: AtomicType) -> Any:
    """The sort key of a bound, comparable with `value_order` of a value."""
    if type_.root is TypeRoot.DECIMAL and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw
