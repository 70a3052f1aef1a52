"""How snapshots of tables in one store are published, and where that would not be safe."""

from __future__ import annotations

import contextlib

from compactord.catalog.access import TableAccess
from compactord.catalog.probe import ProvedPublisher, StoreProof
from compactord.catalog.registry import CATALOGS
from compactord.commit.publish import (
    CatalogLock,
    LockedPublisher,
    SnapshotPublisher,
    StorePublisher,
)
from compactord.errors import AccessDenied, TableNotFound, UnsupportedTable, UsageError
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage


class Publishing:
    """Of the tables below `root`, a path of `storage`; `lock` is one that all writers take.

    Java publishes a snapshot in an object store by a check and a copy
    (catalog/RenamingSnapshotCommit.java, fs/FileIO.java `tryToWriteAtomic`), between which another
    writer's snapshot is replaced. Without a lock such tables are refused unless `is_guarded`; then
    snapshots stand for `settle_ms` before anything is built on them.
    """

    def __init__(
        self,
        storage: Storage,
        root: str,
        *,
        lock: CatalogLock | None = None,
        is_guarded: bool = True,
        settle_ms: int = 0,
    ) -> None:
        is_exposed = not storage.capabilities.excludes_java_writers and lock is None
        self._storage, self._root = storage, root
        self._is_refused = is_exposed and not is_guarded
        self._proof = StoreProof(storage, root)
        found: SnapshotPublisher
        found = StorePublisher(storage, settle_ms=settle_ms if is_exposed else 0)
        if self._proof.is_needed:
            found = ProvedPublisher(found, self._proof)
        self._publisher = found if lock is None else LockedPublisher(found, lock)

    def require_safe(self) -> None:
        """Raises `UsageError`, with what to do, where the tables are refused."""
        if self._is_refused:
            raise UsageError(f"{self._root} is refused: {_refusal()}")

    def require_root(self) -> None:
        """Raises `TableNotFound` where it does not exist, and as `require_safe`."""
        self.require_safe()
        if not self._storage.folder_exists(self._root):
            raise TableNotFound(f"warehouse does not exist: {self._root}")

    def check(self) -> None:
        """Whether snapshots can be published; a store that needs it is tried once.

        Where nothing may be created nothing is known. Raises `UsageError` as `require_safe`,
        `UnsafeStore`, and what the store raises.
        """
        self.require_safe()
        with contextlib.suppress(AccessDenied):
            self._proof.require()

    def access(self, table: TableRef) -> TableAccess:
        """The table, if it is safe to publish its snapshots, else raises `UnsupportedTable`."""
        if self._is_refused:
            raise UnsupportedTable(table.full_name, [_refusal()])
        return TableAccess(ref=table, storage=self._storage, publisher=self._publisher)


def _refusal() -> str:
    locked = " or ".join(kind.name for kind in CATALOGS.values() if kind.has_lock)
    return (
        "without a lock Java's writers replace each other's snapshots on this store, and "
        f"compactord's. Let all writers use metastore {locked} with its lock (lock.enabled; "
        "`compactord catalog register` adds the tables), or set unlocked_writers: guarded "
        "(--unlocked-writers guarded) and read what that means in docs/operations.md"
    )
