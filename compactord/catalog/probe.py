"""Whether a warehouse's store keeps the promise that commits rest on: create-if-absent."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

from compactord import ids
from compactord.commit.publish import Delta, SnapshotPublisher
from compactord.errors import AccessDenied, StorageError, UnsafeStore
from compactord.ids import Owner
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot
from compactord.storage.base import Creation, Storage, StorageSpec

_FIRST, _SECOND = b"first\n", b"second\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """`is_exclusive`: a second creation of one name was refused, and the first content stayed.

    `changed_ms` is when the object was made by the store's clock, since the epoch.
    """

    is_exclusive: bool
    changed_ms: int


def probe(storage: Storage, below: str) -> Probed:
    """Create an object twice in a folder of its own below `below`, and remove both.

    No catalog takes the folder for a database: its name does not end in `.db`. Raises what the
    store raises; the folder may then stay.
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


# The stores that are known to keep it, for all catalogs of this process.
_kept: set[StorageSpec] = set()


class StoreProof:
    """That a store creates only what is absent; tried until it is known, then no more."""

    def __init__(self, storage: Storage, warehouse: str) -> None:
        self._storage = storage
        self._warehouse = warehouse
        # Of one store, so that another one that hangs keeps nobody waiting.
        self._lock = threading.Lock()

    @property
    def is_needed(self) -> bool:
        is_trusted = self._storage.capabilities.creates_exclusively
        return not is_trusted and self._storage.spec not in _kept

    def require(self, *, or_below: str | None = None) -> None:
        """Try it below the warehouse, and where that is forbidden below `or_below`.

        Raises `UnsafeStore` for a store that replaces, `AccessDenied` where nothing may be created
        in either, and what the store raises.
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
                    "the store ignores that an object must not be there yet (If-None-Match or the "
                    "like), so that snapshots would be lost: use a release or a product that "
                    "honours it",
                )
            _kept.add(self._storage.spec)


class ProvedPublisher:
    """Publishes by another publisher once the store's proof is there."""

    def __init__(self, publisher: SnapshotPublisher, proof: StoreProof) -> None:
        self.excludes_writers = publisher.excludes_writers
        self.settle_ms = publisher.settle_ms
        self._publisher = publisher
        self._proof = proof

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        """See `SnapshotPublisher`."""
        self._proof.require(or_below=table.location)
        return self._publisher.publish(table, snapshot, delta, owner=owner)
