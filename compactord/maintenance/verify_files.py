"""Verifies the data files of one version of a table against what its manifests say of them.

Each bucket's folder is listed once; 16 bytes are kept of each file that a listing names, and eight
of each live file that was verified. Entries become objects some thousands at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

import numpy as np

from compactord.errors import CompactordError, ErrorAtPath, FormatError
from compactord.maintenance.expire_reader import FileKey
from compactord.maintenance.finding import (
    DAMAGED_ADVICE,
    Finding,
    FindingKind,
    attempted,
    read_finding,
)
from compactord.maintenance.folder_listing import FolderListing
from compactord.maintenance.verify_chain import Version
from compactord.paimon import paths
from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import (
    BucketId,
    DataFile,
    EntryKind,
    FileSource,
    ManifestEntry,
)
from compactord.paimon.deletion_vectors import VectorRef
from compactord.paimon.manifest.manifest_files import read_entries, read_manifest_list
from compactord.paimon.snapshot import Snapshot
from compactord.state.base_files import BaseFiles
from compactord.state.index_files import read_indexes
from compactord.state.load_files import load_live_files
from compactord.state.table_state import data_manifests
from compactord.storage.base import ObjectStatus, Storage
from compactord.storage.parallel import results_of

# Entries that are in memory as objects at once.
_AT_ONCE = 4096


class ReadFooter(Protocol):
    """Reads a data file's footer. Raises `FormatError` unless size and rows are the manifest's.

    Returns whether there is a reader for files of its format.
    """

    def __call__(self, path: str, file: DataFile) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """What the schema says of a table's files.

    `check_levels` raises `FormatError` when files of a bucket above level 0 overlap; None: the
    table has no primary key. `sample`: of so many files footers are read; None: of all.
    """

    bucket_folder: Callable[[BucketId], str]
    check_levels: Callable[[Sequence[DataFile]], object] | None
    read_footer: ReadFooter
    sample: int | None
    random: Random


@dataclass(slots=True, kw_only=True)
class FileCounts:
    """What was verified: files, those elsewhere which were not, footers, those without a reader."""

    files: int = 0
    external: int = 0
    footers: int = 0
    without_reader: int = 0
    missing: list[FileKey] = field(default_factory=list)


class FileCheck:
    """Verifies versions of one table; a file that several have is verified once."""

    def __init__(
        self, storage: Storage, location: str, rules: FileRules, progress: Callable[[str], None]
    ) -> None:
        self.counts = FileCounts()
        self._storage = storage
        self._location = location
        self._rules = rules
        self._progress = progress
        self._seen = np.zeros(0, np.uint64)

    def run(self, snapshot: Snapshot) -> Iterator[Finding]:
        """What is wrong with the live files of a snapshot, but for files verified before."""
        path = paths.manifest_path(self._location, snapshot.base_manifest_list)
        try:
            manifests = data_manifests(self._storage, self._location, snapshot)
            base = load_live_files(self._storage, self._location, manifests).base
            indexes = read_indexes(self._storage, self._location, snapshot.index_manifest)
        except CompactordError as error:
            yield read_finding(error.path if isinstance(error, ErrorAtPath) else path, error)
            return
        is_new = ~np.isin(base.columns.identity_hash, self._seen)
        self._seen = np.union1d(self._seen, base.columns.identity_hash[is_new])
        total = int(np.count_nonzero(is_new))
        gone: set[str] = set()
        vectors = {bucket: indexes.vectors(bucket) for bucket in indexes.buckets}
        buckets = base.summaries.index.bucket_ids()
        folders = results_of(self._storage, attempted(self._listed), buckets)
        for bucket, listed in zip(buckets, folders, strict=True):
            rows = base.rows_of(bucket)
            new = np.flatnonzero(is_new[rows]) + rows.start
            named = vectors.pop(bucket, {})
            above: list[DataFile] = []
            if isinstance(listed, CompactordError):
                yield self._unreadable(bucket, listed)
                continue
            for finding in self._bucket(base, bucket, new, listed, named, above):
                gone.add(finding.path)
                yield finding
            known = np.flatnonzero(~is_new[rows]) + rows.start
            for entries in _entries(base, known if named or len(new) else known[:0]):
                for entry in entries:
                    named.pop(entry.file.file_name, None)
                above += (entry.file for entry in entries if entry.file.level != 0)
            if len(new):
                yield from self._levels(bucket, above)
            yield from self._dangling(named)
            self._progress(f"{self.counts.files:,} of {total:,} data files")
        for named in vectors.values():
            yield from self._dangling(named)
        yield from self._footers(base, np.flatnonzero(is_new), gone)

    def changes(self, version: Version) -> Iterator[Finding]:
        """What is wrong with the files of a version that only streaming readers need."""
        if version.changes is None:
            return
        snapshot, (name, size) = version.snapshot, version.changes
        path = paths.manifest_path(self._location, name)
        try:
            manifests = read_manifest_list(self._storage, path, size)
            entries = [e for m in manifests for e in read_entries(self._storage, self._location, m)]
        except CompactordError:
            return  # A finding among the metadata.
        rows, recorded = sum(e.file.row_count for e in entries), snapshot.changelog_record_count
        if name != snapshot.changelog_manifest_list:
            # They read what writers added; not what was merged.
            entries = [e for e in entries if e.kind is EntryKind.ADD]
            entries = [e for e in entries if e.file.file_source != FileSource.COMPACT]
        elif rows != (recorded or 0):
            message = f"names {rows:,} rows, but snapshot {snapshot.id} has counted {recorded:,}"
            advice = "Readers do not count: compare what they were told with the table's rows."
            kind = FindingKind.METADATA_DAMAGED
            yield Finding(kind=kind, path=path, message=message, advice=advice)
        files = list(self._present(entries, set()))
        status = attempted(self._storage.status)
        statuses = results_of(self._storage, status, [each for each, _ in files])
        for (each, file), found in zip(files, statuses, strict=True):
            finding = _file_finding(each, file.file_size, found)
            if finding is not None and finding.kind is FindingKind.DATA_FILE_MISSING:
                kind = FindingKind.CHANGELOG_FILE_MISSING
                advice = "Restore it from a backup: streaming readers fail at this snapshot."
                finding = replace(finding, kind=kind, advice=advice)
            if finding is not None:
                yield finding

    def _listed(self, bucket: BucketId) -> FolderListing:
        folder = self._rules.bucket_folder(bucket)
        return FolderListing(folder, self._storage.list(folder))

    def _unreadable(self, bucket: BucketId, error: CompactordError) -> Finding:
        """Neither the folder of a partition that has no path nor its files can be verified."""
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
        vectors: dict[str, VectorRef],
        above: list[DataFile],
    ) -> Iterator[Finding]:
        """Files of a bucket that are not there as recorded.

        Takes live ones from `vectors`, and adds to `above` those with a key range of their own.
        """
        for entries in _entries(base, rows):
            for entry in entries:
                vectors.pop(entry.file.file_name, None)
            if self._rules.check_levels is not None:
                above += (entry.file for entry in entries if entry.file.level != 0)
            self.counts.files += len(entries)
            here = [entry.file for entry in entries if entry.file.external_path is None]
            self.counts.external += len(entries) - len(here)
            expected: list[tuple[DataFile, str, int | None]] = [
                (file, file.file_name, file.file_size) for file in here
            ]
            expected += [(file, name, None) for file in here for name in file.extra_files]
            sizes = listing.sizes_of([name for _, name, _ in expected])
            suspects = [
                each
                for each, found in zip(expected, sizes.tolist(), strict=True)
                if found < 0 or (each[2] is not None and found != each[2])
            ]
            paths_of = [paths.join(listing.folder, name) for _, name, _ in suspects]
            # A listing may be older than the file, or lack it on stores that list late.
            statuses = results_of(self._storage, attempted(self._storage.status), paths_of)
            for (file, name, size), path, found in zip(suspects, paths_of, statuses, strict=True):
                finding = _file_finding(path, size, found)
                if finding is not None:
                    yield finding
                    if finding.kind is FindingKind.DATA_FILE_MISSING and name == file.file_name:
                        self.counts.missing.append(FileKey(bucket, name))

    def _levels(self, bucket: BucketId, above: Sequence[DataFile]) -> Iterator[Finding]:
        if self._rules.check_levels is None:
            return
        try:
            self._rules.check_levels(above)
        except FormatError as error:
            try:
                folder = self._rules.bucket_folder(bucket)
            except FormatError:
                return  # Reported before.
            advice = (
                "Readers may return old rows of some keys. Roll the table back to a snapshot before"
                " the overlap (verify --snapshot N), or read the rows and write the table anew."
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

    def _footers(self, base: BaseFiles, rows: Ints, gone: set[str]) -> Iterator[Finding]:
        sample = self._rules.sample
        if sample is not None and sample < len(rows):
            rows = np.array(sorted(self._rules.random.sample(rows.tolist(), sample)), np.int64)
        for entries in _entries(base, rows):
            files = list(self._present(entries, gone))
            results = results_of(self._storage, attempted(self._read_footer), files)
            for (path, _), found in zip(files, results, strict=True):
                if isinstance(found, CompactordError):
                    missing, damaged = FindingKind.DATA_FILE_MISSING, FindingKind.DATA_FILE_DAMAGED
                    yield read_finding(path, found, missing=missing, damaged=damaged)
                elif not found:
                    self.counts.without_reader += 1
                else:
                    self.counts.footers += 1
                self._progress(f"footers of {self.counts.footers:,} of {len(rows):,} files")

    def _read_footer(self, each: tuple[str, DataFile]) -> bool:
        return self._rules.read_footer(*each)

    def _present(
        self, entries: Iterable[ManifestEntry], gone: set[str]
    ) -> Iterator[tuple[str, DataFile]]:
        """The files whose footer may be read."""
        for entry in entries:
            if entry.file.external_path is not None:
                continue
            try:
                folder = self._rules.bucket_folder(entry.bucket_id)
            except FormatError:
                continue
            path = paths.join(folder, entry.file.file_name)
            if path not in gone:
                yield path, entry.file


def _entries(base: BaseFiles, rows: Ints) -> Iterator[list[ManifestEntry]]:
    for start in range(0, len(rows), _AT_ONCE):
        yield base.entries(rows[start : start + _AT_ONCE])


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
