from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given

from compactord.errors import FormatError
from compactord.paimon.types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MultisetType,
    RowType,
    TypeRoot,
    UnknownType,
    VectorType,
    element_field_ids,
    is_system_column,
    key_field,
    parse_field,
    parse_type,
    type_text,
)
from compactord_demo.schema_files import type_json
from tests.unit.paimon.values import nested_types

CANONICAL = [
    "BOOLEAN",
    "TINYINT NOT NULL",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(38, 10) NOT NULL",
    "CHAR(3)",
    "VARCHAR(20)",
    "STRING",
    "BINARY(3)",
    "VARBINARY(20)",
    "BYTES NOT NULL",
    "DATE",
    "TIME(3)",
    "TIMESTAMP(9)",
    "TIMESTAMP(6) WITH LOCAL TIME ZONE NOT NULL",
    "VARIANT",
    "BLOB",
]


@pytest.mark.parametrize("text", CANONICAL)
def test_what_java_writes_is_parsed_and_written_the_same(text: str) -> None:
    assert type_json(parse_type(text)) == text
    assert type_text(parse_type(text)) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("integer", "INT"),
        ("Double Precision not null", "DOUBLE NOT NULL"),
        ("VARCHAR(2147483647)", "STRING"),
        ("VARBINARY(2147483647)", "BYTES"),
        ("CHAR", "CHAR(1)"),
        ("VARCHAR", "VARCHAR(1)"),
        ("BINARY", "BINARY(1)"),
        ("VARBINARY NOT NULL", "VARBINARY(1) NOT NULL"),
        ("DEC", "DECIMAL(10, 0)"),
        ("NUMERIC(5)", "DECIMAL(5, 0)"),
        ("decimal( 5 ,2 ) null", "DECIMAL(5, 2)"),
        ("TIME", "TIME(0)"),
        ("TIME(3) WITHOUT TIME ZONE", "TIME(3)"),
        ("TIMESTAMP", "TIMESTAMP(6)"),
        ("TIMESTAMP(3) WITHOUT TIME ZONE NOT NULL", "TIMESTAMP(3) NOT NULL"),
        ("TIMESTAMP_LTZ(3)", "TIMESTAMP(3) WITH LOCAL TIME ZONE"),
        ("TIMESTAMP_LTZ", "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
    ],
)
def test_other_spellings_mean_the_same(text: str, canonical: str) -> None:
    assert type_json(parse_type(text)) == canonical


def test_collections_may_be_written_as_suffixes() -> None:
    number = AtomicType(root=TypeRoot.INT, nullable=False)
    assert parse_type("INT NOT NULL ARRAY NOT NULL") == ArrayType(element=number, nullable=False)
    assert parse_type("INT NOT NULL MULTISET") == MultisetType(element=number)
    assert parse_type("VECTOR<INT NOT NULL, 3>") == VectorType(element=number, length=3)


@pytest.mark.parametrize(
    "json",
    [
        "",
        "NOT NULL",
        "INT INT",
        "DECIMAL(39, 0)",
        "DECIMAL(5, 6)",
        "CHAR(0)",
        "CHAR(" + "9" * 5000 + ")",
        "TIME(10)",
        "CHAR(x)",
        "CHAR(3",
        "INT `x`",
        3,
        None,
        {"element": "INT"},
        {"type": "ARRAY"},
        {"type": "MAP", "key": "INT"},
        {"type": "ROW", "fields": {}},
        {"type": "ROW", "fields": [{"name": "x", "type": "INT"}]},
        {"type": "ROW", "fields": [{"id": 1, "type": "INT"}]},
        {"type": "VECTOR", "element": "FLOAT"},
    ],
)
def test_what_is_no_type_names_the_file(json: Any) -> None:
    with pytest.raises(FormatError, match="schema-3"):
        parse_type(json, path="schema-3")


@pytest.mark.parametrize("json", ["GEOMETRY(OGC:CRS84)", "RAW", {"type": "UNION", "of": []}])
def test_types_of_newer_releases_are_told_from_damage(json: Any) -> None:
    with pytest.raises(UnknownType) as caught:
        parse_type({"type": "ARRAY", "element": json}, path="schema-3")
    shown = json if isinstance(json, str) else "UNION"
    assert caught.value.type_name == shown
    assert pickle.loads(pickle.dumps(caught.value)).type_name == shown


@given(nested_types())
def test_every_type_survives_json(type_: DataType) -> None:
    assert parse_type(type_json(type_)) == type_


def test_nested_types_are_shown_on_one_line() -> None:
    row = RowType(
        fields=(
            DataField(id=1, name="a b", type=parse_type("INT NOT NULL")),
            DataField(
                id=2, name="m", type=parse_type({"type": "MAP", "key": "INT", "value": "DATE"})
            ),
        ),
        nullable=False,
    )
    assert type_text(row) == "ROW<`a b` INT NOT NULL, `m` MAP<INT, DATE>> NOT NULL"
    assert type_text(parse_type("STRING MULTISET")) == "MULTISET<STRING>"


def test_fields_keep_description_and_default() -> None:
    json = {"id": 7, "name": "n", "type": "INT", "description": "what", "defaultValue": "3"}
    field = parse_field(json)
    assert (field.description, field.default_value) == ("what", "3")
    with pytest.raises(FormatError, match="'description'"):
        parse_field({**json, "description": 3})


def test_ids_of_elements_are_derived_as_java_derives_them() -> None:
    assert element_field_ids(22, 1)[1] == 536893440
    assert element_field_ids(23, 1) == (536847358, 536894464)
    assert [element_field_ids(30, depth)[1] for depth in (1, 2)] == [536901632, 536901633]
    # 32-bit arithmetic wraps.
    assert element_field_ids(2**21, 1)[1] == 536870911 + 2**31 + 1 - 2**32


def test_key_columns_are_copies_with_ids_of_their_own() -> None:
    field = DataField(id=1, name="id", type=AtomicType(root=TypeRoot.INT, nullable=False))
    assert (key_field(field).name, key_field(field).id) == ("_KEY_id", 1073741824)
    assert key_field(field).type == field.type
    system = ["_KEY_id", "_SEQUENCE_NUMBER", "_VALUE_KIND", "_LEVEL", "rowkind", "_ROW_ID"]
    assert all(map(is_system_column, system))
    assert not is_system_column("id")
