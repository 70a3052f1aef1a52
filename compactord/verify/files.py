"""Verifies the data files of one version of a table against their manifest entries.

Each bucket's folder is listed once. Memory: 16 bytes for each listed file, and eight for each live
file that was verified. Entries become objects some thousands at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from compactord.errors import CompactordError, ErrorAtPath, FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import (
    BucketId,
    DataFile,
    EntryKind,
    FileKey,
    FileSource,
    ManifestEntry,
)
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.manifest.manifest_files import manifests_in, read_entries
from compactord.paimon.snapshot import Snapshot
from compactord.state.base_files import BaseFiles
from compactord.state.index_files import read_indexes
from compactord.state.loading import load_live_files
from compactord.state.table_state import data_manifests
from compactord.storage.base import ObjectStatus, Storage
from compactord.storage.calls import map_concurrently
from compactord.verify.chain import Version
from compactord.verify.contents import ContentCheck, entries_of
from compactord.verify.rules import (
    DAMAGED_ADVICE,
    FileCounts,
    FileRules,
    Finding,
    FindingKind,
    PlacedFile,
    attempted,
    read_finding,
)


class FolderListing:
    """The files of a folder by hashes of their names, with sizes: 16 bytes each."""

    def __init__(self, folder: str, statuses: Iterable[ObjectStatus]) -> None:
        self.folder = folder
        pairs = ((hash(each.name), each.size_bytes) for each in statuses if not each.is_folder)
        found = np.fromiter(pairs, np.dtype([("name", np.int64), ("size", np.int64)]))
        found.sort(order="name")
        self._names: Ints = found["name"].copy()
        self._sizes: Ints = found["size"].copy()

    def sizes_of(self, names: Sequence[str]) -> Ints:
        """Bytes of each file, -1 where it is not listed."""
        wanted = np.fromiter(map(hash, names), np.int64, len(names))
        if not len(self._names):
            return np.full(len(names), -1)
        places = np.searchsorted(self._names, wanted)
        places[places == len(self._names)] = 0
        return np.where(self._names[places] == wanted, self._sizes[places], -1)


class FileCheck:
    """Verifies versions of one table; a file that several versions share is verified once.

    `unknown` lists what could not be checked. Arguments are as for `ContentCheck`.
    """

    def __init__(
        self,
        storage: Storage,
        location: str,
        rules: FileRules,
        progress: Callable[[str], None],
        *,
        index_paths: Mapping[str, str] = MappingProxyType({}),
        before: FileCheck | None = None,
        suspects: Collection[str] = (),
    ) -> None:
        self.counts = FileCounts()
        self.unknown: list[str] = []
        self._storage = storage
        self._location = location
        self._rules = rules
        self._progress = progress
        self._verified = np.zeros(0, np.uint64)
        self._contents: ContentCheck = ContentCheck(
            storage,
            rules,
            self.counts,
            progress,
            index_paths=index_paths,
            before=None if before is None else before._contents,
            suspects=suspects,
        )

    def run(self, snapshot: Snapshot, root: str | None = None) -> Iterator[Finding]:
        """Findings about the live files of a snapshot that were not verified before.

        `root` is the folder of the snapshot's branch, by default the table's location.
        """
        path = paths.manifest_path(self._location, snapshot.base_manifest_list)
        try:
            manifests = data_manifests(self._storage, self._location, snapshot)
            base = load_live_files(self._storage, self._location, manifests).base
            indexes = read_indexes(self._storage, self._location, snapshot.index_manifest)
            vectors = {bucket: indexes.vectors(bucket) for bucket in indexes.buckets}
        except UnsupportedTable as error:
            self.unknown += error.reasons
            return
        except CompactordError as error:
            yield read_finding(error.path if isinstance(error, ErrorAtPath) else path, error)
            return
        is_new = ~np.isin(base.columns.identity_hash, self._verified)
        self._verified = np.union1d(self._verified, base.columns.identity_hash[is_new])
        total = int(np.count_nonzero(is_new))
        bad_paths: set[str] = set()
        buckets = base.summaries.index.bucket_ids()
        folders = map_concurrently(self._storage, attempted(self._listed), buckets)
        for bucket, listed in zip(buckets, folders, strict=True):
            rows = base.rows_of(bucket)
            new = np.flatnonzero(is_new[rows]) + rows.start
            named = vectors.pop(bucket, {})
            of_live: list[tuple[VectorRef, int]] = []
            above: list[DataFile] = []
            if isinstance(listed, CompactordError):
                yield self._unreadable(bucket, listed)
                continue
            for finding in self._bucket(
                base, bucket, new, listed, vectors=named, above=above, of_live=of_live
            ):
                bad_paths.add(finding.path)
                yield finding
            known = np.flatnonzero(~is_new[rows]) + rows.start
            for entries in entries_of(base, known if named or len(new) else known[:0]):
                of_live += _taken(named, entries)
                above += (entry.file for entry in entries if entry.file.level != 0)
            if len(new):
                yield from self._levels(bucket, above)
            yield from self._dangling(named)
            yield from self._contents.vectors(of_live)
            self._progress(f"{self.counts.files:,} of {total:,} data files")
        for named in vectors.values():
            yield from self._dangling(named)
        place = partial(self._present, root=root or self._location, bad_paths=bad_paths)
        yield from self._contents.files(base, np.flatnonzero(is_new), place)

    def changes(self, version: Version) -> Iterator[Finding]:
        """Findings about the files of a version that only streaming readers need."""
        if version.changes is None:
            return
        snapshot, changes = version.snapshot, version.changes
        path = paths.manifest_path(self._location, changes.name)
        try:
            manifests = manifests_in(self._storage, self._location, changes)
            entries = [e for m in manifests for e in read_entries(self._storage, self._location, m)]
        except CompactordError:
            return  # The metadata's check reports it.
        rows, recorded = sum(e.file.row_count for e in entries), snapshot.changelog_record_count
        is_changelog = changes == snapshot.changelog_list
        if not is_changelog:
            # Streaming readers read what writers added, not what was merged.
            entries = [e for e in entries if e.kind is EntryKind.ADD]
            entries = [e for e in entries if e.file.file_source != FileSource.COMPACT]
        elif rows != (recorded or 0):
            message = f"names {rows:,} rows, but snapshot {snapshot.id} counts {recorded:,}"
            advice = (
                "Readers do not check this count: compare what they read with the table's rows."
            )
            kind = FindingKind.METADATA_DAMAGED
            yield Finding(kind=kind, path=path, message=message, advice=advice)
        files = list(self._present(entries, root=version.root, bad_paths=set()))
        parts = [paths.merged_changelog(each.path) for each in files]
        objects = [part.path if part else f.path for part, f in zip(parts, files, strict=True)]
        once = list(dict.fromkeys(objects))
        status = attempted(self._storage.status)
        statuses = dict(zip(once, map_concurrently(self._storage, status, once), strict=True))
        whole: list[PlacedFile] = []
        for each, part, at in zip(files, parts, objects, strict=True):
            found = statuses[at]
            finding = (
                _file_finding(at, each.file.file_size, found)
                if part is None
                else _part_finding(part, found)
            )
            if finding is not None and finding.kind is FindingKind.DATA_FILE_MISSING:
                kind = FindingKind.CHANGELOG_FILE_MISSING
                advice = "Restore it from a backup: streaming readers fail at this snapshot."
                finding = replace(finding, kind=kind, advice=advice)
            if finding is not None:
                yield finding
            else:
                # A changelog may have several records of a key.
                whole.append(each._replace(is_sorted=each.is_sorted and not is_changelog))
        yield from self._contents.changes(whole)

    def _listed(self, bucket: BucketId) -> FolderListing:
        folder = self._rules.bucket_folder(bucket)
        return FolderListing(folder, self._storage.list(folder))

    def _unreadable(self, bucket: BucketId, error: CompactordError) -> Finding:
        """The finding about a bucket whose folder could not be listed."""
        try:
            path = self._rules.bucket_folder(bucket)
        except CompactordError:
            path = paths.manifest_folder(self._location)
        return read_finding(path, error)

    def _bucket(
        self,
        base: BaseFiles,
        bucket: BucketId,
        rows: Ints,
        listing: FolderListing,
        *,
        vectors: dict[str, VectorRef],
        above: list[DataFile],
        of_live: list[tuple[VectorRef, int]],
    ) -> Iterator[Finding]:
        """Findings about files of a bucket that are missing or differ from their entries.

        Moves the vectors of live files from `vectors` to `of_live`, and adds to `above` the files
        above level 0.
        """
        for entries in entries_of(base, rows):
            of_live += _taken(vectors, entries)
            if self._rules.check_levels is not None:
                above += (entry.file for entry in entries if entry.file.level != 0)
            self.counts.files += len(entries)
            self.counts.extra_files += sum(len(entry.file.extra_files) for entry in entries)
            here = [
                each
                for entry in entries
                if entry.file.external_path is None
                for each in _expected(listing.folder, entry.file)
            ]
            sizes = listing.sizes_of([each.name for each in here])
            # A listing may be older than the file; some stores list new files late.
            suspects = [
                each
                for each, found in zip(here, sizes.tolist(), strict=True)
                if found < 0 or (each.size is not None and found != each.size)
            ]
            for entry in entries:
                if entry.file.external_path is not None:
                    suspects += self._outside(entry.file)
            status = attempted(self._storage.status)
            statuses = map_concurrently(self._storage, status, [each.path for each in suspects])
            for each, found in zip(suspects, statuses, strict=True):
                finding = _file_finding(each.path, each.size, found)
                if finding is not None:
                    yield finding
                    missing = finding.kind is FindingKind.DATA_FILE_MISSING
                    if missing and each.name == each.file.file_name:
                        self.counts.missing.append(FileKey(bucket, each.name))

    def _outside(self, file: DataFile) -> Iterator[_Expected]:
        """Files outside the bucket's folder; files in other stores are only counted."""
        path = paths.external_path(self._location, file.external_path or "")
        if path is None:
            self.counts.external += 1
        else:
            yield from _expected(path.rpartition("/")[0], file)

    def _present(
        self, entries: Iterable[ManifestEntry], *, root: str, bad_paths: set[str]
    ) -> Iterator[PlacedFile]:
        """The files that can be read, without those at `bad_paths`."""
        for entry in entries:
            path: str | None
            if entry.file.external_path is not None:
                path = paths.external_path(self._location, entry.file.external_path)
            else:
                try:
                    folder = self._rules.bucket_folder(entry.bucket_id)
                except FormatError:
                    continue
                path = paths.join(folder, entry.file.file_name)
            if path is not None and path not in bad_paths:
                # Writers do not sort the records of a postponed bucket.
                is_sorted = self._rules.is_sorted and entry.bucket >= 0
                yield PlacedFile(path, entry.file, root, is_sorted)

    def _levels(self, bucket: BucketId, above: Sequence[DataFile]) -> Iterator[Finding]:
        if self._rules.check_levels is None:
            return
        try:
            self._rules.check_levels(above)
        except FormatError as error:
            try:
                folder = self._rules.bucket_folder(bucket)
            except FormatError:
                return  # Already reported.
            advice = (
                "Readers may return old rows of some keys. Roll the table back to a snapshot before"
                " the overlap (verify --snapshot N), or read the rows and rewrite the table."
            )
            path = folder if "/" in error.path else paths.join(folder, error.path)
            kind = FindingKind.LEVELS_OVERLAP
            yield Finding(kind=kind, path=path, message=error.message, advice=advice)

    def _dangling(self, vectors: Mapping[str, VectorRef]) -> Iterator[Finding]:
        for name, vector in vectors.items():
            yield Finding(
                kind=FindingKind.VECTOR_WITHOUT_FILE,
                path=vector.path,
                message=f"has a deletion vector of {name}, which is not live in its bucket",
                advice="Find the writer that replaced the file and kept the vector; rows that were "
                "deleted may have come back: compare with a snapshot before (time travel).",
            )


class _Expected(NamedTuple):
    """A file that must exist because `file` needs it; `size` is None if not recorded."""

    file: DataFile
    name: str
    path: str
    size: int | None


def _expected(folder: str, file: DataFile) -> Iterator[_Expected]:
    yield _Expected(file, file.file_name, paths.join(folder, file.file_name), file.file_size)
    for name in file.extra_files:
        yield _Expected(file, name, paths.join(folder, name), None)


def _taken(
    vectors: dict[str, VectorRef], entries: Iterable[ManifestEntry]
) -> Iterator[tuple[VectorRef, int]]:
    """Removes the vectors of live files; yields each with the number of the file's rows."""
    for entry in entries:
        ref = vectors.pop(entry.file.file_name, None)
        if ref is not None:
            yield ref, entry.file.row_count


def _part_finding(
    part: paths.FilePart, found: ObjectStatus | CompactordError | None
) -> Finding | None:
    """The finding about the object that contains a changelog file, or None."""
    end = part.offset + part.size_bytes
    if not isinstance(found, ObjectStatus):
        return _file_finding(part.path, None, found)
    if found.size_bytes >= end:
        return None
    kind = FindingKind.DATA_FILE_SIZE
    message = f"has {found.size_bytes} bytes, but a changelog file in it ends at byte {end}"
    return Finding(kind=kind, path=part.path, message=message, advice=DAMAGED_ADVICE)


def _file_finding(
    path: str, size: int | None, found: ObjectStatus | CompactordError | None
) -> Finding | None:
    match found:
        case None:
            kind, message = FindingKind.DATA_FILE_MISSING, "does not exist"
            return Finding(kind=kind, path=path, message=message, advice=DAMAGED_ADVICE)
        case ObjectStatus(size_bytes=there):
            if size is None or there == size:
                return None
            kind, message = FindingKind.DATA_FILE_SIZE, f"has {there} bytes, not {size} as recorded"
            return Finding(kind=kind, path=path, message=message, advice=DAMAGED_ADVICE)
        case error:
            return read_finding(path, error)
