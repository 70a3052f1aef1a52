"""The Avro schema of a data file, as Java writes it and as a file has it.

Source: format/avro/AvroSchemaConverter.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from compactord.paimon.types import (
    MULTISET_COUNT,
    TEXTS,
    TICKS_PRECISION_MAX,
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
    VectorType,
)

Json = Any
# The name of the record of rows; records inside have the names of their columns added.
_RECORD, _NAMESPACE = "record", "org.apache.paimon.avro.generated"
_MILLIS_MAX = 3
_SIMPLE: dict[TypeRoot, Json] = {
    TypeRoot.BOOLEAN: "boolean",
    TypeRoot.TINYINT: "int",
    TypeRoot.SMALLINT: "int",
    TypeRoot.INT: "int",
    TypeRoot.BIGINT: "long",
    TypeRoot.FLOAT: "float",
    TypeRoot.DOUBLE: "double",
    TypeRoot.CHAR: "string",
    TypeRoot.VARCHAR: "string",
    TypeRoot.BINARY: "bytes",
    TypeRoot.VARBINARY: "bytes",
    TypeRoot.DATE: {"type": "int", "logicalType": "date"},
    TypeRoot.TIME: {"type": "int", "logicalType": "time-millis"},
}


def holds(type_: DataType) -> bool:
    """Whether columns of the type can be in Avro files."""
    match type_:
        case AtomicType(root=TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ):
            return (type_.precision or 0) <= TICKS_PRECISION_MAX
        case AtomicType(root=TypeRoot.TIME):
            return (type_.precision or 0) <= _MILLIS_MAX
        case AtomicType(root=root):
            return root in _SIMPLE or root is TypeRoot.DECIMAL
        case ArrayType(element=element) | MultisetType(element=element):
            return holds(element)
        case MapType(key=key, value=value):
            return holds(key) and holds(value)
        case RowType(fields=fields):
            return all(holds(field.type) for field in fields)
        case VectorType():
            return False


def file_schema(columns: Sequence[DataField]) -> Json:
    """The schema of files of these columns."""
    return {**_record(_RECORD, columns), "namespace": _NAMESPACE}


def is_text_map(key: DataType) -> bool:
    """Whether maps with this type of keys are Avro's maps; others are arrays of entries."""
    return isinstance(key, AtomicType) and key.root in TEXTS


def map_types(type_: MapType | MultisetType) -> tuple[DataType, DataType]:
    """The types of keys and values; a multiset maps elements to their number."""
    if isinstance(type_, MapType):
        return type_.key, type_.value
    return type_.element, MULTISET_COUNT


def column_schema(name: str, type_: DataType) -> Json:
    """The schema of a value; `name` is the name of the records inside."""
    plain = _not_null(name, type_)
    return ["null", plain] if type_.nullable else plain


def _not_null(name: str, type_: DataType) -> Json:
    match type_:
        case AtomicType(root=TypeRoot.DECIMAL):
            digits = {"precision": type_.precision, "scale": type_.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        case AtomicType(root=TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ):
            # Java swaps the two: a local timestamp of Avro has no zone.
            local = "local-" if type_.root is TypeRoot.TIMESTAMP_LTZ else ""
            return {"type": "long", "logicalType": f"{local}timestamp-{moment_unit(type_)}"}
        case AtomicType():
            return _SIMPLE[type_.root]
        case ArrayType(element=element):
            return {"type": "array", "items": column_schema(name, element)}
        case MapType() | MultisetType():
            key, value = map_types(type_)
            if is_text_map(key):
                return {"type": "map", "values": column_schema(name, value)}
            entry = [_field("key", f"{name}_key", key), _field("value", f"{name}_value", value)]
            record = {"type": "record", "name": name, "fields": entry}
            # The key of an entry has no default, even if it may be null.
            entry[0].pop("default", None)
            return {"type": "array", "items": record, "logicalType": "map"}
        case RowType(fields=fields):
            return _record(name, fields)
        case VectorType():
            raise AssertionError("refused before")
        case _:
            assert_never(type_)


def moment_unit(type_: AtomicType) -> str:
    """The unit of the numbers that moments of the type are stored as."""
    return "millis" if (type_.precision or 0) <= _MILLIS_MAX else "micros"


def _record(name: str, columns: Sequence[DataField]) -> Json:
    fields = [_field(each.name, f"{name}_{each.name}", each.type) for each in columns]
    return {"type": "record", "name": name, "fields": fields}


def _field(name: str, inside: str, type_: DataType) -> dict[str, Json]:
    found = {"name": name, "type": column_schema(inside, type_)}
    return {**found, "default": None} if type_.nullable else found


def comparable(schema: Json) -> Json:
    """A resolved schema without names of records and without nullability, to compare types."""
    if isinstance(schema, list):
        others = [comparable(branch) for branch in schema if branch != "null"]
        return others[0] if len(others) == 1 else others
    if not isinstance(schema, dict):
        return schema
    kept = {k: schema[k] for k in ("type", "logicalType", "precision", "scale") if k in schema}
    if kept.get("logicalType") == "map":
        del kept["logicalType"]
    if "items" in schema:
        kept["items"] = comparable(schema["items"])
    if "values" in schema:
        kept["values"] = comparable(schema["values"])
    if "fields" in schema:
        kept["fields"] = [(f["name"], comparable(f["type"])) for f in schema["fields"]]
    return kept["type"] if kept.keys() == {"type"} else kept
