"""Remembers the snapshots that a process published, and finds those that a late rename replaced.

Java's commit on stores without an exclusive rename replaces what is there (catalog/
RenamingSnapshotCommit.java): a writer that looked before our publication may rename after the next
one. The newest snapshot alone does not show that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from compactord.errors import FormatError
from compactord.ids import owner_of
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_files
from compactord.state.later_snapshots import snapshot_if_there
from compactord.storage.base import NO_TIME_MS, ObjectStatus, Storage
from compactord.storage.calls import results_of

_log = structlog.get_logger()
# Beyond this the oldest are forgotten.
_REMEMBERED_MAX = 1000
# How many of those that nobody looks back at any more are kept to tell a rollback by.
_OLD_MAX = 10
# Up to so many are read at once: to list them first costs as much, or more.
_READ_MAX = 4
# Stores tell changes in whole seconds: files made longer apart than this have different times.
_TIMES_DIFFER_MS = 2_000
# How many snapshots are read for the last commit that was ours.
_LOOKED_BACK = 10


def last_commit(storage: Storage, location: str, newest: Snapshot) -> Snapshot | None:
    """The newest COMPACT snapshot by a process of compactord, whichever; None: not among the last.

    `_LOOKED_BACK` snapshots are read at most. Raises what reading raises.
    """
    if _is_ours(newest):
        return newest
    ids = range(newest.id - 1, max(0, newest.id - _LOOKED_BACK), -1)
    for found in results_of(storage, partial(snapshot_if_there, storage, location), ids):
        # One that has expired ends the search.
        if found is None or _is_ours(found):
            return found
    return None


def _is_ours(snapshot: Snapshot) -> bool:
    return snapshot.commit_kind is CommitKind.COMPACT and owner_of(snapshot.commit_user) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedSnapshot:
    """`found` has the id of `known`, which we published or built upon."""

    known: Snapshot
    found: Snapshot


@dataclass(slots=True, kw_only=True)
class _Remembered:
    """`checked` are size and change time of the file that was last found to hold `snapshot`."""

    snapshot: Snapshot
    since_ms: int
    checked: tuple[int, int] | None = None


class PublishedSnapshots:
    """Of one table, for `writer_delay_ms` each. Times are steady; any thread may ask."""

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location
        self._lock = threading.Lock()
        self._remembered: dict[int, _Remembered] = {}
        # Forgotten, but for the question whether the table was rolled back.
        self._old: dict[int, Snapshot] = {}

    def add(self, snapshot: Snapshot, base: Snapshot | None, now_ms: int) -> None:
        """A snapshot of ours, and the one that it was built on, which must stay below it."""
        with self._lock:
            for each in (base, snapshot):
                if each is not None:
                    known = self._remembered.get(each.id)
                    if known is None or known.snapshot.identity != each.identity:
                        self._remembered[each.id] = _Remembered(snapshot=each, since_ms=now_ms)
            for snapshot_id in sorted(self._remembered)[:-_REMEMBERED_MAX]:
                del self._remembered[snapshot_id]

    def known(self) -> Mapping[int, Snapshot]:
        """By id, what is remembered."""
        with self._lock:
            return {key: each.snapshot for key, each in self._remembered.items()}

    def forget_before(self, since_ms: int) -> None:
        """Look no longer at those published before this steady time."""
        with self._lock:
            for snapshot_id in [k for k, r in self._remembered.items() if r.since_ms < since_ms]:
                self._old[snapshot_id] = self._remembered.pop(snapshot_id).snapshot
            for snapshot_id in sorted(self._old)[:-_OLD_MAX]:
                del self._old[snapshot_id]

    def clear(self) -> None:
        """Forget all: they were another table's."""
        with self._lock:
            self._remembered.clear()
            self._old.clear()

    def decided(self, snapshot: Snapshot) -> None:
        """From now on this one is known to have its id; another in its place would be new."""
        with self._lock:
            remembered = self._remembered.get(snapshot.id)
            if remembered is not None:
                remembered.snapshot = snapshot

    def was_rolled_back(self, ours: Snapshot) -> bool:
        """Whether the table was rolled back past what `ours` was built on.

        A rename in our place leaves below it what was there. After a rollback others have put other
        snapshots there. A rollback to that very snapshot cannot be told from a rename. Raises what
        reading raises.
        """
        with self._lock:
            remembered = {key: each.snapshot for key, each in self._remembered.items()}
            snapshots = {**self._old, **remembered}
        below = snapshots.get(ours.id - 1)
        while below is not None and below.commit_user == ours.commit_user:
            # Ours may have been replaced by a rename, too.
            below = snapshots.get(below.id - 1)
        if below is None:
            return False
        found = snapshot_if_there(self._storage, self._location, below.id)
        return found is not None and found.identity != below.identity

    def replaced(self, now_ms: int) -> tuple[ReplacedSnapshot, ...]:
        """Those whose id another snapshot has now, by id.

        A few are read. Of more, after one listing, those alone whose file is not known to hold
        them, where its time would tell of a later one. `now_ms` is steady. Ids that are gone
        (expired, rolled back) are passed over. Raises what listing and reading raise.
        """
        with self._lock:
            remembered = dict(sorted(self._remembered.items()))
        unread: list[tuple[_Remembered, ObjectStatus | None]]
        if len(remembered) <= _READ_MAX:
            unread = [(each, None) for each in remembered.values()]
        else:
            files = snapshot_files(self._storage, self._location)
            unread = [
                (each, files[snapshot_id])
                for snapshot_id, each in remembered.items()
                if snapshot_id in files and each.checked != _seen(files[snapshot_id])
            ]
        others = results_of(self._storage, lambda pair: self._other(*pair, now_ms), unread)
        return tuple(
            ReplacedSnapshot(known=each.snapshot, found=other)
            for (each, _), other in zip(unread, others, strict=True)
            if other is not None
        )

    def _other(
        self, remembered: _Remembered, status: ObjectStatus | None, now_ms: int
    ) -> Snapshot | None:
        known = remembered.snapshot
        try:
            found = snapshot_if_there(self._storage, self._location, known.id)
        except FormatError as error:
            # Half of a copy; the next look back reads it again.
            _log.warning("snapshot_unreadable", snapshot_id=known.id, error=str(error))
            return None
        if found is None or found.identity != known.identity:
            return found
        if status is None or status.changed_ms == NO_TIME_MS:
            return None
        if now_ms - remembered.since_ms > _TIMES_DIFFER_MS:
            remembered.checked = _seen(status)
        return None


def _seen(status: ObjectStatus) -> tuple[int, int]:
    return status.size_bytes, status.changed_ms
