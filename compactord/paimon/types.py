"""Paimon's data types: as JSON, as text, and in Arrow.

Arrow types must match exactly: Java reads a timestamp whose unit does not fit its precision wrongly
and without an error.

A timestamp of more than 6 digits is milliseconds since the epoch and nanoseconds of the
millisecond, as in Java (data/Timestamp.java), packed into one integer of a decimal column: `millis
<< 20 | nanos`. It sorts like the timestamps. The decimal's scale exceeds its precision, which
Paimon does not allow, so the type identifies these columns; precision and scale have no other
meaning.

Sources: types/DataType.java and its children, types/DataTypeJsonParser.java,
table/SpecialFields.java (ids of elements), format/parquet/ParquetSchemaConverter.java.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.errors import FormatError

# The length of STRING and BYTES.
MAX_LENGTH = 2**31 - 1


class TypeRoot(enum.Enum):
    """Atomic types; the value is Java's name."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    CHAR = "CHAR"
    VARCHAR = "VARCHAR"
    BINARY = "BINARY"
    VARBINARY = "VARBINARY"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_LTZ = "TIMESTAMP WITH LOCAL TIME ZONE"
    VARIANT = "VARIANT"
    BLOB = "BLOB"


INTEGERS = frozenset((TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT))
FLOATS = frozenset((TypeRoot.FLOAT, TypeRoot.DOUBLE))
NUMBERS = INTEGERS | FLOATS | {TypeRoot.DECIMAL}
TEXTS = frozenset((TypeRoot.CHAR, TypeRoot.VARCHAR))
BINARIES = frozenset((TypeRoot.BINARY, TypeRoot.VARBINARY))
MOMENTS = frozenset((TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ))


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicType:
    """`precision`: length of character and binary types, precision of decimals and times."""

    root: TypeRoot
    nullable: bool = True
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayType:
    element: DataType
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MapType:
    key: DataType
    value: DataType
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MultisetType:
    """Stored as a map from element to INT NOT NULL."""

    element: DataType
    nullable: bool = True


MULTISET_COUNT = AtomicType(root=TypeRoot.INT, nullable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowType:
    fields: tuple[DataField, ...]
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorType:
    element: DataType
    length: int
    nullable: bool = True


DataType = AtomicType | ArrayType | MapType | MultisetType | RowType | VectorType


@dataclass(frozen=True, slots=True, kw_only=True)
class DataField:
    id: int
    name: str
    type: DataType
    description: str | None = None
    default_value: str | None = None


def bare_field(field: DataField, *, all_nullable: bool = False) -> DataField:
    """The field without description and default value."""
    return DataField(
        id=field.id, name=field.name, type=bare_type(field.type, all_nullable=all_nullable)
    )


def bare_type(type_: DataType, *, all_nullable: bool = False) -> DataType:
    """The type with bare fields inside; with `all_nullable`, it and all inner types are
    nullable.
    """
    inside: dict[str, Any] = {"nullable": True} if all_nullable else {}
    match type_:
        case RowType(fields=fields):
            inside["fields"] = tuple(
                bare_field(field, all_nullable=all_nullable) for field in fields
            )
        case ArrayType(element=element) | MultisetType(element=element):
            inside["element"] = bare_type(element, all_nullable=all_nullable)
        case MapType(key=key, value=value):
            inside["key"] = bare_type(key, all_nullable=all_nullable)
            inside["value"] = bare_type(value, all_nullable=all_nullable)
    return replace(type_, **inside)


# The type that Java's rules of casts compare with: nullable, of any length.
STRING = AtomicType(root=TypeRoot.VARCHAR, precision=MAX_LENGTH)


def same_type(left: DataType, right: DataType) -> bool:
    """Whether the types are equal at any depth, ignoring nullability and descriptions."""
    return bare_type(left, all_nullable=True) == bare_type(right, all_nullable=True)


def shares_fields(source: DataType, target: DataType) -> bool:
    """Whether `source` has any part of `target`: false for ROWs without a field of the same id.

    Java does not read such a ROW, nor an ARRAY or MAP of them: all its values become null
    (utils/FormatReaderMapping.java, pruneDataType).
    """
    match source, target:
        case RowType(fields=old), RowType(fields=new):
            by_id = {field.id: field for field in old}
            return any(
                field.id in by_id and shares_fields(by_id[field.id].type, field.type)
                for field in new
            )
        case ArrayType(element=old_element), ArrayType(element=new_element):
            return shares_fields(old_element, new_element)
        case MapType(key=old_key, value=old_value), MapType(key=new_key, value=new_value):
            return shares_fields(old_key, new_key) and shares_fields(old_value, new_value)
        case _:
            return True


# Ids of elements start here and leave room for 1024 levels per field (table/SpecialFields.java).
_ELEMENT_ID_BASE = (2**31 - 1) // 4
_ELEMENT_DEPTHS = 1024


def element_field_ids(field_id: int, depth: int) -> tuple[int, int]:
    """Ids in files for the inside of the collection at `depth` in field `field_id`.

    The first id is for map keys, the second for array elements and map values. The outermost
    collection of a field has depth 1, one inside it 2, and so on; a ROW in between starts again
    with the ids of its own fields. 32-bit arithmetic that wraps, as Java's.
    """
    step = field_id * _ELEMENT_DEPTHS + depth
    return _int32(_ELEMENT_ID_BASE - step), _int32(_ELEMENT_ID_BASE + step)


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


# System columns of data files (table/SpecialFields.java).
KEY_PREFIX = "_KEY_"
SYSTEM_ID_START = (2**31 - 1) // 2
SEQUENCE_NUMBER = DataField(
    id=2**31 - 2,
    name="_SEQUENCE_NUMBER",
    type=AtomicType(root=TypeRoot.BIGINT, nullable=False),
)
VALUE_KIND = DataField(
    id=2**31 - 3,
    name="_VALUE_KIND",
    type=AtomicType(root=TypeRoot.TINYINT, nullable=False),
)
SYSTEM_NAMES = frozenset(("_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "rowkind", "_ROW_ID"))


def key_field(field: DataField) -> DataField:
    """The copy of a key column at the start of a file's rows outside thin mode."""
    return replace(field, id=field.id + SYSTEM_ID_START, name=KEY_PREFIX + field.name)


def is_system_column(name: str) -> bool:
    return name.startswith(KEY_PREFIX) or name in SYSTEM_NAMES


class UnknownType(FormatError):
    """A type that release 2.0.0 does not know, such as GEOMETRY; `type_name` is as written."""

    def __init__(self, path: str, type_name: str) -> None:
        self.type_name = type_name
        super().__init__(path, f"unknown type {type_name}")

    def __reduce__(self) -> tuple[type[UnknownType], tuple[str, str]]:
        return type(self), (self.path, self.type_name)


_MAX_LENGTH_NAMES = {TypeRoot.VARCHAR: "STRING", TypeRoot.VARBINARY: "BYTES"}
# The default, least and largest length or precision of a type.
_PRECISIONS: Mapping[TypeRoot, tuple[int | None, int, int]] = {
    **dict.fromkeys(TEXTS | BINARIES, (1, 1, MAX_LENGTH)),
    TypeRoot.DECIMAL: (10, 1, 38),
    TypeRoot.TIME: (0, 0, 9),
    **dict.fromkeys(MOMENTS, (6, 0, 9)),
}
_KEYWORDS = {
    **{root.value: root for root in TypeRoot if root is not TypeRoot.TIMESTAMP_LTZ},
    "STRING": TypeRoot.VARCHAR,
    "BYTES": TypeRoot.VARBINARY,
    "INTEGER": TypeRoot.INT,
    "DEC": TypeRoot.DECIMAL,
    "NUMERIC": TypeRoot.DECIMAL,
    "TIMESTAMP_LTZ": TypeRoot.TIMESTAMP_LTZ,
}
_TOKEN = re.compile(r"\s*(?:(\d+)|([<>(),])|([^\s<>(),.\d'`][^\s<>(),.]*))")
_MAX_DIGITS = len(str(MAX_LENGTH))
# The parser calls itself for a VECTOR within a VECTOR.
_NESTED_MAX = 100
_WITHOUT_ZONE = ("WITHOUT", "TIME", "ZONE")
_LOCAL_ZONE = ("WITH", "LOCAL", "TIME", "ZONE")


def parse_type(json: object, *, path: str = "type") -> DataType:
    """A type as a schema file holds it; `path` is the file that errors name.

    Raises `UnknownType` for a well-formed type that release 2.0.0 does not have, `FormatError` for
    anything else that is not a type.
    """
    if isinstance(json, str):
        return _TypeText(json, path).parse()
    if not isinstance(json, Mapping):
        raise FormatError(path, f"a type must be a string or an object, found {json!r}")
    name = json.get("type")
    if not isinstance(name, str):
        raise FormatError(path, f"a type object needs the text 'type', found {name!r}")
    nullable = "NOT NULL" not in name

    def child(key: str) -> DataType:
        if key not in json:
            raise FormatError(path, f"type {name} lacks {key!r}")
        return parse_type(json[key], path=path)

    if name.startswith("ARRAY"):
        return ArrayType(element=child("element"), nullable=nullable)
    if name.startswith("VECTOR"):
        length = json.get("length")
        if not isinstance(length, int):
            raise FormatError(path, f"type {name} needs a whole number 'length', found {length!r}")
        return VectorType(element=child("element"), length=length, nullable=nullable)
    if name.startswith("MULTISET"):
        return MultisetType(element=child("element"), nullable=nullable)
    if name.startswith("MAP"):
        return MapType(key=child("key"), value=child("value"), nullable=nullable)
    if name.startswith("ROW"):
        fields = json.get("fields")
        if not isinstance(fields, list):
            raise FormatError(path, f"type {name} needs a list 'fields', found {fields!r}")
        return RowType(
            fields=tuple(parse_field(field, path=path) for field in fields), nullable=nullable
        )
    raise UnknownType(path, name)


def parse_field(json: object, *, path: str = "field") -> DataField:
    """A column or a field of a ROW as a schema file holds it. Raises as `parse_type`."""
    if not isinstance(json, Mapping):
        raise FormatError(path, f"a field must be an object, found {json!r}")
    id_, name = json.get("id"), json.get("name")
    if not isinstance(id_, int) or isinstance(id_, bool):
        raise FormatError(path, f"field {name!r} needs a whole number 'id', found {id_!r}")
    if not isinstance(name, str):
        raise FormatError(path, f"field {id_} needs the text 'name', found {name!r}")
    texts = []
    for key in ("description", "defaultValue"):
        text = json.get(key)
        if text is not None and not isinstance(text, str):
            raise FormatError(path, f"field {name!r} needs a text as {key!r}, found {text!r}")
        texts.append(text)
    return DataField(
        id=id_,
        name=name,
        type=parse_type(json.get("type"), path=path),
        description=texts[0],
        default_value=texts[1],
    )


class _TypeText:
    """The parser of type strings: keywords in any case, blanks free, `NULL` may be written out."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._tokens: list[str] = []
        if text.count("<") > _NESTED_MAX:
            raise self._error("it is nested too deeply")
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"unexpected {text[at:]!r}")
            self._tokens.append(found.group().strip().upper())
            at = found.end()
        self._at = 0

    def parse(self) -> DataType:
        parsed = self._nullable_type()
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at]!r}")
        return parsed

    def _nullable_type(self) -> DataType:
        parsed: DataType = replace(self._bare_type(), nullable=self._nullability())
        if self._accept("ARRAY"):
            return ArrayType(element=parsed, nullable=self._nullability())
        if self._accept("MULTISET"):
            return MultisetType(element=parsed, nullable=self._nullability())
        return parsed

    def _bare_type(self) -> AtomicType | VectorType:
        keyword = self._next()
        if keyword == "VECTOR":
            self._expect("<")
            element = self._nullable_type()
            self._expect(",")
            length = self._number()
            self._expect(">")
            return VectorType(element=element, length=length)
        root = _KEYWORDS.get(keyword)
        if root is None:
            raise UnknownType(self._path, self._text)
        if keyword in _MAX_LENGTH_NAMES.values():
            return AtomicType(root=root, precision=MAX_LENGTH)
        precision, low, high = _PRECISIONS.get(root, (None, 0, 0))
        scale = 0 if root is TypeRoot.DECIMAL else None
        if precision is not None and self._accept("("):
            precision = self._number()
            if root is TypeRoot.DECIMAL and self._accept(","):
                scale = self._number()
            self._expect(")")
        if root is TypeRoot.DOUBLE:
            self._accept("PRECISION")
        elif root is TypeRoot.TIME:
            self._accept(*_WITHOUT_ZONE)
        elif root is TypeRoot.TIMESTAMP:
            self._accept(*_WITHOUT_ZONE)
            if self._accept(*_LOCAL_ZONE):
                root = TypeRoot.TIMESTAMP_LTZ
        if precision is not None and not max(low, scale or 0) <= precision <= high:
            raise self._error(f"parameters out of range {low} to {high}")
        return AtomicType(root=root, precision=precision, scale=scale)

    def _nullability(self) -> bool:
        if self._accept("NOT", "NULL"):
            return False
        self._accept("NULL")
        return True

    def _accept(self, *words: str) -> bool:
        if tuple(self._tokens[self._at : self._at + len(words)]) != words:
            return False
        self._at += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(f"expected {word!r}")

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise self._error("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _number(self) -> int:
        word = self._next()
        if not word.isdecimal() or len(word) > _MAX_DIGITS:
            raise self._error(f"expected a number, found {word!r}")
        return int(word)

    def _error(self, cause: str) -> FormatError:
        return FormatError(self._path, f"type {self._text!r} cannot be read: {cause}")


def type_text(type_: DataType) -> str:
    """A type on one line, in SQL, for messages."""
    suffix = "" if type_.nullable else " NOT NULL"
    match type_:
        case AtomicType():
            return _atomic_text(type_) + suffix
        case ArrayType(element=element):
            return f"ARRAY<{type_text(element)}>{suffix}"
        case MultisetType(element=element):
            return f"MULTISET<{type_text(element)}>{suffix}"
        case MapType(key=key, value=value):
            return f"MAP<{type_text(key)}, {type_text(value)}>{suffix}"
        case RowType(fields=fields):
            inside = ", ".join(f"`{field.name}` {type_text(field.type)}" for field in fields)
            return f"ROW<{inside}>{suffix}"
        case VectorType(element=element, length=length):
            return f"VECTOR<{type_text(element)}, {length}>{suffix}"


def _atomic_text(type_: AtomicType) -> str:
    if type_.precision == MAX_LENGTH and type_.root in _MAX_LENGTH_NAMES:
        return _MAX_LENGTH_NAMES[type_.root]
    if type_.precision is None:
        return type_.root.value
    if type_.root is TypeRoot.DECIMAL:
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if type_.root is TypeRoot.TIMESTAMP_LTZ:
        return f"TIMESTAMP({type_.precision}) WITH LOCAL TIME ZONE"
    return f"{type_.root.value}({type_.precision})"


WIDE_TIMESTAMP = pa.decimal128(27, 28)
NANOS_PER_MS = 1_000_000
# Number of units per millisecond. Timestamps of up to 6 digits are stored in these units.
PER_MS = {"ms": 1, "us": 1000, "ns": NANOS_PER_MS}

# 999,999 takes 20 bits.
_NANO_BITS = 20
_NANO_MASK = (1 << _NANO_BITS) - 1
_EXACT = Context(prec=80)

_Int64s: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]


def from_parts(millis: _Int64s, nanos: _Int64s, nulls: _Bools) -> pa.Array:
    """A column of `WIDE_TIMESTAMP`. `nanos` are 0 to 999,999; parts of nulls may be anything."""
    halves = np.empty((len(millis), 2), np.int64)
    np.left_shift(millis, _NANO_BITS, out=halves[:, 0])
    halves[:, 0] |= nanos & _NANO_MASK
    np.right_shift(millis, 64 - _NANO_BITS, out=halves[:, 1])
    validity = pa.array(~nulls).buffers()[1] if nulls.any() else None
    return pa.Array.from_buffers(WIDE_TIMESTAMP, len(millis), [validity, pa.py_buffer(halves)])


def parts_of(array: pa.Array) -> tuple[_Int64s, _Int64s]:
    """Milliseconds and nanoseconds of timestamps of any type; undefined for nulls."""
    if len(array) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if array.type != WIDE_TIMESTAMP:
        ticks = np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset)
        if array.type.unit == "s":
            return ticks * 1000, np.zeros_like(ticks)
        per_ms = PER_MS[array.type.unit]
        millis, rest = np.divmod(ticks, per_ms)
        return millis, rest * (NANOS_PER_MS // per_ms)
    halves = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset)
    low, high = halves[0::2], halves[1::2]
    millis = (high << (64 - _NANO_BITS)) | (low.view(np.uint64) >> _NANO_BITS).view(np.int64)
    return millis, low & _NANO_MASK


def from_nanoseconds(values: Sequence[int | None]) -> pa.Array:
    """A column of single values: nanoseconds since the epoch, of any size."""
    parts = [divmod(value or 0, NANOS_PER_MS) for value in values]
    millis, nanos = (np.array([part[i] for part in parts], np.int64) for i in (0, 1))
    return from_parts(millis, nanos, np.array([value is None for value in values], np.bool_))


def nanoseconds_of(scalar: pa.Scalar) -> int:
    """Nanoseconds since the epoch of a `WIDE_TIMESTAMP` scalar that is not null."""
    value: Any = scalar.as_py()
    packed = int(value.scaleb(WIDE_TIMESTAMP.scale, _EXACT))
    return (packed >> _NANO_BITS) * NANOS_PER_MS + (packed & _NANO_MASK)


def text_of(scalar: pa.Scalar) -> str:
    """A `WIDE_TIMESTAMP` scalar that is not null, as text for display."""
    millis, nanos = divmod(nanoseconds_of(scalar), NANOS_PER_MS)
    return f"{np.datetime64(millis, 'ms')}{nanos:06d}"


FIELD_ID = b"PARQUET:field_id"

# Timestamps of more digits do not fit 64 bits; Java's files have INT96 for them.
TICKS_PRECISION_MAX = 6
_SIMPLE = {
    TypeRoot.BOOLEAN: pa.bool_(),
    TypeRoot.TINYINT: pa.int8(),
    TypeRoot.SMALLINT: pa.int16(),
    TypeRoot.INT: pa.int32(),
    TypeRoot.BIGINT: pa.int64(),
    TypeRoot.FLOAT: pa.float32(),
    TypeRoot.DOUBLE: pa.float64(),
    TypeRoot.CHAR: pa.string(),
    TypeRoot.VARCHAR: pa.string(),
    TypeRoot.BINARY: pa.binary(),
    TypeRoot.VARBINARY: pa.binary(),
    TypeRoot.DATE: pa.date32(),
    TypeRoot.TIME: pa.time32("ms"),
}


def arrow_type(type_: DataType) -> pa.DataType:
    """The type of the column in memory; names and nullability of nested fields as in files."""
    return _nested(type_, None, 0)


def arrow_field(field: DataField) -> pa.Field:
    """A column with its field id and the ids inside it, for the Parquet writer."""
    return _field(field.name, field.type, field.id, field.id, 0)


def value_schema(fields: Sequence[DataField]) -> pa.Schema:
    """The columns of a table in their order: the rows of append files."""
    return pa.schema([arrow_field(field) for field in fields])


def file_schema(fields: Sequence[DataField], key: Sequence[str], *, thin: bool) -> pa.Schema:
    """The rows of a primary-key table's files: keys (unless thin), sequence, kind, values.

    `key` names the trimmed primary key in its order.
    """
    return value_schema(file_fields(fields, key, thin=thin))


def file_fields(
    fields: Sequence[DataField], key: Sequence[str], *, thin: bool
) -> tuple[DataField, ...]:
    """The columns of `file_schema` as Paimon's fields."""
    by_name = {field.name: field for field in fields}
    keys = () if thin else tuple(key_field(by_name[name]) for name in key)
    return (*keys, SEQUENCE_NUMBER, VALUE_KIND, *fields)


def _field(
    name: str, type_: DataType, own_id: int | None, field_id: int | None, depth: int
) -> pa.Field:
    """`field_id` and `depth` belong to the column; ids of elements derive from them."""
    metadata = None if own_id is None else {FIELD_ID: str(own_id).encode()}
    return pa.field(name, _nested(type_, field_id, depth), type_.nullable, metadata)


def _nested(type_: DataType, field_id: int | None, depth: int) -> pa.DataType:
    """The type. Without a field id its inside has no ids either."""
    match type_:
        case AtomicType():
            return _atomic(type_)
        case RowType(fields=fields):
            if field_id is None:
                return pa.struct([_field(f.name, f.type, None, None, 0) for f in fields])
            return pa.struct([arrow_field(field) for field in fields])
        case ArrayType(element=element):
            _, value_id = _element_ids(field_id, depth + 1)
            return pa.list_(_field("element", element, value_id, field_id, depth + 1))
        case MapType(key=key, value=value):
            return _map(key, value, field_id, depth)
        case MultisetType(element=element):
            return _map(element, MULTISET_COUNT, field_id, depth)
        case VectorType():
            raise AssertionError(f"{type_text(type_)} is refused before files are touched")


def _map(key: DataType, value: DataType, field_id: int | None, depth: int) -> pa.DataType:
    key_id, value_id = _element_ids(field_id, depth + 1)
    # Parquet forbids null keys, even if the schema allows them.
    keys = _field("key", key, key_id, field_id, depth + 1).with_nullable(False)
    return pa.map_(keys, _field("value", value, value_id, field_id, depth + 1))


def _element_ids(field_id: int | None, depth: int) -> tuple[int | None, int | None]:
    return (None, None) if field_id is None else element_field_ids(field_id, depth)


def _atomic(type_: AtomicType) -> pa.DataType:
    precision = type_.precision or 0
    if type_.root is TypeRoot.DECIMAL:
        return pa.decimal128(precision, type_.scale)
    if type_.root in MOMENTS:
        if precision > TICKS_PRECISION_MAX:
            return WIDE_TIMESTAMP
        unit = "ms" if precision <= 3 else "us"
        return pa.timestamp(unit, "UTC" if type_.root is TypeRoot.TIMESTAMP_LTZ else None)
    if type_.root not in _SIMPLE:
        raise AssertionError(f"{type_text(type_)} is refused before files are touched")
    return _SIMPLE[type_.root]
