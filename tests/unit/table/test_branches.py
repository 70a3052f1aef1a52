"""A branch is compacted, expired and swept beside its table; neither loses files of the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import TableNotFound
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_snapshot, snapshot_ids
from compactord.plan.table import Strategy
from compactord.state.loading import load_live_files
from compactord.state.table_state import TableState, data_manifests, load_state
from compactord.storage.base import Storage
from compactord.table.opening import describe_table, open_table
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from compactord.verify.verify import Wanted, verify_table
from tests import builders
from tests.builders import DAY_MS, FIRST, NOW_MS, SECOND, VirtualClock
from tests.rounds import Expired, expire_snapshots
from tests.storages import MemoryStorage

HOME = "/w/db.db/t"
NEWEST_ONLY = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "0 ms"}
LATER_MS = NOW_MS + 2 * DAY_MS


def _expire(storage: Storage, table: TableRef) -> Expired:
    opened = open_table(table_in_folder(storage, table), NEWEST_ONLY)
    return expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=None)


def _table(storage: Storage) -> tuple[TableRef, TableRef]:
    """Four commits, a branch from the second, then a compaction and a commit on both sides."""
    main = builders.keyed_table(storage, HOME, buckets=1)
    builders.fill_keyed(builders.writer(storage, main), commits=4, keys=12)
    branch = builders.make_branch(storage, main, "b", 2)
    for each in (branch, main):
        builders.compact(storage, each, strategy=Strategy.FULL)
        builders.writer(storage, each).write(builders.rows_of([(100, 1)]))
    return main, branch


def _state_at(storage: Storage, table: TableRef, snapshot_id: int) -> TableState:
    snapshot = read_snapshot(storage, table.root, snapshot_id)
    manifests = data_manifests(storage, table.location, snapshot)
    files = load_live_files(storage, table.location, manifests)
    return TableState(table=table, snapshot=snapshot, files=files)


def _whole(storage: Storage, table: TableRef) -> None:
    wanted = Wanted(is_all=True)
    found = verify_table(
        storage, table, wanted, "no footers", progress=lambda _: None, pause=lambda: None
    )
    assert found.findings == ()


def test_a_branch_is_compacted_by_itself() -> None:
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME, buckets=1)
    builders.fill_keyed(builders.writer(storage, main), commits=4, keys=12)
    branch = builders.make_branch(storage, main, "b", 2)
    rows, before = builders.read_keyed(storage, branch), snapshot_ids(storage, main.root)
    assert rows != builders.read_keyed(storage, main)
    totals = builders.compact(storage, branch, strategy=Strategy.FULL)
    assert totals.snapshots == [3]
    assert snapshot_ids(storage, branch.root) == (2, 3)
    assert storage.read(paths.latest_hint(branch.root)) == b"3"
    assert snapshot_ids(storage, main.root) == before
    assert builders.read_keyed(storage, branch) == rows
    written = read_snapshot(storage, branch.root, 3)
    names = (written.base_manifest_list, written.delta_manifest_list)
    assert all(storage.status(paths.manifest_path(HOME, name)) for name in names)
    # Of the branch there is nothing but metadata that is its own.
    own = {path.split("/")[6] for path in storage.objects if path.startswith(f"{branch.root}/")}
    assert own == {"schema", "snapshot", "tag"}
    _whole(storage, branch)


def test_an_empty_branch_has_nothing_to_do_until_it_is_written() -> None:
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME, buckets=1)
    builders.fill_keyed(builders.writer(storage, main), commits=2, keys=12)
    branch = builders.make_branch(storage, main, "b")
    assert builders.compact(storage, branch).snapshots == []
    rows = builders.fill_keyed(builders.writer(storage, branch), commits=6, keys=12)
    assert builders.compact(storage, branch).snapshots
    assert builders.read_keyed(storage, branch) == rows
    assert load_state(storage, main).snapshot == read_snapshot(storage, main.root, 2)


def test_the_place_decides_which_branch_a_schema_is_of() -> None:
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME)
    branch = builders.make_branch(storage, main, "b")
    for ref, refusals in ((main, 1), (branch, 0)):
        access = table_in_folder(storage, ref)
        schema = access.newest_schema()
        found = describe_table(
            access, replace(schema, options={**schema.options, "branch": "b"}), {}
        )
        assert len(found.refusals) == refusals, ref
        assert all("db.t$branch_NAME" in reason for reason in found.refusals)


@pytest.mark.parametrize("order", ["main", "branch", "branch, main", "main, branch"])
def test_neither_loses_files_to_the_expiry_of_the_other(order: str) -> None:
    storage = MemoryStorage()
    main, branch = _table(storage)
    refs = {"main": main, "branch": branch}
    rows = {name: builders.read_keyed(storage, ref) for name, ref in refs.items()}
    for name in order.split(", "):
        done = _expire(storage, refs[name])
        assert done.snapshots > 0
        assert len(snapshot_ids(storage, refs[name].root)) == 1
        assert {name: builders.read_keyed(storage, ref) for name, ref in refs.items()} == rows
        _whole(storage, main)


@pytest.mark.parametrize("expired", ["main", "branch"])
def test_files_of_an_other_side_are_kept_without_its_tags(expired: str) -> None:
    """Java 2.1 loses them once the tag is gone (apache/paimon#10883)."""
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME, buckets=1)
    builders.fill_keyed(builders.writer(storage, main), commits=4, keys=12)
    branch = builders.make_branch(storage, main, "b", 4)
    for ref in (main, branch):
        storage.delete(paths.tag_path(ref.root, "v4"))
    target, other = (main, branch) if expired == "main" else (branch, main)
    rows = builders.read_keyed(storage, other)
    builders.compact(storage, target, strategy=Strategy.FULL)
    assert _expire(storage, target).snapshots > 0
    assert builders.read_keyed(storage, other) == rows
    _whole(storage, main)


def test_what_both_have_deleted_goes_with_the_last_snapshot_that_has_it() -> None:
    storage = MemoryStorage()
    main, branch = _table(storage)
    for ref in (main, branch):
        storage.delete(paths.tag_path(ref.root, "v2"))
    shared = set(builders.live_paths(storage, branch, _state_at(storage, branch, 2)))
    assert _expire(storage, main).data_files > 0
    assert shared <= storage.objects.keys()
    _expire(storage, branch)
    assert not shared & storage.objects.keys()
    _whole(storage, main)


@pytest.mark.parametrize("what", ["no hint", "only the hint", "a new schema"])
def test_a_branch_is_not_expired_while_main_may_be_restored(what: str) -> None:
    storage = MemoryStorage()
    _, branch = _table(storage)
    hint = paths.latest_hint(HOME)
    for path in [path for path in storage.objects if path.startswith(paths.snapshot_folder(HOME))]:
        if (what == "no hint") == (path == hint) or what == "a new schema":
            storage.delete(path)
    if what == "a new schema":
        storage.changed_ms[paths.schema_path(HOME, 0)] = LATER_MS - DAY_MS // 2
    done = _expire(storage, branch)
    assert done.snapshots == 0
    assert done.why_not is not None
    assert "restore" in done.why_not


def test_a_branch_is_expired_beside_a_main_that_was_never_written() -> None:
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME, buckets=1)
    branch = builders.make_branch(storage, main, "b")
    rows = builders.fill_keyed(builders.writer(storage, branch), commits=4, keys=12)
    builders.compact(storage, branch, strategy=Strategy.FULL)
    assert _expire(storage, branch).data_files == 4
    assert builders.read_keyed(storage, branch) == rows


def test_a_branch_that_was_just_made_has_nothing_to_expire() -> None:
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME, buckets=1)
    builders.fill_keyed(builders.writer(storage, main), commits=4, keys=12)
    assert _expire(storage, builders.make_branch(storage, main, "b", 2)) == Expired()


def test_a_sweep_removes_what_dead_processes_left_for_a_branch() -> None:
    storage = MemoryStorage()
    main, branch = _table(storage)
    left = f"{paths.snapshot_folder(branch.root)}/.snapshot-9.{FIRST.unique_name()}.tmp"
    storage.write_new(left, b"half")
    before = set(storage.objects)
    rows = builders.read_keyed(storage, branch)
    builders.remove_leftovers(storage, main, myself=SECOND)
    assert before - set(storage.objects) == {left}
    assert builders.read_keyed(storage, branch) == rows


def test_a_branch_made_again_from_another_tag_has_lost_nothing() -> None:
    storage = MemoryStorage()
    main = builders.keyed_table(storage, HOME, buckets=1)
    builders.fill_keyed(builders.writer(storage, main), commits=8, keys=12)
    branch = builders.make_branch(storage, main, "b", 7)
    access = table_in_folder(storage, branch)
    followed = TableSession(access, CompactRequest(), clock=VirtualClock(), owner=FIRST)
    followed.refresh()
    for path in [path for path in storage.objects if path.startswith(f"{branch.root}/")]:
        storage.delete(path)
    with pytest.raises(TableNotFound, match="branch-b has no schema"):
        followed.refresh()
    storage.now_ms = NOW_MS
    builders.make_branch(storage, main, "b", 3)
    assert followed.refresh()
    assert followed.state.snapshot == read_snapshot(storage, main.root, 3)
    assert (followed.take_lost(), followed.replaced_snapshots) == ((), 0)
    # The same ids, with other snapshots in them.
    builders.writer(storage, branch).write(builders.rows_of([(1, 1)]))
    followed.refresh()
    for path in [path for path in storage.objects if path.startswith(f"{branch.root}/")]:
        storage.delete(path)
    storage.now_ms += 1
    builders.make_branch(storage, main, "b", 4)
    assert followed.refresh()
    assert (followed.take_lost(), followed.replaced_snapshots) == ((), 0)
