"""Tables whose snapshots expire, and what is looked for afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compactord.catalog.access import table_in_folder
from compactord.errors import AccessDenied, StorageError, TransientStorageError
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile, EntryKind
from compactord.paimon.manifest.manifest_files import read_entries
from compactord.paimon.options.maintenance import ExpireOptions
from compactord.paimon.snapshot import (
    Snapshot,
    read_snapshot,
    read_tags,
    snapshot_ids,
    snapshot_json,
)
from compactord.state.table_state import data_manifests, delta_manifests
from compactord.storage.base import Storage
from compactord.table.opening import open_table
from tests.lineage import TABLE, Lineage
from tests.rounds import Expired, expire_snapshots
from tests.storages import Call

HOME = TABLE.location
LATER_MS = 1_800_000_000_000
ALL_BUT_ONE = ExpireOptions(
    num_retained_min=1,
    num_retained_max=2**31 - 1,
    time_retained_ms=0,
    limit=50,
    clean_empty_directories=False,
)

# How calls of a store fail: error, which calls, after their effect, from then on for ever.
FAULTS: list[tuple[type[StorageError], Callable[[Call], bool], bool, bool]] = [
    (TransientStorageError, lambda call: True, False, False),
    (TransientStorageError, lambda call: True, False, True),
    (AccessDenied, lambda call: call.is_mutation, False, False),
    (StorageError, lambda call: call.is_mutation, True, False),
    (StorageError, lambda call: call.is_mutation, True, True),
]


def expire(
    table: Lineage,
    storage: Storage | None = None,
    *,
    keep: int = 1,
    keep_from: int | None = None,
    **options: object,
) -> Expired:
    changed = {"num_retained_min": keep, **options}
    opened = open_table(table_in_folder(table.storage, TABLE), {})
    if storage is not None:
        opened = replace(opened, access=table_in_folder(storage, TABLE))
    return expire_snapshots(
        opened,
        replace(ALL_BUT_ONE, **changed),  # type: ignore[arg-type]
        now_ms=LATER_MS,
        keep_from=keep_from,
    )


def some_table(options: Mapping[str, str] | None = None) -> Lineage:
    """Snapshots 1 and 2 add files, 3 merges them, 4 adds one, 5 merges all."""
    table = Lineage(options=options)
    first = table.append(2, commits=2)
    merged = table.compacted_by_others(first)
    more = table.append(1)
    table.compacted_by_others([merged, *more])
    return with_data(table)


def merged_table() -> Lineage:
    """As `some_table`, and two more snapshots: one that merges the manifests and one file more."""
    table = some_table()
    table.history.snapshot = snapshots_of(table)[-1]
    table.history.merge_manifests()
    table.append(1)
    return with_data(table)


def with_data(table: Lineage) -> Lineage:
    """Make the data files of all snapshots."""
    for snapshot in snapshots_of(table):
        for manifest in delta_manifests(table.storage, HOME, snapshot):
            for entry in read_entries(table.storage, HOME, manifest):
                for name in (entry.file.file_name, *entry.file.extra_files):
                    path = f"{HOME}/bucket-{entry.bucket}/{name}"
                    table.storage.objects.setdefault(path, b"rows")
    return table


def snapshots_of(table: Lineage) -> list[Snapshot]:
    ids = snapshot_ids(table.storage, HOME)
    return [read_snapshot(table.storage, HOME, id_) for id_ in ids]


def snapshot_of(table: Lineage, id_: int) -> Snapshot:
    return read_snapshot(table.storage, HOME, id_)


def lacks(storage: Storage, snapshots: Sequence[Snapshot]) -> list[str]:
    """Data files of these snapshots that are not there; raises when metadata is not."""
    lacking = []
    for snapshot in snapshots:
        live: dict[object, tuple[int, DataFile]] = {}
        for manifest in data_manifests(storage, HOME, snapshot):
            for entry in read_entries(storage, HOME, manifest):
                if entry.kind is EntryKind.ADD:
                    live[entry.identity] = (entry.bucket, entry.file)
                else:
                    live.pop(entry.identity, None)
        for bucket, file in live.values():
            path = f"{HOME}/bucket-{bucket}/{file.file_name}"
            if storage.status(path) is None:
                lacking.append(f"snapshot {snapshot.id}: {path}")
    return lacking


def check(table: Lineage) -> None:
    """Every snapshot and tag that is there is whole."""
    kept = [*snapshots_of(table), *read_tags(table.storage, HOME).values()]
    lacking = lacks(table.storage, kept)
    assert not lacking, lacking


def data_files(table: Lineage) -> set[str]:
    return {path.rsplit("/", 1)[1] for path in table.storage.objects if "/bucket-" in path}


def make_tag(table: Lineage, snapshot: Snapshot, name: str = "v1", root: str = HOME) -> None:
    table.storage.overwrite(paths.tag_path(root, name), snapshot_json(snapshot))


def change(table: Lineage, id_: int, **changed: object) -> None:
    snapshot = replace(snapshot_of(table, id_), **changed)  # type: ignore[arg-type]
    if snapshot.statistics is not None:
        path = paths.statistics_path(HOME, snapshot.statistics)
        table.storage.objects.setdefault(path, b"statistics")
    table.storage.overwrite(paths.snapshot_path(HOME, id_), snapshot_json(snapshot))
