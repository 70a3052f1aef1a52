from __future__ import annotations

import copy
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import AvroSchema, compile_schema
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import ColumnStats, EntryKind, ManifestEntry
from compactord.paimon.manifest.entries import entry_record
from compactord.paimon.manifest.manifest_files import (
    ListBlocks,
    ManifestFile,
    describe_entries,
    encode_manifest_list,
    read_entries,
    read_manifest_list,
    roll_entries,
)
from compactord.paimon.manifest.schemas import MANIFEST, MANIFEST_LIST
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.state.loading import load_live_files
from tests.containers import encode_container
from tests.unit.paimon.table_builder import CODEC, MemoryStorage, data_file, deleted, entry

ROOT = "/w/db.db/t"
DOUBLE = AtomicType(root=TypeRoot.DOUBLE)
TEXT = AtomicType(root=TypeRoot.VARCHAR, precision=10)
RICH = entry(
    data_file(
        "data-ü-0.parquet",
        min_key=b"\x01" * 20,
        key_stats=ColumnStats(min_values=b"a", max_values=b"b", null_counts=(None, 0, 1 << 40)),
        level=5,
        extra_files=("data-ü-0.parquet.index", "x"),
        creation_time_ms=-1,
        delete_row_count=0,
        embedded_file_index=b"",
        file_source=1,
        value_stats_columns=(),
        external_path="s3://b/p",
        first_row_id=0,
        write_columns=("a",),
        max_sequence_number=(1 << 63) - 1,
        min_sequence_number=-(1 << 63),
    ),
    bucket=-2,
)
BARE = entry(data_file("data-1.parquet"))


def _stored(
    entries: list[ManifestEntry], schema: AvroSchema = MANIFEST
) -> tuple[MemoryStorage, ManifestFile]:
    data = encode_container(schema, map(entry_record, entries), CODEC)
    storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
    return storage, describe_entries("m", len(data), entries, [])


def _schema_with(change: Any) -> AvroSchema:
    json = copy.deepcopy(MANIFEST.json)
    file = json["fields"][5]["type"]["fields"]
    change(json["fields"], file)
    return compile_schema(json)


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize(
    "wide",
    [replace(BARE, bucket=1 << 32), entry(data_file("data-1.parquet", level=1 << 31))],
    ids=["bucket", "level"],
)
def test_numbers_of_too_many_bits_are_not_cut(wide: ManifestEntry, cursors: int) -> None:
    """Bucket 2^32 is not bucket 0; a level that no manifest list could name is damage, too."""
    storage, manifest = _stored([wide])
    with pytest.raises(FormatError, match=r"more than 32 bits: .*manifest/m"):
        load_live_files(storage, ROOT, [manifest], min_cursors=cursors)
    with pytest.raises(FormatError, match=r"more than 32 bits: .*manifest/m"):
        read_entries(storage, ROOT, manifest)


def test_entries_are_read_as_written() -> None:
    storage, manifest = _stored([RICH, BARE, deleted(RICH)])
    assert read_entries(storage, ROOT, manifest) == (RICH, BARE, deleted(RICH))


def test_a_manifest_list_is_read_as_written() -> None:
    _, manifest = _stored([RICH, BARE])
    manifests = (manifest, replace(manifest, min_bucket=None, max_row_id=3, file_name="ü"))
    data = encode_manifest_list(manifests, CODEC)
    storage = MemoryStorage({"list": data})
    assert read_manifest_list(storage, "list", len(data)) == manifests
    assert read_manifest_list(storage, "list") == manifests


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_size_other_than_the_recorded_one_is_refused(wrong: int) -> None:
    storage, manifest = _stored([BARE])
    with pytest.raises(FormatError, match=r"recorded: .*/manifest/m"):
        read_entries(storage, ROOT, replace(manifest, file_size=manifest.file_size + wrong))
    data = encode_manifest_list([manifest], CODEC)
    with pytest.raises(FormatError, match="recorded: list"):
        read_manifest_list(MemoryStorage({"list": data}), "list", len(data) + wrong)


@pytest.mark.parametrize("counts", [{"num_added_files": 2}, {"num_deleted_files": 1}])
def test_counts_other_than_the_recorded_ones_are_refused(counts: dict[str, int]) -> None:
    storage, manifest = _stored([BARE])
    manifest = replace(manifest, **counts)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="holds 1 added and 0 deleted"):
        read_entries(storage, ROOT, manifest)
    with pytest.raises(FormatError, match="holds 1 added and 0 deleted"):
        load_live_files(storage, ROOT, [manifest])


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize("columns", [12, 13], ids=["no creation time", "as 0.7"])
def test_columns_that_an_older_paimon_did_not_write_are_null(columns: int, cursors: int) -> None:
    storage, manifest = _stored(
        [BARE], _schema_with(lambda top, file: file.__delitem__(slice(columns, 20)))
    )
    assert read_entries(storage, ROOT, manifest) == (BARE,)
    live = load_live_files(storage, ROOT, [manifest], min_cursors=cursors)
    assert live.entries(BARE.bucket_id) == (BARE,)
    assert live.summary(BARE.bucket_id).top_created_ms == -1


def test_a_missing_column_that_was_always_written_is_a_format_error() -> None:
    storage, manifest = _stored([BARE], _schema_with(lambda top, file: file.pop(10)))
    with pytest.raises(FormatError, match="_LEVEL is missing"):
        read_entries(storage, ROOT, manifest)


def test_a_column_of_another_type_is_a_format_error() -> None:
    schema = _schema_with(lambda top, file: file[0].update(type="bytes"))
    data = encode_container(schema, [], CODEC)
    storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
    _, manifest = _stored([BARE])
    manifest = replace(manifest, file_size=len(data))
    with pytest.raises(FormatError, match="_FILE_NAME has the Avro type 'bytes'"):
        read_entries(storage, ROOT, manifest)


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
def test_schemas_that_say_the_same_in_another_way_are_read(cursors: int) -> None:

    def other_style(top: Any, file: Any) -> None:
        file[6]["type"] = "record__FILE__KEY_STATS"  # by reference
        file[9]["type"] = "int"
        for nullable in file[12:]:
            nullable["type"].reverse()
            del nullable["default"]

    storage, manifest = _stored([BARE, RICH], _schema_with(other_style))
    assert read_entries(storage, ROOT, manifest) == (BARE, RICH)
    live = load_live_files(storage, ROOT, [manifest], min_cursors=cursors)
    assert live.entries(BARE.bucket_id) + live.entries(RICH.bucket_id) == (BARE, RICH)


@pytest.mark.parametrize("version", [1, 3])
def test_an_unknown_entry_version_is_refused(version: int) -> None:
    data = encode_container(MANIFEST, [{**entry_record(BARE), "_VERSION": version}], CODEC)
    storage = MemoryStorage({paths.manifest_path(ROOT, "manifest-1"): data})
    _, manifest = _stored([BARE])
    manifest = replace(manifest, file_name="manifest-1", file_size=len(data))
    with pytest.raises(UnsupportedTable, match=f"entry version {version}") as caught:
        read_entries(storage, ROOT, manifest)
    assert caught.value.table == ROOT
    with pytest.raises(UnsupportedTable, match="an unknown version") as caught:
        load_live_files(storage, ROOT, [manifest], min_cursors=-1)
    assert caught.value.table == ROOT


def test_an_unknown_entry_kind_is_a_format_error() -> None:
    data = encode_container(MANIFEST, [{**entry_record(BARE), "_KIND": 2}], CODEC)
    storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
    _, manifest = _stored([BARE])
    with pytest.raises(FormatError, match="kind 2"):
        read_entries(storage, ROOT, replace(manifest, file_size=len(data)))


def _roll(entries: list[ManifestEntry], target_size: int) -> list[tuple[bytes, ManifestFile]]:
    return list(
        roll_entries(
            entries,
            names=(f"m-{number}" for number in count()),
            target_size=target_size,
            codec=CODEC,
            partition_types=[],
        )
    )


def test_manifests_roll_at_a_thousandth_entry_only() -> None:
    entries = [entry(data_file(f"data-{number}.parquet")) for number in range(2500)]
    rolled = _roll(entries, target_size=1)
    assert [manifest.num_added_files for _, manifest in rolled] == [1000, 1000, 500]
    assert [manifest.file_name for _, manifest in rolled] == ["m-0", "m-1", "m-2"]
    storage = MemoryStorage({paths.manifest_path(ROOT, m.file_name): data for data, m in rolled})
    read = [one for _, manifest in rolled for one in read_entries(storage, ROOT, manifest)]
    assert read == entries
    assert len(_roll(entries, target_size=8 << 20)) == 1


def test_no_entries_make_no_manifest() -> None:
    assert _roll([], target_size=1) == []


def test_a_manifest_is_described_by_its_entries() -> None:
    low = replace(BARE, bucket=1, file=replace(BARE.file, level=0, schema_id=3))
    high = replace(deleted(BARE), bucket=7, file=replace(BARE.file, level=5, schema_id=1))
    described = describe_entries("m", 99, [low, high], [])
    assert described == ManifestFile(
        file_name="m",
        file_size=99,
        num_added_files=1,
        num_deleted_files=1,
        partition_stats=ColumnStats(min_values=bytes(12), max_values=bytes(12), null_counts=()),
        schema_id=3,
        min_bucket=1,
        max_bucket=7,
        min_level=0,
        max_level=5,
    )


def test_row_id_ranges_need_a_row_id_in_every_entry() -> None:
    first = replace(BARE, file=replace(BARE.file, first_row_id=100, row_count=10))
    second = replace(BARE, file=replace(BARE.file, first_row_id=50, row_count=5))
    described = describe_entries("m", 1, [first, second], [])
    assert (described.min_row_id, described.max_row_id) == (50, 109)
    assert describe_entries("m", 1, [first, BARE], []).min_row_id is None


def test_partition_stats_are_full_and_in_paimons_order() -> None:
    types = [DOUBLE, TEXT]
    rows = [(-0.0, "ab"), (float("nan"), "\U0001f600"), (0.0, None), (None, "\uffff" * 40)]
    entries = [replace(BARE, partition=encode_row(row, types)) for row in rows]
    stats = describe_entries("m", 1, [*entries, entries[3]], types).partition_stats
    assert stats.min_values == encode_row([-0.0, "ab"], types)
    assert stats.max_values == encode_row([float("nan"), "\U0001f600"], types)
    assert stats.null_counts == (2, 1)


def test_partition_stats_of_nulls_alone_are_null() -> None:
    entries = [replace(BARE, partition=encode_row([None], [TEXT]))]
    stats = describe_entries("m", 1, entries, [TEXT]).partition_stats
    assert stats.min_values == stats.max_values == encode_row([None], [TEXT])
    assert stats.null_counts == (1,)


def test_partition_stats_hold_text_that_is_not_utf8_as_it_is() -> None:
    entries = [replace(BARE, partition=encode_row([text], [TEXT])) for text in (b"\xffb", "a")]
    stats = describe_entries("m", 1, entries, [TEXT]).partition_stats
    assert stats.min_values == encode_row(["a"], [TEXT])
    assert stats.max_values == encode_row([b"\xffb"], [TEXT])


def test_entries_keep_kind_and_order() -> None:
    entries = [BARE, deleted(RICH), RICH]
    data = encode_container(MANIFEST, map(entry_record, entries), CODEC)
    storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
    read = read_entries(storage, ROOT, describe_entries("m", len(data), entries, []))
    assert [one.kind for one in read] == [EntryKind.ADD, EntryKind.DELETE, EntryKind.ADD]


def test_an_empty_manifest_list_is_a_header() -> None:
    data = encode_manifest_list([], CODEC)
    assert data == data[: len(encode_container(MANIFEST_LIST, [], CODEC))]
    assert read_manifest_list(MemoryStorage({"list": data}), "list", len(data)) == ()


def test_lists_that_begin_alike_are_read_as_each_alone() -> None:
    """Of several blocks; one is longer, one shorter, one differs in its middle, one in columns."""
    one = _stored([BARE])[1]
    rows = [replace(one, file_name=f"manifest-{number}") for number in range(1500)]
    foreign = replace(one, file_name="manifest-0", extra_files=("index",))
    lists = [
        rows[:3],
        rows[:3],
        rows[:900],
        rows,
        rows[:1400],
        [*rows[:700], foreign, *rows[701:]],
        rows[:2],
        [],
        [replace(row, schema_id=7) for row in rows[:2]],
    ]
    before = ListBlocks()
    for expected in lists:
        storage = MemoryStorage({"list": encode_manifest_list(expected, CODEC)})
        found = read_manifest_list(storage, "list", before=before)
        assert found == read_manifest_list(storage, "list") == tuple(expected)
    assert max(before.known) > 0


def test_rows_that_the_list_before_has_are_not_decoded_again() -> None:
    one = _stored([BARE])[1]
    rows = [replace(one, file_name=f"manifest-{number}") for number in range(3)]
    before, found = ListBlocks(), list[tuple[ManifestFile, ...]]()
    for some in (rows[:2], rows):
        storage = MemoryStorage({"list": encode_manifest_list(some, CODEC)})
        found.append(read_manifest_list(storage, "list", before=before))
    assert all(again is known for known, again in zip(*found, strict=False))
