"""Converts bounds of Parquet's statistics (`min_raw`, `max_raw`)."""

from __future__ import annotations

from typing import Any

from compactord.formats.values import nanos_per_unit
from compactord.paimon.binary_row import Value, scaled, text_of
from compactord.paimon.types import MOMENTS, TEXTS, AtomicType, TypeRoot


def from_statistics(raw: Any, type_: AtomicType) -> Value:
    """The bound in its Python form (`formats.values`)."""
    root = type_.root
    if root is TypeRoot.DECIMAL:
        number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
        return scaled(number, type_.scale or 0)
    if root in TEXTS:
        return text_of(raw)
    if root in MOMENTS:
        return raw * nanos_per_unit(type_)
    return raw


def statistics_order(raw: Any, type_: AtomicType) -> Any:
    """The sort key of a bound, comparable with `value_order` of a value."""
    if type_.root is TypeRoot.DECIMAL and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw
