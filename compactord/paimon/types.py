"""Paimon's data types and their JSON form.

Sources: types/DataType.java and its children, types/DataTypeJsonParser.java,
table/SpecialFields.java (ids of elements).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

# The length that STRING and BYTES stand for.
MAX_LENGTH = 2**31 - 1


class TypeRoot(enum.Enum):
    """Atomic types; the value is the name that Java writes."""

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
    """Without description and default value, as all fields inside it are."""
    return DataField(
        id=field.id, name=field.name, type=bare_type(field.type, all_nullable=all_nullable)
    )


def bare_type(type_: DataType, *, all_nullable: bool = False) -> DataType:
    """The type with bare fields inside; `all_nullable`: whatever it says of its own and theirs."""
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
    """Whether the types are equal but for nullability, at any depth, and for descriptions."""
    return bare_type(left, all_nullable=True) == bare_type(right, all_nullable=True)


def shares_fields(source: DataType, target: DataType) -> bool:
    """Whether anything of `target` is in `source`: false for ROWs without a field of the same id.

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
    """Ids that files give to the inside of the collection at `depth` in field `field_id`.

    The first is that of map keys, the second that of array elements and map values.
    The outermost collection of a field has depth 1, one inside it 2, and so on; a ROW in between
    starts again with the ids of its own fields. 32-bit arithmetic that wraps, as Java's.
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
    """The copy of a key column that leads the rows of a file outside thin mode."""
    return replace(field, id=field.id + SYSTEM_ID_START, name=KEY_PREFIX + field.name)


def is_system_column(name: str) -> bool:
    return name.startswith(KEY_PREFIX) or name in SYSTEM_NAMES
