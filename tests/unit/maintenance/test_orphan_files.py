"""What may be deleted: ours, needed by nobody alive, and named by nothing."""

from __future__ import annotations

import contextlib
import itertools
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from compactord.commit.changes import Committed, remove_outputs
from compactord.errors import (
    AccessDenied,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.ids import Liveness, Owner
from compactord.maintenance.orphan_search import (
    FileListing,
    OwnerRule,
    TableFolders,
    remove_orphans,
)
from compactord.paimon import paths
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    parse_snapshot,
    snapshot_ids,
    snapshot_json,
)
from compactord.state.table_state import delta_manifests
from compactord.storage.base import ObjectStatus, UnfinishedUpload
from compactord.storage.calls import AT_ONCE
from tests.builders import DAY_MS, FIRST, NOW_MS, SECOND, data_outputs
from tests.deletions import Deletions
from tests.lineage import APPENDED, KEYED, TABLE, Lineage
from tests.storages import (
    Call,
    Fault,
    FaultyStorage,
    HookedStorage,
    MemoryStorage,
    RecordingStorage,
)
from tests.unit.maintenance.expiring import snapshots_of

HOME = TABLE.location
DEAD_GRACE_MS = 600_000
ALIVE = Owner(host=0x444444, start_ticks=1, pid=1)


def _rule(**changed: object) -> OwnerRule:
    rule = OwnerRule(
        myself=SECOND,
        liveness=lambda owner: Liveness.DEAD if owner == FIRST else Liveness.UNKNOWN,
        now_ms=NOW_MS,
        grace_ms=DAY_MS,
    )
    return replace(rule, **changed)  # type: ignore[arg-type]


def _remove(table: Lineage, storage: object = None, *, depth: int = 0, **rule: object) -> set[str]:
    removed = remove_orphans(
        storage or table.storage,  # type: ignore[arg-type]
        HOME,
        partition_depth=depth,
        rule=_rule(**rule),
    )
    return {orphan.path for orphan in removed.orphans}


def _table() -> Deletions:
    table = Deletions(KEYED)
    table.storage.now_ms = NOW_MS - DEAD_GRACE_MS - 1
    table.append(2)
    return table


def _leave(table: Lineage, *names: str) -> set[str]:
    found = {f"{HOME}/{name}" for name in names}
    for path in found:
        table.storage.write_new(path, b"x")
    return found


def _published(table: Deletions) -> Committed:
    """It has an index manifest and an index file, too."""
    files = table.append(2, bucket=1)
    table.delete_rows({files[0].file_name: [1]}, bucket=1)
    change = table.compaction(files, owner=FIRST, bucket=1)
    outcome, _ = table.committer(FIRST).commit(table.state(), [change], table.settings)
    assert isinstance(outcome, Committed)
    return outcome


def _all_kinds(owner: Owner) -> list[str]:
    uuid = owner.unique_name()
    return [
        f"bucket-0/data-{uuid}-0.parquet",
        f"bucket-77/data-{uuid}-1.parquet",
        f"manifest/manifest-{uuid}-0",
        f"manifest/manifest-list-{uuid}-1",
        f"manifest/index-manifest-{uuid}-2",
        f"index/index-{uuid}-3",
        f"snapshot/.snapshot-9.{uuid}.tmp",
        f"changelog/.changelog-8.{uuid}.tmp",
        f"tag/.tag-2024-03-01.{uuid}.tmp",
        f"snapshot/.LATEST.{uuid}.tmp",
        f"changelog/.EARLIEST.{uuid}.tmp",
        f"._compactord-hold.json.{uuid}.tmp",
    ]


def test_everything_a_dead_owner_left_goes() -> None:
    table = _table()
    left = _leave(table, *_all_kinds(FIRST))
    assert _remove(table) == left
    assert not left & set(table.storage.objects)
    table.check()


def test_what_the_living_we_ourselves_and_others_wrote_stays() -> None:
    table = _table()
    kept = _leave(
        table,
        *_all_kinds(ALIVE),
        *_all_kinds(SECOND),
        "bucket-0/data-0bf4ab4e-7d8e-4d1c-9f4b-3d6f3a1b2c4d-0.parquet",
        "manifest/manifest-0bf4ab4e-7d8e-4d1c-9f4b-3d6f3a1b2c4d-0",
        "bucket-0/notes.txt",
    )
    tag = paths.tag_path(HOME, FIRST.unique_name())
    table.storage.overwrite(tag, snapshot_json(snapshots_of(table)[-1]))
    kept |= {tag}
    assert _remove(table) == set()
    assert kept <= set(table.storage.objects)


def test_after_the_grace_the_files_of_an_unknown_owner_go_but_never_our_own() -> None:
    table = _table()
    table.storage.now_ms = NOW_MS - DAY_MS - 1
    old = _leave(table, f"manifest/manifest-{ALIVE.unique_name()}-0")
    own = _leave(table, f"manifest/manifest-{SECOND.unique_name()}-0")
    table.storage.now_ms = NOW_MS - DAY_MS
    young = _leave(table, f"manifest/manifest-{ALIVE.unique_name()}-0")
    assert _remove(table) == old
    assert own | young <= set(table.storage.objects)


def test_published_files_of_the_dead_stay() -> None:
    table = _table()
    _published(table)
    before = set(table.storage.objects)
    left = _leave(table, *_all_kinds(FIRST))
    assert _remove(table) == left
    assert set(table.storage.objects) == before
    table.check()


def test_what_the_dead_left_goes_ten_minutes_after_its_last_change() -> None:
    table = _table()
    old = _leave(table, *_all_kinds(FIRST))
    table.storage.now_ms = NOW_MS - DEAD_GRACE_MS
    young = _leave(table, *_all_kinds(FIRST))
    assert _remove(table) == old
    assert young <= set(table.storage.objects)


def test_what_the_dead_began_to_write_is_given_up_once_it_is_as_old_as_a_file_has_to_be() -> None:
    """Uploads go by their start, whoever else may live, and whatever bears the same name."""
    table = _table()
    old_ms = NOW_MS - DEAD_GRACE_MS - 1
    young_ms, ancient_ms = old_ms + 1, NOW_MS - DAY_MS - 1
    cases = {
        ("dead, old", FIRST, old_ms): True,
        ("dead, young", FIRST, young_ms): False,
        ("unknown, old", ALIVE, old_ms): False,
        ("unknown, ancient", ALIVE, ancient_ms): True,
        ("our own", SECOND, 0): False,
        ("a writer's", None, 0): False,
    }
    for name, owner, started_ms in cases:
        file = "data-0.parquet" if owner is None else f"data-{owner.unique_name()}-0.parquet"
        path = f"{HOME}/bucket-0/{file}"
        upload = UnfinishedUpload(path=path, upload_id=name, started_ms=started_ms)
        table.storage.uploads.append(upload)
    elsewhere = f"{HOME}2/bucket-0/data-{FIRST.unique_name()}-0.parquet"
    table.storage.uploads.append(
        UnfinishedUpload(path=elsewhere, upload_id="of another table", started_ms=0)
    )
    before = dict(table.storage.objects)
    removed = _remove(table)
    left = {upload.upload_id for upload in table.storage.uploads}
    assert left == {"of another table", *(case[0] for case, goes in cases.items() if not goes)}
    assert len(removed) == 2
    assert table.storage.objects == before


def test_our_own_uploads_go_when_they_are_from_before_all_that_is_under_way() -> None:
    table = _table()
    for started_ms in (99, 100):
        path = f"{HOME}/bucket-0/data-{SECOND.unique_name()}-0.parquet"
        upload = UnfinishedUpload(path=path, upload_id=str(started_ms), started_ms=started_ms)
        table.storage.uploads.append(upload)
    _remove(table, own_before_ms=100)
    assert [upload.upload_id for upload in table.storage.uploads] == ["100"]


def test_files_are_swept_where_uploads_may_not_be_listed() -> None:
    table = _table()
    left = _leave(table, f"bucket-0/data-{FIRST.unique_name()}-0.parquet")
    fault = Fault(
        at=1, error=AccessDenied, lasts=True, concerns=lambda c: c.method == "unfinished_uploads"
    )
    assert _remove(table, FaultyStorage(table.storage, fault)) == left


@pytest.mark.parametrize("there", [(), ("LATEST",), ("LATEST", "snapshot-1")])
def test_a_table_whose_snapshots_are_yet_to_be_copied_is_not_swept(
    there: tuple[str, ...],
) -> None:
    table = _table()
    _published(table)
    folder = f"{HOME}/snapshot/"
    snapshots = {p: d for p, d in table.storage.objects.items() if p.startswith(folder)}
    _leave(table, *_all_kinds(FIRST))
    for path in snapshots:
        table.storage.delete(path)
    copied = {p: d for p, d in snapshots.items() if p.removeprefix(folder) in there}
    table.storage.objects.update(copied)
    assert _remove(table) == set()
    table.storage.objects.update(snapshots)
    table.check()


@pytest.mark.parametrize("has_latest", [False, True])
def test_no_file_is_swept_while_a_branch_has_no_snapshots_yet(has_latest: bool) -> None:
    table = _table()
    _leave(table, *_all_kinds(FIRST))
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.schema_path(root, 0), b"{}")
    if has_latest:
        table.storage.write_new(paths.latest_hint(root), b"1")
    assert _remove(table) == set()
    table.storage.write_new(
        paths.snapshot_path(root, 1), table.storage.read(paths.snapshot_path(HOME, 1))
    )
    table.storage.overwrite(paths.latest_hint(root), b"1")
    assert len(_remove(table)) == len(_all_kinds(FIRST))


@pytest.mark.parametrize("has_snapshot", [False, True], ids=["made empty", "made from a tag"])
def test_a_branch_that_was_never_written_to_ends_no_sweep_once_it_is_old(
    has_snapshot: bool,
) -> None:
    """Java makes both without a hint (utils/FileSystemBranchManager.java)."""
    table = _table()
    _leave(table, *_all_kinds(FIRST))
    root = paths.branch_root(HOME, "dev")
    for now_ms in (NOW_MS - DAY_MS + 1, NOW_MS - DAY_MS - 1):
        table.storage.now_ms = now_ms
        table.storage.overwrite(paths.schema_path(root, 0), b"{}")
        if has_snapshot:
            first = table.storage.read(paths.snapshot_path(HOME, 1))
            table.storage.overwrite(paths.snapshot_path(root, 1), first)
        is_old = now_ms < NOW_MS - DAY_MS
        assert len(_remove(table)) == (len(_all_kinds(FIRST)) if is_old else 0)


@pytest.mark.parametrize(
    ("late_ms", "age_ms", "is_swept"),
    [(600_000, 700_000, True), (600_001, 700_000, False), (600_001, DAY_MS + 1, True)],
    ids=["written at once", "copied lately", "copied long ago"],
)
def test_a_snapshot_that_was_copied_lately_may_be_followed_by_others(
    late_ms: int, age_ms: int, is_swept: bool
) -> None:
    """Newest and LATEST are there; older ones, which name more files, are not yet."""
    table = _table()
    _leave(table, *_all_kinds(FIRST))
    path = paths.snapshot_path(HOME, 1)
    snapshot = parse_snapshot(table.storage.read(path), path)
    table.storage.now_ms = NOW_MS - age_ms
    copied = replace(snapshot, time_ms=table.storage.now_ms - late_ms)
    table.storage.overwrite(path, snapshot_json(copied))
    assert len(_remove(table)) == (len(_all_kinds(FIRST)) if is_swept else 0)


@pytest.mark.parametrize("kind", ["snapshot", "tag", "branch", "branch tag", "changelog"])
def test_what_is_listed_and_not_found_keeps_what_it_names(kind: str) -> None:
    """One request is answered wrongly: no such object."""
    table = _table()
    _published(table)
    snapshot = table.state().snapshot
    assert snapshot is not None
    keep = {
        "snapshot": lambda table, snapshot: None,
        "tag": _as_tag,
        "branch": _as_branch,
        "branch tag": _as_branch_tag,
        "changelog": _as_changelog,
    }[kind]
    keep(table, snapshot)
    if kind == "snapshot":
        table.append(2)
    else:
        table.roll_back(snapshot.id - 1)
    before = dict(table.storage.objects)
    for at in itertools.count(1):
        fault = Fault(at=at, error=ObjectNotFound, concerns=lambda call: call.method == "read")
        storage = FaultyStorage(table.storage, fault)
        with contextlib.suppress(StorageError):
            assert _remove(table, storage) == set()
        assert table.storage.objects == before, storage.failed
        if not storage.failed:
            break
    assert at > 6


def test_a_tag_that_becomes_a_branch_during_a_sweep_keeps_what_it_names() -> None:
    """The branch is made after branches were listed, the tag is dropped before tags are."""
    table = _table()
    _published(table)
    snapshot = table.state().snapshot
    assert snapshot is not None
    _as_tag(table, snapshot)
    table.roll_back(snapshot.id - 1)
    tag = paths.tag_path(HOME, "v1")

    def make_branch(call: Call) -> None:
        if call.path == paths.tag_folder(HOME) and tag in table.storage.objects:
            _as_branch(table, snapshot)
            table.storage.delete(tag)

    assert _remove(table, HookedStorage(table.storage, before=make_branch)) == set()


def _as_tag(table: Lineage, snapshot: Snapshot) -> None:
    table.storage.write_new(paths.tag_path(HOME, "v1"), snapshot_json(snapshot))


def _as_branch(table: Lineage, snapshot: Snapshot) -> None:
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.snapshot_path(root, snapshot.id), snapshot_json(snapshot))
    table.storage.write_new(paths.latest_hint(root), str(snapshot.id).encode())


def _as_branch_tag(table: Lineage, snapshot: Snapshot) -> None:
    root = paths.branch_root(HOME, "dev")
    first = table.storage.read(paths.snapshot_path(HOME, 1))
    table.storage.write_new(paths.snapshot_path(root, 1), first)
    table.storage.write_new(paths.latest_hint(root), b"1")
    table.storage.write_new(paths.tag_path(root, "v1"), snapshot_json(snapshot))


def _as_changelog(table: Lineage, snapshot: Snapshot) -> None:
    path = f"{paths.changelog_folder(HOME)}/changelog-{snapshot.id}"
    table.storage.write_new(path, snapshot_json(snapshot))


def _as_changelog_of_an_odd_name(table: Lineage, snapshot: Snapshot) -> None:
    path = f"{paths.changelog_folder(HOME)}/changelog-00{snapshot.id}"
    table.storage.write_new(path, snapshot_json(snapshot))


def _as_branch_changelog(table: Lineage, snapshot: Snapshot) -> None:
    root = paths.branch_root(HOME, "dev")
    path = f"{paths.changelog_folder(root)}/changelog-{snapshot.id}"
    table.storage.write_new(path, snapshot_json(snapshot))


@pytest.mark.parametrize(
    "keep",
    [
        _as_tag,
        _as_branch,
        _as_branch_tag,
        _as_changelog,
        _as_changelog_of_an_odd_name,
        _as_branch_changelog,
    ],
)
def test_files_that_only_a_tag_branch_or_changelog_names_stay(
    keep: Callable[[Lineage, Snapshot], None],
) -> None:
    table = _table()
    _published(table)
    snapshot = table.state().snapshot
    assert snapshot is not None
    keep(table, snapshot)
    table.roll_back(snapshot.id - 1)
    assert _remove(table) == set()
    # Without it they go.
    for path in [p for p in table.storage.objects if "/tag/" in p or "/branch/" in p]:
        table.storage.delete(path)
    for path in [p for p in table.storage.objects if "/changelog/" in p]:
        table.storage.delete(path)
    assert len(_remove(table)) == 6


def test_a_changelog_without_its_base_list_still_keeps_what_its_delta_names() -> None:
    table = _table()
    _published(table)
    snapshot = table.state().snapshot
    assert snapshot is not None
    _as_changelog(table, snapshot)
    table.roll_back(snapshot.id - 1)
    base_list = paths.manifest_path(HOME, snapshot.base_manifest_list)
    table.storage.delete(base_list)
    assert _remove(table) == set()


@pytest.mark.parametrize("gone", ["base list", "delta list", "delta's manifest"])
def test_a_changelog_keeps_its_changelog_files_whatever_went_with_its_snapshot(gone: str) -> None:
    table = _table()
    _published(table)
    snapshot = table.state().snapshot
    assert snapshot is not None
    file = replace(table.new_file(), file_name=f"changelog-{FIRST.unique_name()}-0.parquet")
    [manifest] = table.history.write_manifests([table._entry(file, 1)])
    name, size = table.history._write_list([manifest])
    _as_changelog(
        table, replace(snapshot, changelog_manifest_list=name, changelog_manifest_list_size=size)
    )
    table.roll_back(snapshot.id - 1)
    changelog = _leave(table, f"bucket-1/{file.file_name}")
    lost = {
        "base list": snapshot.base_manifest_list,
        "delta list": snapshot.delta_manifest_list,
        "delta's manifest": delta_manifests(table.storage, HOME, snapshot)[0].file_name,
    }[gone]
    table.storage.delete(paths.manifest_path(HOME, lost))
    assert not changelog & _remove(table)
    # Without the changelog it goes.
    table.storage.delete(f"{paths.changelog_folder(HOME)}/changelog-{snapshot.id}")
    assert changelog <= _remove(table)


@pytest.mark.parametrize("keep", [_as_tag, _as_branch, _as_branch_tag])
@pytest.mark.parametrize("gone", ["list", "manifest"])
def test_the_changelog_of_a_tag_may_have_gone_with_its_snapshot(
    keep: Callable[[Lineage, Snapshot], None], gone: str
) -> None:
    table = _table()
    snapshot = table.state().snapshot
    assert snapshot is not None
    [manifest] = table.history.write_manifests([table._entry(table.new_file(), 1)])
    name, size = table.history._write_list([manifest])
    keep(table, replace(snapshot, changelog_manifest_list=name, changelog_manifest_list_size=size))
    left = _leave(table, *_all_kinds(FIRST))
    lost = name if gone == "list" else manifest.file_name
    table.storage.delete(paths.manifest_path(HOME, lost))
    assert _remove(table) == left


@pytest.mark.parametrize(
    "kind", ["snapshot", "tag", "manifest list", "manifest", "index manifest", "listing"]
)
def test_what_cannot_be_read_means_that_nothing_is_deleted(kind: str) -> None:
    table = _table()
    _published(table)
    snapshot = table.state().snapshot
    assert snapshot is not None
    _as_tag(table, snapshot)
    left = _leave(table, *_all_kinds(FIRST))
    storage: object = table.storage
    expected: type[Exception] = FormatError
    if kind == "listing":
        expected = TransientStorageError
        storage = FaultyStorage(
            table.storage,
            Fault(at=1, error=TransientStorageError, concerns=lambda c: c.path.endswith("/tag")),
        )
    else:
        damaged = {
            "snapshot": paths.snapshot_path(HOME, 1),
            "tag": paths.tag_path(HOME, "v1"),
            "manifest list": paths.manifest_path(HOME, snapshot.base_manifest_list),
            "index manifest": paths.manifest_path(HOME, str(snapshot.index_manifest)),
            "manifest": next(p for p in table.storage.objects if "/manifest/manifest-000" in p),
        }[kind]
        table.storage.overwrite(damaged, b"damaged")
    with pytest.raises(expected):
        _remove(table, storage)
    assert left <= set(table.storage.objects)


def test_a_manifest_that_is_missing_from_a_snapshot_that_is_there_is_damage() -> None:
    table = _table()
    _published(table)
    left = _leave(table, *_all_kinds(FIRST))
    snapshot = table.state().snapshot
    assert snapshot is not None
    table.storage.delete(paths.manifest_path(HOME, snapshot.delta_manifest_list))
    with pytest.raises(ObjectNotFound):
        _remove(table)
    assert left <= set(table.storage.objects)


def test_a_snapshot_that_expires_while_it_is_read_names_nothing() -> None:
    table = _table()
    table.append(1)
    oldest = table.history.storage.objects[paths.snapshot_path(HOME, 1)]
    left = _leave(table, *_all_kinds(FIRST))

    def expire(call: object) -> None:
        if "manifest-list" in str(call) and paths.snapshot_path(HOME, 1) in table.storage.objects:
            table.storage.delete(paths.snapshot_path(HOME, 1))
            for path in [p for p in table.storage.objects if "manifest-list" in p]:
                if path.rsplit("/", 1)[1] in oldest.decode():
                    table.storage.delete(path)

    assert _remove(table, HookedStorage(table.storage, before=expire)) == left


@pytest.mark.parametrize("read", ["/snapshot/snapshot-", "/manifest/manifest-"])
def test_what_the_dead_published_stays_although_all_snapshots_listed_expire(read: str) -> None:
    """Before the first of them is read, or while it is."""
    table = _table()
    _published(table)
    listed = snapshot_ids(table.storage, HOME)
    rows = table.rows_now()
    live = {path for path in table.storage.objects if "/bucket-1/" in path}

    def go_on(call: Call) -> None:
        if read in call.path and len(snapshot_ids(table.storage, HOME)) == len(listed):
            table.append(1)
            for snapshot_id in listed:
                table.storage.delete(paths.snapshot_path(HOME, snapshot_id))

    _remove(table, HookedStorage(table.storage, before=go_on))
    assert live <= set(table.storage.objects)
    assert rows <= table.rows_now()


def test_when_the_newest_snapshot_is_gone_each_time_nothing_is_deleted() -> None:
    table = _table()
    left = _leave(table, *_all_kinds(FIRST))

    def go_on(call: Call) -> None:
        if call.method == "read" and "/snapshot/snapshot-" in call.path:
            table.append(1)
            table.storage.delete(call.path)

    with pytest.raises(TransientStorageError, match="changed during each of 10 reads"):
        _remove(table, HookedStorage(table.storage, before=go_on))
    assert left <= set(table.storage.objects)


def test_a_table_without_leftovers_costs_listings_only() -> None:
    table = _table()
    _published(table)
    storage = RecordingStorage(table.storage)
    removed = remove_orphans(
        storage, HOME, partition_depth=0, rule=_rule(liveness=lambda owner: Liveness.UNKNOWN)
    )
    assert removed.orphans == ()
    assert {call.method for call in storage.log} == {"list", "unfinished_uploads"}


def test_bucket_folders_are_found_below_the_partitions() -> None:
    table = _table()
    name = f"data-{FIRST.unique_name()}-0.parquet"
    inside = _leave(table, f"dt=2026-01-01/h=7/bucket-3/{name}")
    _leave(
        table,
        f"dt=2026-01-01/bucket-3/{name}",
        f"statistics/{name}",
        f"dt=a/h=b/c=d/bucket-0/{name}",
    )
    assert _remove(table, depth=2) == inside


def test_marks_of_partitions_that_a_dead_owner_has_not_renamed_go() -> None:
    table = _table()
    name = f"._SUCCESS.{FIRST.unique_name()}.tmp"
    left = _leave(table, name, f"dt=2026-01-01/h=7/{name}", f"dt=2026-01-02/{name}")
    _leave(table, "dt=2026-01-01/h=7/_SUCCESS", "dt=2026-01-01/h=7/.of-a-writer.tmp")
    assert _remove(table, depth=2) == left


def test_discarding_a_change_spares_upgraded_files_and_those_of_others() -> None:
    table = _table()
    inputs = table.append(2)
    change = table.change(inputs, owner=FIRST)
    upgraded = replace(inputs[0], file_name=f"data-{FIRST.unique_name()}-0.parquet")
    foreign = table.new_file()
    change = replace(
        change,
        before=(upgraded, inputs[1]),
        upgraded=(replace(upgraded, level=5),),
        outputs=data_outputs(foreign, *change.after),
    )
    for file in (upgraded, foreign):
        table.storage.write_new(table.data_path(0, file), b"rows")
    remove_outputs(table.storage, f"{HOME}/bucket-0", change.outputs)
    there = [table.data_path(0, file) in table.storage.objects for file in change.after]
    assert there == [True, True, False]


def test_removing_files_goes_on_after_one_that_cannot_be_removed() -> None:
    table = _table()
    inputs = table.append(2)
    changes = [table.change(inputs, owner=FIRST) for _ in range(2)]
    storage = FaultyStorage(table.storage, Fault(at=1, error=StorageError))
    remove_outputs(storage, f"{HOME}/bucket-0", [change.outputs[0] for change in changes])
    there = [table.data_path(0, change.after[0]) in table.storage.objects for change in changes]
    assert there == [True, False]


def test_our_own_go_when_they_are_from_before_all_that_is_under_way() -> None:
    table = _table()
    table.storage.now_ms = NOW_MS - 2
    old = _leave(table, *_all_kinds(SECOND))
    table.storage.now_ms = NOW_MS - 1
    young = _leave(table, *_all_kinds(SECOND))
    assert _remove(table, own_before_ms=NOW_MS - 1) == old
    assert young <= set(table.storage.objects)


def test_an_extra_file_that_a_manifest_names_stays() -> None:
    table = _table()
    extra = f"data-{FIRST.unique_name()}-0.parquet.index"
    file = replace(table.new_file(), extra_files=(extra,))
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    kept = _leave(table, f"bucket-0/{extra}")
    left = _leave(table, *_all_kinds(FIRST))
    assert _remove(table) == left
    assert kept <= set(table.storage.objects)


def test_folders_that_are_no_partitions_are_not_searched() -> None:
    table = _table()
    name = f"data-{FIRST.unique_name()}-0.parquet"
    _leave(table, f"backup/bucket-0/{name}", f"dt=a/bucket-0/{name}/{name}")
    inside = _leave(table, f"dt=a/bucket-1/{name}")
    assert _remove(table, depth=1) == inside


class _ManyFiles(MemoryStorage):
    """A bucket of very many files that a dead process wrote, listed page by page."""

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        yield from super().list(folder)
        if folder.endswith("/bucket-0"):
            owner = FIRST.unique_name()
            for number in range(50_000):
                name = f"data-{owner}-{number}.parquet"
                yield ObjectStatus(name=name, is_folder=False, size_bytes=1, changed_ms=0)


def test_a_sweep_holds_no_object_for_each_file_of_the_table() -> None:
    """A day after a restart nearly every file of a table is one that a dead process wrote."""
    table = _table()
    _leave(table, "bucket-0/a file of a writer")
    snapshot = paths.snapshot_path(HOME, 1)
    storage = _ManyFiles({k: v for k, v in table.storage.objects.items() if k != snapshot})
    tracemalloc.start()
    try:
        assert _remove(table, storage) == set()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000 * 60


def test_of_many_old_files_those_go_that_nothing_names() -> None:
    table = Deletions(APPENDED)
    left = _leave(table, *(f"bucket-0/data-{FIRST.unique_name()}-{n}.parquet" for n in range(500)))
    published = {
        output.file.file_name
        for _ in range(20)
        for change in _published(table).published
        for output in change.outputs
    }
    assert len(published) == 20
    table.storage.now_ms = 0
    for path in [*table.storage.objects]:
        table.storage.changed_ms[path] = 0
    assert left <= (removed := _remove(table))
    assert not published & {path.rsplit("/", 1)[1] for path in removed}


class _TogetherAlone(MemoryStorage):
    """Lists folders of partitions and buckets only where several are asked for at once."""

    together = threading.Barrier(AT_ONCE)

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        if "/dt=" in folder:
            self.together.wait(60)
        return super().list(folder)


def test_folders_are_listed_several_at_once_where_each_is_a_request() -> None:
    names = {f"{HOME}/dt={number}/bucket-0/data-{number}" for number in range(2 * AT_ONCE)}
    listing = FileListing(
        _TogetherAlone(dict.fromkeys(names, b"")), TableFolders(location=HOME, partition_depth=1)
    )
    assert {f"{folder}/{status.name}" for folder, status in listing.files()} == names
