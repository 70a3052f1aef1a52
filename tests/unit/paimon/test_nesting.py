"""Metadata nested deeper than anything that walks over it can go: an error that names the file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from compactord.errors import CompactordError, FormatError
from compactord.paimon.avro.container import encoded_long
from compactord.paimon.manifest.manifest_files import read_manifest_list
from compactord.paimon.schema import parse_schema
from compactord.paimon.snapshot import parse_snapshot
from compactord.paimon.types import arrow_type, type_text
from compactord_demo.schema_files import schema_json
from tests.storages import MemoryStorage

PATH = "/w/db.db/t/file"
LEVELS = (90, 150, 300, 900, 990, 5_000, 100_000)


def _lists(levels: int) -> str:
    return "[" * levels + "]" * levels


def _arrays(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def _records(levels: int) -> str:
    """Three levels of JSON each."""
    heads = (
        f'{{"type":"record","name":"r{number}","fields":[{{"name":"f","type":'
        for number in range(levels)
    )
    return "".join(heads) + '"int"' + "}]}" * levels


def _default(levels: int) -> str:
    column = f'{{"name":"f","type":"int","default":{_lists(levels)}}}'
    return f'{{"type":"record","name":"r","fields":[{column}]}}'


def _header(schema: str) -> None:
    pairs = {b"avro.codec": b"null", b"avro.schema": schema.encode()}
    data = b"Obj\x01" + encoded_long(len(pairs))
    for key, value in pairs.items():
        data += encoded_long(len(key)) + key + encoded_long(len(value)) + value
    storage = MemoryStorage({PATH: data + encoded_long(0) + b"s" * 16})
    read_manifest_list(storage, PATH)


def _schema(type_: str, more: str = "") -> None:
    column = f'{{"id":0,"name":"a","type":{type_}}}'
    text = (
        f'{{"version":3,"id":0,"fields":[{column}],"highestFieldId":0,"partitionKeys":[],'
        f'"primaryKeys":[],"options":{{}},"timeMillis":1{more}}}'
    )
    schema = parse_schema(text.encode(), PATH)
    assert parse_schema(schema_json(schema), PATH) == schema
    found = schema.fields[0].type
    assert type_text(found)
    assert repr(found)
    if "VECTOR" not in type_:
        arrow_type(found)


def _rows(levels: int) -> str:
    """Three levels of JSON each."""
    heads = '{"type":"ROW","fields":[{"id":1,"name":"b","type":' * levels
    return heads + '"INT"' + "}]}" * levels


def _snapshot(more: str) -> None:
    parse_snapshot(
        b'{"version":3,"id":1,"schemaId":0,"baseManifestList":"b","deltaManifestList":"d",'
        b'"commitUser":"u","commitIdentifier":1,"commitKind":"APPEND","timeMillis":1,'
        b'"totalRecordCount":1,"deltaRecordCount":1,' + more.encode() + b"}",
        PATH,
    )


CASES: dict[str, Callable[[int], object]] = {
    "Avro arrays": lambda levels: _header(_arrays(levels)),
    "Avro unions": lambda levels: _header("[" * levels + '"int"' + "]" * levels),
    "Avro records": lambda levels: _header(_records(levels)),
    "an Avro default": lambda levels: _header(_default(levels)),
    "an Avro type": lambda levels: _header('{"type":' * levels + '"int"' + "}" * levels),
    "ARRAY": lambda levels: _schema('{"type":"ARRAY","element":' * levels + '"INT"' + "}" * levels),
    "ROW": lambda levels: _schema(_rows(levels)),
    "VECTOR": lambda levels: _schema('"' + "VECTOR<" * levels + "INT" + ", 3>" * levels + '"'),
    "a type that is none": lambda levels: _schema(_lists(levels)),
    "an unknown schema key": lambda levels: _schema('"INT"', f',"x":{_lists(levels)}'),
    "schema options": lambda levels: _schema('"INT"', f',"options":{_lists(levels)}'),
    "an unknown snapshot key": lambda levels: _snapshot(f'"x":{_lists(levels)}'),
    "a snapshot's schema": lambda levels: _snapshot(f'"schemaId":{_lists(levels)}'),
}


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("read", CASES.values(), ids=CASES.keys())
def test_deep_nesting_is_an_error_of_the_file(read: Callable[[int], object], levels: int) -> None:
    if levels < 100:
        # Read, or refused for what else it is.
        with contextlib.suppress(CompactordError):
            read(levels)
        return
    with pytest.raises(FormatError, match="nested too deeply") as refused:
        read(levels)
    assert PATH in str(refused.value)
