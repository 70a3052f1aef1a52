"""A process that publishes snapshots of one table under a JDBC catalog's lock.

    python -m tests.unit.catalog.locked_commits WAREHOUSE URI USER COMMITS atomic|checked

`checked` publishes as Java does on a local path: it looks whether the id is taken, and then
replaces. Only the lock keeps such writers apart.
"""

from __future__ import annotations

import sys
import time

from compactord import ids
from compactord.catalog.jdbc.catalog import JdbcCatalog
from compactord.catalog.open import open_catalog
from compactord.commit.publish import Delta, LockedPublisher, SnapshotPublisher
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_ids, snapshot_json
from compactord.storage.base import Creation, Storage

OPTIONS = {"lock.enabled": "true", "lock-check-max-sleep": "20 ms"}


class CheckedPublisher:
    """Looks, waits, and replaces."""

    excludes_writers = False

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        path = paths.snapshot_path(table.location, snapshot.id)
        if self._storage.status(path) is not None:
            return Creation.EXISTS
        time.sleep(0.005)
        self._storage.overwrite(path, snapshot_json(snapshot))
        return Creation.CREATED


def snapshot(snapshot_id: int, user: str, identifier: int) -> Snapshot:
    return Snapshot(
        uuid=ids.random_uuid(),
        id=snapshot_id,
        schema_id=0,
        base_manifest_list="b",
        base_manifest_list_size=1,
        delta_manifest_list="d",
        delta_manifest_list_size=1,
        commit_user=user,
        commit_identifier=identifier,
        commit_kind=CommitKind.APPEND,
        time_ms=1,
        total_record_count=0,
        delta_record_count=0,
        next_row_id=0,
    )


def commit(
    storage: Storage, publisher: SnapshotPublisher, table: TableRef, user: str, identifier: int
) -> None:
    """Publish on top of the newest snapshot, again after each lost race."""
    created = Creation.EXISTS
    while created is Creation.EXISTS:
        newest = max(snapshot_ids(storage, table.location), default=0)
        ours = snapshot(newest + 1, user, identifier)
        created = publisher.publish(table, ours, Delta(base=None), owner=ids.this_process())


def main(warehouse: str, uri: str, user: str, commits: str, how: str) -> None:
    catalog = open_catalog(warehouse, metastore="jdbc", options={"uri": uri, **OPTIONS})
    assert isinstance(catalog, JdbcCatalog)
    table = catalog.find_table("db.t")
    publisher = catalog.open(table).publisher
    assert isinstance(publisher, LockedPublisher)
    if how == "checked":
        publisher = LockedPublisher(CheckedPublisher(catalog.warehouse_storage), publisher.lock)
    for identifier in range(int(commits)):
        commit(catalog.warehouse_storage, publisher, table, user, identifier)


if __name__ == "__main__":
    main(*sys.argv[1:])
