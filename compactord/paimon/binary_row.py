"""BinaryRow: the encoding of partitions, keys and statistics in metadata, and of hashed keys.

A body is: null bits (byte 0 is the row kind), one slot of 8 bytes per field, then a variable part;
little-endian. A serialised row is its number of fields, big-endian, and the body. Partitions and
keys are equal if these bytes are, so each value has exactly one encoding.

Values in Python: bool, int, float, Decimal, str, bytes; DATE as days, TIME as milliseconds of the
day, timestamps as nanoseconds since the epoch (unbounded int); ARRAY and VECTOR as list, MAP and
MULTISET as list of pairs, ROW as tuple, VARIANT as (value, metadata); None is null. Paimon does not
check text: text that is not UTF-8 stays bytes.

Sources: data/{BinaryRow,BinaryArray,BinaryMap,AbstractBinaryWriter,BinaryRowWriter,RowHelper}.java,
utils/{SerializationUtils,MurmurHashUtils}.java.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, TypeAlias

from compactord.errors import FormatError
from compactord.paimon.types import (
    MOMENTS,
    MULTISET_COUNT,
    TEXTS,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
)

Value: TypeAlias = Any

_SLOT = 8
_MAX_INLINE = 7
_COMPACT_DECIMAL = 18
_COMPACT_TIMESTAMP = 3
_NANOS_PER_MS = 1_000_000
_EXACT = Context(prec=80)

_NUMBER_FORMATS = {
    TypeRoot.BOOLEAN: "<?",
    TypeRoot.TINYINT: "<b",
    TypeRoot.SMALLINT: "<h",
    TypeRoot.INT: "<i",
    TypeRoot.DATE: "<i",
    TypeRoot.TIME: "<i",
    TypeRoot.BIGINT: "<q",
    TypeRoot.FLOAT: "<f",
    TypeRoot.DOUBLE: "<d",
}
_BYTES = (*TEXTS, TypeRoot.BINARY, TypeRoot.VARBINARY, TypeRoot.BLOB)


def encode_row(values: Sequence[Value], types: Sequence[DataType]) -> bytes:
    """A serialised row. Values must fit their types; raises `ValueError` for a wrong number of
    values.
    """
    return struct.pack(">i", len(types)) + _row_body(values, types)


def decode_row(
    data: bytes, types: Sequence[DataType], *, source: str = "binary row"
) -> tuple[Value, ...]:
    """The values of a serialised row. Raises `FormatError` naming `source` for other bytes."""
    return _decoded(data, types, _plain, source)


def comparable_key(
    data: bytes, types: Sequence[DataType], *, source: str = "binary row"
) -> tuple[Any, ...]:
    """A tuple that sorts as Paimon sorts keys of these (not nested) types.

    Strings by unsigned bytes, −0.0 before 0.0, NaN after all numbers, nulls first. Each field is a
    tuple itself, empty for null. Comparable only with keys of the same types.
    """
    return _decoded(data, types, _ordered, source)


def text_of(data: bytes) -> str | bytes:
    """The text as str, or as bytes if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


# --- encoding ---------------------------------------------------------------------------------


def _null_bytes(fields: int) -> int:
    return (fields + 63 + 8) // 64 * 8


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8


def _row_body(values: Sequence[Value], types: Sequence[DataType]) -> bytes:
    if len(values) != len(types):
        raise ValueError(f"{len(values)} values for {len(types)} types")
    nulls = _null_bytes(len(types))
    body = bytearray(nulls + _SLOT * len(types))
    for index, (value, type_) in enumerate(zip(values, types, strict=True)):
        slot = nulls + _SLOT * index
        if value is None:
            body[(index + 8) // 8] |= 1 << (index % 8)
            # Java reserves room to update the value in place.
            if reserved := _reserved_bytes(type_):
                struct.pack_into("<Q", body, slot, len(body) << 32)
                body += bytes(reserved)
        else:
            _write(body, slot, value, type_)
    return bytes(body)


def _reserved_bytes(type_: DataType) -> int:
    match type_:
        case AtomicType(root=TypeRoot.DECIMAL, precision=int(precision)):
            return 16 if precision > _COMPACT_DECIMAL else 0
        case AtomicType(root=root, precision=int(precision)) if root in MOMENTS:
            return 8 if precision > _COMPACT_TIMESTAMP else 0
        case _:
            return 0


def _write(body: bytearray, slot: int, value: Value, type_: DataType) -> None:
    match type_:
        case AtomicType(root=root) if root in _NUMBER_FORMATS:
            if value != value:
                value = float("nan")  # the one NaN that Java stores
            struct.pack_into(_NUMBER_FORMATS[root], body, slot, value)
        case AtomicType(root=TypeRoot.DECIMAL):
            _write_decimal(body, slot, unscaled(value, type_.scale or 0), type_.precision or 0)
        case AtomicType(root=root) if root in MOMENTS:
            _write_timestamp(body, slot, value, type_.precision or 0)
        case AtomicType(root=root) if root in _BYTES:
            _write_bytes(body, slot, value.encode() if isinstance(value, str) else value)
        case AtomicType():
            raw, metadata = value
            _append(body, slot, struct.pack("<i", len(raw)) + raw + metadata)
        case ArrayType(element=element):
            _append(body, slot, _array_body(value, element))
        case MapType(key=key, value=item):
            _append(body, slot, _map_body(value, key, item))
        case MultisetType(element=element):
            _append(body, slot, _map_body(value, element, MULTISET_COUNT))
        case RowType(fields=fields):
            _append(body, slot, _row_body(value, [field.type for field in fields]))
        case VectorType(element=AtomicType(root=root), length=length):
            packed = struct.pack(f"<i{length}{_NUMBER_FORMATS[root][1]}", length, *value)
            _append(body, slot, packed)
        case VectorType():
            raise ValueError("vectors hold numbers only")


def _append(body: bytearray, slot: int, data: bytes, size: int | None = None) -> None:
    """Put `data` into the variable part. `size` is stored in the slot if it differs from the
    length.
    """
    struct.pack_into("<Q", body, slot, len(body) << 32 | (len(data) if size is None else size))
    body += data + bytes(_padded(len(data)) - len(data))


def _write_bytes(body: bytearray, slot: int, data: bytes) -> None:
    if len(data) > _MAX_INLINE:
        _append(body, slot, data)
    else:
        body[slot : slot + _SLOT] = data.ljust(_MAX_INLINE, b"\0") + bytes([0x80 | len(data)])


def _write_decimal(body: bytearray, slot: int, number: int, precision: int) -> None:
    if precision <= _COMPACT_DECIMAL:
        struct.pack_into("<q", body, slot, number)
        return
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    _append(body, slot, number.to_bytes(size, "big", signed=True).ljust(16, b"\0"), size)


def _write_timestamp(body: bytearray, slot: int, nanos: int, precision: int) -> None:
    millis, rest = divmod(nanos, _NANOS_PER_MS)
    if precision <= _COMPACT_TIMESTAMP:
        struct.pack_into("<q", body, slot, millis)
    else:
        _append(body, slot, struct.pack("<q", millis), rest)


def unscaled(value: Decimal, scale: int) -> int:
    """The whole number that a DECIMAL of `scale` stores. Raises `ValueError` if digits would be
    lost.
    """
    shifted = value.scaleb(scale, _EXACT)
    number = int(shifted)
    if number != shifted:
        raise ValueError(f"{value} does not fit a scale of {scale}")
    return number


def scaled(number: int, scale: int) -> Decimal:
    """The decimal of an unscaled number, of any size."""
    return Decimal(number).scaleb(-scale, _EXACT)


def _array_body(values: Sequence[Value], element: DataType) -> bytes:
    width = _element_width(element)
    nulls = 4 + (len(values) + 31) // 32 * 4
    body = bytearray(_padded(nulls + width * len(values)))
    struct.pack_into("<i", body, 0, len(values))
    for index, value in enumerate(values):
        if value is None:
            body[4 + index // 8] |= 1 << (index % 8)
        else:
            _write(body, nulls + width * index, value, element)
    return bytes(body)


def _map_body(pairs: Sequence[tuple[Value, Value]], key: DataType, value: DataType) -> bytes:
    keys = _array_body([pair[0] for pair in pairs], key)
    return struct.pack("<i", len(keys)) + keys + _array_body([pair[1] for pair in pairs], value)


def _element_width(element: DataType) -> int:
    match element:
        case AtomicType(root=root) if root in _NUMBER_FORMATS:
            return struct.calcsize(_NUMBER_FORMATS[root])
        case _:
            return _SLOT


# --- decoding ---------------------------------------------------------------------------------

# The form of decoded values: numbers as stored, text as bytes, DECIMAL unscaled.
_Form: TypeAlias = Callable[[AtomicType, Any], Any]


def _plain(type_: AtomicType, stored: Any) -> Any:
    if type_.root in TEXTS:
        return text_of(stored)
    if type_.root is TypeRoot.DECIMAL:
        return scaled(stored, type_.scale or 0)
    return stored


def _ordered(type_: AtomicType, stored: Any) -> Any:
    if type_.root is TypeRoot.DOUBLE or type_.root is TypeRoot.FLOAT:
        if stored != stored:
            return 1 << 64
        bits: int = struct.unpack("<q", struct.pack("<d", stored))[0]
        stored = bits if bits >= 0 else -1 - (bits + (1 << 63))
    return stored


def _decoded(data: bytes, types: Sequence[DataType], form: _Form, source: str) -> tuple[Any, ...]:
    try:
        (arity,) = struct.unpack_from(">i", data)
        if arity != len(types):
            raise _BrokenRowError(f"its header has {arity} fields")
        return _read_row(data[4:], types, form)
    except (_BrokenRowError, struct.error, UnicodeDecodeError) as error:
        message = f"{len(data)} bytes are not a row of {len(types)} fields: {error}"
        raise FormatError(source, message) from error


class _BrokenRowError(Exception):
    """Bytes that cannot be a row."""


def _part(body: bytes, offset: int, size: int) -> bytes:
    if size < 0 or offset + size > len(body):
        raise _BrokenRowError(f"{size} bytes at {offset} are outside the row")
    return body[offset : offset + size]


def _read_row(body: bytes, types: Sequence[DataType], form: _Form) -> tuple[Any, ...]:
    nulls = _null_bytes(len(types))
    _part(body, 0, nulls + _SLOT * len(types))
    values: list[Any] = []
    for index, type_ in enumerate(types):
        is_null = body[(index + 8) // 8] >> (index % 8) & 1
        value = None if is_null else _read(body, nulls + _SLOT * index, type_, form)
        values.append(value if form is _plain else () if is_null else (value,))
    return tuple(values)


def _read(body: bytes, slot: int, type_: DataType, form: _Form) -> Any:
    match type_:
        case AtomicType():
            return form(type_, _stored(body, slot, type_))
        case _ if form is _ordered:
            raise _BrokenRowError("nested types have no order")
        case ArrayType(element=element):
            return _read_array(_pointed(body, slot), element)
        case MapType(key=key, value=item):
            return _read_map(_pointed(body, slot), key, item)
        case MultisetType(element=element):
            return _read_map(_pointed(body, slot), element, MULTISET_COUNT)
        case RowType(fields=fields):
            return _read_row(_pointed(body, slot), [field.type for field in fields], form)
        case VectorType(element=element, length=length):
            return _read_vector(_pointed(body, slot), element, length)


def _stored(body: bytes, slot: int, type_: AtomicType) -> Any:
    root, precision = type_.root, type_.precision or 0
    if (number := _NUMBER_FORMATS.get(root)) is not None:
        return struct.unpack_from(number, body, slot)[0]
    if root in _BYTES:
        mark = body[slot + _MAX_INLINE]
        if mark & 0x80 == 0:
            return _pointed(body, slot)
        if mark & 0x7F > _MAX_INLINE:
            raise _BrokenRowError(f"an inline value of {mark & 0x7F} bytes")
        return body[slot : slot + (mark & 0x7F)]
    if root is TypeRoot.DECIMAL:
        if precision > _COMPACT_DECIMAL:
            return int.from_bytes(_pointed(body, slot), "big", signed=True)
        return struct.unpack_from("<q", body, slot)[0]
    if root in MOMENTS:
        if precision <= _COMPACT_TIMESTAMP:
            return struct.unpack_from("<q", body, slot)[0] * _NANOS_PER_MS
        rest, offset = struct.unpack_from("<II", body, slot)
        (millis,) = struct.unpack("<q", _part(body, offset, 8))
        return millis * _NANOS_PER_MS + rest
    variant = _pointed(body, slot)
    (size,) = struct.unpack_from("<i", variant)
    return _part(variant, 4, size), variant[4 + size :]


def _pointed(body: bytes, slot: int) -> bytes:
    size, offset = struct.unpack_from("<II", body, slot)
    return _part(body, offset, size)


def _read_array(body: bytes, element: DataType) -> list[Value]:
    (count,) = struct.unpack_from("<i", body)
    width = _element_width(element)
    nulls = 4 + (count + 31) // 32 * 4
    if count < 0:
        raise _BrokenRowError(f"an array of {count} elements")
    _part(body, 0, nulls + width * count)
    return [
        None
        if body[4 + index // 8] >> (index % 8) & 1
        else _read(body, nulls + width * index, element, _plain)
        for index in range(count)
    ]


def _read_map(body: bytes, key: DataType, value: DataType) -> list[tuple[Value, Value]]:
    (size,) = struct.unpack_from("<i", body)
    keys = _read_array(_part(body, 4, size), key)
    values = _read_array(body[4 + size :], value)
    if len(keys) != len(values):
        raise _BrokenRowError(f"a map of {len(keys)} keys and {len(values)} values")
    return list(zip(keys, values, strict=True))


def _read_vector(body: bytes, element: DataType, length: int) -> list[Value]:
    (count,) = struct.unpack_from("<i", body)
    if count != length or not isinstance(element, AtomicType):
        raise _BrokenRowError(f"a vector of {count} elements instead of {length}")
    return list(struct.unpack_from(f"<{count}{_NUMBER_FORMATS[element.root][1]}", body, 4))
