"""Schema files as Java writes them (schema/SchemaSerializer.java)."""

from __future__ import annotations

import json

from compactord.paimon.schema import TableSchema
from compactord.paimon.types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    VectorType,
    type_text,
)


def schema_json(schema: TableSchema) -> bytes:
    """The bytes of a schema file, keys in Java's order."""
    members: dict[str, object] = {
        "version": schema.version,
        "id": schema.id,
        "fields": [field_json(field) for field in schema.fields],
        "highestFieldId": schema.highest_field_id,
        "partitionKeys": list(schema.partition_keys),
        "primaryKeys": list(schema.primary_keys),
        "options": dict(schema.options),
    }
    if schema.comment is not None:
        members["comment"] = schema.comment
    members["timeMillis"] = schema.time_ms
    return json.dumps(members, indent=2, ensure_ascii=False).encode()


def type_json(type_: DataType) -> str | dict[str, object]:
    """The form that Java writes into schema files: text for atomic types, an object for others."""
    suffix = "" if type_.nullable else " NOT NULL"
    match type_:
        case AtomicType():
            return type_text(type_)
        case ArrayType(element=element):
            return {"type": "ARRAY" + suffix, "element": type_json(element)}
        case MultisetType(element=element):
            return {"type": "MULTISET" + suffix, "element": type_json(element)}
        case MapType(key=key, value=value):
            return {"type": "MAP" + suffix, "key": type_json(key), "value": type_json(value)}
        case RowType(fields=fields):
            return {"type": "ROW" + suffix, "fields": [field_json(field) for field in fields]}
        case VectorType(element=element, length=length):
            return {"type": "VECTOR" + suffix, "element": type_json(element), "length": length}


def field_json(field: DataField) -> dict[str, object]:
    json: dict[str, object] = {"id": field.id, "name": field.name, "type": type_json(field.type)}
    if field.description is not None:
        json["description"] = field.description
    if field.default_value is not None:
        json["defaultValue"] = field.default_value
    return json
