"""The protocol that publishes a snapshot under its id, and its implementation for stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compactord.commit.changes import BucketChange
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, snapshot_json
from compactord.storage.base import Creation, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a snapshot changes, and of which one; `base` None: it is the table's first."""

    base: Snapshot | None
    changes: Sequence[BucketChange] = ()


class SnapshotPublisher(Protocol):
    """Publishes snapshots of a catalog's tables, each under an id that only one snapshot can have.

    Corresponds to catalog/SnapshotCommit.java in operation/FileStoreCommitImpl.java.
    """

    @property
    def excludes_writers(self) -> bool:
        """Whether no writer of these tables can put a snapshot in the place of another one.

        If not, snapshots of ours are looked back at for a while (`state/ancestry.py`). If so, they
        can only be rolled back, and EXISTS is certain.
        """
        ...

    @property
    def settle_ms(self) -> int:
        """How long a snapshot of ours has to stand before we build on it; 0: not at all.

        More than the longest time between a writer's look and the end of its copy, where nothing
        excludes writers (`state/ancestry.py`).
        """
        ...

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        """Make `snapshot` the table's unless its id is taken. Temporary files are named by `owner`.

        After the call readers find the snapshot with this id at its path, whichever it is. The same
        snapshot may be published again while an earlier outcome is unknown; then EXISTS may mean
        that it exists itself. Raises `TransientStorageError` when the call may have taken effect
        nevertheless, and any other `StorageError` when it was refused.
        """
        ...


class StorePublisher:
    """Create-if-absent of a store: it never replaces a snapshot of another writer.

    Java's own publication there is a rename after a look, and replaces what came in between. Where
    that rename takes long, as on object stores, snapshots of ours stand for `settle_ms` first.
    """

    def __init__(self, storage: Storage, *, settle_ms: int = 0) -> None:
        self.settle_ms = settle_ms
        self._storage = storage

    @property
    def excludes_writers(self) -> bool:
        """See `SnapshotPublisher`."""
        return self._storage.capabilities.replaces_nothing

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        folder = paths.snapshot_folder(table.root)
        return self._storage.create_if_absent(
            paths.snapshot_path(table.root, snapshot.id),
            snapshot_json(snapshot),
            temporary=f"{folder}/.snapshot-{snapshot.id}.{owner.unique_name()}.tmp",
        )
