"""How a snapshot appears under its id: the seam, and stores that create if absent."""

from __future__ import annotations

from typing import Protocol

from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.snapshot import Snapshot, snapshot_json
from compactord.paimon.table import TableRef
from compactord.storage.base import Creation, Storage


class SnapshotPublisher(Protocol):
    """Makes snapshots of a catalog's tables appear, each under an id that only one can have.

    As operation/FileStoreCommitImpl.java has its SnapshotCommit (catalog/SnapshotCommit.java).
    """

    def publish(self, table: TableRef, snapshot: Snapshot, *, owner: Owner) -> Creation:
        """Make `snapshot` the table's unless its id is taken. Temporary files are named by `owner`.

        Whatever the answer, readers find the snapshot that has the id at its path. The same
        snapshot may come again while an earlier outcome is unknown; EXISTS may mean itself then.
        Raises `TransientStorageError` when it may have taken effect all the same, and any other
        `StorageError` when it was refused.
        """
        ...


class StorePublisher:
    """For stores whose create-if-absent is atomic between all that write the table."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def publish(self, table: TableRef, snapshot: Snapshot, *, owner: Owner) -> Creation:
        folder = paths.snapshot_folder(table.location)
        return self._storage.create_if_absent(
            paths.snapshot_path(table.location, snapshot.id),
            snapshot_json(snapshot),
            temporary=f"{folder}/.snapshot-{snapshot.id}.{owner.unique_name()}.tmp",
        )
