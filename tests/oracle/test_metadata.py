"""What Java wrote is read field by field as Java reads it; what we write, Java reads as meant."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from compactord.paimon import paths
from compactord.paimon.avro.container import open_container
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import ColumnStats, FileSource, ManifestEntry
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    encode_manifest_list,
    read_entries,
    roll_entries,
)
from compactord.paimon.manifest.schemas import INDEX_MANIFEST, MANIFEST, MANIFEST_LIST
from compactord.paimon.schema import TableRef, latest_schema
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    branch_names,
    earliest_snapshot_id,
    latest_snapshot_id,
    parse_snapshot,
    read_snapshot,
    read_tags,
    snapshot_ids,
    snapshot_json,
)
from compactord.state.loading import load_live_files
from compactord.state.table_state import (
    TableState,
    data_manifests,
    delta_manifests,
    load_state,
    refresh_state,
)
from compactord.storage.local import LocalStorage
from tests.oracle.judge import Judge

STORAGE = LocalStorage()
COLUMNS = [("dt", "STRING NOT NULL"), ("id", "BIGINT NOT NULL"), ("v", "STRING"), ("n", "DOUBLE")]


def _table(path: Path) -> TableRef:
    return TableRef(database="db", name=path.name, location=str(path))


def _stats(stats: ColumnStats) -> dict[str, Any]:
    return {
        "min": stats.min_values.hex(),
        "max": stats.max_values.hex(),
        "null_counts": list(stats.null_counts),
    }


def _as_judge(entry: ManifestEntry) -> dict[str, Any]:
    """An entry in the judge's form, without the decoded partition."""
    file = entry.file
    index = file.embedded_file_index
    return {
        "kind": entry.kind.name,
        "partition_hex": entry.partition.hex(),
        "bucket": entry.bucket,
        "total_buckets": entry.total_buckets,
        "file_name": file.file_name,
        "file_size": file.file_size,
        "row_count": file.row_count,
        "min_key": file.min_key.hex(),
        "max_key": file.max_key.hex(),
        "key_stats": _stats(file.key_stats),
        "value_stats": _stats(file.value_stats),
        "min_sequence_number": file.min_sequence_number,
        "max_sequence_number": file.max_sequence_number,
        "schema_id": file.schema_id,
        "level": file.level,
        "extra_files": list(file.extra_files),
        "creation_time": file.creation_time_ms,
        "delete_row_count": file.delete_row_count,
        "embedded_file_index": None if index is None else index.hex(),
        "file_source": None if file.file_source is None else FileSource(file.file_source).name,
        "value_stats_cols": _list(file.value_stats_columns),
        "external_path": file.external_path,
        "first_row_id": file.first_row_id,
        "write_cols": _list(file.write_columns),
    }


def _list(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def _manifest_as_judge(manifest: ManifestFile) -> dict[str, Any]:
    names = (
        "file_name",
        "file_size",
        "num_added_files",
        "num_deleted_files",
        "schema_id",
        "min_bucket",
        "max_bucket",
        "min_level",
        "max_level",
        "min_row_id",
        "max_row_id",
    )
    facts = {name: getattr(manifest, name) for name in names}
    return {**facts, "partition_stats": _stats(manifest.partition_stats)}


def _without(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != name}


def _require_equal(judge: Judge, path: Path, state: TableState) -> None:
    """Snapshot, manifests, entries and live files, each as Java has them."""
    location = str(path)
    snapshot = state.snapshot
    assert snapshot is not None
    assert json.loads(snapshot_json(snapshot)) == judge.snapshot(path)
    manifests = data_manifests(STORAGE, location, snapshot)
    theirs = judge.manifests(path)
    assert [_manifest_as_judge(one) for one in manifests] == [
        _without(one, "list") for one in theirs if one["list"] != "changelog"
    ]
    partition_types = [field.type for field in latest_schema(STORAGE, location).partition_fields]
    for manifest in manifests:
        entries = read_entries(STORAGE, location, manifest)
        assert manifest == describe_entries(
            manifest.file_name, manifest.file_size, entries, partition_types
        )
    delta = [
        _as_judge(entry)
        for manifest in delta_manifests(STORAGE, location, snapshot)
        for entry in read_entries(STORAGE, location, manifest)
    ]
    assert delta == [_without(one, "partition") for one in judge.entries(path, "delta")]
    assert _live(state) == _live_of_judge(judge, path)


def _live(state: TableState) -> list[dict[str, Any]]:
    entries = (
        entry for bucket in state.files.bucket_ids() for entry in state.files.entries(bucket)
    )
    return sorted(map(_as_judge, entries), key=_order)


def _live_of_judge(judge: Judge, path: Path) -> list[dict[str, Any]]:
    return sorted((_without(one, "partition") for one in judge.files(path)), key=_order)


def _order(file: Mapping[str, Any]) -> tuple[Any, ...]:
    return (file["partition_hex"], file["bucket"], file["file_name"])


def _rows(*ids: int, dt: str = "a") -> list[tuple[Any, ...]]:
    return [(dt, number, f"value {number}", number / 3) for number in ids]


@pytest.mark.parametrize("compression", ["zstd", "null", "deflate", "bzip2"])
@pytest.mark.parametrize("index_threshold", ["0 b", "10 mb"], ids=["extra files", "embedded index"])
def test_a_primary_key_table_is_followed_through_every_kind_of_commit(
    judge: Judge, tmp_path: Path, compression: str, index_threshold: str
) -> None:
    path = tmp_path / "db.db" / "t"
    judge.create_table(
        path,
        COLUMNS,
        primary_key=["dt", "id"],
        partition_by=["dt"],
        options={
            "bucket": "2",
            "write-only": "true",
            "manifest.compression": compression,
            "manifest.merge-min-count": "4",
            "file-index.bloom-filter.columns": "v",
            "file-index.bloom-filter.v.items": "20",
            "file-index.in-manifest-threshold": index_threshold,
        },
    )
    steps = [
        lambda: judge.write(path, _rows(1, 2, 3, 4)),
        lambda: judge.write(path, _rows(1, 5, dt="b") + _rows(3)),
        lambda: judge.write(path, _rows(2), ["-D"]),
        lambda: judge.compact(path, full=True),
        lambda: judge.write(path, _rows(7, 8, dt="c")),
        lambda: judge.overwrite(path, _rows(9), {"dt": "a"}),
        lambda: judge.write(path, _rows(10)),
        lambda: judge.compact(path, full=True),
        lambda: judge.truncate(path, [{"dt": "b"}]),
        lambda: judge.write(path, _rows(11, 12, dt="b")),
    ]
    state = load_state(STORAGE, _table(path))
    assert state.snapshot is None
    for step in steps:
        step()
        refreshed = refresh_state(STORAGE, state)
        assert refreshed.lost is None
        state = refreshed.state
        _require_equal(judge, path, state)
        _require_equal(judge, path, load_state(STORAGE, _table(path)))
    with_index = [
        file
        for file in _live(state)
        if file["extra_files"] or file["embedded_file_index"] is not None
    ]
    assert with_index, "the table has files with an index in their identity"


def test_several_snapshots_are_followed_at_once_and_an_overwrite_is_noticed(
    judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "t"
    options = {"bucket": "1", "write-only": "true"}
    judge.create_table(path, COLUMNS, primary_key=["id"], options=options)
    judge.write(path, _rows(1))
    state = load_state(STORAGE, _table(path))
    for number in range(2, 7):
        judge.write(path, _rows(number))
    judge.compact(path, full=True)
    refreshed = refresh_state(STORAGE, state)
    assert refreshed.changed == set(refreshed.state.files.bucket_ids())
    _require_equal(judge, path, refreshed.state)
    judge.overwrite(path, _rows(9))
    refreshed = refresh_state(STORAGE, refreshed.state)
    assert refreshed.changed is None
    _require_equal(judge, path, refreshed.state)


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
def test_a_manifest_of_many_blocks_is_read_whole(
    judge: Judge, tmp_path: Path, cursors: int
) -> None:
    path = tmp_path / "db.db" / "t"
    options = {"bucket": "-1", "write-only": "true"}
    columns = [("p", "INT"), *((f"c{number}", "STRING") for number in range(8))]
    judge.create_table(path, columns, partition_by=["p"], options=options)
    judge.write(path, [(p, *(f"some value {c} {p}" for c in range(8))) for p in range(600)])
    state = load_state(STORAGE, _table(path))
    assert state.snapshot is not None
    [manifest] = delta_manifests(STORAGE, str(path), state.snapshot)
    data = (path / "manifest" / manifest.file_name).read_bytes()
    assert len(list(open_container(data, "m").blocks())) > 3
    manifests = data_manifests(STORAGE, str(path), state.snapshot)
    files = load_live_files(STORAGE, str(path), manifests, min_cursors=cursors)
    assert files.file_count == 600
    _require_equal(judge, path, replace(state, files=files))


def test_a_rollback_by_java_is_reported(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "t"
    judge.create_table(path, COLUMNS, primary_key=["id"], options={"bucket": "1"})
    judge.write(path, _rows(1))
    judge.write(path, _rows(2))
    state = load_state(STORAGE, _table(path))
    judge.rollback(path, 1)
    refreshed = refresh_state(STORAGE, state)
    assert refreshed.lost == state.snapshot
    _require_equal(judge, path, refreshed.state)
    judge.write(path, _rows(3))
    again = refresh_state(STORAGE, state)
    assert again.lost == state.snapshot
    _require_equal(judge, path, again.state)


def test_snapshots_tags_and_branches_are_found(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "t"
    options = {"bucket": "1", "write-only": "true"}
    judge.create_table(path, COLUMNS, primary_key=["id"], options=options)
    for number in range(5):
        judge.write(path, _rows(number))
    judge.create_tag(path, "kept", 2)
    judge.create_tag(path, "newest")
    judge.create_branch(path, "b1", "kept")
    judge.expire_snapshots(path, 2, retain_min=2)
    location = str(path)
    assert list(snapshot_ids(STORAGE, location)) == judge.snapshots(path) == [4, 5]
    assert earliest_snapshot_id(STORAGE, location) == 4
    assert latest_snapshot_id(STORAGE, location) == 5
    tags = read_tags(STORAGE, location)
    assert {name: tag.id for name, tag in tags.items()} == {"kept": 2, "newest": 5}
    assert tags["newest"] == read_snapshot(STORAGE, location, 5)
    assert branch_names(STORAGE, location) == ("b1",)
    branch = paths.branch_root(location, "b1")
    newest = latest_snapshot_id(STORAGE, branch)
    assert newest == 2
    on_branch = judge.snapshot(path, options={"branch": "b1"})
    assert json.loads(snapshot_json(read_snapshot(STORAGE, branch, newest))) == on_branch


def test_index_manifests_are_read_as_java_reads_them(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "t"
    judge.create_table(
        path,
        [("p", "INT"), ("n", "INT")],
        partition_by=["p"],
        options={"bucket": "-1", "deletion-vectors.enabled": "true"},
    )
    judge.write(path, [(p, n) for p in range(3) for n in range(20)])
    judge.delete_positions(path, {file["file_name"]: [1, 5] for file in judge.files(path)[:2]})
    snapshot = _newest(path)
    assert snapshot.index_manifest is not None
    found = read_index_entries(STORAGE, str(path), snapshot.index_manifest)
    theirs = judge.index_files(path)
    assert [
        (one.index_type, one.file_name, one.file_size, one.row_count, one.bucket.bucket)
        for one in found
    ] == [
        tuple(one[k] for k in ("index_type", "file_name", "file_size", "row_count", "bucket"))
        for one in theirs
    ]
    again = read_index_entries(STORAGE, str(path), snapshot.index_manifest)
    assert [one.canonical for one in again] == [one.canonical for one in found]
    name = snapshot.index_manifest
    assert _schema_of(path, name) == _plain(INDEX_MANIFEST.json)


def test_our_schemas_are_javas(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "t"
    judge.create_table(path, COLUMNS, primary_key=["id"], options={"bucket": "1"})
    judge.write(path, _rows(1))
    snapshot = _newest(path)
    assert _schema_of(path, snapshot.delta_manifest_list) == _plain(MANIFEST_LIST.json)
    [manifest] = delta_manifests(STORAGE, str(path), snapshot)
    assert _schema_of(path, manifest.file_name) == _plain(MANIFEST.json)


@pytest.mark.parametrize("compression", ["zstd", "null", "deflate", "bzip2"])
def test_java_reads_manifests_that_we_wrote(judge: Judge, tmp_path: Path, compression: str) -> None:
    path = tmp_path / "db.db" / "t"
    judge.create_table(
        path,
        [("p", "DOUBLE"), ("q", "STRING"), *((f"c{n}", "STRING") for n in range(6))],
        partition_by=["p", "q"],
        options={"bucket": "-1", "write-only": "true"},
    )
    rows = [
        (None if p % 7 == 0 else p / 3, None if p % 5 == 0 else f"q{p}", *["some value"] * 6)
        for p in range(400)
    ]
    judge.write(path, rows)
    before, checksum = judge.files(path), judge.read_checksum(path)
    ours = _commit_rewritten_manifests(path, compression)
    assert judge.snapshot(path)["id"] == 2  # type: ignore[index]
    theirs = [one for one in judge.manifests(path) if one["list"] == "base"]
    assert [_without(one, "list") for one in theirs] == [_manifest_as_judge(one) for one in ours]
    assert judge.files(path) == before
    assert judge.read_checksum(path) == checksum
    # A filter on partitions uses the statistics that we wrote.
    assert len(judge.read(path, filter=[("q", "equal", "q398")])) == 1
    judge.write(path, rows[:1])
    _require_equal(judge, path, load_state(STORAGE, _table(path)))


def _commit_rewritten_manifests(path: Path, compression: str) -> list[ManifestFile]:
    """Publish a COMPACT snapshot whose base holds the live entries in manifests of ours."""
    state = load_state(STORAGE, _table(path))
    assert state.snapshot is not None
    manifests = data_manifests(STORAGE, str(path), state.snapshot)
    entries = [one for manifest in manifests for one in read_entries(STORAGE, str(path), manifest)]
    codec = codec_of(compression, 1)
    described = []
    for data, manifest in roll_entries(
        entries,
        names=(f"manifest-{uuid.uuid4()}-{n}" for n in count()),
        target_size=8 << 20,
        codec=codec,
        partition_types=[f.type for f in latest_schema(STORAGE, str(path)).partition_fields],
    ):
        STORAGE.write_new(paths.manifest_path(str(path), manifest.file_name), data)
        described.append(manifest)
    lists = []
    for manifests in (described, []):
        name, data = f"manifest-list-{uuid.uuid4()}-0", encode_manifest_list(manifests, codec)
        STORAGE.write_new(paths.manifest_path(str(path), name), data)
        lists.append((name, len(data)))
    snapshot = replace(
        state.snapshot,
        uuid=str(uuid.uuid4()),
        id=state.snapshot.id + 1,
        base_manifest_list=lists[0][0],
        base_manifest_list_size=lists[0][1],
        delta_manifest_list=lists[1][0],
        delta_manifest_list_size=lists[1][1],
        commit_kind=CommitKind.COMPACT,
        delta_record_count=0,
    )
    STORAGE.write_new(paths.snapshot_path(str(path), snapshot.id), snapshot_json(snapshot))
    return described


def _newest(path: Path) -> Snapshot:
    snapshot_id = latest_snapshot_id(STORAGE, str(path))
    file = path / "snapshot" / f"snapshot-{snapshot_id}"
    return parse_snapshot(file.read_bytes(), str(file))


def _schema_of(path: Path, name: str) -> Any:
    return _plain(open_container((path / "manifest" / name).read_bytes(), name).schema.json)


def _plain(schema: Any) -> Any:
    """Without the namespaces that Java repeats in nested records."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items()}
    return schema
