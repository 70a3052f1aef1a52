"""Thrift's compact protocol, and Parquet's structures in it.

A value is kept with its type, so that a decoded struct is encoded unchanged, including unknown
fields. Field ids are plain integers: they are the keys of decoded structs, and hashing an enum
member is slower.
Sources: the Thrift project's "compact protocol encoding"; parquet.thrift in the Parquet format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias


class Kind(IntEnum):
    """Type numbers of the protocol. A boolean field's value is its type; it takes no bytes."""

    TRUE = 1
    FALSE = 2
    I8 = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    STRUCT = 12


class Typed(NamedTuple):
    """`value` by kind: bool, int, bytes (a double as its eight bytes), `Items` or a struct."""

    kind: Kind
    value: Any


class Items(NamedTuple):
    """The elements of a list, all of the same kind, without their types."""

    kind: Kind
    values: list[Any]


# Field id -> value, in the order of the ids.
Struct: TypeAlias = Mapping[int, Typed]

# Tuples are faster to search than sets: an enum member's hash is a Python call.
_INTEGERS = (Kind.I32, Kind.I64, Kind.I16)
_FLAGS = (Kind.TRUE, Kind.FALSE)
# Kinds by number: creating an enum member from a number is slower than all other steps.
_KINDS = {kind.value: kind for kind in Kind}
_TRUE, _FALSE, _I16, _I64, _BINARY, _LIST, _STRUCT = map(
    int, (Kind.TRUE, Kind.FALSE, Kind.I16, Kind.I64, Kind.BINARY, Kind.LIST, Kind.STRUCT)
)
# Creates a named tuple without a call in Python.
_new_tuple = tuple.__new__
_DOUBLE_BYTES = 8
_SHORT = 15
# A 64-bit integer takes ten bytes of seven bits; longer ones would cost quadratic time.
_VARINT_BITS = 70
_TOO_LONG = "a Thrift integer is longer than 64 bits"


def i32(value: int) -> Typed:
    return Typed(Kind.I32, value)


def i64(value: int) -> Typed:
    return Typed(Kind.I64, value)


def binary(value: bytes) -> Typed:
    return Typed(Kind.BINARY, value)


def struct(value: Struct) -> Typed:
    return Typed(Kind.STRUCT, value)


def items(kind: Kind, values: Iterable[Any]) -> Typed:
    return Typed(Kind.LIST, Items(kind, list(values)))


def decode(data: bytes | memoryview, position: int = 0) -> tuple[dict[int, Typed], int]:
    """The struct at `position` and the position after it. Raises `ValueError` if there is none."""
    if position < 0:
        raise ValueError("negative offset of a Thrift struct")
    try:
        return _struct(data, position)
    except (IndexError, KeyError, RecursionError) as error:
        raise ValueError("the bytes are not a Thrift struct") from error


def required(fields: Struct, field: int, kind: Kind) -> Any:
    """The value of a field. Raises `ValueError` when it is missing or of another kind."""
    found = fields.get(field)
    if found is None or found.kind is not kind:
        raise ValueError(f"a Thrift struct without field {field} of kind {kind.name}")
    return found.value


def required_list(fields: Struct, field: int, *kinds: Kind) -> list[Any]:
    """The elements of a list. Raises `ValueError` when it is missing or of none of these kinds.

    A list of booleans has either of their two kinds; an empty list may have any kind.
    """
    found: Items = required(fields, field, Kind.LIST)
    if found.values and found.kind not in kinds:
        raise ValueError(f"a Thrift list of {found.kind.name} in field {field}")
    return found.values


def encode(value: Struct) -> bytes:
    out = bytearray()
    _put_struct(out, value)
    return bytes(out)


def _struct(data: bytes | memoryview, position: int) -> tuple[dict[int, Typed], int]:
    """As `decode`. Written for speed, as wide footers take most of a small file's time: calls and
    enum members cost more than the work itself, so the frequent kinds are decoded in place.
    """
    fields: dict[int, Typed] = {}
    field = 0
    value: Any
    while True:
        head = data[position]
        position += 1
        if head == 0:
            return fields, position
        if head > _SHORT:
            field += head >> 4
        else:
            field, position = signed(data, position)
        number = head & 0x0F
        kind = _KINDS[number]
        if _I16 <= number <= _I64:
            byte = data[position]
            position += 1
            value, shift = byte & 0x7F, 0
            while byte >= 0x80:
                shift += 7
                if shift == _VARINT_BITS:
                    raise ValueError(_TOO_LONG)
                byte = data[position]
                position += 1
                value |= (byte & 0x7F) << shift
            value = value >> 1 ^ -(value & 1)
        elif number == _BINARY:
            size = data[position]
            if size < 0x80:
                position += 1
            else:
                size, position = _varint(data, position)
            end = position + size
            if end > len(data):
                raise IndexError(end)
            value = bytes(data[position:end])
            position = end
        elif number == _STRUCT:
            value, position = _struct(data, position)
        elif number == _LIST:
            value, position = _items(data, position)
        elif number <= _FALSE:
            value = number == _TRUE
        else:
            value, position = _value(data, position, kind)
        fields[field] = _new_tuple(Typed, (kind, value))


def _value(data: bytes | memoryview, position: int, kind: Kind) -> tuple[Any, int]:
    if kind in _INTEGERS:
        return signed(data, position)
    if kind is Kind.BINARY:
        size, position = _varint(data, position)
        return _bytes(data, position, size)
    if kind is Kind.STRUCT:
        return _struct(data, position)
    if kind is Kind.DOUBLE:
        return _bytes(data, position, _DOUBLE_BYTES)
    if kind in (Kind.LIST, Kind.SET):
        return _items(data, position)
    # A byte. A boolean in a list takes a byte as well.
    return data[position], position + 1


def _items(data: bytes | memoryview, position: int) -> tuple[Items, int]:
    kind, count, position = list_head(data, position)
    if count > len(data) - position:
        raise ValueError("a Thrift list has more elements than bytes")
    values: list[Any] = []
    if kind is Kind.STRUCT:
        for _ in range(count):
            value, position = _struct(data, position)
            values.append(value)
        return Items(kind, values), position
    for _ in range(count):
        value, position = _value(data, position, kind)
        values.append(value)
    return Items(kind, values), position


def list_head(data: bytes | memoryview, position: int) -> tuple[Kind, int, int]:
    """The kind of a list's elements, their number, and the position of the first."""
    head = data[position]
    count, position = head >> 4, position + 1
    if count == _SHORT:
        count, position = _varint(data, position)
    return _KINDS[head & 0x0F], count, position


def _bytes(data: bytes | memoryview, position: int, size: int) -> tuple[bytes, int]:
    end = position + size
    if end > len(data):
        raise IndexError(end)
    return bytes(data[position:end]), end


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
        if shift == _VARINT_BITS:
            raise ValueError(_TOO_LONG)


def signed(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The zigzag-encoded integer at `position` and the position after it.

    Raises `IndexError` when the bytes end too early, `ValueError` when it exceeds 64 bits.
    """
    value = data[position]
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), position + 1
    value, position = _varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _put_struct(out: bytearray, fields: Struct) -> None:
    previous = 0
    for field, (kind, value) in fields.items():
        delta = field - previous
        if 0 < delta < 16:
            out.append(delta << 4 | kind)
        else:
            out.append(kind)
            put_signed(out, field)
        previous = field
        if kind not in _FLAGS:
            _put_value(out, kind, value)
    out.append(0)


def _put_value(out: bytearray, kind: Kind, value: Any) -> None:
    if kind in _INTEGERS:
        put_signed(out, value)
    elif kind is Kind.BINARY:
        _put_varint(out, len(value))
        out += value
    elif kind is Kind.STRUCT:
        _put_struct(out, value)
    elif kind is Kind.DOUBLE:
        out += value
    elif kind in (Kind.LIST, Kind.SET):
        _put_items(out, value)
    else:
        out.append(value)


def _put_items(out: bytearray, found: Items) -> None:
    put_list_head(out, found.kind, len(found.values))
    for value in found.values:
        _put_value(out, found.kind, value)


def put_list_head(out: bytearray, kind: Kind, count: int) -> None:
    """Append the header of a list; its elements follow."""
    if count < _SHORT:
        out.append(count << 4 | kind)
    else:
        out.append(_SHORT << 4 | kind)
        _put_varint(out, count)


def put_signed(out: bytearray, value: int) -> None:
    """Append a signed integer of any width."""
    _put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class File:
    """FileMetaData, the footer."""

    VERSION, SCHEMA, ROWS, GROUPS, KEY_VALUES, CREATED_BY, COLUMN_ORDERS = range(1, 8)


class KeyValue:
    KEY = 1


class Element:
    """SchemaElement."""

    TYPE, LENGTH, REPETITION, NAME, CHILDREN, CONVERTED = range(1, 7)
    SCALE, PRECISION, ID, LOGICAL = range(7, 11)


class Logical:
    """LogicalType, a union: it has one field, whose id is the type."""

    MAP, DECIMAL, TIME, TIMESTAMP, INTEGER = 2, 5, 7, 8, 10


class Decimal:
    """DecimalType."""

    SCALE, PRECISION = 1, 2


class Time:
    """TimeType and TimestampType; the unit is also a union."""

    UNIT, UNIT_MILLIS, UNIT_MICROS = 2, 1, 2


class Integer:
    """IntType."""

    BITS, IS_SIGNED = 1, 2


class Group:
    """RowGroup."""

    COLUMNS, SIZE, ROWS, SORTING, OFFSET, STORED_SIZE = range(1, 7)


class Chunk:
    """ColumnChunk."""

    FILE, OFFSET, META, OFFSET_INDEX_AT, OFFSET_INDEX_LENGTH = range(1, 6)
    COLUMN_INDEX_AT, COLUMN_INDEX_LENGTH, ENCRYPTION, ENCRYPTED_META = range(6, 10)


class Meta:
    """ColumnMetaData."""

    TYPE, ENCODINGS, PATH, CODEC, VALUES, SIZE, STORED_SIZE, KEY_VALUES = range(1, 9)
    DATA_AT, INDEX_AT, DICTIONARY_AT, STATISTICS, ENCODING_STATS = range(9, 14)
    BLOOM_FILTER_AT, BLOOM_FILTER_LENGTH, SIZE_STATISTICS = range(14, 17)


class Statistics:
    """Statistics; OLD_MAX and OLD_MIN are the deprecated bounds without a defined order."""

    OLD_MAX, OLD_MIN, NULL_COUNT, DISTINCT_COUNT, MAX, MIN = range(1, 7)


class EncodingStats:
    """PageEncodingStats."""

    PAGE_TYPE, ENCODING, COUNT = range(1, 4)


class SizeStatistics:
    UNENCODED_BYTES, REPETITIONS, DEFINITIONS = range(1, 4)


class Header:
    """PageHeader; sizes exclude the header."""

    TYPE, SIZE, STORED_SIZE, CHECKSUM, DATA = range(1, 6)
    DICTIONARY, DATA_V2 = 7, 8


class DataHeader:
    """DataPageHeader; VALUES has the same id in DictionaryPageHeader and DataPageHeaderV2."""

    VALUES, ENCODING, DEFINITION, REPETITION = range(1, 5)


class DataHeaderV2:
    """DataPageHeaderV2."""

    ENCODING, DEFINITION_BYTES, REPETITION_BYTES, IS_COMPRESSED = range(4, 8)


class OffsetIndex:
    LOCATIONS = 1


class PageLocation:
    OFFSET, SIZE, FIRST_ROW = range(1, 4)


class ColumnIndex:
    NULL_PAGES, LOWS, HIGHS, ORDER, NULL_COUNTS = range(1, 6)


class Order:
    """BoundaryOrder."""

    UNORDERED = 0


class Type:
    """Type, the physical type of values."""

    BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)


class Converted:
    """ConvertedType, the older form of `Logical`."""

    MAP = 1
    TIME_MILLIS, TIME_MICROS, TIMESTAMP_MILLIS, TIMESTAMP_MICROS = range(7, 11)
    UINT_8, UINT_16, UINT_32, UINT_64, INT_8, INT_16, INT_32, INT_64 = range(11, 19)


class Repetition:
    """FieldRepetitionType."""

    REQUIRED, OPTIONAL, REPEATED = range(3)


class Codec:
    """CompressionCodec; LZ4 has Hadoop's framing."""

    UNCOMPRESSED, SNAPPY, GZIP, LZO, BROTLI, LZ4, ZSTD, LZ4_RAW = range(8)


class Encoding:
    """Encoding; number 1 was never assigned."""

    PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, DELTA_BINARY_PACKED = 0, 2, 3, 4, 5
    DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY, RLE_DICTIONARY, BYTE_STREAM_SPLIT = range(6, 10)


class PageType:
    DATA, INDEX, DICTIONARY, DATA_V2 = range(4)
