from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.errors import (
    FormatError,
    ObjectNotFound,
    TransientStorageError,
    UnsupportedTable,
)
from compactord.paimon import paths
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    branch_names,
    earliest_snapshot_id,
    has_latest_hint,
    has_no_snapshot,
    hinted_snapshot_id,
    latest_snapshot_id,
    parse_snapshot,
    read_changelogs,
    read_consumers,
    read_snapshot,
    read_tags,
    snapshot_ids,
    snapshot_json,
)
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests.builders import consumer_path
from tests.storages import Call, Fault, FaultyStorage, HookedStorage
from tests.unit.paimon.table_builder import MemoryStorage

ROOT = "/w/db.db/t"
PATH = f"{ROOT}/snapshot/snapshot-7"
FULL = Snapshot(
    version=3,
    uuid="5f6a0d3c-0000-4000-8000-000000000000",
    id=7,
    schema_id=2,
    base_manifest_list="manifest-list-a-0",
    base_manifest_list_size=1,
    delta_manifest_list="manifest-list-a-1",
    delta_manifest_list_size=2,
    changelog_manifest_list="manifest-list-a-2",
    changelog_manifest_list_size=3,
    index_manifest="index-manifest-a-0",
    commit_user="us/er ü",
    commit_identifier=9223372036854775807,
    commit_kind=CommitKind.COMPACT,
    time_ms=1_700_000_000_000,
    total_record_count=10,
    delta_record_count=-5,
    changelog_record_count=4,
    watermark=-9223372036854775808,
    statistics="stat-a-0",
    properties={"k": "v"},
    next_row_id=0,
    operation="WRITE",
)
BARE = replace(
    FULL,
    uuid=None,
    base_manifest_list_size=None,
    delta_manifest_list_size=None,
    changelog_manifest_list=None,
    changelog_manifest_list_size=None,
    index_manifest=None,
    changelog_record_count=None,
    watermark=None,
    statistics=None,
    properties=None,
    next_row_id=None,
    operation=None,
)


def _with(**keys: object) -> bytes:
    return json.dumps({**json.loads(snapshot_json(FULL)), **keys}).encode()


def _table(*ids: int, latest: bytes | None = None, earliest: bytes | None = None) -> MemoryStorage:
    storage = MemoryStorage()
    for snapshot_id in ids:
        path = f"{ROOT}/snapshot/snapshot-{snapshot_id}"
        storage.write_new(path, snapshot_json(replace(FULL, id=snapshot_id)))
    for name, hint in (("LATEST", latest), ("EARLIEST", earliest)):
        if hint is not None:
            storage.overwrite(f"{ROOT}/snapshot/{name}", hint)
    return storage


@pytest.mark.parametrize("snapshot", [FULL, BARE], ids=["all keys", "required keys"])
def test_a_snapshot_is_read_as_written(snapshot: Snapshot) -> None:
    assert parse_snapshot(snapshot_json(snapshot), PATH) == snapshot


def test_keys_are_javas_and_absent_when_none() -> None:
    assert list(json.loads(snapshot_json(BARE))) == [
        "version",
        "id",
        "schemaId",
        "baseManifestList",
        "deltaManifestList",
        "commitUser",
        "commitIdentifier",
        "commitKind",
        "timeMillis",
        "totalRecordCount",
        "deltaRecordCount",
    ]
    assert len(json.loads(snapshot_json(FULL))) == 23


def test_unknown_keys_are_ignored() -> None:
    assert parse_snapshot(_with(writerVersion="2.1", logOffsets={"0": 1}), PATH) == FULL


def test_a_newer_version_is_refused_and_not_called_damage() -> None:
    with pytest.raises(UnsupportedTable, match="snapshot version 4") as caught:
        parse_snapshot(_with(version=4, commitKind="NEW"), PATH)
    assert caught.value.table == ROOT


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id", "7"),
        ("id", None),
        ("id", True),
        ("schemaId", 1.0),
        ("commitKind", "MERGE"),
        ("properties", {"k": 1}),
        ("deltaManifestList", 3),
        ("watermark", "late"),
        ("totalRecordCount", 1 << 63),
        ("nextRowId", -(1 << 63) - 1),
    ],
)
def test_a_wrong_value_is_reported_with_its_key(key: str, value: object) -> None:
    with pytest.raises(FormatError, match=key):
        parse_snapshot(_with(**{key: value}), PATH)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_something_else_than_a_snapshot_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError, match="snapshot-7"):
        parse_snapshot(data, PATH)


def test_identity_is_the_uuid_and_without_one_the_commit() -> None:
    assert FULL.identity == replace(FULL, time_ms=0).identity
    assert FULL.identity != replace(FULL, uuid="other").identity
    assert BARE.identity == replace(BARE, total_record_count=0).identity
    for other in (
        replace(BARE, commit_user="x"),
        replace(BARE, commit_identifier=1),
        replace(BARE, time_ms=1),
    ):
        assert BARE.identity != other.identity


@pytest.mark.parametrize(
    "hint",
    [
        b"9",
        b"9\n",
        b"7",
        b"3",
        None,
        b"",
        b"junk",
        b"12",
        b"-1",
        b"0",
        b"9999999999999999999",
        b"\xff",
    ],
)
def test_whatever_the_hint_says_the_latest_snapshot_is_found(hint: bytes | None) -> None:
    assert latest_snapshot_id(_table(*range(3, 12), latest=hint), ROOT) == 11


@pytest.mark.parametrize("hint", [b"9", b"8", b"6"])
def test_a_good_hint_spares_the_listing(hint: bytes) -> None:
    storage = _table(*range(5, 10), latest=hint)
    storage.list = None  # type: ignore[method-assign, assignment]
    assert latest_snapshot_id(storage, ROOT) == 9


def test_a_hint_to_an_expired_snapshot_is_not_followed() -> None:
    assert latest_snapshot_id(_table(8, 9, latest=b"5"), ROOT) == 9


@pytest.mark.parametrize("hint", [b"9", b"1", None, b"x"])
def test_whatever_the_hint_says_the_earliest_snapshot_is_found(hint: bytes | None) -> None:
    assert earliest_snapshot_id(_table(9, 10, 11, earliest=hint), ROOT) == 9


def test_a_table_without_snapshots_has_no_latest() -> None:
    storage = _table(latest=b"4", earliest=b"4")
    assert (latest_snapshot_id(storage, ROOT), earliest_snapshot_id(storage, ROOT)) == (None, None)


@pytest.mark.parametrize(("hint", "is_there"), [(None, False), (b"", True), (b"\x00", True)])
def test_a_hint_without_a_number_is_told_from_none(hint: bytes | None, is_there: bool) -> None:
    storage = _table(7, 8, latest=hint)
    assert hinted_snapshot_id(storage, ROOT) is None
    assert has_latest_hint(storage, ROOT) is is_there
    assert has_no_snapshot(storage, ROOT) is not is_there
    assert latest_snapshot_id(storage, ROOT) == 8


def test_temporary_and_foreign_names_are_no_snapshots() -> None:
    storage = _table(2, 10)
    for name in (".snapshot-11.x.tmp", "snapshot-12.tmp", "snapshot-", "tag-13"):
        storage.overwrite(f"{ROOT}/snapshot/{name}", b"")
    assert snapshot_ids(storage, ROOT) == (2, 10)


def test_a_snapshot_under_another_id_is_refused() -> None:
    storage = _table(7)
    storage.overwrite(f"{ROOT}/snapshot/snapshot-8", storage.objects[PATH])
    with pytest.raises(FormatError, match="snapshot 7"):
        read_snapshot(storage, ROOT, 8)
    with pytest.raises(ObjectNotFound):
        read_snapshot(storage, ROOT, 9)


def test_tags_are_snapshots_by_name() -> None:
    storage = _table(7)
    tag = _with(tagCreateTime=[2024, 1, 2, 3, 4, 5, 6], tagTimeRetained=86400.0)
    storage.overwrite(f"{ROOT}/tag/tag-2024-01-02", tag)
    storage.overwrite(f"{ROOT}/tag/.hidden", b"")
    assert read_tags(storage, ROOT) == {"2024-01-02": FULL}


def test_branches_are_the_folders_of_that_name() -> None:
    storage = _table(7)
    for branch in ("b2", "b1"):
        storage.overwrite(f"{ROOT}/branch/branch-{branch}/schema/schema-0", b"{}")
    assert branch_names(storage, ROOT) == ("b1", "b2")
    assert paths.branch_root(ROOT, "b1") == f"{ROOT}/branch/branch-b1"
    assert branch_names(MemoryStorage(), ROOT) == ()


def _changelogs(*names: str) -> MemoryStorage:
    storage = _table(7)
    for number, name in enumerate(names):
        storage.overwrite(f"{ROOT}/changelog/{name}", snapshot_json(replace(FULL, id=number)))
    return storage


def test_whatever_is_named_like_a_changelog_counts_and_hints_beside_it_do_not() -> None:
    storage = _changelogs("changelog-7", "changelog-07", "changelog-99999999999999999999", "LATEST")
    storage.overwrite(f"{ROOT}/changelog/.changelog-8.x.tmp", b"half")
    assert {changelog.id for changelog in read_changelogs(storage, ROOT)} == {0, 1, 2}
    assert read_changelogs(MemoryStorage(), ROOT) == ()


def test_a_folder_named_like_a_changelog_is_none(tmp_path: Path) -> None:
    (tmp_path / "changelog" / "changelog-9").mkdir(parents=True)
    (tmp_path / "changelog" / "changelog-7").write_bytes(snapshot_json(FULL))
    assert read_changelogs(LocalStorage(), str(tmp_path)) == (FULL,)


@pytest.mark.parametrize("name", ["changelog-8", "changelog-8.tmp"])
def test_a_changelog_that_cannot_be_understood_is_an_error_with_its_path(name: str) -> None:
    storage = _changelogs("changelog-7")
    storage.overwrite(f"{ROOT}/changelog/{name}", b"half")
    with pytest.raises(FormatError) as raised:
        read_changelogs(storage, ROOT)
    assert raised.value.path == f"{ROOT}/changelog/{name}"


def test_a_changelog_that_vanishes_before_it_is_read_is_not_there_and_the_others_are() -> None:
    storage = _changelogs("changelog-1", "changelog-2", "changelog-3")

    def expire(call: Call) -> None:
        if call.method == "read" and call.path.endswith("changelog-1"):
            storage.delete(call.path)
            storage.delete(f"{ROOT}/changelog/changelog-2")

    found = read_changelogs(HookedStorage(storage, before=expire), ROOT)  # type: ignore[arg-type]
    assert [changelog.id for changelog in found] == [2]


@pytest.mark.parametrize(
    ("path", "data", "read"),
    [
        (paths.tag_path(ROOT, "v1"), snapshot_json(FULL), read_tags),
        (f"{ROOT}/changelog/changelog-7", snapshot_json(FULL), read_changelogs),
        (consumer_path(ROOT, "c"), b'{"nextSnapshot": 3}', read_consumers),
    ],
    ids=["tag", "changelog", "consumer"],
)
def test_what_is_listed_and_not_found_is_not_taken_for_gone(
    path: str, data: bytes, read: Callable[[Storage, str], object]
) -> None:
    storage = MemoryStorage()
    storage.write_new(path, data)
    fault = Fault(at=1, error=ObjectNotFound, concerns=lambda call: call.method == "read")
    with pytest.raises(TransientStorageError, match="lists it") as raised:
        read(FaultyStorage(storage, fault), ROOT)
    assert raised.value.path == path


def test_a_consumer_that_is_being_overwritten_is_read_again() -> None:
    storage = MemoryStorage()
    path = consumer_path(ROOT, "c")
    storage.write_new(path, b"")
    with pytest.raises(FormatError):
        read_consumers(storage, ROOT)

    def written(call: Call) -> None:
        if call.method == "read" and call.number > 3:
            storage.overwrite(path, b'{"nextSnapshot": 3}')

    assert read_consumers(HookedStorage(storage, before=written), ROOT) == {"c": 3}


def test_a_tag_that_is_renamed_before_it_is_read_is_found_under_its_new_name() -> None:
    storage = MemoryStorage()
    old, new = paths.tag_path(ROOT, "b"), paths.tag_path(ROOT, "a")
    storage.write_new(old, snapshot_json(FULL))

    def rename(call: Call) -> None:
        if call.path == old and storage.status(old) is not None:
            storage.write_new(new, storage.read(old))
            storage.delete(old)

    assert read_tags(HookedStorage(storage, before=rename), ROOT) == {"a": FULL}
