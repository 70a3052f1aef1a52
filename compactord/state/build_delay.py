"""Says from when on our newest snapshot may be built upon, where writers may still replace it.

A Java writer without a lock looks whether an id is free and then copies over whatever is there
(catalog/RenamingSnapshotCommit.java, the rename of object stores). If it looked before our
publication, it replaces our snapshot seconds later. As long as nothing of ours was built on that
one, nothing is lost but our work; so we wait until such a writer must be done.
"""

from __future__ import annotations

from compactord.clock import Clock
from compactord.ids import owner_of
from compactord.paimon.snapshot import Snapshot, SnapshotIdentity

# By how much the clocks of two machines that run compactord may differ.
_CLOCKS_DIFFER_MS = 300_000


class BuildDelay:
    """Of one table, for one session; any thread may ask. With `settle_ms` 0 nothing ever waits."""

    def __init__(self, clock: Clock, settle_ms: int) -> None:
        self._clock = clock
        self._settle_ms = settle_ms
        self._until_ms = 0
        self._unread: set[SnapshotIdentity] = set()

    def published(self, snapshot: Snapshot) -> None:
        """A snapshot of ours was published just now, or may have been."""
        if self._settle_ms:
            self._until_ms = self._clock.steady_ms() + self._settle_ms
            self._unread.add(snapshot.identity)

    def opened(self, newest: Snapshot | None) -> None:
        """The table was read for the first time: another process may just have published `newest`.

        The metadata that compactord writes tells its owner by name, also where it made the commit
        of a writer again.
        """
        if not self._settle_ms or newest is None:
            return
        if owner_of(newest.delta_manifest_list) is None:
            return
        ago_ms = abs(self._clock.now_ms() - newest.time_ms)
        if ago_ms < self._settle_ms + _CLOCKS_DIFFER_MS:
            self.published(newest)

    def wait_ms(self) -> int:
        """How long nothing may be built on our newest snapshot, nor deleted because of it."""
        return max(0, self._until_ms - self._clock.steady_ms()) if self._settle_ms else 0

    @property
    def is_unread(self) -> bool:
        """Whether our newest snapshot has not been read back since it stood for long enough."""
        return bool(self._unread)

    def has_relied_on(self, ours: Snapshot) -> bool:
        """Whether something of ours may have been built on it, or deleted because of it."""
        return ours.identity not in self._unread

    def read_back(self) -> None:
        """Our newest snapshot has stood, and was read back: what was found is known."""
        if not self.wait_ms():
            self._unread.clear()
