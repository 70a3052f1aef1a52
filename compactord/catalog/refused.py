"""A catalog that is not served, as its writers could replace each other's snapshots."""

from __future__ import annotations

from compactord.catalog.base import TableList
from compactord.commit.publish import StorePublisher
from compactord.errors import UsageError
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage


class RefusedCatalog:
    """Every use of it raises `UsageError` with what to do.

    Java publishes a snapshot here by a look and a copy (catalog/RenamingSnapshotCommit.java,
    fs/FileIO.java `tryToWriteAtomic`), between which another writer's snapshot is replaced.
    """

    def __init__(self, storage: Storage, warehouse: str) -> None:
        self.storage = storage
        self.warehouse = warehouse
        self.publisher = StorePublisher(storage)

    def check_access(self) -> None:
        """See `Catalog`."""
        raise self._refusal()

    def check_commits(self) -> None:
        """See `Catalog`."""
        raise self._refusal()

    def list_tables(self) -> TableList:
        """See `Catalog`."""
        raise self._refusal()

    def find_table(self, name: str) -> TableRef:
        """See `Catalog`."""
        raise self._refusal()

    def _refusal(self) -> UsageError:
        return UsageError(
            f"{self.warehouse} is refused: without a lock Java's writers replace each other's "
            "snapshots on this store, and compactord's. Let all writers use metastore jdbc with "
            "its lock (lock.enabled; `compactord catalog register` adds the tables), or set "
            "unlocked_writers: guarded (--unlocked-writers guarded) and read what that means in "
            "docs/operations.md"
        )
