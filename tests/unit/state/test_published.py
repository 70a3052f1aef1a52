"""Which of our snapshots another writer has replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.paimon import paths
from compactord.paimon.snapshot import read_snapshot, snapshot_ids, snapshot_json
from compactord.state.ancestry import PublishedSnapshots, last_commit
from compactord.storage.base import NO_TIME_MS
from tests import builders
from tests.storages import MemoryStorage

WHERE = "/warehouse/db.db/t"


@pytest.mark.parametrize("commits", [1, 5], ids=["a few", "many"])
@pytest.mark.parametrize("made_ms", [builders.NOW_MS, NO_TIME_MS], ids=["times", "no times"])
def test_a_replacement_of_the_same_size_is_seen(made_ms: int, commits: int) -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE)
    storage.now_ms = made_ms
    builders.fill_keyed(builders.writer(storage, table), commits=commits)
    ours = read_snapshot(storage, WHERE, 1)
    published = PublishedSnapshots(storage, WHERE)
    for number in range(1, commits + 1):
        published.add(read_snapshot(storage, WHERE, number), None, 0)
    assert published.replaced(10_000) == ()
    if made_ms != NO_TIME_MS:
        storage.now_ms += 10_000
    other = replace(ours, uuid="".join(reversed(ours.uuid or "")))
    storage.overwrite(paths.snapshot_path(WHERE, 1), snapshot_json(other))
    assert [pair.found.uuid for pair in published.replaced(20_000)] == [other.uuid]


def test_the_last_commit_of_compactord_is_found_below_those_of_writers_but_not_far_below() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE)
    target = builders.writer(storage, table)
    builders.fill_keyed(target, commits=6)

    def found() -> int | None:
        newest = read_snapshot(storage, WHERE, max(snapshot_ids(storage, WHERE)))
        last = last_commit(storage, WHERE, newest)
        return None if last is None else last.id

    assert found() is None
    builders.compact(storage, table)
    ours = max(snapshot_ids(storage, WHERE))
    assert found() == ours
    builders.fill_keyed(target, commits=9)
    assert found() == ours
    builders.fill_keyed(target, commits=1)
    assert found() is None
    storage.delete(paths.snapshot_path(WHERE, ours + 8))
    assert found() is None


def test_a_compaction_of_java_is_not_ours() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE)
    builders.fill_keyed(builders.writer(storage, table), commits=6)
    builders.compact(storage, table)
    newest = read_snapshot(storage, WHERE, max(snapshot_ids(storage, WHERE)))
    others = replace(newest, commit_user="0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab")
    storage.overwrite(paths.snapshot_path(WHERE, newest.id), snapshot_json(others))
    assert last_commit(storage, WHERE, others) is None
