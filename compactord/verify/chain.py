"""Verifies the metadata of a table: snapshots, tags, branches, changelogs, and index files.

Each metadata file is read once and reported once, with the versions that need it. The table may
change meanwhile: a missing file may have expired.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from compactord.errors import CompactordError, FormatError, ObjectNotFound, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.manifest.entry_columns import read_entry_columns
from compactord.paimon.manifest.index_manifest import IndexEntry, read_index_entries
from compactord.paimon.manifest.manifest_files import ManifestFile, manifests_in
from compactord.paimon.schema import TableRef, latest_schema, parse_json, read_schema
from compactord.paimon.snapshot import (
    CommitKind,
    ManifestListRef,
    Snapshot,
    VersionFile,
    VersionKind,
    branch_names,
    hinted_snapshot_id,
    parse_snapshot,
    snapshot_ids,
    version_files,
)
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently
from compactord.verify.rules import (
    FileRules,
    Finding,
    FindingKind,
    attempted,
    read_finding,
)

_ADVICE = (
    "Restore it from a backup, or roll the table back to a snapshot that does not need it: "
    "readers or writers of its bucket fail without it."
)


class IndexCheck:
    """Checks that index files exist in their sizes.

    `paths` has the path of each valid file by its name; `types` counts them by type. `rules` is a
    text if the buckets' folders are not known.
    """

    def __init__(self, storage: Storage, location: str, rules: FileRules | str) -> None:
        self.paths: dict[str, str] = {}
        self.types: Counter[str] = Counter()
        self._storage = storage
        self._location = location
        self._rules = rules

    def check(self, entry: IndexEntry) -> Finding | None:
        """The finding about a file that was not checked before, or None.

        Raises `UnsupportedTable` if the file's folder is not known.
        """
        places = self._places_of(entry)
        kind, message, found = FindingKind.INDEX_FILE_MISSING, "does not exist", places[0]
        for path in places:
            try:
                status = self._storage.status(path)
            except CompactordError as error:
                return read_finding(path, error)
            if status is not None and status.size_bytes == entry.file_size:
                self.types[entry.index_type] += entry.file_name not in self.paths
                self.paths[entry.file_name] = path
                return None
            if status is not None:
                kind, found = FindingKind.INDEX_FILE_SIZE, path
                message = f"has {status.size_bytes} bytes, but {entry.file_size} are recorded"
        if isinstance(self._rules, str) and kind is FindingKind.INDEX_FILE_MISSING:
            reason = f"{found} does not exist and may be elsewhere ({self._rules})"
            raise UnsupportedTable(self._location, [reason])
        return Finding(kind=kind, path=found, message=message, advice=_ADVICE)

    def _places_of(self, entry: IndexEntry) -> list[str]:
        """Possible paths of the file, the likeliest first.

        The option may have changed since the file was written
        (`FileStorePathFactory.indexFileFactory`).
        Raises `UnsupportedTable` if it is in another store.
        """
        places = [entry.path(self._location)]
        if entry.external_path is None and not entry.is_global and not isinstance(self._rules, str):
            with contextlib.suppress(FormatError):
                folder = self._rules.bucket_folder(entry.bucket)
                places.append(paths.join(folder, entry.file_name))
                if self._rules.indexes_in_buckets:
                    places.reverse()
        return places


_RESTORE = (
    "Restore it from a backup, or roll the table back to the snapshot below the gap; "
    "deploy/runbooks/CompactordSnapshotLost.md explains how snapshots get lost."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A snapshot of the table or of a branch, a tag, or a changelog that outlives its snapshot.

    `name` is shown to operators. Without `has_rows` the table cannot be read at this version.
    `changes` is the manifest list that streaming readers read, or None if they read none.
    """

    name: str
    root: str
    snapshot: Snapshot
    has_rows: bool
    changes: ManifestListRef | None


def name_prefix(branch: str) -> str:
    """The prefix of the names of a branch's versions."""
    return "" if branch == paths.MAIN_BRANCH else f"branch {branch}, "


class ChainCheck:
    """Reads every version of a table and of its branches.

    `versions` has the readable ones, `unreadable` the names of all that failed, `unknown` a text
    for each check that was impossible. `progress` gets a line for each step. `rules` is a text if
    the buckets' folders are not known.
    """

    def __init__(
        self,
        storage: Storage,
        table: TableRef,
        rules: FileRules | str,
        progress: Callable[[str], None],
    ) -> None:
        self.versions: list[Version] = []
        self.unknown: list[str] = []
        self.unreadable: list[str] = []
        self.manifests = 0
        self.indexes = IndexCheck(storage, table.location, rules)
        self._storage = storage
        self._location = table.location
        self._table = table
        self._progress = progress
        self._found: dict[str, Finding] = {}
        self._producers: dict[str, bool] = {}
        # By path; None for a file without a finding.
        self._read: dict[str, Finding | None] = {}

    def run(self) -> tuple[Finding, ...]:
        """All findings, in the order of the checks."""
        self._check_root(self._location, name_prefix(paths.MAIN_BRANCH))
        try:
            branches = branch_names(self._storage, self._location)
        except CompactordError as error:
            branches = ()
            self._note(read_finding(paths.branch_folder(self._location), error))
        for branch in branches:
            root = paths.branch_root(self._location, branch)
            self._check_root(root, name_prefix(branch))
        for number, version in enumerate(self.versions):
            self._progress(f"metadata of {number:,} of {len(self.versions):,} snapshots and tags")
            for finding in self._lacks(version):
                if finding is not None:
                    self._note(finding, version.name)
        return tuple(self._found.values())

    def newest(self) -> Version | None:
        """The newest snapshot of the table itself, or of its branch, that could be read."""
        prefix = f"{name_prefix(self._table.branch)}snapshot "
        snapshots = (each for each in self.versions if each.name.startswith(prefix))
        return max(snapshots, key=lambda each: each.snapshot.id, default=None)

    def _note(self, finding: Finding, needed_by: str | None = None) -> None:
        known = self._found.setdefault(finding.path, finding)
        if needed_by is not None:
            names = (*known.needed_by, needed_by)
            self._found[finding.path] = replace(known, needed_by=names)

    def _check_root(self, root: str, prefix: str) -> None:
        storage = self._storage
        try:
            files = list(version_files(storage, root, VersionKind.SNAPSHOT))[::-1]
            ids = tuple(int(each.name) for each in files)
            self._check_gaps(root, ids)
            self._check_hints(root, ids)
        except CompactordError as error:
            self._note(read_finding(paths.snapshot_folder(root), error))
            return
        self._progress(f"{len(files):,} snapshots")
        for kind, folder in (
            (VersionKind.TAG, paths.tag_folder(root)),
            (VersionKind.CHANGELOG, paths.changelog_folder(root)),
        ):
            try:
                files += sorted(version_files(storage, root, kind), key=lambda each: each.name)
            except CompactordError as error:
                self._note(read_finding(folder, error))
        read = attempted(self._parse)
        for file, found in zip(files, map_concurrently(storage, read, files), strict=True):
            name = f"{prefix}{file.kind.value} {file.name}"
            match found:
                case ObjectNotFound():
                    continue  # Expired, or rolled back, since it was listed.
                case UnsupportedTable():
                    self.unreadable.append(name)
                    self.unknown.append(f"{name}: {found}")
                case CompactordError():
                    self.unreadable.append(name)
                    self._note(read_finding(file.path, found), name)
                case snapshot if self._has_its_id(name, snapshot, file):
                    self.versions.append(self._version(name, file.kind, root, snapshot))

    def _version(self, name: str, kind: VersionKind, root: str, snapshot: Snapshot) -> Version:
        own = snapshot.changelog_list
        changes: ManifestListRef | None = None
        if own is not None:
            # A tagged snapshot's changelog is deleted with the snapshot; branches come from tags.
            if kind is not VersionKind.TAG and root == self._location:
                changes = own
        elif (
            kind is VersionKind.CHANGELOG
            and snapshot.commit_kind is not CommitKind.COMPACT
            and not self._has_producer(root)
        ):
            changes = snapshot.delta_list
        return Version(
            name=name,
            root=root,
            snapshot=snapshot,
            has_rows=kind is not VersionKind.CHANGELOG,
            changes=changes,
        )

    def _has_producer(self, root: str) -> bool:
        """Whether versions without a changelog of their own have no changes for readers."""
        if root not in self._producers:
            try:
                options = latest_schema(self._storage, root).options
            except CompactordError:
                options = {}
            self._producers[root] = options.get("changelog-producer", "none") != "none"
        return self._producers[root]

    def _parse(self, file: VersionFile) -> Snapshot:
        return parse_snapshot(self._storage.read(file.path), file.path)

    def _has_its_id(self, name: str, snapshot: Snapshot, file: VersionFile) -> bool:
        if file.kind is VersionKind.TAG or file.name == str(snapshot.id):
            return True
        self.unreadable.append(name)
        error = FormatError(file.path, f"holds snapshot {snapshot.id}")
        self._note(read_finding(file.path, error), name)
        return False

    def _check_gaps(self, root: str, ids: tuple[int, ...]) -> None:
        gaps = [(low, high) for low, high in pairwise(ids) if high - low > 1]
        if not gaps:
            return
        # A listing is not atomic: an expiry or a commit may be under way.
        again = set(pairwise(snapshot_ids(self._storage, root)))
        for low, high in gaps:
            if (low, high) in again:
                first, last = low + 1, high - 1
                what = f"{first}" if first == last else f"{first} to {last}"
                self._note(
                    Finding(
                        kind=FindingKind.SNAPSHOT_MISSING,
                        path=paths.snapshot_path(root, first),
                        message=f"snapshot {what} does not exist between {low} and {high}",
                        advice=_RESTORE,
                    )
                )

    def _check_hints(self, root: str, ids: tuple[int, ...]) -> None:
        """LATEST may lag, as readers search on from it, but must name a snapshot that exists.

        A file without a number counts as lagging: the next commit rewrites it.
        """
        latest, earliest = paths.latest_hint(root), paths.earliest_hint(root)
        named = hinted_snapshot_id(self._storage, root)
        if named is not None and named not in ids and not self._exists(root, named):
            newest = f"the newest is {ids[-1]}" if ids else "there is none"
            self._hint(
                latest,
                f"names snapshot {named}, which does not exist ({newest})",
                "Restore the snapshots that are missing, if they were lost. Otherwise write the id "
                "of the newest one into it. Do not remove it: expiry would assume a restore.",
            )
        if self._number(earliest, absent=0) is None:
            advice = "Remove it: readers then list the folder."
            self._hint(earliest, "holds no number", advice)
        first = self._number(earliest)
        now = snapshot_ids(self._storage, root) if first is not None and ids else ()
        # A number below the oldest is harmless: expiry was interrupted, readers list the folder.
        if first is not None and now and first > now[0] and first == self._number(earliest):
            self._hint(
                earliest,
                f"names snapshot {first}, but {now[0]} exists: those below never expire",
                "Write the id of the oldest snapshot into it, or remove it: the folder is listed.",
            )

    def _number(self, path: str, *, absent: int | None = None) -> int | None:
        try:
            text = self._storage.read(path).decode("ascii", "replace").strip()
        except ObjectNotFound:
            return absent
        return int(text) if text.isascii() and text.isdigit() else None

    def _hint(self, path: str, message: str, advice: str) -> None:
        kind = FindingKind.HINT_WRONG
        self._note(Finding(kind=kind, path=path, message=message, advice=advice))

    def _exists(self, root: str, snapshot_id: int) -> bool:
        return self._storage.status(paths.snapshot_path(root, snapshot_id)) is not None

    def _lacks(self, version: Version) -> Iterator[Finding | None]:
        """For each metadata file that a version needs, its finding or None."""
        snapshot, storage, location = version.snapshot, self._storage, self._location
        root, schema_id = version.root, snapshot.schema_id
        schema = paths.schema_path(root, schema_id)
        yield self._once(schema, lambda: read_schema(storage, root, schema_id))
        lists = [snapshot.base_list, snapshot.delta_list] if version.has_rows else []
        if version.changes is not None:
            lists.append(version.changes)
        for listed in lists:
            try:
                manifests = manifests_in(storage, location, listed)
            except CompactordError as error:
                yield self._failed(paths.manifest_path(location, listed.name), error)
            else:
                yield from self._manifests(manifests)
        if not version.has_rows:
            return
        if snapshot.index_manifest is not None:
            yield from self._index(snapshot.index_manifest)
        if snapshot.statistics is not None:
            path = paths.statistics_path(location, snapshot.statistics)
            yield self._once(path, lambda: self._parse_json(path))

    def _manifests(self, manifests: tuple[ManifestFile, ...]) -> Iterator[Finding | None]:
        def read(manifest: ManifestFile) -> None:
            for _ in read_entry_columns(self._storage, self._location, [manifest]):
                pass

        def path_of(manifest: ManifestFile) -> str:
            return paths.manifest_path(self._location, manifest.file_name)

        new = [each for each in manifests if path_of(each) not in self._read]
        self.manifests += len(new)
        results = map_concurrently(self._storage, attempted(read), new)
        for manifest, found in zip(new, results, strict=True):
            path = path_of(manifest)
            self._read[path] = None if found is None else self._failed(path, found)
            self._progress(f"{self.manifests:,} manifests")
        yield from (self._read[path_of(manifest)] for manifest in manifests)

    def _index(self, name: str) -> Iterator[Finding | None]:
        try:
            entries = read_index_entries(self._storage, self._location, name)
        except CompactordError as error:
            yield self._failed(paths.manifest_path(self._location, name), error)
            return
        for entry in entries:
            key = f"{entry.external_path or ''}:{entry.file_name}"
            if key not in self._read:
                try:
                    self._read[key] = self.indexes.check(entry)
                except UnsupportedTable as error:
                    self._read[key] = self._failed(entry.file_name, error)
            yield self._read[key]

    def _parse_json(self, path: str) -> None:
        try:
            parse_json(self._storage.read(path))
        except ValueError as error:
            raise FormatError(path, f"statistics that are not JSON ({error})") from error

    def _once(self, path: str, read: Callable[[], object]) -> Finding | None:
        """The finding about a file that several versions share, or None; it is read once."""
        if path not in self._read:
            self._read[path] = None
            try:
                read()
            except CompactordError as error:
                self._read[path] = self._failed(path, error)
        return self._read[path]

    def _failed(self, path: str, error: CompactordError) -> Finding | None:
        """A finding, or None if a newer release wrote the file, which counts as unknown."""
        if not isinstance(error, UnsupportedTable):
            return read_finding(path, error)
        reasons = "; ".join(error.reasons)
        self._note_unknown(reasons if path in reasons else f"{path}: {reasons}")
        return None

    def _note_unknown(self, text: str) -> None:
        if text not in self.unknown:
            self.unknown.append(text)
