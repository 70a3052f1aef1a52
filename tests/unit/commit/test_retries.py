"""What the attempts of one commit share: merged manifests, dropped changes, files to take back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.commit.changes import BucketChange, CommitOutcome, Committed, NothingCommitted
from compactord.errors import CommitGaveUp, CommitUnknown, StoreFull, TransientStorageError
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.paimon.snapshot import CommitKind, snapshot_json
from compactord.storage.base import Storage
from tests.builders import FIRST
from tests.lineage import TABLE, Lineage
from tests.storages import Call, Fault, FaultyStorage, HookedStorage
from tests.unit.paimon.table_builder import deleted


def _merging(**options: str) -> tuple[Lineage, BucketChange]:
    """The first attempt merges the manifests of two snapshots."""
    table = Lineage(options={"manifest.merge-min-count": "2", **options})
    return table, table.change(table.append(1, commits=2), owner=FIRST)


def _commit(
    table: Lineage, *changes: BucketChange, storage: Storage | None = None
) -> CommitOutcome:
    return table.committer(FIRST, storage).commit(table.state(), changes, table.settings)[0]


def _first(table: Lineage, *happenings: Callable[[], object]) -> HookedStorage:
    """Before each attempt to publish one of these happens, while there are any."""
    left = iter(happenings)

    def happen(call: Call) -> None:
        if call.method == "create_if_absent":
            next(left, lambda: None)()

    return HookedStorage(table.storage, before=happen)


def _writes_a_list(call: Call) -> bool:
    return call.method == "write_new" and "/manifest-list-" in call.path


def test_after_a_lost_race_the_merged_manifests_are_there_for_the_next_attempt() -> None:
    table, change = _merging()
    done = _commit(table, change, storage=_first(table, lambda: table.append(1)))
    assert isinstance(done, Committed)
    assert done.attempts == 2
    table.check()
    assert table.leftovers(FIRST) == set()


@pytest.mark.parametrize("lists", [0, 2], ids=["while writing", "before publishing"])
def test_after_an_error_the_next_attempt_merges_anew(lists: int) -> None:
    """The first merge was taken back, whether or not its attempt had written all."""
    table, change = _merging()
    written: list[Call] = []
    armed = iter([True])

    def fail_once(call: Call) -> None:
        written.extend([call] if _writes_a_list(call) else [])
        is_there = call.method == "read" and "/snapshot/snapshot-" in call.path
        if len(written) >= max(1, lists) and (not lists or is_there) and next(armed, False):
            raise TransientStorageError(call.path, "no answer")

    done = _commit(table, change, storage=HookedStorage(table.storage, before=fail_once))
    assert isinstance(done, Committed)
    assert done.attempts == 2
    table.check()
    assert table.leftovers(FIRST) == set()


def test_an_error_that_ends_the_commit_takes_merged_manifests_back() -> None:
    table, change = _merging()
    fault = Fault(at=1, error=StoreFull, concerns=_writes_a_list)
    with pytest.raises(StoreFull):
        _commit(table, change, storage=FaultyStorage(table.storage, fault))
    assert table.leftovers(FIRST) == {change.after[0].file_name}


def test_giving_up_takes_merged_manifests_back() -> None:
    table, change = _merging(**{"commit.max-retries": "0"})
    with pytest.raises(CommitGaveUp):
        _commit(table, change, storage=_first(table, lambda: table.append(1)))
    assert table.leftovers(FIRST) == {change.after[0].file_name}


def test_changes_that_are_dropped_one_after_the_other_are_all_named_and_nothing_is_left() -> None:
    table, change = _merging()
    other = table.change(table.append(1, bucket=1), owner=FIRST, bucket=1)
    storage = _first(
        table,
        lambda: table.compacted_by_others(change.before),
        lambda: table.compacted_by_others(other.before, bucket=1),
    )
    outcome = _commit(table, change, other, storage=storage)
    assert isinstance(outcome, NothingCommitted)
    assert [drop.change for drop in outcome.dropped] == [change, other]
    table.check()
    assert table.leftovers(FIRST) == {each.after[0].file_name for each in (change, other)}


def test_a_bucket_that_was_emptied_counts_as_expired() -> None:
    table, change = _merging()
    gone = [deleted(table._entry(file, 0)) for file in table.files()]
    table._foreign(gone, CommitKind.OVERWRITE)
    outcome = _commit(table, change)
    assert [drop.conflict for drop in outcome.dropped] == [Conflict.PARTITION_EXPIRED]


def test_outputs_of_a_table_without_keys_that_turn_out_to_be_live_are_never_dropped() -> None:
    table = Lineage(is_keyed=False)
    change = table.change(table.append(2), owner=FIRST)
    _commit(table, change)
    with pytest.raises(CommitUnknown, match="is live although"):
        _commit(table, change)


def _index(table: Lineage, *files: str, kind: str = "DELETION_VECTORS") -> None:
    """The newest snapshot gets an index manifest with these files of bucket 0."""
    name = f"index-manifest-{len(files)}"
    table.write_index_manifest(name, files, kind)
    newest = table.state().snapshot
    assert newest is not None
    table.storage.overwrite(
        paths.snapshot_path(TABLE.location, newest.id),
        snapshot_json(replace(newest, index_manifest=name)),
    )


def test_a_change_is_published_over_other_hash_indexes_and_keeps_the_newest() -> None:
    table, change = _merging()
    _index(table, "index-1", kind="HASH")

    def add_keys() -> None:
        table.append(1)
        _index(table, "index-2", "index-3", kind="HASH")

    outcome = _commit(table, change, storage=_first(table, add_keys))
    assert isinstance(outcome, Committed)
    assert not outcome.dropped
    newest = table.state().snapshot
    assert newest is not None
    assert (newest.commit_kind, newest.index_manifest) == (CommitKind.COMPACT, "index-manifest-2")


def _damaged(table: Lineage, bucket: int) -> DataFile:
    """A file whose key cannot be read appears in the bucket, by another writer."""
    file = replace(table.new_file(level=3), max_key=b"\0\0\0\1junk")
    table.expected.update(table.rows[file.file_name])
    table._foreign([table._entry(file, bucket)], CommitKind.APPEND)
    return file


def test_a_damaged_bucket_drops_its_change_and_the_others_are_published() -> None:
    table, change = _merging()
    other = table.change(table.append(1, bucket=1), owner=FIRST, bucket=1)
    damaged = _damaged(table, 1)
    outcome = _commit(table, change, other)
    assert isinstance(outcome, Committed)
    assert outcome.published == (change,)
    (drop,) = outcome.dropped
    assert (drop.change, drop.conflict) == (other, Conflict.BUCKET_DAMAGED)
    assert damaged.file_name in drop.why
    table.check()


def test_outputs_that_turn_out_to_be_live_in_a_damaged_bucket_are_never_dropped() -> None:
    table, change = _merging()
    _commit(table, change)
    _damaged(table, 0)
    with pytest.raises(CommitUnknown, match="is live although"):
        _commit(table, change)
    table.check()
