"""Which of our snapshots another writer has replaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.paimon import paths
from compactord.paimon.snapshot import read_snapshot, snapshot_json
from compactord.state.published import PublishedSnapshots
from compactord.storage.base import NO_TIME_MS
from tests import builders
from tests.storages import MemoryStorage

WHERE = "/warehouse/db.db/t"


@pytest.mark.parametrize("made_ms", [builders.NOW_MS, NO_TIME_MS], ids=["times", "no times"])
def test_a_replacement_of_the_same_size_is_seen(made_ms: int) -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, WHERE)
    storage.now_ms = made_ms
    builders.fill_keyed(builders.writer(storage, table), commits=1)
    ours = read_snapshot(storage, WHERE, 1)
    published = PublishedSnapshots(storage, WHERE)
    published.add(ours, None, 0)
    assert published.replaced(10_000) == ()
    if made_ms != NO_TIME_MS:
        storage.now_ms += 10_000
    other = replace(ours, uuid="".join(reversed(ours.uuid or "")))
    storage.overwrite(paths.snapshot_path(WHERE, 1), snapshot_json(other))
    assert [pair.found.uuid for pair in published.replaced(20_000)] == [other.uuid]
