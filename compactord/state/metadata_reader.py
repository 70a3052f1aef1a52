"""Reads each metadata file of many snapshots once, and finds wanted files that are live in them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from compactord.errors import UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, EntryKind, FileIdentity, FileKey, FileSource
from compactord.paimon.deletion_vectors import INDEX_TYPE
from compactord.paimon.manifest.entries import Hashes, identity_hashes
from compactord.paimon.manifest.entry_columns import EntryColumns, read_entry_columns
from compactord.paimon.manifest.index_manifest import (
    HASH_INDEX,
    IndexEntry,
    IndexFile,
    read_index_files,
)
from compactord.paimon.manifest.manifest_files import (
    ListBlocks,
    ManifestFile,
    manifests_in,
    read_entries,
)
from compactord.paimon.snapshot import CommitKind, ManifestListRef, Snapshot
from compactord.storage.base import Absences, Storage
from compactord.storage.calls import map_concurrently

# An index of these kinds, or of a column, is exactly the file that the index manifest names.
_KNOWN_INDEXES = {HASH_INDEX, INDEX_TYPE}
ReadList = Callable[[Snapshot], tuple[ManifestFile, ...]]


def refuse_unknown_indexes(location: str, files: Iterable[IndexFile | IndexEntry]) -> None:
    """Raises `UnsupportedTable` for kinds of indexes whose files may be anywhere."""
    unknown = {each.index_type for each in files if not each.is_global} - _KNOWN_INDEXES
    if unknown:
        kinds = ", ".join(sorted(unknown))
        raise UnsupportedTable(location, [f"it has index files of type {kinds}"])


class FileChange(NamedTuple):
    """The part of a manifest entry that expiry needs: a whole entry is ten times as large.

    `created_ms` is from the wall clock of the file's writer, or 0 if unknown. `is_compacted` files
    come from a compaction: streaming readers do not read them.
    """

    kind: EntryKind
    key: FileKey
    size_bytes: int
    created_ms: int
    extra_files: tuple[str, ...]
    external_path: str | None
    is_compacted: bool


class MetadataReader:
    """Reads one table's metadata and caches everything. Raises what reading raises.

    Create it after the snapshots to read are known. Where metadata may be missing, a listing
    confirms that it is.
    """

    def __init__(self, storage: Storage, location: str) -> None:
        self.location = location
        self._storage = storage
        self._absences = Absences(storage)
        self._lists: dict[str, tuple[ManifestFile, ...]] = {}
        self._base_before = ListBlocks()
        # Index manifests name mostly the same files.
        self._indexes: dict[str, tuple[IndexFile, ...]] = {}
        self._index_files: dict[IndexFile, IndexFile] = {}
        self._buckets: dict[BucketId, BucketId] = {}
        self._wanted: frozenset[FileKey] = frozenset()
        self._hashes: dict[int, Hashes] = {}
        self._found: dict[str, list[tuple[int, FileIdentity]]] = {}

    def base(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests of the snapshot's base list."""
        return self._list(snapshot.base_list, before=self._base_before)

    def delta(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests of the snapshot's delta list."""
        return self._list(snapshot.delta_list)

    def changelog(self, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """Empty for a snapshot without changelog."""
        listed = snapshot.changelog_list
        return () if listed is None else self._list(listed)

    def lists(self, snapshot: Snapshot) -> Iterator[tuple[str, ReadList]]:
        """The name of each list of the snapshot, with its reader."""
        yield snapshot.base_manifest_list, self.base
        yield snapshot.delta_manifest_list, self.delta
        if snapshot.changelog_manifest_list is not None:
            yield snapshot.changelog_manifest_list, self.changelog

    def if_there(self, read: ReadList, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests that `read` returns; none if the list is missing."""
        with self._absences.ignore_absent():
            return read(snapshot)
        return ()

    def changes_if_there(self, manifest: ManifestFile) -> Iterator[FileChange]:
        """As `changes`; empty if the manifest is missing."""
        with self._absences.ignore_absent():
            yield from self.changes(manifest)

    def changes(self, manifest: ManifestFile) -> Iterator[FileChange]:
        """The manifest's entries in order. A whole manifest is in memory at a time."""
        for entry in read_entries(self._storage, self.location, manifest):
            bucket = self._buckets.setdefault(entry.bucket_id, entry.bucket_id)
            file = entry.file
            yield FileChange(
                entry.kind,
                FileKey(bucket, file.file_name),
                file.file_size,
                file.creation_time_ms or 0,
                file.extra_files,
                file.external_path,
                file.file_source == FileSource.COMPACT,
            )

    def delta_changes(self, snapshot: Snapshot) -> tuple[FileChange, ...]:
        """The entries that the snapshot itself added and deleted."""
        return tuple(c for manifest in self.delta(snapshot) for c in self.changes(manifest))

    def delta_if_whole(self, snapshot: Snapshot) -> tuple[FileChange, ...]:
        """As `delta_changes`; empty if part of it is missing.

        With half of a delta, upgraded files would look deleted.
        """
        with self._absences.ignore_absent():
            return self.delta_changes(snapshot)
        return ()

    def deltas_if_whole(self, snapshots: Sequence[Snapshot]) -> Iterator[tuple[FileChange, ...]]:
        """`delta_if_whole` of each snapshot, concurrently for a store behind a network."""
        return map_concurrently(self._storage, self.delta_if_whole, snapshots)

    def bases_if_there(self, snapshots: Sequence[Snapshot]) -> Iterator[tuple[ManifestFile, ...]]:
        """The base list of each snapshot, in the same way."""
        return map_concurrently(self._storage, partial(self.if_there, self.base), snapshots)

    @staticmethod
    def names(manifests: Iterable[ManifestFile]) -> set[str]:
        """The file names of the manifests."""
        return {manifest.file_name for manifest in manifests}

    @staticmethod
    def _names_in_folder(manifests: Iterable[ManifestFile]) -> set[str]:
        """The names of the manifests and of their extra files."""
        return {name for each in manifests for name in (each.file_name, *each.extra_files)}

    def index_files(
        self, snapshot: Snapshot, *, missing_ok: bool = False
    ) -> Mapping[str, IndexFile]:
        """The snapshot's index files by name. Raises as `refuse_unknown_indexes`."""
        if snapshot.index_manifest is None:
            return {}
        files: tuple[IndexFile, ...] = ()
        with self._absences.ignore_absent() if missing_ok else contextlib.nullcontext():
            files = self._index(snapshot.index_manifest)
        refuse_unknown_indexes(self.location, files)
        return {file.file_name: file for file in files}

    def index_names(self, snapshot: Snapshot, *, missing_ok: bool = False) -> set[str]:
        """The index manifest and the files that it lists."""
        if snapshot.index_manifest is None:
            return set()
        return {snapshot.index_manifest, *self.index_files(snapshot, missing_ok=missing_ok)}

    def names_of_index_files(self, index_manifest: str) -> Iterator[str]:
        """The names of all index files of an index manifest, which is not kept in memory.

        Raises as `refuse_unknown_indexes`.
        """
        for file in read_index_files(self._storage, self.location, index_manifest):
            refuse_unknown_indexes(self.location, (file,))
            yield file.file_name

    def metadata_to_read(self, snapshot: Snapshot) -> set[str]:
        """The files that a reader of the snapshot's rows needs, except data files."""
        names = {snapshot.base_manifest_list, snapshot.delta_manifest_list}
        names |= self._names_in_folder((*self.base(snapshot), *self.delta(snapshot)))
        names |= self.index_names(snapshot)
        return names if snapshot.statistics is None else names | {snapshot.statistics}

    def metadata_named(self, snapshot: Snapshot) -> set[str]:
        """All files that the snapshot references, except data files; missing files name none."""
        names = self.index_names(snapshot, missing_ok=True)
        if snapshot.statistics is not None:
            names.add(snapshot.statistics)
        for name, read in self.lists(snapshot):
            names |= {name, *self._names_in_folder(self.if_there(read, snapshot))}
        return names

    def changelog_named(self, changelog: Snapshot) -> set[str]:
        """The lists and manifests that readers of a long-lived changelog need.

        As operation/ChangelogDeletion.java: the changelog list and its manifests, or all lists of a
        snapshot without one. Missing files name none.
        """
        names: set[str] = set()
        for name, read in self.lists(changelog):
            if changelog.changelog_manifest_list in (None, name) and not self._is_absent(name):
                names |= {name, *self._names_in_folder(self.if_there(read, changelog))}
        return names

    def changelog_files(self, changelog: Snapshot, *, from_overwrites: bool) -> set[FileKey]:
        """The data files that readers of a long-lived changelog without changelog files need.

        Files that writers added, as table/source/snapshot/DeltaFollowUpScanner.java; with
        `from_overwrites` also files that an overwrite removed. Missing files name none.
        """
        is_read = changelog.commit_kind is not CommitKind.COMPACT
        is_read = is_read and changelog.changelog_manifest_list is None
        if not is_read or self._is_absent(changelog.delta_manifest_list):
            return set()
        removed = from_overwrites and changelog.commit_kind is CommitKind.OVERWRITE
        return {
            change.key
            for manifest in self.if_there(self.delta, changelog)
            for change in self.changes_if_there(manifest)
            if removed or (change.kind is EntryKind.ADD and not change.is_compacted)
        }

    def look_for(self, keys: Iterable[FileKey]) -> None:
        """Set the files for which `live` searches."""
        self._wanted = frozenset(keys)
        self._hashes.clear()
        self._found.clear()

    def live(self, snapshot: Snapshot, *, missing_ok: bool = False) -> frozenset[FileKey]:
        """The wanted files that are live in this snapshot.

        Reads each of its manifests once, as columns. With `missing_ok`, missing files name none.
        """
        if not self._wanted:
            return frozenset()
        count: Counter[FileIdentity] = Counter()
        for read in (self.base, self.delta):
            for manifest in self.if_there(read, snapshot) if missing_ok else read(snapshot):
                found: list[tuple[int, FileIdentity]] = []
                with self._absences.ignore_absent() if missing_ok else contextlib.nullcontext():
                    found = self._find(manifest)
                for kind, identity in found:
                    count[identity] += 1 if kind == EntryKind.ADD else -1
        return frozenset(
            FileKey(BucketId(identity.partition, identity.bucket), identity.file_name)
            for identity, times in count.items()
            if times > 0
        )

    def _is_absent(self, name: str) -> bool:
        return self._absences.is_absent(paths.manifest_path(self.location, name))

    def _list(
        self, listed: ManifestListRef, *, before: ListBlocks | None = None
    ) -> tuple[ManifestFile, ...]:
        if listed.name not in self._lists:
            found = manifests_in(self._storage, self.location, listed, before=before)
            self._lists[listed.name] = found
        return self._lists[listed.name]

    def _index(self, name: str) -> tuple[IndexFile, ...]:
        if name not in self._indexes:
            found = read_index_files(self._storage, self.location, name)
            self._indexes[name] = tuple(self._index_files.setdefault(file, file) for file in found)
        return self._indexes[name]

    def _find(self, manifest: ManifestFile) -> list[tuple[int, FileIdentity]]:
        """Kind and identity of each entry of the manifest for a wanted file."""
        if manifest.file_name not in self._found:
            batches = read_entry_columns(self._storage, self.location, [manifest])
            self._found[manifest.file_name] = [
                found for columns in batches for found in self._matches(columns)
            ]
        return self._found[manifest.file_name]

    def _matches(self, columns: EntryColumns) -> Iterator[tuple[int, FileIdentity]]:
        levels = np.unique(columns.files.level).tolist()
        if not levels:
            return
        hashes = np.concatenate([self._hashes_on(level) for level in levels])
        rows = np.flatnonzero(np.isin(columns.files.identity_hash, hashes))
        kinds = columns.kind[rows].tolist()
        for kind, identity in zip(kinds, columns.identities(rows), strict=True):
            bucket = BucketId(identity.partition, identity.bucket)
            if FileKey(bucket, identity.file_name) in self._wanted:
                yield kind, identity

    def _hashes_on(self, level: int) -> Hashes:
        """The hashes that the wanted files have on `level`; a hash covers name, bucket, level."""
        if level not in self._hashes:
            self._hashes[level] = identity_hashes(
                [
                    FileIdentity(b"", key.bucket.bucket, level, key.file_name, (), None, None)
                    for key in self._wanted
                ]
            )
        return self._hashes[level]
