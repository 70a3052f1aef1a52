"""What snapshots that stay need is read once; requests and memory go with what expires."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import UnsupportedTable
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.paimon import paths
from compactord.paimon.snapshot import CommitKind, snapshot_ids, snapshot_json
from compactord.storage.base import NO_TIME_MS, Storage
from compactord.table.opening import open_table
from tests.lineage import TABLE, Lineage
from tests.rounds import Expired, expire_snapshots
from tests.storages import RequestCounter
from tests.unit.maintenance.expiring import (
    ALL_BUT_ONE,
    HOME,
    LATER_MS,
    change,
    check,
    data_files,
    make_tag,
    snapshot_of,
    with_data,
)


def _expire(storage: Storage, end: int, later: LaterSnapshots, *, keep: int = 1) -> Expired:
    """Expire those before snapshot `end`."""
    opened = open_table(table_in_folder(storage, TABLE), {})
    options = replace(ALL_BUT_ONE, num_retained_min=keep)
    return expire_snapshots(opened, options, now_ms=LATER_MS, keep_from=end, later=later)


@pytest.mark.parametrize("count", [50, 400])
def test_requests_go_with_what_expires(count: int) -> None:
    table = Lineage()
    table.append(1, commits=count)
    with_data(table)
    later = LaterSnapshots()
    assert _expire(table.storage, 2, later).snapshots == 1
    table.append(1, commits=2)
    with_data(table)
    requests = []
    for end in (3, 4, 6):
        counter = RequestCounter(table.storage)
        assert _expire(counter, end, later).snapshots == end - (len(requests) + 2)
        requests.append(len(counter.requests))
    # The second and third know all that has come.
    assert requests[1] < 40
    assert requests[2] < 60
    check(table)


def _rolled_back(at: int) -> Lineage:
    """Snapshots 1 to 8, of which `at` adds the files of 1 again, which 2 removed, and its index."""
    table = Lineage()
    [old] = table.append(1)
    table.write_index_manifest("index-manifest-1", ["index-1"])
    table.write_index_manifest("index-manifest-2", ["index-2"])
    for name in ("index-1", "index-2"):
        table.storage.write_new(paths.index_path(HOME, name), b"index")
    table.compacted_by_others([old])
    for id_ in range(3, 9):
        if id_ == at:
            table._foreign([table._entry(old, 0)], CommitKind.OVERWRITE)
        else:
            table.append(1)
    change(table, 1, index_manifest="index-manifest-1", statistics="statistics-1")
    for id_ in range(2, 9):
        is_old = id_ == at
        name = "index-manifest-1" if is_old else "index-manifest-2"
        change(table, id_, index_manifest=name, statistics="statistics-1" if is_old else None)
    return with_data(table)


OLD = {"index/index-1", "manifest/index-manifest-1", "statistics/statistics-1"}


def _old(table: Lineage) -> set[str]:
    return {path.removeprefix(f"{HOME}/") for path in table.storage.objects} & OLD


# After which snapshots rounds end, one after the other.
ROUNDS = [(3,), (2, 3), (2, 3, 4), (2, 4, 5, 6)]


@pytest.mark.parametrize("ends", ROUNDS)
@pytest.mark.parametrize("at", range(5, 9))
@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_later_snapshot_brings_back_stays(ends: Sequence[int], at: int, keeps: bool) -> None:
    table = _rolled_back(at)
    later = LaterSnapshots()
    for end in (each for each in ends if each <= at):
        assert _expire(table.storage, end, later if keeps else LaterSnapshots()).snapshots
        check(table)
        assert _old(table) == OLD


def _replace(table: Lineage) -> None:
    """Snapshot 7 is replaced by a rollback, in a file of another time."""
    change(table, 7, uuid="another", index_manifest="index-manifest-1", statistics="statistics-1")
    table.storage.changed_ms[paths.snapshot_path(HOME, 7)] = 1


def _replace_untold(table: Lineage) -> None:
    _replace(table)
    for id_ in snapshot_ids(table.storage, HOME):
        table.storage.changed_ms[paths.snapshot_path(HOME, id_)] = NO_TIME_MS


def _add(table: Lineage) -> None:
    newest = replace(
        snapshot_of(table, 8),
        id=9,
        uuid="9",
        index_manifest="index-manifest-1",
        statistics="statistics-1",
        commit_kind=CommitKind.OVERWRITE,
    )
    table.storage.write_new(paths.snapshot_path(HOME, 9), snapshot_json(newest))
    table.storage.overwrite(paths.latest_hint(HOME), b"9")


def _roll_back(table: Lineage) -> None:
    for id_ in (7, 8):
        table.storage.delete(paths.snapshot_path(HOME, id_))
    newest = replace(
        snapshot_of(table, 6),
        id=7,
        uuid="7",
        index_manifest="index-manifest-1",
        statistics="statistics-1",
    )
    table.storage.write_new(paths.snapshot_path(HOME, 7), snapshot_json(newest) + b"\n")
    table.storage.overwrite(paths.latest_hint(HOME), b"7")


@pytest.mark.parametrize("act", [_replace, _replace_untold, _add, _roll_back])
def test_what_comes_between_two_rounds_is_read(act: object) -> None:
    table = _rolled_back(0)
    make_tag(table, snapshot_of(table, 1))
    later = LaterSnapshots()
    if act is _replace_untold:
        for id_ in snapshot_ids(table.storage, HOME):
            table.storage.changed_ms[paths.snapshot_path(HOME, id_)] = NO_TIME_MS
    assert _expire(table.storage, 2, later).snapshots == 1
    table.storage.delete(paths.tag_path(HOME, "v1"))
    snapshot = replace(
        snapshot_of(table, 2), index_manifest="index-manifest-1", statistics="statistics-1"
    )
    table.storage.overwrite(paths.snapshot_path(HOME, 2), snapshot_json(snapshot))
    act(table)  # type: ignore[operator]
    assert _expire(table.storage, 4, later).snapshots == 2
    assert _old(table) == OLD


def test_a_tag_on_a_later_snapshot_that_was_replaced_keeps_its_files() -> None:
    table = Lineage()
    [old] = table.append(1)
    table.compacted_by_others([old])
    table.append(1, commits=4)
    with_data(table)
    later = LaterSnapshots()
    make_tag(table, replace(snapshot_of(table, 1), id=5, uuid="replaced"))
    for end in (2, 3):
        assert _expire(table.storage, end, later).snapshots == 1
    assert old.file_name in data_files(table)


def test_an_index_that_is_not_known_stops_expiry_wherever_it_is() -> None:
    table = _rolled_back(0)
    table.write_index_manifest("index-manifest-x", ["x"], "lumina")
    change(table, 7, index_manifest="index-manifest-x")
    with pytest.raises(UnsupportedTable, match="type lumina"):
        _expire(table.storage, 3, LaterSnapshots())


def test_memory_does_not_go_with_the_index_manifests_of_later_snapshots() -> None:
    """Each is one of another commit, which has replaced one of its files."""
    files = 2_000

    def peak(snapshots: int) -> int:
        table = Lineage()
        table.append(1, commits=snapshots)
        for id_ in range(1, snapshots + 1):
            names = [f"index-{id_ if n == id_ else 0}-{n:036}" for n in range(files)]
            table.write_index_manifest(f"index-manifest-{id_}", names)
            change(table, id_, index_manifest=f"index-manifest-{id_}")
        with_data(table)
        later = LaterSnapshots()
        tracemalloc.start()
        try:
            done = _expire(table.storage, 3, later)
            assert done.index_files == 2
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(40) < peak(6) + (1 << 20)
