"""Publishes a snapshot and finds out whether it was published before anything else happens."""

from __future__ import annotations

import structlog

from compactord.clock import Clock
from compactord.commit.metadata import MetadataFiles
from compactord.commit.publish import Delta, SnapshotPublisher
from compactord.errors import (
    CommitUnknown,
    CompactordError,
    StorageError,
    TransientStorageError,
)
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, snapshot_unless_gone
from compactord.storage.base import Creation, Storage

# How many times an unknown outcome is checked before it is reported as unknown.
_OUTCOME_ATTEMPTS = 5
_log = structlog.get_logger()


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
        """Whether nobody can replace what was published; it may still be rolled back."""
        return self._publisher.excludes_writers

    def published(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, files: MetadataFiles
    ) -> bool:
        """Publish the snapshot; False when another has its id.

        `files` are those that only this snapshot names: they are deleted when it was refused, and
        kept when it may have existed briefly. Raises `StorageError` when it was refused and
        `CommitUnknown` when the outcome cannot be determined.
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
                    files.let_go()
                return False
            if failure is not None and is_refused:
                if attempt > 1:
                    raise CommitUnknown(
                        f"{failure}; an earlier call may still take effect, so nothing was deleted"
                    ) from failure
                files.take_back()
                why = f"{failure.message}; there is no snapshot {snapshot.id}"
                raise type(failure)(failure.path, f"{why}, nothing was published") from failure
            # The same snapshot again: if the first call takes effect late, it is still ours.
            self._clock.sleep(0.01 * 2**attempt)
        raise CommitUnknown(
            f"{path}: the store did not confirm whether it was created; "
            "nothing was deleted, the next run checks again"
        )

    def found_at(self, table: TableRef, snapshot_id: int) -> Snapshot | None:
        """The snapshot under this id; None when there certainly is none. Else `CommitUnknown`."""
        reason = ""
        for attempt in range(1, _OUTCOME_ATTEMPTS + 1):
            try:
                return snapshot_unless_gone(self._storage, table.root, snapshot_id)
            except CompactordError as error:
                reason = str(error)
                _log.warning("commit_outcome_unknown", attempt=attempt, error=reason)
                self._clock.sleep(0.01 * 2**attempt)
        raise CommitUnknown(
            f"{paths.snapshot_path(table.root, snapshot_id)} cannot be read ({reason}), so it is "
            "unknown whether our snapshot was published; nothing was deleted"
        )
