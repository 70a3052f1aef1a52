"""Files of others go if they are old and nothing names them; when in doubt nothing goes."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from compactord.errors import (
    CompactordError,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsupportedTable,
)
from compactord.ids import Liveness
from compactord.maintenance.orphan_search import OrphanSearch, OwnerRule, TableFolders, outer_table
from compactord.maintenance.orphans import remove_found
from compactord.maintenance.used_names import Incomplete
from compactord.paimon import paths
from compactord.paimon.manifest.foreign import ForeignValue
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    read_snapshot,
    snapshot_ids,
    snapshot_json,
)
from compactord.storage.base import Storage, UnfinishedUpload
from compactord.storage.calls import AT_ONCE
from tests.builders import DAY_MS, FIRST, NOW_MS, SECOND
from tests.deletions import Deletions
from tests.storages import (
    Call,
    Fault,
    FaultyStorage,
    HookedStorage,
    LateListings,
    MemoryStorage,
)
from tests.unit.maintenance.left_files import (
    HOME,
    KEPT,
    LEFT,
    OLD_MS,
    UUID,
    as_tag,
    committed,
    leave,
    old_table,
)

FOLDERS = TableFolders(location=HOME, partition_depth=0, of_others=True)
RULE = OwnerRule(
    myself=SECOND,
    liveness=lambda owner: Liveness.DEAD if owner == FIRST else Liveness.ALIVE,
    now_ms=NOW_MS,
    grace_ms=DAY_MS,
    others_grace_ms=DAY_MS,
)


def _search(storage: Storage, **rule: object) -> OrphanSearch:
    return OrphanSearch(storage, FOLDERS, replace(RULE, **rule))  # type: ignore[arg-type]


def _remove(storage: Storage, *, trash: str | None = None, **rule: object) -> set[str]:
    search = _search(storage, **rule)
    removed = remove_found(storage, FOLDERS, search, search.find(), trash=trash)
    return {orphan.path for orphan in removed}


def test_what_nothing_names_goes_whoever_left_it_and_nothing_else() -> None:
    table = old_table()
    used = set(table.storage.objects)
    kept, left = leave(table, KEPT), leave(table, LEFT)
    young = leave(table, [f"{name}.young" for name in LEFT[:-1]], at_ms=OLD_MS + 1)
    found = _search(table.storage).find()
    assert {orphan.path for orphan in found} == left
    assert all(orphan.size_bytes == 1 for orphan in found)
    assert set(table.storage.objects) == used | kept | young | left
    assert _remove(table.storage) == left
    assert set(table.storage.objects) == used | kept | young
    assert _remove(table.storage) == set()


def test_uploads_of_others_go_from_folders_of_the_table_alone() -> None:
    table = old_table()
    cases = {
        "bucket-0/data-1": (OLD_MS, True),
        "manifest/manifest-1": (OLD_MS, True),
        "bucket-0/data-2": (OLD_MS + 1, False),
        "inner/bucket-0/data-1": (OLD_MS, False),
        "dt=1/bucket-0/data-1": (OLD_MS, False),
        f"inner/bucket-0/data-{FIRST.unique_name()}-0.parquet": (OLD_MS, True),
    }
    for name, (started_ms, _) in cases.items():
        upload = UnfinishedUpload(path=f"{HOME}/{name}", upload_id=name, started_ms=started_ms)
        table.storage.uploads.append(upload)
    removed = _remove(table.storage)
    assert removed == {f"{HOME}/{name}" for name, (_, goes) in cases.items() if goes}
    left = {upload.upload_id for upload in table.storage.uploads}
    assert left == {name for name, (_, goes) in cases.items() if not goes}


@pytest.mark.parametrize("version", ["tag/tag-v1", "branch/branch-dev", "changelog/changelog-2"])
def test_files_go_once_the_version_is_gone_that_named_them(version: str) -> None:
    table = old_table()
    for path in [path for path in table.storage.objects if path.startswith(f"{HOME}/{version}")]:
        table.storage.delete(path)
    removed = _remove(table.storage)
    folders = sorted(path.removeprefix(f"{HOME}/").split("/")[0] for path in removed)
    assert folders == ["bucket-0"] * 3 + ["index"] + ["manifest"] * 7 + ["statistics"]


def _branch_without_schema(table: Deletions) -> None:
    table.storage.delete(paths.schema_path(paths.branch_root(HOME, "dev"), 0))


def _damaged_tag(table: Deletions) -> None:
    table.storage.overwrite(paths.tag_path(HOME, "v1"), b"{")


def _index_of_unknown_kind(table: Deletions) -> None:
    table.write_index_manifest("index-manifest-x", ["index-x"], "lumina")
    table._foreign([], CommitKind.APPEND, index_manifest="index-manifest-x")


def _manifest_gone(table: Deletions) -> None:
    snapshot = table.state().snapshot
    assert snapshot is not None
    table.storage.delete(paths.manifest_path(HOME, snapshot.delta_manifest_list))


def _restored(table: Deletions) -> None:
    table.storage.delete(paths.latest_hint(HOME))


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (_branch_without_schema, FormatError),
        (_damaged_tag, FormatError),
        (_index_of_unknown_kind, UnsupportedTable),
        (_manifest_gone, StorageError),
        (_restored, Incomplete),
    ],
)
def test_nothing_goes_from_a_table_of_which_something_is_not_known(
    harm: Callable[[Deletions], None], error: type[Exception]
) -> None:
    table = old_table()
    left = leave(table, LEFT)
    harm(table)
    before = dict(table.storage.objects)
    with pytest.raises(error):
        _remove(table.storage)
    assert table.storage.objects == before
    assert left <= set(before)


@pytest.mark.parametrize("trash", [None, "/trash"])
def test_a_fault_at_any_call_costs_no_file_that_is_used_and_the_next_sweep_goes_on(
    trash: str | None,
) -> None:
    whole = old_table([as_tag])
    kept = dict(whole.storage.objects)
    left = leave(whole, LEFT[:2])

    def concerns(call: Call) -> bool:
        return trash is None or call.is_mutation

    for at in itertools.count(1):
        storage = whole.storage.copy()
        faulty = FaultyStorage(
            storage, Fault(at=at, error=TransientStorageError, concerns=concerns)
        )
        with contextlib.suppress(StorageError):
            _remove(faulty, trash=trash)
        assert kept.items() <= storage.objects.items(), faulty.failed
        _remove(storage, trash=trash)
        assert not left & set(storage.objects)
        assert set(storage.objects) - set(kept) == set(_copies(storage))
        assert {*_copies(storage).values()} == (set() if trash is None else {b"x"})
        _assert_whole(storage, left if trash else set(), faulty.failed)
        if not faulty.failed:
            break
    assert at > (4 if trash else 20)


def _copies(storage: MemoryStorage) -> dict[str, bytes]:
    return {path: data for path, data in storage.objects.items() if path.startswith("/trash/")}


def _assert_whole(storage: MemoryStorage, left: set[str], what: object) -> None:
    """Each file is where it was, or has a whole copy in the folder of a sweep."""
    moved = {path.split("/", 3)[3] for path, data in _copies(storage).items() if data == b"x"}
    for path in left:
        assert path in storage.objects or path.removeprefix(f"{HOME}/") in moved, (path, what)


def test_two_that_move_the_same_file_at_once_lose_no_copy_of_it() -> None:
    """Whichever of them is killed, and when: at each moment there is one."""
    whole = old_table()
    used = dict(whole.storage.objects)
    left = leave(whole, LEFT[:2])
    for at in itertools.count(1):
        storage, seen = whole.storage.copy(), list[str]()

        def is_whole(call: Call, storage: MemoryStorage = storage) -> None:
            _assert_whole(storage, left, call)

        def other_moves(
            call: Call,
            at: int = at,
            storage: MemoryStorage = storage,
            seen: list[str] = seen,
            is_whole: Callable[[Call], None] = is_whole,
        ) -> None:
            if call.method in ("read_range", "delete", "open_output"):
                seen.append(call.method)
                if len(seen) == at:
                    _remove(HookedStorage(storage, after=is_whole), trash="/trash")

        watched = HookedStorage(storage, before=other_moves, after=is_whole)
        with contextlib.suppress(StorageError):
            _remove(watched, trash="/trash")
        assert storage.objects == used | _copies(storage), (at, seen)
        if len(seen) < at:
            break
    assert at > 4


def test_a_copy_whose_sync_fails_is_relied_upon_by_nobody() -> None:
    """A disk removes it again, which another sweep may have found whole."""
    table = old_table()
    storage, left, failed = table.storage, leave(table, LEFT[:2]), list[str]()

    def sync(call: Call) -> None:
        if call.method == "close_output" and not failed:
            failed.append(call.path)
            _remove(storage, trash="/trash")
            storage.delete(call.path)
            raise TransientStorageError(call.path, "sync failed")

    with pytest.raises(StorageError):
        _remove(HookedStorage(storage, after=sync), trash="/trash")
    assert failed
    assert failed[0] not in storage.objects
    _assert_whole(storage, left, failed)


def _killed(storage: MemoryStorage) -> list[MemoryStorage]:
    """What a sweep leaves that is killed after one of the calls by which it changes something."""
    found: list[MemoryStorage] = []

    def see(call: Call) -> None:
        if call.is_mutation:
            found.append(running.copy())

    running = storage.copy()
    _remove(HookedStorage(running, after=see), trash="/trash")
    return found


def test_sweeps_that_are_killed_one_after_the_other_keep_a_whole_copy() -> None:
    whole = old_table()
    used = set(whole.storage.objects)
    left = leave(whole, LEFT[:2])
    twice = [second for first in _killed(whole.storage) for second in _killed(first)]
    for storage in twice:
        _assert_whole(storage, left, "killed")
        _remove(storage, trash="/trash")
        assert set(storage.objects) == used | set(_copies(storage))
        _assert_whole(storage, left, "ended")
    assert any(len(_copies(storage)) > len(left) for storage in twice)


def test_what_went_before_a_deletion_failed_is_logged() -> None:
    table = old_table()
    left = leave(table, [f"bucket-0/{number}" for number in range(100)])
    fault = Fault(at=30, error=TransientStorageError, concerns=lambda call: call.method == "delete")
    with capture_logs() as logs, pytest.raises(TransientStorageError):
        _remove(FaultyStorage(table.storage, fault))
    gone = len(left - set(table.storage.objects))
    assert 29 <= gone < 30 + AT_ONCE
    assert [(log["event"], log["files"]) for log in logs] == [("foreign_files_removed", gone)]


def test_one_wrong_answer_costs_no_file_that_is_used() -> None:
    """One request is answered wrongly: no such object."""
    whole = old_table()
    kept = set(whole.storage.objects)
    left = leave(whole, LEFT[:2])
    for at in itertools.count(1):
        storage = whole.storage.copy()
        fault = Fault(at=at, error=ObjectNotFound, concerns=lambda call: call.method == "read")
        faulty = FaultyStorage(storage, fault)
        with contextlib.suppress(StorageError, Incomplete):
            assert _remove(faulty) <= left
        assert kept <= set(storage.objects), faulty.failed
        if not faulty.failed:
            break
    assert at > 10


@pytest.mark.parametrize(
    ("location", "outer"),
    [
        ("/w/t", None),
        ("/w/o/k=1", "/w/o"),
        ("/w/o/j=2/k=1", "/w/o"),
        ("/w/o/j=2/t", None),
        ("/w/x=1/k=2", None),
    ],
)
def test_a_table_in_a_partition_folder_of_another_is_not_swept(
    location: str, outer: str | None
) -> None:
    left = {f"{location}/{name}": b"" for name in LEFT[:3]}
    storage = MemoryStorage({"/w/o/schema/schema-0": b"{}", **left})
    assert outer_table(storage, location) == outer
    if outer is not None:
        with pytest.raises(Incomplete, match=f"a partition folder of the table at {outer}$"):
            OrphanSearch(storage, replace(FOLDERS, location=location), RULE).find()


def _appears_as(kind: str, table: Deletions, name: str) -> int:
    """A version that names this file, made of what a job had left; the id of its snapshot."""
    file = replace(table.new_file(), file_name=name)
    snapshot = table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    if kind == "snapshot":
        return snapshot.id
    table.roll_back(snapshot.id - 1)
    if kind == "tag":
        table.storage.write_new(paths.tag_path(HOME, "late"), snapshot_json(snapshot))
    else:
        root = paths.branch_root(HOME, "late")
        table.storage.write_new(paths.schema_path(root, 0), b"{}")
        table.storage.write_new(paths.snapshot_path(root, snapshot.id), snapshot_json(snapshot))
        table.storage.write_new(paths.latest_hint(root), str(snapshot.id).encode())
    return snapshot.id


@pytest.mark.parametrize(("kind", "branch"), [("snapshot", "main"), ("branch", "late")])
def test_a_store_that_lists_late_costs_no_file_that_a_new_snapshot_names(
    kind: str, branch: str
) -> None:
    table = old_table()
    left = leave(table, LEFT[:3])
    newest = _appears_as(kind, table, LEFT[0].rpartition("/")[2])
    before = dict(table.storage.objects)
    unlisted = {paths.snapshot_path(paths.branch_root(HOME, branch), newest)}
    with pytest.raises(Incomplete, match=f"LATEST names snapshot {newest}, which is missing"):
        _remove(LateListings(table.storage, unlisted))
    assert table.storage.objects == before
    assert _remove(table.storage) == left - {f"{HOME}/{LEFT[0]}"}


@pytest.mark.parametrize("when", ["read", "found"])
@pytest.mark.parametrize("kind", ["snapshot", "tag", "branch"])
def test_a_version_that_appears_before_the_deletion_keeps_what_it_names(
    kind: str, when: str
) -> None:
    table = old_table()
    left = leave(table, LEFT[:3])
    name = LEFT[0].rpartition("/")[2]
    done = []

    def appear(call: Call) -> None:
        if call.path == paths.tag_folder(HOME) and not done:
            done.append(kind)
            _appears_as(kind, table, name)

    if when == "read":
        removed = _remove(HookedStorage(table.storage, after=appear))
    else:
        search = _search(table.storage)
        found = search.find()
        _appears_as(kind, table, name)
        removed = {orphan.path for orphan in remove_found(table.storage, FOLDERS, search, found)}
    assert removed == left - {f"{HOME}/{LEFT[0]}"}


def _damaged_new_tag(table: Deletions) -> None:
    table.storage.write_new(paths.tag_path(HOME, "v2"), b"{")


@pytest.mark.parametrize("harm", [_damaged_new_tag, _branch_without_schema, _restored])
def test_deletion_ends_once_something_is_not_known_any_more(
    harm: Callable[[Deletions], None],
) -> None:
    table = old_table()
    leave(table, LEFT)
    search = _search(table.storage)
    found = search.find()
    harm(table)
    with pytest.raises(CompactordError):
        remove_found(table.storage, FOLDERS, search, found)
    assert {orphan.path for orphan in found} <= set(table.storage.objects)


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_earliest_snapshots_expire_while_all_are_read(at_once: int) -> None:
    """As apache/paimon#7710: when a snapshot is read, the first ones go, and a new one comes."""
    table = old_table()
    for _ in range(8):
        committed(table)
    left, times = leave(table, LEFT), 0

    def expire(call: Call) -> None:
        nonlocal times
        if call.method == "read" and "/snapshot/snapshot-" in call.path and times < 4:
            times += 1
            committed(table)
            for snapshot_id in snapshot_ids(table.storage, HOME)[:at_once]:
                table.storage.delete(paths.snapshot_path(HOME, snapshot_id))

    removed = _remove(HookedStorage(table.storage, before=expire))
    assert times == 4
    newest = snapshot_ids(table.storage, HOME)[-1]
    assert removed >= left
    _require_files(table, read_snapshot(table.storage, HOME, newest))


def _require_files(table: Deletions, snapshot: Snapshot) -> None:
    """All files of what `_committed` made are there."""
    state = table.state()
    assert state.snapshot == snapshot
    for bucket in state.files.bucket_ids():
        for file in state.files.files_in(bucket):
            if file.extra_files:
                assert table.data_path(0, file) in table.storage.objects
                assert table.data_path(0, file) + ".index" in table.storage.objects
    assert paths.statistics_path(HOME, str(snapshot.statistics)) in table.storage.objects


def test_many_files_are_deleted_with_looks_at_the_table_in_between() -> None:
    table = old_table()
    left = leave(table, [f"bucket-0/data-{UUID}-{number}.parquet" for number in range(1200)])
    search = _search(table.storage)
    found = search.find()
    spared: set[str] = set()

    def appear(call: Call) -> None:
        if call.method == "delete" and not spared:
            last = found[-1]
            spared.add(last.path)
            _appears_as("tag", table, last.name)

    storage = HookedStorage(table.storage, after=appear)
    search._storage = storage
    removed = {orphan.path for orphan in remove_found(storage, FOLDERS, search, found)}
    assert removed == left - spared


def test_a_stop_ends_it_after_the_files_that_are_going() -> None:
    table = old_table()
    left = leave(table, LEFT)
    search = _search(table.storage)
    found = search.find()

    def is_stopped() -> bool:
        return not left <= set(table.storage.objects)

    gone = remove_found(table.storage, FOLDERS, search, found, is_stopped=is_stopped)
    assert 1 <= len(gone) <= AT_ONCE
    assert not {orphan.path for orphan in gone} & set(table.storage.objects)
    assert len(_remove(table.storage)) == len(LEFT) - len(gone)


@pytest.mark.parametrize("place", ["list", "entry"])
@pytest.mark.parametrize("name", ["_NEW_FILES", "known"])
def test_values_in_columns_of_newer_releases_may_name_files(place: str, name: str) -> None:
    table = old_table()
    left = leave(table, LEFT)
    known = {"list": "_TOTAL_BUCKETS", "entry": "_WRITE_COLS_SEQUENCES"}[place]
    column = known if name == "known" else name
    column = column if place == "list" else f"_FILE.{column}"
    value = ForeignValue(column, '["null","string"]', b"\x02\x02x")
    file = table.new_file()
    entry = table._entry(replace(file, foreign=(value,)) if place == "entry" else file, 0)
    manifests = table.history.write_manifests([entry])
    if place == "list":
        manifests = tuple(replace(each, foreign=(value,)) for each in manifests)
    list_name, size = table.history._write_list(manifests)
    table._foreign(
        [], CommitKind.APPEND, changelog_manifest_list=list_name, changelog_manifest_list_size=size
    )
    if name == "known":
        assert _remove(table.storage) == left
    else:
        with pytest.raises(UnsupportedTable, match="columns that are not known"):
            _remove(table.storage)
        assert left <= set(table.storage.objects)


def test_a_file_that_a_snapshot_names_under_an_unknown_key_stays() -> None:
    table = old_table()
    left = leave(table, LEFT)
    path = paths.tag_path(HOME, "v1")
    tag = json.loads(table.storage.read(path))
    name = LEFT[0].rpartition("/")[2]
    table.storage.overwrite(path, json.dumps({**tag, "newFile": name}).encode())
    assert _remove(table.storage) == left - {f"{HOME}/{LEFT[0]}"}
