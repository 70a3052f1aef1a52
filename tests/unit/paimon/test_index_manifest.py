from __future__ import annotations

import copy
from typing import Any

import pytest

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import AvroSchema, Container, compile_schema, open_container
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import EMPTY_ROW, BucketId
from compactord.paimon.manifest.index_manifest import (
    IndexEntry,
    VectorRange,
    VectorsFile,
    read_entries_but_hash,
    read_index_entries,
    with_vectors_files,
)
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from tests.containers import encode_container
from tests.unit.paimon.table_builder import MemoryStorage

ROOT = "/w/db.db/t"
RANGE = {"f0": "data-1.parquet", "f1": 1, "f2": 22, "_CARDINALITY": 1}
HASH = {
    "_VERSION": 1,
    "_KIND": 0,
    "_PARTITION": EMPTY_ROW,
    "_BUCKET": 3,
    "_INDEX_TYPE": "HASH",
    "_FILE_NAME": "index-a-0",
    "_FILE_SIZE": 12,
    "_ROW_COUNT": 3,
}
VECTORS = {**HASH, "_INDEX_TYPE": "DELETION_VECTORS", "_DELETIONS_VECTORS_RANGES": [RANGE]}
GLOBAL = {
    **HASH,
    "_INDEX_TYPE": "btree",
    "_GLOBAL_INDEX": {
        "_ROW_RANGE_START": 0,
        "_ROW_RANGE_END": 9,
        "_INDEX_FIELD_ID": 1,
        "_EXTRA_FIELD_IDS": [2],
        "_INDEX_META": b"m",
        "_SOURCE_META": None,
    },
}


def _read(*records: dict[str, Any], schema: AvroSchema = INDEX_MANIFEST) -> tuple[IndexEntry, ...]:
    data = encode_container(schema, records, codec_of("zstd"))
    return read_index_entries(MemoryStorage({paths.manifest_path(ROOT, "i"): data}), ROOT, "i")


def test_entries_are_read_in_order() -> None:
    entries = _read(HASH, VECTORS, GLOBAL)
    assert [one.index_type for one in entries] == ["HASH", "DELETION_VECTORS", "btree"]
    assert entries[0].bucket == BucketId(EMPTY_ROW, 3)
    assert (entries[0].file_name, entries[0].file_size, entries[0].row_count) == (
        "index-a-0",
        12,
        3,
    )


def test_canonical_bytes_are_equal_for_equal_entries_and_differ_for_any_change() -> None:
    changes: list[dict[str, Any]] = [
        HASH,
        VECTORS,
        GLOBAL,
        {**HASH, "_FILE_NAME": "index-a-1"},
        {**HASH, "_EXTERNAL_PATH": "s3://x"},
        {**VECTORS, "_DELETIONS_VECTORS_RANGES": []},
        {**VECTORS, "_DELETIONS_VECTORS_RANGES": [{**RANGE, "f2": 23}]},
        {**VECTORS, "_DELETIONS_VECTORS_RANGES": [{**RANGE, "_CARDINALITY": None}]},
    ]
    first, second = _read(*changes), _read(*changes)
    assert [one.canonical for one in first] == [one.canonical for one in second]
    assert len({one.canonical for one in first}) == len(changes)


def test_a_deletion_is_no_entry_of_a_complete_list() -> None:
    with pytest.raises(FormatError, match="kind 1"):
        _read({**HASH, "_KIND": 1})


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnsupportedTable, match="entry version 2"):
        _read({**HASH, "_VERSION": 2})


def _newer() -> AvroSchema:
    """With a column that is not known beside each kind of ours."""
    json = copy.deepcopy(INDEX_MANIFEST.json)
    ranges = json["fields"][8]["type"][1]["items"][1]
    global_index = json["fields"][10]["type"][1]
    for record in (json, ranges, global_index):
        record["fields"].insert(1, {"name": "_NEW", "type": ["null", "long"], "default": None})
    return compile_schema(json)


def _older() -> AvroSchema:
    """Without the columns that came later than deletion vectors."""
    json = copy.deepcopy(INDEX_MANIFEST.json)
    json["fields"] = json["fields"][:-2]
    json["fields"][8]["type"][1]["items"][1]["fields"].pop()
    return compile_schema(json)


def test_columns_of_newer_releases_are_part_of_an_entry_unless_they_are_null() -> None:
    records = (HASH, VECTORS, GLOBAL)
    plain = [one.canonical for one in _read(*records)]
    assert [one.canonical for one in _read(*records, schema=_newer())] == plain
    index = GLOBAL["_GLOBAL_INDEX"]
    valued: list[dict[str, Any]] = [
        {**HASH, "_NEW": 1},
        {**HASH, "_NEW": 2},
        {**VECTORS, "_DELETIONS_VECTORS_RANGES": [RANGE, {**RANGE, "_NEW": 1}]},
        {**VECTORS, "_DELETIONS_VECTORS_RANGES": [RANGE, {**RANGE, "_NEW": 2}]},
        {**GLOBAL, "_GLOBAL_INDEX": {**index, "_NEW": 1}},  # type: ignore[dict-item]
        {**GLOBAL, "_GLOBAL_INDEX": {**index, "_NEW": 2}},  # type: ignore[dict-item]
    ]
    found = [one.canonical for one in _read(*valued, schema=_newer())]
    assert found == [one.canonical for one in _read(*valued, schema=_newer())]
    assert len({*found, *plain}) == len(valued) + len(plain)


LONG = {**HASH, "_FILE_NAME": "i" * 64, "_FILE_SIZE": 1 << 40, "_BUCKET": 20_000}
FOREIGN = {**HASH, "_FILE_NAME": "HASH", "_EXTERNAL_PATH": "s3://x"}


@pytest.mark.parametrize(
    "records",
    [
        (),
        (HASH,) * 2000,
        (HASH, LONG, FOREIGN),
        (*(HASH,) * 1500, VECTORS, *(HASH,) * 1500, GLOBAL),
        (VECTORS, {**VECTORS, "_FILE_NAME": "HASH"}, {**GLOBAL, "_PARTITION": b"\x08HASH"}),
    ],
)
@pytest.mark.parametrize("schema", [INDEX_MANIFEST, _newer()], ids=["ours", "newer"])
def test_other_entries_than_those_of_hash_indexes(
    records: tuple[dict[str, Any], ...], schema: AvroSchema
) -> None:
    data = encode_container(schema, records, codec_of("zstd"))
    storage = MemoryStorage({paths.manifest_path(ROOT, "i"): data})
    wanted = tuple(
        one for one in read_index_entries(storage, ROOT, "i") if one.index_type != "HASH"
    )
    assert read_entries_but_hash(storage, ROOT, "i") == wanted


def test_damage_between_entries_of_hash_indexes_is_found() -> None:
    block = encode_container(INDEX_MANIFEST, [HASH] * 3, codec_of("null"))
    at = block.index(b"\x08HASH")
    for damaged in (block[:at] + b"\x0aHASH" + block[at + 5 :], block.replace(b"\x06", b"\x08", 1)):
        storage = MemoryStorage({paths.manifest_path(ROOT, "i"): damaged})
        with pytest.raises(FormatError):
            read_entries_but_hash(storage, ROOT, "i")


BUCKET = BucketId(EMPTY_ROW, 3)
NEW = VectorsFile(
    BUCKET, "index-b-0", 60, (VectorRange("d-1", 1, 22, 1), VectorRange("d-2", 31, 25, 2))
)


def _changed(
    *records: dict[str, Any], schema: AvroSchema = INDEX_MANIFEST, name: str | None = "i"
) -> tuple[Container, tuple[IndexEntry, ...]]:
    """The manifest of these records without `index-old` and with `NEW`."""
    data = encode_container(schema, records, codec_of("zstd"))
    storage = MemoryStorage({paths.manifest_path(ROOT, "i"): data})
    written = with_vectors_files(
        storage, ROOT, name, without={"index-old"}, added=[NEW], codec=codec_of("zstd", 1)
    )
    storage.write_new(paths.manifest_path(ROOT, "j"), written)
    return open_container(written, "j"), read_index_entries(storage, ROOT, "j")


OLD = {**VECTORS, "_FILE_NAME": "index-old"}
EXTERNAL = {**VECTORS, "_FILE_NAME": "index-c-0", "_EXTERNAL_PATH": "s3://x/index-c-0"}


@pytest.mark.parametrize(
    "schema", [INDEX_MANIFEST, _newer(), _older()], ids=["ours", "newer", "older"]
)
def test_other_entries_are_carried_and_new_ones_come_last(schema: AvroSchema) -> None:
    is_older = "_EXTERNAL_PATH" not in {each["name"] for each in schema.json["fields"]}
    records = (HASH, OLD, VECTORS, *(() if is_older else (EXTERNAL, GLOBAL)))
    container, entries = _changed(*records, schema=schema)
    assert container.schema.json == INDEX_MANIFEST.json
    kept = _read(*(each for each in records if each is not OLD), schema=schema)
    assert entries[:-1] == kept
    new = entries[-1]
    assert (new.bucket, new.index_type, new.file_name) == (
        BUCKET,
        "DELETION_VECTORS",
        NEW.file_name,
    )
    assert (new.file_size, new.row_count, new.vectors) == (60, 2, NEW.vectors)
    assert new.external_path is None


def test_the_first_index_manifest_has_the_new_entries_alone() -> None:
    _, entries = _changed(HASH, name=None)
    assert [each.file_name for each in entries] == [NEW.file_name]


def test_entries_of_a_manifest_of_ours_are_carried_byte_for_byte() -> None:
    before = open_container(encode_container(INDEX_MANIFEST, [HASH, VECTORS], codec_of("null")), "")
    after, _ = _changed(HASH, OLD, VECTORS)
    wanted = [data for _, data in before.encoded_records()]
    assert [data for _, data in after.encoded_records()][:2] == wanted


def test_columns_of_a_newer_release_keep_their_values() -> None:
    records = ({**HASH, "_NEW": 7}, OLD, {**VECTORS, "_NEW": None})
    container, entries = _changed(*records, schema=_newer())
    found = [record for record, _ in container.encoded_records()]
    assert [record["_NEW"] for record in found] == [7, None, None]
    assert entries[:-1] == _read(records[0], records[2], schema=_newer())
    assert entries[-1].vectors == NEW.vectors


@pytest.mark.parametrize("change", ["needed", "lacking"])
def test_columns_that_cannot_be_written_beside_ours_are_refused_by_name(change: str) -> None:
    json = copy.deepcopy(_newer().json)
    if change == "needed":
        json["fields"][1] = {"name": "_NEW", "type": "long"}
    else:
        json["fields"] = [
            each for each in json["fields"] if each["name"] != "_DELETIONS_VECTORS_RANGES"
        ]
    with pytest.raises(UnsupportedTable, match="_NEW" if change == "needed" else "lacks columns"):
        _changed({**HASH, "_NEW": 7}, schema=compile_schema(json))
