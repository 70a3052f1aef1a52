"""Avro schemas of manifest lists, manifests and index manifests, and checks of schemas in files.

Columns are matched by name. A column that older releases did not write is null. `foreign` handles
columns that release 2.0.0 does not know.
Sources: manifest/{ManifestFileMeta,ManifestEntry,IndexManifestEntry}.java, io/DataFileMeta.java,
format/avro/AvroSchemaConverter.java (names of nested records, order of unions).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from compactord.errors import FormatError
from compactord.paimon.avro.container import AvroSchema, compile_schema
from compactord.paimon.avro.types import plain_type, resolved_schema, without_null

Json = Any

_NAMESPACE = "org.apache.paimon.avro.generated"
# Entries and manifest list rows have version 2, index manifest rows 1. New nullable columns do not
# change the version.
MANIFEST_VERSION = 2
INDEX_MANIFEST_VERSION = 1


def _record(name: str, *columns: dict[str, Any], namespace: str | None = None) -> Json:
    head: dict[str, Any] = {"type": "record", "name": name}
    if namespace is not None:
        head["namespace"] = namespace
    return {**head, "fields": list(columns)}


def _column(name: str, type_: Json) -> dict[str, Any]:
    return {"name": name, "type": type_}


def _nullable(name: str, type_: Json) -> dict[str, Any]:
    # Java's reader takes branch 0 as null without looking.
    return {"name": name, "type": ["null", type_], "default": None}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _stats(name: str) -> Json:
    return _record(
        name,
        _column("_MIN_VALUES", "bytes"),
        _column("_MAX_VALUES", "bytes"),
        _nullable("_NULL_COUNTS", _array(["null", "long"])),
    )


def _manifest_list(*more: dict[str, Any]) -> AvroSchema:
    return compile_schema(
        _record(
            "record",
            _column("_VERSION", "int"),
            _column("_FILE_NAME", "string"),
            _column("_FILE_SIZE", "long"),
            _column("_NUM_ADDED_FILES", "long"),
            _column("_NUM_DELETED_FILES", "long"),
            _column("_PARTITION_STATS", _stats("record__PARTITION_STATS")),
            _column("_SCHEMA_ID", "long"),
            _nullable("_MIN_BUCKET", "int"),
            _nullable("_MAX_BUCKET", "int"),
            _nullable("_MIN_LEVEL", "int"),
            _nullable("_MAX_LEVEL", "int"),
            _nullable("_MIN_ROW_ID", "long"),
            _nullable("_MAX_ROW_ID", "long"),
            *more,
            namespace=_NAMESPACE,
        )
    )


MANIFEST_LIST = _manifest_list()
# Release 2.1, for lists that carry these columns.
MANIFEST_LIST_WITH_EXTRA_FILES = _manifest_list(_nullable("_EXTRA_FILES", _array("string")))
# The columns that we interpret. Items may be null or not.
READABLE_MANIFEST_LIST = _manifest_list(_nullable("_EXTRA_FILES", _array(["null", "string"])))

MANIFEST: AvroSchema = compile_schema(
    _record(
        "record",
        _column("_VERSION", "int"),
        _column("_KIND", "int"),
        _column("_PARTITION", "bytes"),
        _column("_BUCKET", "int"),
        _column("_TOTAL_BUCKETS", "int"),
        _column(
            "_FILE",
            _record(
                "record__FILE",
                _column("_FILE_NAME", "string"),
                _column("_FILE_SIZE", "long"),
                _column("_ROW_COUNT", "long"),
                _column("_MIN_KEY", "bytes"),
                _column("_MAX_KEY", "bytes"),
                _column("_KEY_STATS", _stats("record__FILE__KEY_STATS")),
                _column("_VALUE_STATS", _stats("record__FILE__VALUE_STATS")),
                _column("_MIN_SEQUENCE_NUMBER", "long"),
                _column("_MAX_SEQUENCE_NUMBER", "long"),
                _column("_SCHEMA_ID", "long"),
                _column("_LEVEL", "int"),
                _column("_EXTRA_FILES", _array("string")),
                _nullable("_CREATION_TIME", {"type": "long", "logicalType": "timestamp-millis"}),
                _nullable("_DELETE_ROW_COUNT", "long"),
                _nullable("_EMBEDDED_FILE_INDEX", "bytes"),
                _nullable("_FILE_SOURCE", "int"),
                _nullable("_VALUE_STATS_COLS", _array("string")),
                _nullable("_EXTERNAL_PATH", "string"),
                _nullable("_FIRST_ROW_ID", "long"),
                _nullable("_WRITE_COLS", _array("string")),
            ),
        ),
        namespace=_NAMESPACE,
    )
)

INDEX_MANIFEST: AvroSchema = compile_schema(
    _record(
        "record",
        _column("_VERSION", "int"),
        _column("_KIND", "int"),
        _column("_PARTITION", "bytes"),
        _column("_BUCKET", "int"),
        _column("_INDEX_TYPE", "string"),
        _column("_FILE_NAME", "string"),
        _column("_FILE_SIZE", "long"),
        _column("_ROW_COUNT", "long"),
        _nullable(
            "_DELETIONS_VECTORS_RANGES",
            _array(
                [
                    "null",
                    _record(
                        "record__DELETIONS_VECTORS_RANGES",
                        _column("f0", "string"),
                        _column("f1", "int"),
                        _column("f2", "int"),
                        _nullable("_CARDINALITY", "long"),
                    ),
                ]
            ),
        ),
        _nullable("_EXTERNAL_PATH", "string"),
        _nullable(
            "_GLOBAL_INDEX",
            _record(
                "record__GLOBAL_INDEX",
                _column("_ROW_RANGE_START", "long"),
                _column("_ROW_RANGE_END", "long"),
                _column("_INDEX_FIELD_ID", "int"),
                _nullable("_EXTRA_FIELD_IDS", _array("int")),
                _nullable("_INDEX_META", "bytes"),
                _nullable("_SOURCE_META", "bytes"),
            ),
        ),
        namespace=_NAMESPACE,
    )
)


def table_of(path: str) -> str:
    """The location of the table that a manifest, a list, or their folder belongs to."""
    folder = path if path.endswith("/manifest") else path.rpartition("/")[0]
    return folder.rpartition("/")[0]


def require_readable(found: AvroSchema, expected: AvroSchema, path: str) -> None:
    """Raises `FormatError` if a needed column is missing in the file or has another type."""
    try:
        _require(found, expected)
    except FormatError as error:
        raise FormatError(path, error.message) from error


# Most files of a table have one of a few schemas (`open_container`).
@lru_cache(maxsize=64)
def _require(found: AvroSchema, expected: AvroSchema) -> None:
    if found.json != expected.json:
        _compare(plain_of(found), plain_of(expected), "")


@lru_cache(maxsize=64)
def plain_of(schema: AvroSchema) -> Json:
    """The plain type of the schema. Raises `FormatError` without a path for an invalid schema."""
    return plain_type(resolved_schema(schema.json, ""))


def _compare(found: Json, expected: Json, name: str) -> None:
    """Walks both; a column may be missing or not nullable where ours is nullable.

    A record may be nullable in the schema; readers reject a null record.
    """
    if isinstance(expected, list):
        branches = [b for b in found if b != "null"] if isinstance(found, list) else [found]
        if len(branches) != 1:
            raise FormatError("", f"column {name} has the Avro type {found!r}")
        _compare(branches[0], expected[1], name)
        return
    if isinstance(expected, dict) and "record" in expected:
        found = without_null(found)
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        if "array" in expected:
            _compare(found["array"], expected["array"], name)
            return
        theirs = found["record"]
        for column, type_ in expected["record"].items():
            if column in theirs:
                _compare(theirs[column], type_, column)
            elif not isinstance(type_, list):
                raise FormatError("", f"column {column} is missing")
        return
    if found != expected and (found, expected) != ("int", "long"):
        raise FormatError("", f"column {name} has the Avro type {found!r}, not {expected!r}")
