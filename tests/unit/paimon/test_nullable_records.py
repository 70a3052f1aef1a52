"""Metadata of release 0.8, in which every record is a union with null, the outermost too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import AvroSchema, compile_schema, open_container
from compactord.paimon.avro.types import codec_of
from compactord.paimon.manifest.entries import entry_record
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    encode_manifest_list,
    read_entries,
    read_manifest_list,
)
from compactord.paimon.manifest.schemas import INDEX_MANIFEST, MANIFEST, MANIFEST_LIST
from compactord.state.loading import load_live_files
from tests.containers import encode_container, records_of
from tests.unit.paimon.foreign_files import (
    ENTRY,
    ROOT,
    SEQUENCES,
    SEQUENCES_TYPE,
    Added,
    with_columns,
)
from tests.unit.paimon.table_builder import CODEC, MemoryStorage, data_file, deleted, entry

# As that release wrote them.
SNAPPY = codec_of("snappy")
ENTRIES = [
    *(entry(data_file(f"data-{n}.parquet", level=n % 3), bucket=n % 2) for n in range(400)),
    deleted(entry(data_file("data-0.parquet", level=0), bucket=0)),
]


def nullable(json: Any) -> Any:
    """The schema with each record in a union with null, but for those that are in one."""
    match json:
        case [*branches]:
            return [nullable(branch)[1] if _is_record(branch) else branch for branch in branches]
        case {"type": "array"}:
            return {**json, "items": nullable(json["items"])}
        case {"type": "record", "fields": columns}:
            inside = [{**column, "type": nullable(column["type"])} for column in columns]
            return ["null", {**json, "fields": inside}]
    return json


def _is_record(json: Any) -> bool:
    return isinstance(json, dict) and json.get("type") == "record"


def of_0_8(schema: AvroSchema) -> AvroSchema:
    return compile_schema(nullable(schema.json))


def manifest(records: list[Mapping[str, Any] | None]) -> tuple[MemoryStorage, ManifestFile]:
    data = encode_container(of_0_8(MANIFEST), records, SNAPPY)
    storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
    return storage, describe_entries("m", len(data), ENTRIES[: len(records)], [])


@pytest.mark.parametrize("cursors", [1, 1000], ids=["vectors", "objects"])
def test_entries_are_those_that_were_written(cursors: int) -> None:
    storage, one = manifest([entry_record(entry) for entry in ENTRIES])
    assert read_entries(storage, ROOT, one) == tuple(ENTRIES)
    live = load_live_files(storage, ROOT, [one], min_cursors=cursors)
    found = [one for bucket in live.bucket_ids() for one in live.entries(bucket)]
    assert sorted(found, key=str) == sorted(ENTRIES[1:-1], key=str)


def test_a_manifest_list_and_an_index_manifest_are_read() -> None:
    _, one = manifest([entry_record(ENTRIES[0])])
    rows = records_of(open_container(encode_manifest_list([one], CODEC), "list"))
    data = encode_container(of_0_8(MANIFEST_LIST), rows, SNAPPY)
    assert read_manifest_list(MemoryStorage({"list": data}), "list") == (one,)
    row = {
        "_VERSION": 1,
        "_KIND": 0,
        "_PARTITION": b"",
        "_BUCKET": 0,
        "_INDEX_TYPE": "HASH",
        "_FILE_NAME": "index-1",
        "_FILE_SIZE": 4,
        "_ROW_COUNT": 1,
        "_DELETIONS_VECTORS_RANGES": [{"f0": "a", "f1": 1, "f2": 2}, None],
    }
    data = encode_container(of_0_8(INDEX_MANIFEST), [row], SNAPPY)
    storage = MemoryStorage({paths.manifest_path(ROOT, "i"): data})
    [found] = read_index_entries(storage, ROOT, "i")
    assert found.file_name == "index-1"


@pytest.mark.parametrize("cursors", [1, 1000], ids=["vectors", "objects"])
@pytest.mark.parametrize("null", ["entry", "_FILE"])
def test_a_record_that_is_null_is_a_format_error(null: str, cursors: int) -> None:
    records: list[Any] = [entry_record(entry) for entry in ENTRIES]
    if null == "entry":
        records[7] = None
    else:
        records[7]["_FILE"] = None
    storage, one = manifest(records)
    with pytest.raises(FormatError):
        load_live_files(storage, ROOT, [one], min_cursors=cursors)


@pytest.mark.parametrize("stats", ["_KEY_STATS", "_VALUE_STATS"])
def test_statistics_that_are_null_are_a_format_error(stats: str) -> None:
    record = entry_record(ENTRIES[0])
    record["_FILE"][stats] = None
    storage, one = manifest([record])
    with pytest.raises(FormatError, match=f"column {stats} is null"):
        read_entries(storage, ROOT, one)


def test_values_of_unknown_columns_are_not_lost_silently() -> None:
    """No release wrote both; whoever did would lose its values with the next manifest."""
    added = [Added(ENTRY, SEQUENCES, SEQUENCES_TYPE, [None])]
    schema = compile_schema(nullable(with_columns(MANIFEST.json, added).json))
    for value, refused in ((None, False), ([1], True)):
        record = {**entry_record(ENTRIES[0]), SEQUENCES: value}
        data = encode_container(schema, [record], SNAPPY)
        storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
        one = describe_entries("m", len(data), ENTRIES[:1], [])
        if refused:
            with pytest.raises(UnsupportedTable, match=SEQUENCES):
                read_entries(storage, ROOT, one)
        else:
            assert read_entries(storage, ROOT, one) == (ENTRIES[0],)
