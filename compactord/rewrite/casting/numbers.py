"""Casts between numbers and booleans.

Sources: casting/{NumericPrimitive,NumericPrimitiveToDecimal,DecimalToDecimal,
DecimalToNumericPrimitive,BooleanToNumeric,NumericToBoolean}CastRule.java, utils/DecimalUtils.java.
"""

from __future__ import annotations

import contextlib
import decimal
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.paimon.java_text import cast_text
from compactord.paimon.types import INTEGERS, AtomicType, TypeRoot, arrow_type
from compactord.rewrite.casting.values import (
    CastError,
    Change,
    by_value,
    from_numbers,
    nulls_of,
    numbers_of,
)

_DTYPES: dict[TypeRoot, type[np.generic]] = {
    TypeRoot.TINYINT: np.int8,
    TypeRoot.SMALLINT: np.int16,
    TypeRoot.INT: np.int32,
    TypeRoot.BIGINT: np.int64,
    TypeRoot.FLOAT: np.float32,
    TypeRoot.DOUBLE: np.float64,
}
# Decimals of at most this precision are 64-bit numbers in Java.
_COMPACT_PRECISION = 18
_EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
_TOO_SMALL, _TOO_LARGE = -100, 100


def number_to_number(array: pa.Array, change: Change) -> pa.Array:
    """Between integers and floats: integers wrap, floats saturate, NaN becomes 0."""
    return _primitives(numbers_of(array), nulls_of(array), change.target)


def _primitives(
    numbers: npt.NDArray[Any], nulls: npt.NDArray[np.bool_], target: AtomicType
) -> pa.Array:
    wanted = _DTYPES[target.root]
    if numbers.dtype.kind == "f" and target.root in INTEGERS:
        numbers = _truncated(numbers, np.int64 if target.root is TypeRoot.BIGINT else np.int32)
    with np.errstate(over="ignore", invalid="ignore"):
        return from_numbers(numbers.astype(wanted), nulls, arrow_type(target))


def _truncated(numbers: npt.NDArray[Any], wanted: type[np.int32 | np.int64]) -> npt.NDArray[Any]:
    """Toward zero, limited to the range of `wanted`; smaller integers wrap from there."""
    limits = np.iinfo(wanted)
    # Powers of two: exact as floats of either width.
    high, low = numbers >= -float(limits.min), numbers <= float(limits.min)
    inside = ~(high | low | np.isnan(numbers))
    result = np.where(inside, numbers, 0).astype(wanted)
    result[high] = limits.max
    result[low] = limits.min
    return result


def boolean_to_number(array: pa.Array, change: Change) -> pa.Array:
    bits = array.cast(pa.int8())
    if change.target.root is TypeRoot.DECIMAL:
        return number_to_decimal(bits, change)
    return _primitives(numbers_of(bits), nulls_of(array), change.target)


def number_to_boolean(array: pa.Array, change: Change) -> pa.Array:
    nulls = nulls_of(array)
    return pa.array(numbers_of(array) != 0, mask=nulls if nulls.any() else None)


def number_to_decimal(array: pa.Array, change: Change) -> pa.Array:
    """Floats are taken by their shortest decimal text; what does not fit becomes null.

    Raises `CastError` for NaN and infinities.
    """
    wanted = arrow_type(change.target)
    if not pa.types.is_floating(array.type):
        return by_value(array, lambda value: fitted(Decimal(value), change.target), wanted)
    as_double = AtomicType(root=TypeRoot.DOUBLE)
    doubles = array.cast(pa.float64())

    def convert(value: float) -> Decimal | None:
        text = cast_text(value, as_double) or ""
        if value != value or value in (float("inf"), float("-inf")):
            raise CastError(f"{text} is not a decimal number")
        return fitted(Decimal(text), change.target)

    return by_value(doubles, convert, wanted)


def decimal_to_decimal(array: pa.Array, change: Change) -> pa.Array:
    """Rounded half up; what does not fit becomes null."""
    wanted = arrow_type(change.target)
    more_digits = (change.target.precision or 0) - (change.source.precision or 0)
    more_scale = (change.target.scale or 0) - (change.source.scale or 0)
    if more_scale >= 0 and more_digits >= more_scale:
        # Sums may have more digits than their type.
        with contextlib.suppress(pa.ArrowInvalid):
            return array.cast(wanted)
    return by_value(array, lambda value: fitted(value, change.target), wanted)


def decimal_to_number(array: pa.Array, change: Change) -> pa.Array:
    """Integers toward zero, then wrapped; floats are rounded from the double."""
    nulls = nulls_of(array)
    if change.target.root in INTEGERS:
        whole = by_value(array, lambda value: _wrapped(int(value)), pa.int64())
        return _primitives(numbers_of(whole), nulls, change.target)
    doubles = by_value(array, partial(_as_double, change.source), pa.float64())
    return _primitives(numbers_of(doubles), nulls, change.target)


def _as_double(source: AtomicType, value: Decimal) -> float:
    if (source.precision or 0) > _COMPACT_PRECISION:
        return float(value)
    scale = source.scale or 0
    return float(int(value.scaleb(scale, _EXACT))) / float(10**scale)


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def fitted(value: Decimal, target: AtomicType) -> Decimal | None:
    """The value in the scale of a DECIMAL, rounded half up; None if it has too many digits."""
    precision, scale = target.precision or 0, target.scale or 0
    if value == 0 or value.adjusted() < _TOO_SMALL:
        return Decimal(0).scaleb(-scale)
    if value.adjusted() > _TOO_LARGE:
        return None
    rounded = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    digits = len(str(abs(int(rounded.scaleb(scale, _EXACT)))))
    return rounded if digits <= precision else None
