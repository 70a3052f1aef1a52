"""Names of all files that any version of a table references, and signs of a restore.

Versions are the snapshots, the tags and the long-lived changelogs of the table and of its branches.
Other processes change them during the read: a file of an expired snapshot may be named by a new
tag, a file of a tag by a new branch, and a file of the newest listed snapshot by a newer one that
was not listed (apache/paimon#7710). So all versions are listed again until each has been read.
Callers reread between deletions; unchanged versions cost only a listing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np

from compactord.errors import (
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsupportedTable,
)
from compactord.paimon import paths
from compactord.paimon.avro.columns import Ints
from compactord.paimon.manifest.entry_columns import EntryColumns, read_entry_columns
from compactord.paimon.manifest.foreign import unknown_columns
from compactord.paimon.manifest.index_manifest import read_entries_but_hash, read_index_entries
from compactord.paimon.manifest.manifest_files import ManifestFile, manifests_in, read_entries
from compactord.paimon.manifest.schemas import MANIFEST, plain_of
from compactord.paimon.schema import TableRef, parse_object
from compactord.paimon.snapshot import (
    Snapshot,
    VersionFile,
    VersionKind,
    branch_names,
    has_latest_hint,
    hinted_snapshot_id,
    parse_snapshot,
    snapshot_files,
    version_files,
)
from compactord.state.metadata_reader import refuse_unknown_indexes
from compactord.storage.base import Absences, ObjectStatus, Storage, listed_but_missing

# Writers create a snapshot's file within this time after the time recorded in it.
WRITE_DELAY_MAX_MS = 600_000
# Files that have not changed for a day are part of no running restore.
_UNCHANGED_MS = 86_400_000
MAY_BE_RESTORED = "a restore or copy may be under way"


def hint_trouble(storage: Storage, root: str, hint: int | None, ids: Collection[int]) -> str | None:
    """Why snapshots `ids` cannot be all, by the hint LATEST that was read before them, or None.

    Writers set the hint after they create a snapshot, and before they roll it back. A hint without
    a number lags: it is being written, or its writer was killed or had no space left.
    """
    if hint is None and has_latest_hint(storage, root):
        return None
    if hint is None:
        return f"it has snapshots but no hint LATEST: {MAY_BE_RESTORED}"
    if hint not in ids:
        return f"LATEST names snapshot {hint}, which is missing: {MAY_BE_RESTORED}"
    return None


def why_incomplete(storage: Storage, location: str, branch: str, before_ms: int) -> str | None:
    """Why the snapshots of main or of a branch may be incomplete, or None.

    A new branch has no hint, and no snapshots unless it is made from a tag. So a branch without
    them is complete if all its files are older than `before_ms`.
    """
    root = paths.branch_root(location, branch)
    # In this order: a commit in between adds a snapshot, and then its hint.
    hint = hinted_snapshot_id(storage, root)
    files = snapshot_files(storage, root)
    if hint is None and branch != paths.MAIN_BRANCH:
        made = [*files.values(), *storage.list(paths.schema_folder(root))]
        if made and all(status.changed_ms < before_ms for status in made):
            return None
    return _trouble_at(storage, root, hint, files)


def main_trouble(storage: Storage, table: TableRef, now_ms: int) -> str | None:
    """Why main's snapshots, which need files of its branches, may be incomplete, or None.

    None if `table` is main. A restore in order of names copies branches first and main's snapshots
    last. Main without snapshots is complete once its schemas are a day old: all rows may have been
    written to branches.
    """
    root = table.location
    if table.branch == paths.MAIN_BRANCH:
        return None
    hint = hinted_snapshot_id(storage, root)
    ids = snapshot_files(storage, root).keys()
    if hint is None and not ids:
        schemas = list(storage.list(paths.schema_folder(root)))
        if schemas and all(each.changed_ms < now_ms - _UNCHANGED_MS for each in schemas):
            return None
    return _trouble_at(storage, root, hint, ids)


def _trouble_at(storage: Storage, root: str, hint: int | None, ids: Collection[int]) -> str | None:
    if hint is None and not ids:
        return f"{root} has no snapshots: {MAY_BE_RESTORED}"
    trouble = hint_trouble(storage, root, hint, ids)
    return trouble if trouble is None else f"{root}: {trouble}"


def is_restored(snapshot: Snapshot, file: ObjectStatus, since_ms: int) -> bool:
    """Whether the snapshot's file is a copy made after `since_ms`, so that others may follow."""
    is_late = file.changed_ms > snapshot.time_ms + WRITE_DELAY_MAX_MS
    return is_late and file.changed_ms > since_ms


# The versions are listed at most this many times; then reading a very active table fails.
_LISTINGS_MAX = 10
# Entries of a manifest that are in memory as objects at once.
_AT_ONCE = 4096
# Columns of release 2.1 that name no files.
_NAME_NO_FILES = {"_TOTAL_BUCKETS", "_FILE._WRITE_COLS_SEQUENCES"}


class Incomplete(Exception):
    """Metadata that names files may be missing; `reason` is the sign of it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class UsedNames:
    """Passes the names of all files that the versions of one table name to `note`, in batches.

    Copies of snapshots from before `since_ms` count as complete. `of_others` adds names of files
    that compactord never writes; then every branch must have a schema, and metadata of newer
    releases, which may name files in other ways, is refused.
    """

    def __init__(
        self,
        storage: Storage,
        location: str,
        note: Callable[[Iterable[str]], None],
        *,
        since_ms: int,
        of_others: bool = False,
    ) -> None:
        self._storage = storage
        self._location = location
        self._note = note
        self._since_ms = since_ms
        self._of_others = of_others
        self._read: set[VersionFile] = set()
        # Lists, manifests and index manifests whose names have been noted.
        self._noted: set[str] = set()

    def read(self) -> None:
        """Note the names of all versions that were not read before.

        Raises `Incomplete` if the table may be being restored, what reading raises, and
        `UnsupportedTable` for metadata that may name files in unknown ways.
        """
        missing: dict[VersionFile, StorageError] = {}
        for _ in range(_LISTINGS_MAX):
            listed = [
                version for root in self._roots() for version in version_files(self._storage, root)
            ]
            for version in listed:
                if version in missing:
                    # It has not expired: the table is damaged, or the store's answer was wrong.
                    raise missing[version]
            unread = [version for version in listed if version not in self._read]
            if not unread:
                return
            missing = self._read_versions(unread)
        raise TransientStorageError(
            paths.snapshot_folder(self._location),
            f"its snapshots changed during each of {_LISTINGS_MAX} reads",
        )

    def _roots(self) -> list[str]:
        """The roots of the table and its branches. A branch may keep files dropped by main."""
        roots = []
        for branch in (paths.MAIN_BRANCH, *branch_names(self._storage, self._location)):
            root = paths.branch_root(self._location, branch)
            if self._of_others and not self._has_schema(root):
                raise FormatError(root, "has no schema; no file of the table is deleted")
            why = why_incomplete(self._storage, self._location, branch, self._since_ms)
            if why is not None:
                raise Incomplete(why)
            roots.append(root)
        return roots

    def _has_schema(self, root: str) -> bool:
        names = (status.name for status in self._storage.list(paths.schema_folder(root)))
        return any(paths.id_of(name, paths.SCHEMA_PREFIX) is not None for name in names)

    def _read_versions(self, versions: Iterable[VersionFile]) -> dict[VersionFile, StorageError]:
        """Note the names of `versions`; returns the errors for missing files by version."""
        missing: dict[VersionFile, StorageError] = {}
        absences = Absences(self._storage)
        for version in versions:
            path = version.path
            try:
                snapshot = self._snapshot(version)
                # A changelog's metadata may have been deleted with its snapshot.
                may_lack = version.kind is VersionKind.CHANGELOG
                self._note_named(snapshot, absences, may_lack=may_lack)
            except ObjectNotFound as error:
                missing[version] = listed_but_missing(path) if error.path == path else error
                continue
            is_copy = is_restored(snapshot, version.status, self._since_ms)
            if version.kind is VersionKind.SNAPSHOT and is_copy:
                raise Incomplete(f"{path} was copied recently: {MAY_BE_RESTORED}")
            self._read.add(version)
        return missing

    def _snapshot(self, version: VersionFile) -> Snapshot:
        path = version.path
        data = self._storage.read(path)
        snapshot = parse_snapshot(data, path)
        if version.kind is VersionKind.SNAPSHOT and version.name != str(snapshot.id):
            raise FormatError(path, f"holds snapshot {snapshot.id}")
        # Newer releases may name files under keys of their own.
        texts = parse_object(data, path, "a snapshot").values()
        self._note(text for text in texts if isinstance(text, str))
        return snapshot

    def _note_named(self, snapshot: Snapshot, absences: Absences, *, may_lack: bool) -> None:
        """Note the files that a version references.

        A changelog list may always be missing: expiry deletes the changelog of a tagged snapshot,
        and branches are made from tags.
        """
        lists = [(snapshot.delta_list, may_lack), (snapshot.base_list, may_lack)]
        if snapshot.changelog_list is not None:
            lists.insert(1, (snapshot.changelog_list, True))
        self._note(listed.name for listed, _ in lists)
        self._note(each for each in (snapshot.index_manifest, snapshot.statistics) if each)
        index_manifest = snapshot.index_manifest
        if index_manifest is not None and index_manifest not in self._noted:
            with absences.ignore_absent() if may_lack else contextlib.nullcontext():
                self._note_index_files(index_manifest)
        for listed, is_optional in lists:
            if listed.name in self._noted:
                continue
            manifests: tuple[ManifestFile, ...] = ()
            with absences.ignore_absent() if is_optional else contextlib.nullcontext():
                manifests = manifests_in(self._storage, self._location, listed)
                path = paths.manifest_path(self._location, listed.name)
                self._note_manifests(manifests, path)
                self._noted.add(listed.name)
            new = [manifest for manifest in manifests if manifest.file_name not in self._noted]
            for some in ([each] for each in new) if is_optional else [new]:
                with absences.ignore_absent() if is_optional else contextlib.nullcontext():
                    self._note_entries(some)

    def _note_index_files(self, name: str) -> None:
        read = read_index_entries if self._of_others else read_entries_but_hash
        entries = read(self._storage, self._location, name)
        if self._of_others:
            refuse_unknown_indexes(self._location, entries)
        self._note(entry.file_name for entry in entries)
        self._noted.add(name)

    def _note_manifests(self, manifests: Iterable[ManifestFile], path: str) -> None:
        for manifest in manifests:
            self._refuse_unknown({value.column for value in manifest.foreign}, path)
            self._note((manifest.file_name, *manifest.extra_files))

    def _note_entries(self, manifests: Sequence[ManifestFile]) -> None:
        for columns in read_entry_columns(self._storage, self._location, manifests):
            for start in range(0, len(columns.kind), _AT_ONCE):
                rows = np.arange(start, min(start + _AT_ONCE, len(columns.kind)))
                self._note(_names(columns, rows))
            if any(unknown_columns(plain_of(columns.schema), plain_of(MANIFEST))):
                self._refuse_values(manifests)
        self._noted.update(manifest.file_name for manifest in manifests)

    def _refuse_values(self, manifests: Iterable[ManifestFile]) -> None:
        """Raises `UnsupportedTable` unless unknown columns of these manifests are null."""
        for manifest in manifests if self._of_others else ():
            entries = read_entries(self._storage, self._location, manifest)
            found = {value.column for entry in entries for value in entry.file.foreign}
            self._refuse_unknown(found, paths.manifest_path(self._location, manifest.file_name))

    def _refuse_unknown(self, columns: set[str], path: str) -> None:
        unknown = sorted(columns - _NAME_NO_FILES)
        if self._of_others and unknown:
            reason = f"{path} has values of columns that are not known: {', '.join(unknown)}"
            raise UnsupportedTable(self._location, [reason])


def _names(columns: EntryColumns, rows: Ints) -> Iterator[str]:
    for file in columns.identities(rows):
        yield file.file_name
        yield from file.extra_files
        if file.external_path is not None:
            yield file.external_path.rpartition("/")[2]
