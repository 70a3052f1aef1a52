"""Ancestry of snapshots: proves what the newest one descends from, and when it is settled.

The order of ids does not show it: on stores where a rename replaces what is there, the snapshot
under an id may have come after those above it. A snapshot is in the table if the base of the next
one contains what it changed.

Java's commit on stores without an exclusive rename replaces what is there (catalog/
RenamingSnapshotCommit.java): a writer that looked before our publication may rename after the next
one. The newest snapshot does not show that.

A Java writer without a lock looks whether an id is free and then copies over the existing file
(catalog/RenamingSnapshotCommit.java, the rename of object stores). If it looked before our
publication, it replaces our snapshot seconds later. While none of our work is built on that
one, only our work is lost; so we wait until such a writer must be done.
"""

from __future__ import annotations

import enum
import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from compactord.clock import Clock
from compactord.errors import FormatError, ObjectNotFound, UnsupportedTable
from compactord.ids import owner_of
from compactord.paimon.data_file import EntryKind, FileIdentity, ManifestEntry
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.manifest.entries import identity_hashes
from compactord.paimon.manifest.entry_columns import read_entry_columns
from compactord.paimon.manifest.manifest_files import ManifestFile, entries_in
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    SnapshotIdentity,
    read_snapshot,
    snapshot_files,
)
from compactord.state.index_files import read_indexes
from compactord.state.loading import snapshot_if_there
from compactord.state.metadata_reader import MetadataReader
from compactord.storage.base import NO_TIME_MS, ObjectStatus, Storage
from compactord.storage.calls import map_concurrently

_log = structlog.get_logger()


class Contained(enum.Enum):
    """Whether a snapshot is in another one. UNKNOWN: manifests were merged in between."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The changes of one snapshot, or of several that are known only by their manifests.

    `commit_user` is None for any compactord process.
    """

    snapshot_id: int
    commit_user: str | None
    commit_identifier: int | None
    kind: CommitKind
    entries: tuple[ManifestEntry, ...]


class Ancestry:
    """Reads the snapshots of one table and caches them, so make one for each look back.

    All methods raise what reading raises, `ObjectNotFound` for what has expired.
    """

    def __init__(self, storage: Storage, table: TableRef) -> None:
        self._storage = storage
        self._location, self._root = table.location, table.root
        self._snapshots: dict[int, Snapshot] = {}
        self._reader = MetadataReader(storage, table.location)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        if snapshot_id not in self._snapshots:
            self._snapshots[snapshot_id] = read_snapshot(self._storage, self._root, snapshot_id)
        return self._snapshots[snapshot_id]

    def readable(self, snapshot_ids: Sequence[int]) -> list[Snapshot]:
        """The given snapshots that have not expired and are not damaged."""

        def read(snapshot_id: int) -> Snapshot | None:
            try:
                return self.snapshot(snapshot_id)
            except ObjectNotFound:
                return None
            except (FormatError, UnsupportedTable) as error:
                # No snapshot below can be compared with it.
                _log.info("snapshot_passed_over", snapshot_id=snapshot_id, error=str(error))
                return None

        found = map_concurrently(self._storage, read, snapshot_ids)
        return [snapshot for snapshot in found if snapshot is not None]

    def delta_entries(self, snapshot: Snapshot) -> tuple[ManifestEntry, ...]:
        """The files that the snapshot itself added and deleted."""
        return self.entries(self._reader.delta(snapshot))

    def entries(self, manifests: Collection[ManifestFile]) -> tuple[ManifestEntry, ...]:
        return entries_in(self._storage, self._location, manifests)

    def contained(self, earlier: Snapshot, later: Snapshot) -> Contained:
        """Whether `later` was built on what `earlier` had changed.

        If manifests were merged, files decide: exactly for the next snapshot, but files of an older
        one may have been replaced since, so that only their names prove anything.
        """
        if earlier.identity == later.identity:
            return Contained.YES
        delta, base = self._reader.delta(earlier), self._reader.base(later)
        if not delta and earlier.index_manifest != later.index_manifest:
            return self._has_vectors(earlier, later)
        if _names(delta) <= _names(base):
            return Contained.YES
        if later.id != earlier.id + 1:
            return Contained.UNKNOWN
        added: set[FileIdentity] = set()
        deleted: set[FileIdentity] = set()
        for entry in self.entries(delta):
            (added if entry.kind is EntryKind.ADD else deleted).add(entry.identity)
        live = self._live(added ^ deleted, base)
        is_in = live == added - deleted
        return Contained.YES if is_in else Contained.NO

    def _has_vectors(self, earlier: Snapshot, later: Snapshot) -> Contained:
        """`contained` for a snapshot that changed no data file: a DELETE with deletion vectors.

        The next one may have replaced all index files, and data files with their vectors.
        """
        before = self._below_index(earlier)
        if before == earlier.index_manifest:
            return Contained.YES
        if later.id != earlier.id + 1:
            return Contained.UNKNOWN
        known = _names(self._reader.base(earlier))
        if known < _names(self._reader.base(later)):
            # It was built on another snapshot, of the same base.
            return Contained.NO
        mine, theirs, older = (
            read_indexes(self._storage, self._location, index)
            for index in (earlier.index_manifest, later.index_manifest, before)
        )
        replaced = {
            (entry.bucket_id, entry.file.file_name)
            for entry in self.delta_entries(later)
            if entry.kind is EntryKind.DELETE
        }
        for bucket in mine.buckets:
            now, then = theirs.vectors(bucket), older.vectors(bucket)
            for name, ref in mine.vectors(bucket).items():
                is_new = ref != then.get(name) and (bucket, name) not in replaced
                if is_new and not _deletes_as_many(now.get(name), ref):
                    return Contained.NO
        return Contained.YES

    def _below_index(self, snapshot: Snapshot) -> str | None:
        """The index manifest of the snapshot below, or None if it is missing or has none."""
        try:
            return self.snapshot(snapshot.id - 1).index_manifest if snapshot.id > 1 else None
        except ObjectNotFound:
            return None

    def between(
        self, lost: Snapshot, above: Snapshot, known: Mapping[int, Snapshot]
    ) -> tuple[Step, ...] | None:
        """The replaced snapshots from the base of `lost` to the base of `above`, as steps.

        They are compactions of compactord's, or partitions that it removed, if the manifests are
        that `above` has and `lost` was not built on; else their deltas are read if all are in
        `known`, from the same base. None if neither is proved.
        """
        before, after = self._reader.base(lost), self._reader.base(above)
        names = _names(before)
        manifests = [each for each in after if each.file_name not in names]
        # A writer's commit might be this one, made again: its user would have to be known.
        is_ours = all(each.num_deleted_files and owner_of(each.file_name) for each in manifests)
        if manifests and is_ours and names <= _names(after):
            return (
                Step(
                    snapshot_id=lost.id,
                    commit_user=None,
                    commit_identifier=None,
                    kind=CommitKind.COMPACT,
                    entries=self.entries(manifests),
                ),
            )
        chain = [known[number] for number in range(lost.id, above.id) if number in known]
        if len(chain) < above.id - lost.id or not self._is_chain([*chain, above]):
            return None
        if lost.id == 1:
            is_same_base = not before and not self._reader.base(chain[0])
        else:
            below = self.snapshot(lost.id - 1)
            is_same_base = self._is_chain([below, lost]) and self._is_chain([below, chain[0]])
        return tuple(self.step(each) for each in chain) if is_same_base else None

    def step(self, snapshot: Snapshot) -> Step:
        """The snapshot's changes and user."""
        return Step(
            snapshot_id=snapshot.id,
            commit_user=snapshot.commit_user,
            commit_identifier=snapshot.commit_identifier,
            kind=snapshot.commit_kind,
            entries=self.delta_entries(snapshot),
        )

    def has_ours(self, lost: Snapshot, above: Snapshot) -> bool:
        """Whether compactord made `above`, or a snapshot below it that is not one of `lost`'s.

        Names of compactord's files contain their owner; the snapshot of a commit that it made
        again has another's user.
        """
        if _is_ours(above):
            return True
        known = _names(self._reader.base(lost)) | _names(self._reader.delta(lost))
        others = _names(self._reader.base(above)) - known
        return any(owner_of(name) is not None for name in others)

    def _is_chain(self, snapshots: Sequence[Snapshot]) -> bool:
        pairs = itertools.pairwise(snapshots)
        return all(self.contained(one, other) is Contained.YES for one, other in pairs)

    def _live(
        self, wanted: Collection[FileIdentity], manifests: Sequence[ManifestFile]
    ) -> set[FileIdentity]:
        """The `wanted` files that are live in a snapshot with these manifests."""
        hashes = np.sort(identity_hashes(list(wanted)))
        live: set[FileIdentity] = set()
        dead: set[FileIdentity] = set()
        for columns in read_entry_columns(self._storage, self._location, manifests):
            rows = np.flatnonzero(np.isin(columns.files.identity_hash, hashes))
            kinds = columns.kind[rows].tolist()
            for kind, identity in zip(kinds, columns.identities(rows), strict=True):
                (live if kind == EntryKind.ADD else dead).add(identity)
        return (live - dead) & set(wanted)


def late_candidates(snapshots: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
    """The snapshots, from a list by id, that may have been renamed into their place late.

    Candidates are snapshots below one that compactord made, and snapshots whose rows the next one
    did not count: an append in the place of a compaction. Our own commits replace no snapshot.
    """
    candidates = []
    for snapshot, above in itertools.pairwise(snapshots):
        if above.id != snapshot.id + 1:
            continue
        if snapshot.commit_kind is not CommitKind.APPEND and owner_of(snapshot.commit_user):
            continue
        counted = snapshot.total_record_count + above.delta_record_count
        if _is_ours(above) or above.total_record_count != counted:
            candidates.append(snapshot)
    return tuple(candidates)


def _deletes_as_many(found: VectorRef | None, wanted: VectorRef) -> bool:
    return found is not None and (found.cardinality or 0) >= (wanted.cardinality or 0)


def _is_ours(snapshot: Snapshot) -> bool:
    names = (snapshot.commit_user, snapshot.delta_manifest_list)
    return any(owner_of(name) is not None for name in names)


def _names(manifests: Collection[ManifestFile]) -> set[str]:
    return {manifest.file_name for manifest in manifests}


# Beyond this the oldest are forgotten.
_REMEMBERED_MAX = 1000
# How many forgotten snapshots are kept to recognise a rollback.
_OLD_MAX = 10
# Up to this many are read at once: listing them first costs as much, or more.
_READ_MAX = 4
# Stores record changes in whole seconds: files made longer apart than this have different times.
_TIMES_DIFFER_MS = 2_000
# How many snapshots are read for the last commit that was ours.
_LOOKED_BACK = 10


def last_commit(storage: Storage, location: str, newest: Snapshot) -> Snapshot | None:
    """The newest COMPACT snapshot by any compactord process, or None if no recent one is.

    `_LOOKED_BACK` snapshots are read at most. Raises what reading raises.
    """
    if _is_our_compaction(newest):
        return newest
    ids = range(newest.id - 1, max(0, newest.id - _LOOKED_BACK), -1)
    for found in map_concurrently(storage, partial(snapshot_if_there, storage, location), ids):
        # One that has expired ends the search.
        if found is None or _is_our_compaction(found):
            return found
    return None


def _is_our_compaction(snapshot: Snapshot) -> bool:
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
    """Published snapshots of one table, for `writer_delay_ms` each. Steady times; thread-safe."""

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage = storage
        self._location = location
        self._lock = threading.Lock()
        self._remembered: dict[int, _Remembered] = {}
        # Forgotten, but kept to detect a rollback of the table.
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
        """The remembered snapshots, by id."""
        with self._lock:
            return {key: each.snapshot for key, each in self._remembered.items()}

    def forget_before(self, since_ms: int) -> None:
        """Forgets snapshots published before this steady time."""
        with self._lock:
            for snapshot_id in [k for k, r in self._remembered.items() if r.since_ms < since_ms]:
                self._old[snapshot_id] = self._remembered.pop(snapshot_id).snapshot
            for snapshot_id in sorted(self._old)[:-_OLD_MAX]:
                del self._old[snapshot_id]

    def clear(self) -> None:
        """Forgets all snapshots: they were another table's."""
        with self._lock:
            self._remembered.clear()
            self._old.clear()

    def decided(self, snapshot: Snapshot) -> None:
        """Accepts this snapshot as the owner of its id; another in its place would be new."""
        with self._lock:
            remembered = self._remembered.get(snapshot.id)
            if remembered is not None:
                remembered.snapshot = snapshot

    def was_rolled_back(self, ours: Snapshot) -> bool:
        """Whether the table was rolled back past what `ours` was built on.

        A rename in our place keeps the snapshots below it. After a rollback other snapshots are
        there. A rollback to that very snapshot looks the same as a rename. Raises read errors.
        """
        with self._lock:
            remembered = {key: each.snapshot for key, each in self._remembered.items()}
            snapshots = {**self._old, **remembered}
        below = snapshots.get(ours.id - 1)
        while below is not None and below.commit_user == ours.commit_user:
            # A rename may have replaced ours as well.
            below = snapshots.get(below.id - 1)
        if below is None:
            return False
        found = snapshot_if_there(self._storage, self._location, below.id)
        return found is not None and found.identity != below.identity

    def replaced(self, now_ms: int) -> tuple[ReplacedSnapshot, ...]:
        """The remembered snapshots whose id belongs to another snapshot now, by id.

        A few are read. If there are more, one listing excludes unchanged files by their times, and
        only the rest are read. `now_ms` is steady. Missing ids (expired, rolled back) are
        skipped. Raises what listing and reading raise.
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
                if snapshot_id in files and each.checked != _version(files[snapshot_id])
            ]
        others = map_concurrently(self._storage, lambda pair: self._other(*pair, now_ms), unread)
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
            remembered.checked = _version(status)
        return None


def _version(status: ObjectStatus) -> tuple[int, int]:
    return status.size_bytes, status.changed_ms


# By how much the clocks of two machines that run compactord may differ.
_CLOCKS_DIFFER_MS = 300_000


class SettleDelay:
    """The settle delay of one table's session. Thread-safe. With `settle_ms` 0 there is no wait."""

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

        Names of metadata that compactord writes contain their owner, even if it restored a
        writer's commit.
        """
        if not self._settle_ms or newest is None:
            return
        if owner_of(newest.delta_manifest_list) is None:
            return
        ago_ms = abs(self._clock.now_ms() - newest.time_ms)
        if ago_ms < self._settle_ms + _CLOCKS_DIFFER_MS:
            self.published(newest)

    def wait_ms(self) -> int:
        """Milliseconds until our newest snapshot is safe to build on and to delete for."""
        return max(0, self._until_ms - self._clock.steady_ms()) if self._settle_ms else 0

    @property
    def is_unread(self) -> bool:
        """Whether our newest snapshot still must be read back after its delay."""
        return bool(self._unread)

    def has_relied_on(self, ours: Snapshot) -> bool:
        """Whether something of ours may have been built on it, or deleted because of it."""
        return ours.identity not in self._unread

    def read_back(self) -> None:
        """Records that our newest snapshot was read back after its delay."""
        if not self.wait_ms():
            self._unread.clear()
