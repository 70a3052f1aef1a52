"""Publishes a snapshot under its id, with a lock if there is one; resolves unknown outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from compactord.clock import Clock
from compactord.commit.changes import BucketChange
from compactord.commit.metadata import MetadataFiles
from compactord.errors import (
    CommitUnknown,
    CompactordError,
    StorageError,
    TransientStorageError,
)
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, snapshot_json, snapshot_unless_absent
from compactord.storage.base import Creation, Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The changes of a snapshot on top of `base`, or None for the table's first."""

    base: Snapshot | None
    changes: Sequence[BucketChange] = ()


class SnapshotPublisher(Protocol):
    """Publishes snapshots of a catalog's tables, each under an id that only one snapshot can have.

    Corresponds to catalog/SnapshotCommit.java in operation/FileStoreCommitImpl.java.
    """

    @property
    def excludes_writers(self) -> bool:
        """Whether no writer of these tables can replace another writer's snapshot.

        If not, our snapshots are rechecked for a while (`state/ancestry.py`). If so, they can only
        be rolled back, and EXISTS is certain.
        """
        ...

    @property
    def settle_ms(self) -> int:
        """Minimum age of our snapshot before we build on it, or 0.

        If writers are not excluded, it exceeds the longest time between a writer's check and the
        end of its copy (`state/ancestry.py`).
        """
        ...

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        """Publish `snapshot` unless its id is taken. Temporary files are named by `owner`.

        After the call readers find a snapshot with this id at its path, ours or another. The same
        snapshot may be published again while an earlier outcome is unknown; EXISTS may then refer
        to the first attempt. Raises `TransientStorageError` if the call may have taken effect
        nevertheless, and any other `StorageError` if it was refused.
        """
        ...


class StorePublisher:
    """Create-if-absent of a store: it never replaces a snapshot of another writer.

    Java publishes by a check and a rename there, which replaces a snapshot published in between. If
    that rename takes long, as on object stores, our snapshots settle for `settle_ms` first.
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


_log = structlog.get_logger()
# Maximum time of retries to release a lock while the catalog fails.
_RELEASE_SECONDS_MAX = 30
_FIRST_PAUSE_MS, _PAUSE_MS_MAX = 50, 2_000


class HeldLock(Protocol):
    def release(self) -> bool:
        """Release the lock. False if another writer may have held it meanwhile; theirs is kept."""
        ...


class CatalogLock(Protocol):
    """A lock for each table, as catalog/CatalogLock.java. Thread-safe."""

    def acquire(self, table: TableRef) -> HeldLock:
        """Wait for the table's lock.

        Raises `CatalogUnavailable` if it is not available, `AccessDenied` if it is forbidden.
        """
        ...


def release_attempts(clock: Clock) -> Iterator[int]:
    """Numbers of attempts to release a lock, with pauses between them."""
    start_s, pause_ms = clock.monotonic_s(), _FIRST_PAUSE_MS
    for attempt in itertools.count(1):
        yield attempt
        if clock.monotonic_s() - start_s > _RELEASE_SECONDS_MAX:
            return
        pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
        clock.sleep(pause_ms / 1000)


class LockedPublisher:
    """Holds the lock of a table only while another publisher publishes a snapshot.

    The inner publisher still creates only absent objects: another writer can take an expired lock
    while its holder still relies on it. Then `publish` raises `TransientStorageError`, and the
    caller reads the snapshot back. It also raises the errors of `CatalogLock.acquire`.
    """

    settle_ms = 0

    def __init__(self, publisher: SnapshotPublisher, lock: CatalogLock) -> None:
        self.lock = lock
        self._publisher = publisher

    @property
    def excludes_writers(self) -> bool:
        """The lock is not enough: a holder paused past its timeout could replace a snapshot."""
        return self._publisher.excludes_writers

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        held = self.lock.acquire(table)
        was_ours = False
        try:
            created = self._publisher.publish(table, snapshot, delta, owner=owner)
        finally:
            was_ours = held.release()
            if not was_ours:
                _log.warning("catalog_lock_lost", snapshot_id=snapshot.id)
        if was_ours:
            return created
        # Another writer may have replaced it.
        raise TransientStorageError(
            paths.snapshot_path(table.root, snapshot.id),
            "the catalog's lock expired while the snapshot was being published",
        )


# How many times an unknown outcome is checked before it is reported as unknown.
_OUTCOME_ATTEMPTS = 5


class Publication:
    """Publishes snapshots for one committer and finds out whether they were published."""

    def __init__(
        self, *, storage: Storage, publisher: SnapshotPublisher, clock: Clock, owner: Owner
    ) -> None:
        self._storage = storage
        self._publisher = publisher
        self._clock = clock
        self._owner = owner

    @property
    def is_final(self) -> bool:
        """Whether no writer can replace a published snapshot; it may still be rolled back."""
        return self._publisher.excludes_writers

    def published(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, files: MetadataFiles
    ) -> bool:
        """Publish the snapshot. Returns False if another one has its id.

        `files` are named only by this snapshot: they are deleted if it was refused, and kept if it
        may have existed briefly. Raises `StorageError` if it was refused and `CommitUnknown` if the
        outcome cannot be determined.
        """
        path = paths.snapshot_path(table.root, snapshot.id)
        is_in_doubt = False
        for attempt in range(1, _OUTCOME_ATTEMPTS + 1):
            failure: StorageError | None = None
            try:
                created = self._publisher.publish(table, snapshot, delta, owner=self._owner)
                if created is Creation.CREATED:
                    return True
                if self.is_final and not is_in_doubt:
                    return False
            except StorageError as error:
                failure, is_in_doubt = error, True
            is_refused = failure is not None and not isinstance(failure, TransientStorageError)
            if failure is not None and not is_refused:
                _log.warning("commit_outcome_unknown", attempt=attempt, error=str(failure))
            found = self.found_at(table, snapshot.id)
            if is_refused and found is not None:
                # The store reported a refusal, but a snapshot exists: ours after all, or another's.
                _log.warning("commit_outcome_unknown", attempt=attempt, error=str(failure))
            if found is not None and found.uuid == snapshot.uuid:
                return True
            if found is not None:
                if is_in_doubt:
                    # Ours may have existed before it, with another snapshot built upon it.
                    files.keep_written()
                return False
            if failure is not None and is_refused:
                if attempt > 1:
                    raise CommitUnknown(
                        f"{failure}; an earlier call may still take effect, so no file was deleted"
                    ) from failure
                files.delete_written()
                why = f"{failure.message}; there is no snapshot {snapshot.id}"
                raise type(failure)(failure.path, f"{why}, no snapshot was published") from failure
            # The same snapshot again: if the first call takes effect late, it is still ours.
            self._clock.sleep(0.01 * 2**attempt)
        raise CommitUnknown(
            f"{path}: the store did not confirm whether it was created; "
            "no file was deleted, the next run checks again"
        )

    def found_at(self, table: TableRef, snapshot_id: int) -> Snapshot | None:
        """The snapshot with this id, or None if there is certainly none; else `CommitUnknown`."""
        reason = ""
        for attempt in range(1, _OUTCOME_ATTEMPTS + 1):
            try:
                return snapshot_unless_absent(self._storage, table.root, snapshot_id)
            except CompactordError as error:
                reason = str(error)
                _log.warning("commit_outcome_unknown", attempt=attempt, error=reason)
                self._clock.sleep(0.01 * 2**attempt)
        raise CommitUnknown(
            f"{paths.snapshot_path(table.root, snapshot_id)} cannot be read ({reason}), so it is "
            "unknown whether our snapshot was published; no file was deleted"
        )
