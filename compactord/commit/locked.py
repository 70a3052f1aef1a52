"""Publishing under a catalog's lock, which all writers of the table take."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import structlog

from compactord.clock import Clock
from compactord.commit.publish import Delta, SnapshotPublisher
from compactord.errors import TransientStorageError
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot
from compactord.storage.base import Creation

_log = structlog.get_logger()
# How long a catalog that fails is asked to release a lock.
_RELEASE_SECONDS_MAX = 30
_FIRST_PAUSE_MS, _PAUSE_MS_MAX = 50, 2_000


class HeldLock(Protocol):
    """A lock that was acquired."""

    def release(self) -> bool:
        """Give it back. False when another may have had it meanwhile; theirs is left alone."""
        ...


class CatalogLock(Protocol):
    """A lock for each table, as catalog/CatalogLock.java; any number of threads may ask."""

    def acquire(self, table: TableRef) -> HeldLock:
        """Wait for the table's lock.

        Raises `CatalogUnavailable` when it cannot be had, `AccessDenied` when it is forbidden.
        """
        ...


def release_attempts(clock: Clock) -> Iterator[int]:
    """Numbers of attempts to give back a lock, for which others wait, with pauses between them."""
    start_s, pause_ms = clock.monotonic_s(), _FIRST_PAUSE_MS
    for attempt in itertools.count(1):
        yield attempt
        if clock.monotonic_s() - start_s > _RELEASE_SECONDS_MAX:
            return
        pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
        clock.sleep(pause_ms / 1000)


class LockedPublisher:
    """Holds the lock of a table while another publisher makes a snapshot appear, and no longer.

    The inner publisher still creates only what is absent: a lock whose time is over can be taken
    by others while its holder believes in it. Then `publish` raises `TransientStorageError`, and
    the caller reads the snapshot back; it also raises what `CatalogLock.acquire` raises.
    """

    settle_ms = 0

    def __init__(self, publisher: SnapshotPublisher, lock: CatalogLock) -> None:
        self.lock = lock
        self._publisher = publisher

    @property
    def excludes_writers(self) -> bool:
        """Not by the lock: who stops for longer than its time limit may replace a snapshot."""
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
        # Another may have replaced it.
        raise TransientStorageError(
            paths.snapshot_path(table.root, snapshot.id),
            "the catalog's lock expired while the snapshot was being published",
        )
