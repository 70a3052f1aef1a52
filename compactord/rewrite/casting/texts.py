"""Casts from and to texts and numbers.

Sources: casting/{StringTo*,*ToString,Binary*,NumericPrimitive,NumericPrimitiveToDecimal,
DecimalToDecimal,DecimalToNumericPrimitive,BooleanToNumeric,NumericToBoolean}CastRule.java,
utils/{BinaryStringUtils,DecimalUtils}.java, java.lang.Double.valueOf, java.math.BigDecimal.
"""

from __future__ import annotations

import contextlib
import decimal
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.paimon.java_text import cast_text
from compactord.paimon.types import (
    INTEGERS,
    MAX_LENGTH,
    AtomicType,
    DataType,
    MapType,
    RowType,
    TypeRoot,
    arrow_type,
)
from compactord.rewrite.casting.moments import (
    BLANKS,
    Moments,
    not_a,
    parse_date,
    parse_moment,
    parse_time,
    stored,
    to_instants,
    whole_number,
)
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
    """Converts floats by their shortest decimal text; values that do not fit become null.

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
    """Rounds half up; values that do not fit become null."""
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


_BITS = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INT: 32, TypeRoot.BIGINT: 64}
_TRUE = ("t", "true", "y", "yes", "1")
_FALSE = ("f", "false", "n", "no", "0")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,10})?")
_FLOAT = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<word>NaN|Infinity)"
    r"|(?P<plain>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
ToText = Callable[[pa.Array, DataType], pa.Array]
# Halfway between the largest 32-bit float and the next one, if it existed.
_BEYOND_SINGLE = 2**128 - 2**103


def decoded(value: bytes) -> str:
    """A text's bytes as Java decodes them."""
    return value.decode(errors="replace")


def text_to_boolean(array: pa.Array, change: Change) -> pa.Array:
    def convert(value: bytes) -> bool:
        word = decoded(value).lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise not_a("boolean", decoded(value))

    return by_value(array, convert, pa.bool_())


def text_to_number(array: pa.Array, change: Change) -> pa.Array:
    wanted = arrow_type(change.target)
    if change.target.root is TypeRoot.DECIMAL:
        return by_value(array, partial(_decimal, change.target), wanted)
    if change.target.root in _BITS:
        limit = 1 << (_BITS[change.target.root] - 1)
        return by_value(
            array, lambda value: whole_number(decoded(value), -limit, limit - 1), wanted
        )
    is_single = change.target.root is TypeRoot.FLOAT
    return by_value(array, lambda value: _floating(decoded(value), is_single=is_single), wanted)


def _decimal(target: AtomicType, value: bytes) -> Decimal | None:
    text = decoded(value)
    if _DECIMAL.fullmatch(text) is None:
        raise not_a("decimal number", text)
    try:
        return fitted(Decimal(text), target)
    except InvalidOperation as error:
        raise not_a("decimal number", text) from error


def _floating(text: str, *, is_single: bool) -> float:
    found = _FLOAT.fullmatch(text.strip(BLANKS))
    if found is None:
        raise not_a("number", text)
    sign = found["sign"]
    exact: Fraction | None
    if found["word"]:
        return float(sign + ("nan" if found["word"] == "NaN" else "inf"))
    if found["hex"]:
        try:
            value = float.fromhex(sign + found["hex"])
        except OverflowError:
            return float(sign + "inf")
        exact = Fraction(value)
    else:
        value = float(sign + found["plain"])
        exact = None if np.isinf(value) else Fraction(Decimal(sign + found["plain"]))
    return _single(value, exact) if is_single and exact is not None else value


def _single(value: float, exact: Fraction) -> float:
    """The 32-bit float nearest to `exact`; `value` is the double nearest to it."""
    with np.errstate(over="ignore"):
        nearest = np.float32(value)
        above = np.nextafter(nearest, np.float32(np.inf))
        below = np.nextafter(nearest, np.float32(-np.inf))
    if Fraction(value) == exact or (np.isinf(nearest) and abs(exact) > _BEYOND_SINGLE):
        return float(nearest)
    # Rounding twice goes wrong only if the double lies exactly between two floats.
    candidates = [float(each) for each in (below, nearest, above) if np.isfinite(each)]
    return min(candidates, key=lambda each: abs(Fraction(each) - exact))


def text_to_clock(array: pa.Array, change: Change) -> pa.Array:
    parse = parse_date if change.target.root is TypeRoot.DATE else parse_time
    return by_value(array, lambda value: parse(decoded(value)), arrow_type(change.target))


def text_to_moment(array: pa.Array, change: Change) -> pa.Array:
    is_local = change.target.root is TypeRoot.TIMESTAMP_LTZ
    encoded = array.view(pa.binary()).dictionary_encode()
    found = [
        parse_moment(decoded(value), change.target.precision or 0, is_local=is_local)
        for value in encoded.dictionary.to_pylist()
    ]
    moments = Moments(
        np.array([milli for milli, _ in found], np.int64),
        np.array([nano for _, nano in found], np.int64),
        np.zeros(len(found), np.bool_),
    )
    if is_local:
        moments = to_instants(moments, change.zone)
    return stored(moments, change.target).take(encoded.indices)


def to_binary(array: pa.Array, change: Change) -> pa.Array:
    """BINARY is cut or filled with zeros, VARBINARY cut."""
    length = change.target.precision or 0
    array = array.view(pa.binary())
    if change.target.root is TypeRoot.VARBINARY and length == MAX_LENGTH:
        return array
    if change.target.root is TypeRoot.VARBINARY:
        return by_value(array, lambda value: value[:length], pa.binary())
    return by_value(array, lambda value: value[:length].ljust(length, b"\0"), pa.binary())


def binary_to_text(array: pa.Array, change: Change) -> pa.Array:
    """The same bytes, of any length, even if they are not UTF-8."""
    return array.view(pa.string())


def text_to_text(array: pa.Array, change: Change) -> pa.Array:
    return of_length(array, change.target)


def plain_to_text(array: pa.Array, change: Change) -> pa.Array:
    """Casts numbers and booleans to texts."""
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return of_length(array.cast(pa.string()), change.target)

    def convert(value: float | Decimal) -> bytes:
        text = cast_text(value, change.source)
        assert text is not None, "nulls never reach this"
        return text.encode()

    return of_length(by_value(array, convert, pa.string()), change.target)


def of_length(texts: pa.Array, target: AtomicType) -> pa.Array:
    """Texts cut to the type's length, CHAR filled with blanks; a length counts code points.

    Raises `CastError` for bytes that are not UTF-8.
    """
    length = target.precision or 0
    if length == MAX_LENGTH:
        return texts
    try:
        cut = pc.utf8_slice_codeunits(texts, 0, length)
        return pc.utf8_rpad(cut, length, " ") if target.root is TypeRoot.CHAR else cut
    except pa.ArrowInvalid as error:
        raise CastError("a text is not UTF-8") from error


def array_texts(array: pa.Array, element: DataType, to_text: ToText) -> pa.Array:
    """`[a, b]`; `to_text` makes the texts of elements."""
    elements = _words(to_text(array.values, element))
    return _texts(array, lambda start, end: b"[" + b", ".join(elements[start:end]) + b"]")


def map_texts(array: pa.Array, type_: MapType, to_text: ToText) -> pa.Array:
    """`{k -> v, k -> v}`."""
    keys = _words(to_text(array.keys, type_.key))
    values = _words(to_text(array.items, type_.value))

    def entries(start: int, end: int) -> bytes:
        pairs = zip(keys[start:end], values[start:end], strict=True)
        return b"{" + b", ".join(key + b" -> " + value for key, value in pairs) + b"}"

    return _texts(array, entries)


def row_texts(array: pa.Array, type_: RowType, to_text: ToText) -> pa.Array:
    """`{a, b}`, the values of all fields in their order."""
    nulls = nulls_of(array).tolist()
    fields = [_words(to_text(array.field(f.name), f.type)) for f in type_.fields]
    texts = [
        None if nulls[row] else b"{" + b", ".join(words[row] for words in fields) + b"}"
        for row in range(len(array))
    ]
    return pa.array(texts, pa.binary()).view(pa.string())


def _words(texts: pa.Array) -> list[bytes]:
    return [b"null" if text is None else text for text in texts.view(pa.binary()).to_pylist()]


def _texts(array: pa.Array, text: Callable[[int, int], bytes]) -> pa.Array:
    """The text of each collection, from the numbers of its first element and the one after."""
    offsets: Sequence[int] = np.asarray(array.offsets).tolist()
    nulls = nulls_of(array).tolist()
    texts = [
        None if nulls[row] else text(offsets[row], offsets[row + 1]) for row in range(len(array))
    ]
    return pa.array(texts, pa.binary()).view(pa.string())
