"""Which snapshots the newest one descends from, and what happened between two of them.

The order of ids does not show it: on stores where a rename replaces what is there, the snapshot
under an id may have come after those above it. A snapshot is in the table if the base of the next
one contains what it changed.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from compactord.errors import FormatError, ObjectNotFound, UnsupportedTable
from compactord.ids import owner_of
from compactord.paimon import paths
from compactord.paimon.data_file import EntryKind, FileIdentity, ManifestEntry
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.manifest.entries import identity_hashes
from compactord.paimon.manifest.entry_columns import read_entry_columns
from compactord.paimon.manifest.manifest_files import ManifestFile, entries_in, read_manifest_list
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, Snapshot, read_snapshot
from compactord.state.index_files import read_indexes
from compactord.storage.base import Storage
from compactord.storage.calls import results_of

_log = structlog.get_logger()


class Contained(enum.Enum):
    """Whether a snapshot is in another one. UNKNOWN: manifests were merged in between."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one snapshot changed, or several that are known by their manifests alone.

    `commit_user` None: some compactord.
    """

    snapshot_id: int
    commit_user: str | None
    commit_identifier: int | None
    kind: CommitKind
    entries: tuple[ManifestEntry, ...]


class Ancestry:
    """Reads the snapshots of one table; what it has read is kept, so make one for each look.

    All methods raise what reading raises, `ObjectNotFound` for what has expired.
    """

    def __init__(self, storage: Storage, table: TableRef) -> None:
        self._storage = storage
        self._location, self._root = table.location, table.root
        self._snapshots: dict[int, Snapshot] = {}
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}

    def snapshot(self, snapshot_id: int) -> Snapshot:
        if snapshot_id not in self._snapshots:
            self._snapshots[snapshot_id] = read_snapshot(self._storage, self._root, snapshot_id)
        return self._snapshots[snapshot_id]

    def readable(self, snapshot_ids: Sequence[int]) -> list[Snapshot]:
        """Of these snapshots those that have not expired and are not damaged."""

        def read(snapshot_id: int) -> Snapshot | None:
            try:
                return self.snapshot(snapshot_id)
            except ObjectNotFound:
                return None
            except (FormatError, UnsupportedTable) as error:
                # Nothing below it can be compared with it.
                _log.info("snapshot_passed_over", snapshot_id=snapshot_id, error=str(error))
                return None

        found = results_of(self._storage, read, snapshot_ids)
        return [snapshot for snapshot in found if snapshot is not None]

    def base(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests that the snapshot was built on, perhaps merged."""
        return self._list(snapshot.base_manifest_list, snapshot.base_manifest_list_size)

    def delta(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests that the snapshot added."""
        return self._list(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size)

    def entries(self, manifests: Collection[ManifestFile]) -> tuple[ManifestEntry, ...]:
        return entries_in(self._storage, self._location, manifests)

    def contained(self, earlier: Snapshot, later: Snapshot) -> Contained:
        """Whether `later` was built on what `earlier` had changed.

        If manifests were merged, files decide: exactly for the next snapshot, but files of an older
        one may have been replaced since, so that only their names prove anything.
        """
        if earlier.identity == later.identity:
            return Contained.YES
        delta, base = self.delta(earlier), self.base(later)
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
        """As `contained`, for one that changed no data file: a DELETE that wrote deletion vectors.

        The next one may have replaced all index files, and data files with their vectors.
        """
        before = self._below_index(earlier)
        if before == earlier.index_manifest:
            return Contained.YES
        if later.id != earlier.id + 1:
            return Contained.UNKNOWN
        known = _names(self.base(earlier))
        if known < _names(self.base(later)):
            # It was built on another snapshot, of the same base.
            return Contained.NO
        mine, theirs, older = (
            read_indexes(self._storage, self._location, index)
            for index in (earlier.index_manifest, later.index_manifest, before)
        )
        replaced = {
            (entry.bucket_id, entry.file.file_name)
            for entry in self.entries(self.delta(later))
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
        """The index manifest of the snapshot below; None: it has none, or is gone."""
        try:
            return self.snapshot(snapshot.id - 1).index_manifest if snapshot.id > 1 else None
        except ObjectNotFound:
            return None

    def between(
        self, lost: Snapshot, above: Snapshot, known: Mapping[int, Snapshot]
    ) -> tuple[Step, ...] | None:
        """What led from the base of `lost` to that of `above`: snapshots that have been replaced.

        They are compactions of compactord's, or partitions that it removed, if the manifests are
        that `above` has and `lost` was not built on; else their deltas are read if all are in
        `known`, from the same base. None when neither can be told.
        """
        before, after = self.base(lost), self.base(above)
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
            is_same_base = not before and not self.base(chain[0])
        else:
            below = self.snapshot(lost.id - 1)
            is_same_base = self._is_chain([below, lost]) and self._is_chain([below, chain[0]])
        return tuple(self.step(each) for each in chain) if is_same_base else None

    def step(self, snapshot: Snapshot) -> Step:
        """What the snapshot changed, and who made it."""
        return Step(
            snapshot_id=snapshot.id,
            commit_user=snapshot.commit_user,
            commit_identifier=snapshot.commit_identifier,
            kind=snapshot.commit_kind,
            entries=self.entries(self.delta(snapshot)),
        )

    def has_ours(self, lost: Snapshot, above: Snapshot) -> bool:
        """Whether compactord made `above`, or a snapshot below it that is not one of `lost`'s.

        Files of compactord's tell their owner by their name; the snapshot of a commit that it made
        again has another's user.
        """
        if _is_ours(above):
            return True
        known = _names(self.base(lost)) | _names(self.delta(lost))
        others = _names(self.base(above)) - known
        return any(owner_of(name) is not None for name in others)

    def _is_chain(self, snapshots: Sequence[Snapshot]) -> bool:
        pairs = itertools.pairwise(snapshots)
        return all(self.contained(one, other) is Contained.YES for one, other in pairs)

    def _live(
        self, wanted: Collection[FileIdentity], manifests: Sequence[ManifestFile]
    ) -> set[FileIdentity]:
        """Those of `wanted` that are live in a snapshot with these manifests."""
        hashes = np.sort(identity_hashes(list(wanted)))
        live: set[FileIdentity] = set()
        dead: set[FileIdentity] = set()
        for columns in read_entry_columns(self._storage, self._location, manifests):
            rows = np.flatnonzero(np.isin(columns.files.identity_hash, hashes))
            kinds = columns.kind[rows].tolist()
            for kind, identity in zip(kinds, columns.identities(rows), strict=True):
                (live if kind == EntryKind.ADD else dead).add(identity)
        return (live - dead) & set(wanted)

    def _list(self, name: str, size: int | None) -> tuple[ManifestFile, ...]:
        if name not in self._lists:
            path = paths.manifest_path(self._location, name)
            self._lists[name] = read_manifest_list(self._storage, path, size)
        return self._lists[name]


def late_candidates(snapshots: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
    """Of snapshots in order of id, those that may have been renamed into their place late.

    Worth a look are those below one that compactord made, and those whose rows the next one did not
    count: an append in the place of a compaction. Compactions and removals of ours replace nothing.
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
