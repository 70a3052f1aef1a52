"""A table with more snapshots than it keeps, of which a live file can be lost or damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.plan.table import Strategy
from compactord.state.table_state import TableState, load_state
from compactord.storage.base import Storage
from compactord.table.compactor import TableCompactor
from compactord.verify.holds import hold_path
from tests import builders
from tests.builders import NOW_MS, VirtualClock
from tests.rounds import Expired
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, compactor_of, expire

HOME = "/warehouse/db.db/t"
OPTIONS = {
    "snapshot.num-retained.min": "2",
    "snapshot.num-retained.max": "2",
    "snapshot.time-retained": "0 ms",
}


@dataclass(frozen=True, slots=True)
class Held:
    """`live` are data files of level 0, `merged` those that a compaction made, with checksums."""

    storage: MemoryStorage
    table: TableRef
    live: tuple[str, ...]
    merged: tuple[str, ...] = ()

    def started(self, storage: Storage | None = None, **how: Any) -> TableCompactor:
        """What a process knows of the table after its start."""
        clock = VirtualClock(NOW_MS + 3_600_000)
        compactor = compactor_of(storage or self.storage, self.table, clock=clock, **how)
        compactor.cycle((), ALL)
        return compactor

    def expired(self, compactor: TableCompactor | None = None) -> Expired:
        return expire(compactor or self.started())

    def state(self) -> TableState:
        return load_state(self.storage, self.table)

    @property
    def snapshots(self) -> list[int]:
        return list(snapshot_ids(self.storage, HOME))

    @property
    def hold(self) -> Any:
        """What the hold's file says; None: there is none."""
        data = self.storage.objects.get(hold_path(HOME))
        return None if data is None else json.loads(data)

    def lose(self) -> tuple[str, bytes]:
        """A live file goes; its path and bytes."""
        path = self.live[0]
        return path, self.storage.objects.pop(path)


def held_table(options: Mapping[str, str] | None = None) -> Held:
    """Snapshots 1 to 8; compacted once."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, HOME, buckets=2, options={**OPTIONS, **(options or {})})
    target = builders.writer(storage, table)
    builders.fill_keyed(target, commits=3, keys=12)
    builders.compact(storage, table, strategy=Strategy.FULL)
    builders.fill_keyed(target, commits=4, keys=12)
    state = load_state(storage, table)
    live: dict[bool, list[str]] = {True: [], False: []}
    for bucket in state.files.bucket_ids():
        folder = paths.bucket_folder(HOME, "", bucket.bucket)
        for file in sorted(state.files.files_in(bucket), key=lambda file: file.file_name):
            live[file.level > 0].append(paths.join(folder, file.file_name))
    return Held(storage, table, tuple(live[False]), tuple(live[True]))
