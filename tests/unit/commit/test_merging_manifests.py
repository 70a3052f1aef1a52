"""A commit without changes: manifests are merged in a snapshot of their own."""

from __future__ import annotations

import pytest

from compactord.commit.changes import CommitOutcome, Committed, NothingCommitted
from compactord.commit.committer import Committer
from compactord.paimon import paths
from compactord.paimon.manifest.manifest_files import read_manifest_list
from compactord.paimon.snapshot import CommitKind, read_snapshot
from compactord.state.table_state import data_manifests
from compactord.storage.base import Storage
from tests.builders import FIRST, SECOND, append_table, compact, read_appended, rows_of, writer
from tests.lineage import TABLE, Lineage
from tests.storages import Call, HookedStorage, MemoryStorage


def _merge(table: Lineage, storage: Storage | None = None) -> CommitOutcome:
    committer: Committer = table.committer(FIRST, storage)
    return committer.commit(table.state(), (), table.settings)[0]


def _manifest_count(table: Lineage) -> int:
    snapshot = table.state().snapshot
    assert snapshot is not None
    return len(data_manifests(table.storage, TABLE.location, snapshot))


@pytest.mark.parametrize(
    ("commits", "options", "left"),
    [
        (29, {}, None),
        (30, {}, 1),
        (45, {}, 1),
        (4, {"manifest.merge-min-count": "5"}, None),
        (5, {"manifest.merge-min-count": "5"}, 1),
        (4, {"manifest.full-compaction-threshold-size": "1 b"}, 1),
        (1, {"manifest.full-compaction-threshold-size": "1 b"}, None),
        (1, {"manifest.merge-min-count": "1"}, None),
        (4, {"manifest.target-file-size": "3 kb"}, 2),
    ],
)
def test_manifests_are_merged_from_the_tables_thresholds_on(
    commits: int, options: dict[str, str], left: int | None
) -> None:
    table = Lineage(options=options)
    table.append(1, commits=commits)
    before = table.state()
    outcome = _merge(table)
    if left is None:
        assert outcome == NothingCommitted(dropped=())
        assert table.state().snapshot == before.snapshot
        assert table.leftovers(FIRST) == set()
        return
    assert before.snapshot is not None
    base = before.snapshot.identity
    merged = Committed(snapshot_id=commits + 1, base=base, published=(), dropped=(), attempts=1)
    assert outcome == merged
    assert _manifest_count(table) == left
    assert table.files() == before.files.files_in(before.files.bucket_ids()[0])
    table.check()
    # Merged ones may be small enough to be merged once more, and then no more.
    while isinstance(_merge(table), Committed):
        assert _manifest_count(table) < left
        left = _manifest_count(table)
    table.check()


def test_the_snapshot_changes_nothing_and_keeps_what_the_one_before_says() -> None:
    table = Lineage()
    table.append(1, commits=30)
    before = table.state().snapshot
    assert before is not None
    assert isinstance(_merge(table), Committed)
    after = table.state().snapshot
    assert after is not None
    assert after.commit_kind is CommitKind.COMPACT
    assert (after.delta_record_count, after.total_record_count) == (0, before.total_record_count)
    assert after.properties == before.properties
    delta = paths.manifest_path(TABLE.location, after.delta_manifest_list)
    assert read_manifest_list(table.storage, delta) == ()


@pytest.mark.parametrize("rival_merges", [False, True])
def test_whoever_commits_first_no_manifest_is_lost(rival_merges: bool) -> None:
    table = Lineage()
    table.append(1, commits=30)
    rivals = iter([True])

    def rival(call: Call) -> None:
        if call.method == "create_if_absent" and next(rivals, False):
            if rival_merges:
                assert isinstance(
                    table.committer(SECOND).commit(table.state(), (), table.settings)[0], Committed
                )
            else:
                table.append(1)

    outcome = _merge(table, HookedStorage(table.storage, before=rival))
    assert isinstance(outcome, NothingCommitted if rival_merges else Committed)
    assert _manifest_count(table) == (1 if rival_merges else 2)
    assert table.leftovers(FIRST, SECOND) == set()
    table.check()


def test_a_run_with_nothing_to_compact_merges_manifests() -> None:
    storage = MemoryStorage()
    table = append_table(storage, "/w/db.db/t", options={"compaction.min.file-num": "100"})
    target = writer(storage, table)
    for number in range(40):
        target.write(rows_of([(number, number)]))
    rows = read_appended(storage, table)
    totals = compact(storage, table)
    assert (totals.compactions, totals.snapshots, totals.failures) == (0, [41], [])
    snapshot = read_snapshot(storage, table.location, 41)
    assert len(data_manifests(storage, table.location, snapshot)) == 1
    assert read_appended(storage, table) == rows
    assert compact(storage, table).snapshots == []
