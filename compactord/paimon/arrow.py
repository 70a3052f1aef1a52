"""Arrow schemas of data files: exactly the types, units, nullability and field ids of Java's files.

Every detail matters: Java reads a timestamp whose unit does not fit its precision wrongly and
without an error. Source: format/parquet/ParquetSchemaConverter.java.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from compactord.paimon.type_texts import type_text
from compactord.paimon.types import (
    MOMENTS,
    MULTISET_COUNT,
    SEQUENCE_NUMBER,
    VALUE_KIND,
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
    element_field_ids,
    key_field,
)
from compactord.paimon.wide_timestamps import WIDE_TIMESTAMP

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
    """A column with its field id and those inside it, as the Parquet writer takes them."""
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
    """`field_id` and `depth` are the column's, from which the ids of elements derive."""
    metadata = None if own_id is None else {FIELD_ID: str(own_id).encode()}
    return pa.field(name, _nested(type_, field_id, depth), type_.nullable, metadata)


def _nested(type_: DataType, field_id: int | None, depth: int) -> pa.DataType:
    """The type; without a field id there are no ids anywhere inside it."""
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
    # Parquet forbids null keys, whatever the schema says.
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
