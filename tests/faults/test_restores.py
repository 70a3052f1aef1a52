"""A table is restored folder by folder, and expiry is tried after each: no tag loses anything."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.config.model import Recovery
from compactord.errors import CompactordError
from compactord.maintenance.copied_files import CheckedFiles, CopyWatch
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import parse_snapshot, read_tags, snapshot_ids, snapshot_json
from compactord.storage.base import NO_TIME_MS, Storage
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.builders import (
    DAY_MS,
    NOW_MS,
    SECOND,
    VirtualClock,
    fill_keyed,
    keyed_table,
    writer,
)
from tests.lineage import TABLE, Lineage
from tests.rounds import Expired, expire_changelogs, expire_snapshots, expire_tags
from tests.storages import MemoryStorage
from tests.unit.maintenance.expiring import (
    HOME,
    check,
    make_tag,
    snapshot_of,
    snapshots_of,
    some_table,
    with_data,
)
from tests.unit.table.compacting import ALL, compactor_of

FOLDERS = ("snapshot", "schema", "tag", "manifest", "bucket-0", "branch")
BRANCH = paths.branch_root(HOME, "b")
RETAINED = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "0 ms"}
_HOUR_MS = 3_600_000


def _table() -> Lineage:
    """Five snapshots; tags on the second and, in a branch of the fourth, on the third."""
    table = some_table()
    make_tag(table, snapshot_of(table, 2))
    make_tag(table, snapshot_of(table, 3), "of-branch", BRANCH)
    copied = table.storage.read(paths.snapshot_path(HOME, 4))
    table.storage.write_new(paths.snapshot_path(BRANCH, 4), copied)
    schema = table.storage.read(paths.schema_path(HOME, 0))
    table.storage.write_new(paths.schema_path(BRANCH, 0), schema)
    return table


def _attempt(storage: Storage, ref: TableRef, now_ms: int, watch: CopyWatch) -> None:
    """All kinds of expiry, each as far as it comes."""
    tries: list[Callable[[], object]] = []
    try:
        opened = open_table(table_in_folder(storage, ref), RETAINED)
    except CompactordError:
        return
    options = opened.options.expire
    tries = [
        lambda: expire_snapshots(opened, options, now_ms=now_ms, keep_from=None, copies=watch),
        lambda: expire_tags(opened, now_ms, watch),
        lambda: expire_changelogs(opened, now_ms, watch),
    ]
    for each in tries:
        try:
            each()
        except CompactordError:
            continue


# What may be there at a moment of a restore. Where expiry changes nothing at any of them, folders
# may come in any order.
MOMENTS = [
    set(folders)
    for count in range(len(FOLDERS) + 1)
    for folders in itertools.combinations(FOLDERS, count)
]


@pytest.mark.parametrize("branch", [paths.MAIN_BRANCH, "b"])
def test_in_whatever_order_folders_come_to_a_store_nothing_goes(branch: str) -> None:
    source = _table()
    ref = TableRef(database="db", name="t", location=HOME, branch=branch)
    restored_ms = NOW_MS + 30 * DAY_MS
    for there in MOMENTS:
        table = source.fork()
        table.storage.objects = {
            path: data
            for path, data in table.storage.objects.items()
            if path.removeprefix(f"{HOME}/").partition("/")[0] in there
        }
        table.storage.changed_ms = dict.fromkeys(table.storage.objects, restored_ms)
        before = dict(table.storage.objects)
        _attempt(table.storage, ref, restored_ms + _HOUR_MS, CopyWatch(DAY_MS))
        assert table.storage.objects == before, there
    assert there == set(FOLDERS)
    # Once the last copy is older than the grace.
    _attempt(table.storage, ref, restored_ms + DAY_MS + 1, CopyWatch(DAY_MS))
    assert set(read_tags(table.storage, HOME)) == {"v1"}
    check(table)
    ids = snapshot_ids(table.storage, HOME)
    assert ids == ((5,) if branch == paths.MAIN_BRANCH else (1, 2, 3, 4, 5))


@pytest.mark.parametrize("keeps_times", [False, True])
def test_in_whatever_order_folders_come_to_a_disk_nothing_goes(
    tmp_path: Path, keeps_times: bool
) -> None:
    source, local = tmp_path / "source", LocalStorage()
    for path, data in _table().storage.objects.items():
        name = f"{source}{path.removeprefix(HOME)}"
        local.write_new(name, data)
        os.utime(name, (NOW_MS / 1000, NOW_MS / 1000))
    copy = shutil.copy2 if keeps_times else shutil.copy
    for number, there in enumerate(MOMENTS):
        home = tmp_path / str(number)
        home.mkdir()
        for folder in there:
            shutil.copytree(source / folder, home / folder, copy_function=copy)
        before = _files(home)
        now_ms = int(os.stat(home).st_ctime * 1000) + _HOUR_MS
        ref = TableRef(database="db", name="t", location=str(home))
        _attempt(local, ref, now_ms, CopyWatch(DAY_MS))
        assert _files(home) == before, there
    _attempt(local, ref, now_ms + DAY_MS, CopyWatch(DAY_MS))
    assert _files(home) != before


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def _expired(table: Lineage, now_ms: int, watch: CopyWatch | None = None) -> Expired:
    opened = open_table(table_in_folder(table.storage, TABLE), RETAINED)
    watch = watch or CopyWatch(DAY_MS)
    return expire_snapshots(
        opened, opened.options.expire, now_ms=now_ms, keep_from=None, copies=watch
    )


def _now(table: Lineage) -> int:
    """Ten hours after the last snapshot, within the grace."""
    return table.state().snapshot.time_ms + 10 * _HOUR_MS  # type: ignore[union-attr]


def _written_in_time(table: Lineage) -> Lineage:
    """Snapshots changed when they were written, all else long ago."""
    for each in snapshots_of(table):
        table.storage.changed_ms[paths.snapshot_path(HOME, each.id)] = each.time_ms + 1000
    return table


def _copied(table: Lineage, source: str, path: str) -> None:
    table.storage.now_ms = _now(table)
    table.storage.overwrite(path, table.storage.read(source))


def _tag(table: Lineage) -> None:
    """Java's create_tag without a time to live writes no moment of its own."""
    table.storage.now_ms = _now(table)
    make_tag(table, snapshot_of(table, 2), "late")


def _branch_of_a_tag(table: Lineage) -> None:
    """As BranchManager.createBranch copies a tag, its snapshot and schemas."""
    make_tag(table, snapshot_of(table, 2))
    table.storage.changed_ms[paths.tag_path(HOME, "v1")] = snapshot_of(table, 2).time_ms
    _copied(table, paths.tag_path(HOME, "v1"), paths.tag_path(BRANCH, "v1"))
    _copied(table, paths.tag_path(HOME, "v1"), paths.snapshot_path(BRANCH, 2))
    _copied(table, paths.schema_path(HOME, 0), paths.schema_path(BRANCH, 0))


def _fast_forward(table: Lineage) -> None:
    """As BranchManager.fastForward: main's newest are those of a branch, copied."""
    for id_ in (4, 5):
        path = paths.snapshot_path(BRANCH, id_)
        table.storage.write_new(path, table.storage.read(paths.snapshot_path(HOME, id_)))
        table.storage.changed_ms[path] = snapshot_of(table, id_).time_ms
        _copied(table, path, paths.snapshot_path(HOME, id_))
    table.storage.write_new(
        paths.schema_path(BRANCH, 0), table.storage.read(paths.schema_path(HOME, 0))
    )
    table.storage.changed_ms[paths.schema_path(BRANCH, 0)] = NOW_MS - 30 * DAY_MS
    _copied(table, paths.schema_path(BRANCH, 0), paths.schema_path(HOME, 0))


def _rolled_back_to_a_tag(table: Lineage) -> None:
    make_tag(table, snapshot_of(table, 5))
    table.storage.changed_ms[paths.tag_path(HOME, "v1")] = snapshot_of(table, 5).time_ms
    _copied(table, paths.tag_path(HOME, "v1"), paths.snapshot_path(HOME, 5))


def _without_times(table: Lineage) -> None:
    for path in table.storage.objects:
        table.storage.changed_ms[path] = NO_TIME_MS


@pytest.mark.parametrize(
    "act", [_tag, _branch_of_a_tag, _fast_forward, _rolled_back_to_a_tag, _without_times]
)
def test_what_java_copies_within_a_table_is_no_restore(act: Callable[[Lineage], None]) -> None:
    table = _written_in_time(some_table())
    act(table)
    done = _expired(table, _now(table))
    assert (done.why_not, done.snapshots) == (None, 4)
    check(table)


@pytest.mark.parametrize(
    "path",
    [
        paths.snapshot_path(HOME, 1),
        paths.schema_path(HOME, 0),
        paths.tag_path(HOME, "v1"),
        paths.snapshot_path(BRANCH, 1),
        paths.tag_path(BRANCH, "v1"),
        paths.schema_path(BRANCH, 0),
    ],
)
def test_one_copy_is_enough_for_a_day(path: str) -> None:
    table = _written_in_time(some_table())
    if path not in table.storage.objects:
        table.storage.write_new(path, table.storage.read(_like(path)))
    if path != _like(path) or "schema" in path:
        # Nothing else has that version.
        other = snapshot_json(replace(snapshot_of(table, 1), uuid="another"))
        if "schema" in path:
            other = table.storage.read(path).replace(b'"timeMillis"', b'"timeMillis": 1, "other"')
        table.storage.overwrite(path, other)
    now_ms = _now(table)
    table.storage.changed_ms[path] = now_ms - _HOUR_MS
    before = dict(table.storage.objects)
    done = _expired(table, now_ms)
    assert f"{path} changed later" in str(done.why_not)
    assert table.storage.objects == before
    done = _expired(table, now_ms + DAY_MS)
    assert (done.why_not, done.snapshots) == (None, 4)


def _like(path: str) -> str:
    return paths.schema_path(HOME, 0) if "schema" in path else paths.snapshot_path(HOME, 1)


def test_what_was_found_out_is_not_read_again_and_outlives_the_snapshot_of_a_tag() -> None:
    """A tag of a snapshot that has expired since looks like the copy of another table's."""
    table = _written_in_time(some_table())
    _tag(table)
    watch = CopyWatch(DAY_MS, CheckedFiles())
    assert _expired(table, _now(table), watch).snapshots == 4
    table.append(1)
    with_data(table)
    newest = snapshots_of(table)[-1]
    table.storage.changed_ms[paths.snapshot_path(HOME, newest.id)] = newest.time_ms
    now_ms = table.storage.now_ms + _HOUR_MS
    assert "changed later" in str(_expired(table, now_ms).why_not)
    assert _expired(table, now_ms, watch).snapshots == 1
    check(table)


def test_every_kind_that_deletes_files_of_a_table_waits_as_configured() -> None:
    """And a sweep does, of a tag alone."""
    grace_ms = 7 * DAY_MS
    kinds = {
        kind.name: kind
        for kind in maintenance_kinds(Recovery().model_copy(update={"orphan_grace_ms": grace_ms}))
    }
    waiting = {name for name, kind in kinds.items() if getattr(kind, "grace_ms", 0) == grace_ms}
    assert waiting == {
        *("sweep", "foreign", "create_tags", "tags", "consumers", "partitions"),
        *("expire", "changelogs"),
    }
    storage = MemoryStorage()
    table = keyed_table(storage, "/wh/db.db/t", options=RETAINED)
    fill_keyed(writer(storage, table), commits=3)
    storage.write_new(f"{table.location}/bucket-0/data-{SECOND.unique_name()}-0.parquet", b"x")
    storage.now_ms = now_ms = NOW_MS + 30 * DAY_MS
    data = storage.read(paths.snapshot_path(table.location, 1))
    snapshot = parse_snapshot(data, "")
    lost = snapshot_json(replace(snapshot, uuid="lost"))
    storage.write_new(paths.tag_path(table.location, "old"), lost)
    compactor = compactor_of(storage, table, clock=VirtualClock(now_ms))
    compactor.cycle((), ALL)
    before = dict(storage.objects)
    for name in ("sweep", "expire", "changelogs", "tags"):
        kind = kinds[name]
        kind.ended(kind.run(compactor, None), 0)
        assert storage.objects == before, name
    expired = kinds["expire"].run(compactor, None)
    assert "tag-old changed later" in str(expired.why_not)
    storage.changed_ms[paths.tag_path(table.location, "old")] = now_ms - grace_ms
    assert kinds["expire"].run(compactor, None).items == [1, 2]
    assert len(kinds["sweep"].run(compactor, None).orphans) == 1
