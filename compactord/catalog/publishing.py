"""Publishers of snapshots for the tables of one store, and the proof that it is safe."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

from compactord import ids
from compactord.catalog.access import TableAccess
from compactord.catalog.registry import CATALOGS
from compactord.commit.publish import (
    CatalogLock,
    Delta,
    LockedPublisher,
    SnapshotPublisher,
    StorePublisher,
)
from compactord.errors import (
    AccessDenied,
    StorageError,
    TableNotFound,
    UnsafeStore,
    UnsupportedTable,
    UsageError,
)
from compactord.ids import Owner
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot
from compactord.storage.base import Creation, Storage, StorageSpec

_FIRST, _SECOND = b"first\n", b"second\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Result of a probe. `is_exclusive` if a second creation failed and the first content stayed.

    `changed_ms` is the object's creation time by the store's clock, since the epoch.
    """

    is_exclusive: bool
    changed_ms: int


def probe(storage: Storage, below: str) -> Probed:
    """Create an object twice in a new folder below `below`, and remove it.

    The folder's name does not end in `.db`, so no catalog takes it for a database. Raises the
    errors of the store; the folder may remain then.
    """
    folder = f"{below}/.compactord-probe-{ids.random_uuid()}"
    path, temporary = f"{folder}/probe", f"{folder}/temporary"
    try:
        created = storage.create_if_absent(path, _FIRST, temporary=temporary)
        again = storage.create_if_absent(path, _SECOND, temporary=temporary)
        content, status = storage.read(path), storage.status(path)
        storage.delete(path)
    except StorageError:
        with contextlib.suppress(StorageError):
            storage.delete(path)
            storage.remove_empty_folder(folder)
        raise
    storage.remove_empty_folder(folder)
    return Probed(
        is_exclusive=(created, again, content) == (Creation.CREATED, Creation.EXISTS, _FIRST),
        changed_ms=status.changed_ms if status is not None else 0,
    )


# Stores proved by any catalog of this process.
_kept: set[StorageSpec] = set()


class ExclusiveCreateCheck:
    """Proof that a store creates only absent objects. Tested until it succeeds once."""

    def __init__(self, storage: Storage, warehouse: str) -> None:
        self._storage = storage
        self._warehouse = warehouse
        # One lock per store, so that a hanging store does not block others.
        self._lock = threading.Lock()

    @property
    def is_needed(self) -> bool:
        is_trusted = self._storage.capabilities.creates_exclusively
        return not is_trusted and self._storage.spec not in _kept

    def require(self, *, or_below: str | None = None) -> None:
        """Test the store below the warehouse or, if that is forbidden, below `or_below`.

        Raises `UnsafeStore` for a store that replaces, `AccessDenied` if both are forbidden, and
        the errors of the store.
        """
        with self._lock:
            if not self.is_needed:
                return
            try:
                probed = probe(self._storage, self._warehouse)
            except AccessDenied:
                if or_below is None:
                    raise
                probed = probe(self._storage, or_below)
            if not probed.is_exclusive:
                raise UnsafeStore(
                    self._warehouse,
                    "the store ignores the condition that an object must be absent "
                    "(If-None-Match or similar), so snapshots would be lost: use a release or "
                    "product that honours it",
                )
            _kept.add(self._storage.spec)


class CheckedPublisher:
    """A publisher that first requires the store's proof."""

    def __init__(self, publisher: SnapshotPublisher, proof: ExclusiveCreateCheck) -> None:
        self.excludes_writers = publisher.excludes_writers
        self.settle_ms = publisher.settle_ms
        self._publisher = publisher
        self._proof = proof

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        self._proof.require(or_below=table.location)
        return self._publisher.publish(table, snapshot, delta, owner=owner)


class Publishing:
    """Publishing rules for the tables below `root`, a path of `storage`.

    `lock` is the lock that all writers take. Java publishes a snapshot in an object store by a
    check and a copy (catalog/RenamingSnapshotCommit.java, fs/FileIO.java `tryToWriteAtomic`); a
    snapshot that another writer publishes in between is replaced. Without a lock such tables are
    refused unless `is_guarded`; then snapshots settle for `settle_ms` before compactord builds on
    them. With `creates_root` a root that does not exist is an empty warehouse, and `check` makes
    its folder.
    """

    def __init__(
        self,
        storage: Storage,
        root: str,
        *,
        lock: CatalogLock | None = None,
        is_guarded: bool = True,
        settle_ms: int = 0,
        creates_root: bool = False,
    ) -> None:
        is_exposed = not storage.capabilities.excludes_java_writers and lock is None
        self._storage, self._root, self._creates_root = storage, root, creates_root
        self._is_refused = is_exposed and not is_guarded
        self._proof = ExclusiveCreateCheck(storage, root)
        found: SnapshotPublisher
        found = StorePublisher(storage, settle_ms=settle_ms if is_exposed else 0)
        if self._proof.is_needed:
            found = CheckedPublisher(found, self._proof)
        self._publisher = found if lock is None else LockedPublisher(found, lock)

    def require_safe(self) -> None:
        """Raises `UsageError`, with advice, if the tables are refused."""
        if self._is_refused:
            raise UsageError(f"{self._root} is refused: {_refusal()}")

    def require_root(self) -> None:
        """Raises `TableNotFound` if the root's folder does not exist, and as `require_safe`.

        In an object store every prefix exists; a missing bucket raises `StoreMissing`.
        """
        self.require_safe()
        if not self._has_root() and not self._creates_root:
            raise TableNotFound(f"warehouse does not exist: {self._root}")

    def _has_root(self) -> bool:
        # Always called, because it finds a missing bucket in an object store.
        exists = self._storage.folder_exists(self._root)
        return exists or not self._storage.capabilities.has_folders

    def check(self) -> None:
        """Check that snapshots can be published; a store without proof is tested once.

        If the test is forbidden, the result stays unknown. Makes the root's folder with
        `creates_root`. Raises `UsageError` as `require_safe`, `UnsafeStore`, and the errors of the
        store.
        """
        self.require_safe()
        if self._creates_root and not self._has_root():
            # The probe's parent folders stay.
            probe(self._storage, self._root)
        with contextlib.suppress(AccessDenied):
            self._proof.require()

    def access(self, table: TableRef) -> TableAccess:
        """The table. Raises `UnsupportedTable` if its snapshots cannot be published safely."""
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
