"""What expiry removes, and what it spares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactord.errors import UnsupportedTable
from compactord.maintenance.expire_plan import skipping_tags
from compactord.paimon import paths
from compactord.paimon.manifest.manifest_files import read_entries
from compactord.paimon.snapshot import (
    CommitKind,
    snapshot_ids,
    snapshot_json,
)
from compactord.state.table_state import data_manifests, delta_manifests
from tests.builders import consumer_path
from tests.lineage import Lineage
from tests.rounds import Expired
from tests.storages import Call, HookedStorage
from tests.unit.maintenance.expiring import (
    HOME,
    change,
    check,
    data_files,
    expire,
    lacks,
    make_tag,
    merged_table,
    snapshot_of,
    some_table,
    with_data,
)
from tests.unit.paimon.table_builder import deleted


def test_old_snapshots_go_with_what_only_they_needed() -> None:
    table = some_table()
    newest = table.files()[0]
    done = expire(table)
    assert (done.first, done.end, done.snapshots) == (1, 5, 4)
    assert data_files(table) == {newest.file_name}
    assert snapshot_ids(table.storage, HOME) == (5,)
    assert done.data_files == 6
    assert done.size_bytes == 6 * 1000
    assert table.storage.read(paths.earliest_hint(HOME)) == b"5"
    # What snapshot 5 needs: two lists and the manifests in its base and delta.
    manifests = [p for p in table.storage.objects if "/manifest/" in p]
    assert len(manifests) == 2 + len(data_manifests(table.storage, HOME, snapshot_of(table, 5)))
    check(table)


@pytest.mark.parametrize("order", [1, -1])
def test_an_upgraded_file_stays(order: int) -> None:
    table = Lineage()
    [file] = table.append(1)
    entry = table._entry(file, 0)
    upgraded = replace(entry, file=replace(file, level=5))
    table._foreign([deleted(entry), upgraded][::order], CommitKind.COMPACT)
    table.append(1, bucket=1)
    with_data(table)
    assert expire(table).data_files == 0
    check(table)


def test_extra_files_go_with_their_data_file() -> None:
    table = Lineage()
    file = replace(table.new_file(), extra_files=("data-0.parquet.index",))
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    table._foreign([deleted(table._entry(file, 0))], CommitKind.OVERWRITE)
    with_data(table)
    assert expire(table).data_files == 2
    assert data_files(table) == set()


def test_what_the_oldest_reader_was_planned_on_stays_with_all_its_files() -> None:
    table = some_table()
    planned_on = snapshot_of(table, 3)
    done = expire(table, keep_from=3)
    assert (done.end, done.more) == (3, False)
    assert lacks(table.storage, [planned_on]) == []
    check(table)


def test_a_second_round_takes_what_the_limit_left() -> None:
    table = some_table()
    first = expire(table, limit=2)
    assert (first.first, first.end, first.more) == (1, 3, True)
    assert first.data_files == 4
    check(table)
    second = expire(table, limit=2)
    assert (second.first, second.end, second.more) == (3, 5, False)
    # The files that snapshot 3 deletes are gone already.
    assert second.data_files == 2
    assert expire(table).snapshots == 0


def test_a_table_without_snapshots_or_with_one_is_left_alone() -> None:
    table = Lineage()
    assert expire(table) == Expired()
    table.append(1)
    assert expire(table).snapshots == 0
    assert table.storage.read(paths.earliest_hint(HOME)) == b"1"


def test_an_earliest_hint_that_is_there_is_not_written_again() -> None:
    table = Lineage()
    table.append(1)
    table.storage.overwrite(paths.earliest_hint(HOME), b"77")
    expire(table)
    assert table.storage.read(paths.earliest_hint(HOME)) == b"77"


@pytest.mark.parametrize("tagged", [1, 2, 3, 4])
def test_tags_keep_their_files(tagged: int) -> None:
    table = some_table()
    make_tag(table, snapshot_of(table, tagged))
    expire(table)
    check(table)
    table.storage.delete(paths.tag_path(HOME, "v1"))


def test_a_tag_on_the_snapshot_that_deletes_does_not_stand_before_an_older_tag() -> None:
    table = some_table()
    for id_ in (2, 3):
        make_tag(table, snapshot_of(table, id_), f"v{id_}")
    expire(table)
    check(table)


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (1, 2, []),
        (1, 3, []),
        (1, 4, [3]),
        (3, 9, [3, 5, 8]),
        (4, 8, [3, 5]),
        (5, 8, [5]),
        (6, 7, [5]),
        (20, 30, [10]),
    ],
)
def test_the_tags_whose_manifests_may_be_met_are_javas(
    first: int, end: int, expected: list[int]
) -> None:
    snapshot = snapshot_of(some_table(), 1)
    tags = [replace(snapshot, id=id_) for id_ in (3, 5, 8, 10)]
    assert [tag.id for tag in skipping_tags(tags, first, end)] == expected


@pytest.mark.parametrize("name", ["snapshot/snapshot-2", "tag/tag-v1"])
def test_branches_keep_their_files(name: str) -> None:
    table = some_table()
    snapshot = snapshot_of(table, 2)
    table.storage.write_new(f"{paths.branch_root(HOME, 'dev')}/{name}", snapshot_json(snapshot))
    expire(table)
    assert lacks(table.storage, [snapshot]) == []
    check(table)


@pytest.mark.parametrize("branch", ["main", "dev"])
@pytest.mark.parametrize("number", ["2", "02"])
def test_long_lived_changelogs_keep_what_their_readers_need(branch: str, number: str) -> None:
    """What a writer added, not what was live then, nor what a compaction made."""
    table = some_table()
    folder = paths.changelog_folder(paths.branch_root(HOME, branch))
    written = snapshot_of(table, 2)
    [added] = delta_manifests(table.storage, HOME, written)
    of_writer = {e.file.file_name for e in read_entries(table.storage, HOME, added)}
    table.storage.write_new(f"{folder}/changelog-{number}", snapshot_json(written))
    table.storage.write_new(f"{folder}/changelog-3", snapshot_json(snapshot_of(table, 3)))
    [newest] = table.files()
    expire(table)
    assert data_files(table) == {newest.file_name, *of_writer}
    kept = _names(table, "manifest")
    assert {written.base_manifest_list, written.delta_manifest_list, added.file_name} <= kept
    check(table)


def test_a_branch_does_not_keep_what_it_had_deleted_itself() -> None:
    table = some_table()
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.snapshot_path(root, 4), snapshot_json(snapshot_of(table, 4)))
    assert expire(table).data_files == 4


def test_a_damaged_branch_holds_nothing_up_and_keeps_what_it_still_names() -> None:
    table = some_table()
    snapshot = snapshot_of(table, 2)
    gone = replace(snapshot, base_manifest_list="manifest-list-gone", base_manifest_list_size=1)
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.snapshot_path(root, 2), snapshot_json(gone))
    done = expire(table)
    # Of the four files that snapshot 3 deletes, the branch still names the two of its delta.
    assert (done.snapshots, done.data_files) == (4, 4)


def test_merged_manifests_do_not_hide_what_may_go() -> None:
    table = merged_table()
    done = expire(table)
    assert (done.snapshots, done.data_files) == (6, 6)
    # Five deltas, each with one manifest, and two lists for each snapshot.
    assert done.manifests == 5 + 2 * 6
    assert done.size_bytes > 6 * 1000
    check(table)


def _index(table: Lineage, number: int, files: Sequence[str]) -> str:
    name = f"index-manifest-{number}"
    table.write_index_manifest(name, files)
    for file in files:
        table.storage.objects.setdefault(paths.index_path(HOME, file), b"index")
    return name


def _names(table: Lineage, folder: str) -> set[str]:
    return {p.rsplit("/", 1)[1] for p in table.storage.objects if f"/{folder}/" in p}


def test_index_files_and_statistics_go_unless_something_kept_has_them() -> None:
    table = some_table()
    tagged = _index(table, 1, ["index-1", "index-2"])
    change(table, 1, index_manifest=tagged, statistics="stat-1")
    make_tag(table, snapshot_of(table, 1))
    change(table, 2, index_manifest=_index(table, 2, ["index-2", "index-3"]), statistics="stat-2")
    change(table, 3, index_manifest=_index(table, 3, ["index-3", "index-4"]), statistics="stat-3")
    rolled_back = _index(table, 4, ["index-5"])
    change(table, 4, index_manifest=rolled_back, statistics="stat-4")
    last = _index(table, 5, ["index-4"])
    change(table, 5, index_manifest=last, statistics="stat-5")
    table.append(1)
    change(table, 6, index_manifest=rolled_back, statistics="stat-4")
    done = expire(table, keep=2)
    assert _names(table, "index") == {"index-1", "index-2", "index-4", "index-5"}
    assert _names(table, "statistics") == {"stat-1", "stat-4", "stat-5"}
    kept = {n for n in _names(table, "manifest") if n.startswith("index-manifest")}
    assert kept == {tagged, rolled_back, last}
    assert done.index_files == 1 + 2


@pytest.mark.parametrize(
    ("kind", "level", "folder", "gone"),
    [
        ("btree", 5, None, f"{HOME}/index/i-1"),
        ("lumina", 5, None, f"{HOME}/index/i-1"),
        ("bitmap", 5, "file:/elsewhere", "/elsewhere/i-1"),
        ("DELETION_VECTORS", None, "file:///elsewhere", "/elsewhere/i-1"),
        ("lumina", None, None, "type lumina"),
        ("btree", 5, "s3://bucket/a", "i-1 is in another store, at s3://bucket/a/i-1"),
        ("btree", 5, "file:/elsewhere/..", "i-1 is in another store"),
    ],
)
def test_index_files_of_columns_go_from_where_they_are(
    kind: str, level: int | None, folder: str | None, gone: str
) -> None:
    elsewhere = "file:/elsewhere"
    table = some_table({"global-index.external-path": elsewhere})
    for number, names in ((1, ["i-1", "i-2"]), (5, ["i-2"])):
        name = f"index-manifest-{number}"
        table.write_index_manifest(name, names, kind, level=level, folder=folder)
        change(table, number, index_manifest=name)
    path = gone if gone.startswith("/") else paths.index_path(HOME, "i-1")
    for each in (path, path.replace("i-1", "i-2")):
        table.storage.write_new(each, b"index")
    before = dict(table.storage.objects)
    if gone.startswith("/"):
        assert expire(table).index_files == 1
        assert path not in table.storage.objects
        assert path.replace("i-1", "i-2") in table.storage.objects
        return
    with pytest.raises(UnsupportedTable, match=gone):
        expire(table)
    assert table.storage.objects == before


def test_changelog_files_go_with_their_snapshot_unless_a_branch_has_it() -> None:
    table = some_table()
    for id_ in (1, 2):
        entry = table._entry(replace(table.new_file(), file_name=f"changelog-{id_}.parquet"), 0)
        name, size = table.history._write_list(table.history.write_manifests([entry]))
        change(table, id_, changelog_manifest_list=name, changelog_manifest_list_size=size)
        table.storage.write_new(f"{HOME}/bucket-0/changelog-{id_}.parquet", b"rows")
    root = paths.branch_root(HOME, "dev")
    kept = snapshot_of(table, 2)
    table.storage.write_new(paths.snapshot_path(root, 2), snapshot_json(kept))
    done = expire(table)
    assert done.changelog_files == 1
    assert {n for n in data_files(table) if n.startswith("changelog")} == {"changelog-2.parquet"}
    assert kept.changelog_manifest_list in _names(table, "manifest")


def test_consumers_hold_expiry_back() -> None:
    table = some_table()
    path = consumer_path(HOME, "app")
    table.storage.overwrite(path, b'{"nextSnapshot": 3}')
    assert expire(table).end == 3
    table.storage.delete(path)
    assert expire(table).end == 5


def test_snapshots_go_last_and_oldest_first_and_lists_after_their_manifests() -> None:
    table = merged_table()
    order: list[str] = []

    def before(call: Call) -> None:
        if call.method == "delete":
            order.append(call.path)

    expire(table, HookedStorage(table.storage, before=before))
    kinds = [
        "data" if "/bucket-" in p else "list" if "-list-" in p else p.split("/")[-2] for p in order
    ]
    assert list(dict.fromkeys(kinds)) == ["data", "manifest", "list", "snapshot"]
    assert [p.rsplit("-", 1)[1] for p in order if "/snapshot/" in p] == list("123456")


def test_unknown_keys_of_a_consumer_do_not_matter() -> None:
    table = some_table()
    table.storage.overwrite(
        consumer_path(HOME, "app"), json.dumps({"nextSnapshot": 2, "x": 1}).encode()
    )
    assert expire(table).end == 2
