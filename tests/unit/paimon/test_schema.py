from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.errors import FormatError, ObjectNotFound, TableNotFound, UnsupportedTable
from compactord.paimon.schema import (
    SchemaHistory,
    TableSchema,
    latest_schema,
    parse_schema,
    read_schema,
    same_column,
    schema_ids,
)
from compactord.paimon.types import DataField, parse_field
from compactord.storage.local import LocalStorage
from compactord_demo.schema_files import schema_json

PATH = "/w/db.db/t/schema/schema-4"
JSON: dict[str, Any] = {
    "version": 3,
    "id": 4,
    "fields": [
        {"id": 0, "name": "pt", "type": "STRING NOT NULL"},
        {"id": 1, "name": "id", "type": "INT NOT NULL"},
        {"id": 3, "name": "v", "type": {"type": "ARRAY", "element": "INT"}, "description": "x"},
    ],
    "highestFieldId": 3,
    "partitionKeys": ["pt"],
    "primaryKeys": ["pt", "id"],
    "options": {"bucket": "2"},
    "comment": "c",
    "timeMillis": 5,
}


def parse(**changes: Any) -> TableSchema:
    members = {key: value for key, value in {**JSON, **changes}.items() if value is not ...}
    return parse_schema(json.dumps(members).encode(), PATH)


def test_a_schema_is_parsed_and_written_back_alike() -> None:
    schema = parse()
    assert (schema.id, schema.version, schema.highest_field_id, schema.time_ms) == (4, 3, 3, 5)
    assert [field.name for field in schema.key_fields] == ["id"]
    assert [field.name for field in schema.partition_fields] == ["pt"]
    assert json.loads(schema_json(schema)) == JSON
    assert parse_schema(schema_json(schema), PATH) == schema


def test_absent_members_have_the_defaults_of_old_releases() -> None:
    old = parse(version=..., options={}, comment=..., timeMillis=...)
    assert (old.version, old.comment, old.time_ms) == (1, None, 0)
    assert old.options == {"bucket": "1", "file.format": "orc"}
    assert parse(version=2, options={}).options == {"file.format": "orc"}
    assert parse(version=2, options={"file.format": "avro"}).options == {"file.format": "avro"}
    assert parse(options={}).options == {}
    assert "comment" not in json.loads(schema_json(old))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", "4"),
        ("id", True),
        ("version", "3"),
        ("fields", {}),
        ("fields", [{"id": 0, "name": "a", "type": "INT"}, {"id": 1, "name": "a", "type": "INT"}]),
        ("highestFieldId", ...),
        ("partitionKeys", ["other"]),
        ("primaryKeys", [3]),
        ("primaryKeys", ...),
        ("options", []),
        ("options", {"bucket": 2}),
        ("comment", 3),
        ("timeMillis", 1.5),
    ],
)
def test_wrong_members_are_named_with_the_file(key: str, value: Any) -> None:
    with pytest.raises(FormatError, match=f"'{key}'") as caught:
        parse(**{key: value})
    assert caught.value.path == PATH


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'"x"'])
def test_bytes_that_are_no_schema_name_the_file(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        parse_schema(data, PATH)
    assert caught.value.path == PATH


def test_bottomless_nesting_names_the_file() -> None:
    kind = '{"type":"ARRAY","element":' * 5000 + '"INT"' + "}" * 5000
    data = json.dumps(JSON).replace('"STRING NOT NULL"', kind).encode()
    with pytest.raises(FormatError) as caught:
        parse_schema(data, PATH)
    assert caught.value.path == PATH


def test_a_column_of_an_unknown_type_is_a_refusal_that_names_both() -> None:
    fields = [*JSON["fields"], {"id": 9, "name": "where", "type": "GEOMETRY(OGC:CRS84)"}]
    with pytest.raises(UnsupportedTable, match=r"column where has type GEOMETRY") as caught:
        parse(fields=fields)
    assert caught.value.table == "/w/db.db/t"


def test_newer_versions_are_kept_for_the_support_check_or_refused() -> None:
    assert parse(version=4).version == 4
    with pytest.raises(UnsupportedTable, match="version 4"):
        parse(version=4, fields={})


def test_schemas_are_listed_and_read_by_id(tmp_path: Path) -> None:
    folder = tmp_path / "schema"
    folder.mkdir()
    for id_ in (0, 2, 10):
        (folder / f"schema-{id_}").write_bytes(schema_json(replace(parse(), id=id_)))
    (folder / "schema-11.tmp").write_bytes(b"")
    (folder / ".schema-12").write_bytes(b"")
    (folder / "schema-13").mkdir()
    storage = LocalStorage()
    assert schema_ids(storage, str(tmp_path)) == (0, 2, 10)
    assert latest_schema(storage, str(tmp_path)).id == 10
    assert read_schema(storage, str(tmp_path), 2).id == 2


def test_a_file_that_holds_another_schema_than_its_name_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "schema").mkdir()
    (tmp_path / "schema" / "schema-3").write_bytes(schema_json(parse()))
    with pytest.raises(FormatError, match="holds 4, the file name 3"):
        read_schema(LocalStorage(), str(tmp_path), 3)


def test_a_place_without_schemas_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableNotFound, match=str(tmp_path)):
        latest_schema(LocalStorage(), str(tmp_path))


def test_columns_are_the_same_whatever_is_said_about_them() -> None:
    told = {**JSON["fields"][2], "description": "y", "defaultValue": "1"}
    assert same_column(parse().fields[2], parse_field(told))


@pytest.mark.parametrize(
    "field",
    [
        {"id": 4, "name": "v", "type": {"type": "ARRAY", "element": "INT"}},
        {"id": 3, "name": "w", "type": {"type": "ARRAY", "element": "INT"}},
        {"id": 3, "name": "v", "type": {"type": "ARRAY", "element": "BIGINT"}},
        {"id": 3, "name": "v", "type": {"type": "ARRAY NOT NULL", "element": "INT"}},
    ],
    ids=["id", "name", "element", "nullability"],
)
def test_columns_differ_by_id_name_type_and_nullability(field: dict[str, Any]) -> None:
    assert not same_column(parse().fields[2], parse_field(field))


def test_descriptions_inside_nested_types_make_no_difference() -> None:
    def columns(inner: dict[str, Any]) -> list[DataField]:
        row = {"type": "ROW", "fields": [{"id": 5, "name": "x", "type": "INT", **inner}]}
        kinds = [
            {"type": "ARRAY", "element": row},
            {"type": "MAP", "key": "INT", "value": row},
            {"type": "MULTISET", "element": row},
            {"type": "VECTOR", "element": "INT", "length": 2},
        ]
        fields = [{"id": 10 + i, "name": f"c{i}", "type": kind} for i, kind in enumerate(kinds)]
        return list(parse(fields=[*JSON["fields"], *fields]).fields[3:])

    plain, told, named = columns({}), columns({"description": "d"}), columns({"name": "y"})
    assert [same_column(*pair) for pair in zip(plain, told, strict=True)] == [True] * 4
    assert [same_column(*pair) for pair in zip(plain, named, strict=True)] == [False] * 3 + [True]


def test_older_schemas_are_read_once(tmp_path: Path) -> None:
    folder = tmp_path / "schema"
    folder.mkdir()
    for id_ in (0, 1):
        (folder / f"schema-{id_}").write_bytes(schema_json(replace(parse(), id=id_)))
    latest = latest_schema(LocalStorage(), str(tmp_path))
    history = SchemaHistory(LocalStorage(), str(tmp_path), latest)
    assert history.schema(0).id == 0
    (folder / "schema-0").unlink()
    (folder / "schema-1").unlink()
    assert [history.schema(0).id, history.schema(1)] == [0, latest]
    with pytest.raises(ObjectNotFound):
        history.schema(2)
