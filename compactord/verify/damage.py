"""Finds live files that are missing or damaged, by one listing of the newest snapshot's files.

Data files of the table's own folders and index files of deletion vectors are compared by name and
size. Files in other stores, companions of data files, and files of partitions that cannot be read
are not checked.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from compactord.errors import CompactordError, DataFileDamaged, DataFileMissing, FormatError
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, FileKey
from compactord.paimon.deletion_vectors import INDEX_TYPE
from compactord.paimon.schema import TableRef
from compactord.state.base_files import BaseFiles
from compactord.state.table_state import TableState
from compactord.storage.base import ObjectStatus, Storage
from compactord.storage.calls import map_concurrently
from compactord.text import count_text
from compactord.verify.files import FolderListing
from compactord.verify.verify import newest_without, rollback_statement

VECTORS_FILE = "index file with deletion vectors"
# Entries held in memory as objects at a time.
_AT_ONCE = 4096
# Damaged files that are looked up in older versions.
_LOOKED_UP_MAX = 1_000


class DamageKind(enum.Enum):
    """MISSING: no such file; SIZE: differs from the manifest; CONTENT: it cannot be read."""

    MISSING = "missing"
    SIZE = "size"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A live file that readers cannot read. `bucket` is the one that needs it.

    `message` does not repeat `path`. `version` is the newest one that does not need the file, such
    as `snapshot 7`, or None if there is none or it is not known. `size_bytes` is the actual size of
    the file, -1 if it does not exist.
    """

    path: str
    kind: DamageKind
    message: str
    bucket: BucketId
    version: str | None = None
    size_bytes: int = -1

    @property
    def error(self) -> DataFileMissing | DataFileDamaged:
        kind = DataFileMissing if self.kind is DamageKind.MISSING else DataFileDamaged
        return kind(self.path, self.message)

    def is_in(self, state: TableState) -> bool:
        """Whether the file is live."""
        name = posixpath.basename(self.path)
        if state.files.named(self.bucket, {name}):
            return True
        vectors = state.indexes.vectors(self.bucket).values()
        return any(vector.path == self.path for vector in vectors)

    def stands(self, there: ObjectStatus | None) -> bool:
        """Whether the damage persists, by the file's status now.

        The file's time is ignored: a change of owner or a backup by links moves it.
        """
        return there is None or there.size_bytes == self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """A file that must exist, with its size by the manifest."""

    path: str
    size_bytes: int
    bucket: BucketId
    noun: str = "data file"


def damaged_files(
    storage: Storage,
    newest: Callable[[], TableState],
    bucket_folder: Callable[[BucketId], str],
) -> Sequence[Damage]:
    """The live files that do not exist or have another size and that no commit has replaced.

    Each bucket's folder is listed once, and the folder of index files if the table has vectors.
    Each file that a listing lacks is confirmed by a request of its own. `newest` reads the newest
    state. Raises what reading raises.
    """
    state = newest()
    suspects = [*_suspects(storage, state, bucket_folder)]
    if not suspects:
        return ()
    found = map_concurrently(storage, storage.status, [each.path for each in suspects])
    damages = [
        _damage(live, there)
        for live, there in zip(suspects, found, strict=True)
        if there is None or there.size_bytes != live.size_bytes
    ]
    # Files that other writers replaced in the meantime may have expired.
    state = newest()
    return [each for each in damages if each.is_in(state)]


def described(storage: Storage, table: TableRef, damages: Sequence[Damage]) -> Sequence[Damage]:
    """The damages with the newest version that needs none of these files."""
    first = damages[:_LOOKED_UP_MAX]
    names = [posixpath.basename(each.path) for each in first]
    keys = [FileKey(each.bucket, name) for each, name in zip(first, names, strict=True)]
    version, whole = version_without(storage, table, keys, frozenset(names))
    others = f" (and {count_text(len(damages) - 1, 'other')})" if len(damages) > 1 else ""
    return [
        replace(each, message=f"{each.message}{others}, {whole}", version=version)
        for each in damages
    ]


def version_without(
    storage: Storage, table: TableRef, files: Collection[FileKey], index_files: Set[str]
) -> tuple[str | None, str]:
    """The version by `newest_without`, and the end of a message about these live files.

    The version is also None if it cannot be read.
    """
    try:
        version = newest_without(storage, table, files, index_files)
        whole = "no version is without it"
        if version is not None:
            statement = rollback_statement(table, version)
            whole = f"the newest version without it is {version} ({statement})"
    except CompactordError as error:
        version, whole = None, f"the newest version without it could not be found ({error})"
    return version, f"readers fail as well; {whole}"


def _damage(live: _Live, there: ObjectStatus | None) -> Damage:
    kind, why, size_bytes = DamageKind.MISSING, "does not exist", -1
    if there is not None:
        kind, size_bytes = DamageKind.SIZE, there.size_bytes
        why = f"has {size_bytes:,} bytes, not {live.size_bytes:,} as recorded"
    return Damage(
        path=live.path,
        kind=kind,
        message=f"a live {live.noun} {why}",
        bucket=live.bucket,
        size_bytes=size_bytes,
    )


def _suspects(
    storage: Storage, state: TableState, bucket_folder: Callable[[BucketId], str]
) -> Iterator[_Live]:
    """Live files that listings lack or show with another size."""

    def folder_of(bucket: BucketId) -> str | None:
        """The folder, or None if the values of the bucket's partition cannot be read."""
        try:
            return bucket_folder(bucket)
        except FormatError:
            return None

    def listed(bucket: BucketId) -> FolderListing | None:
        folder = folder_of(bucket)
        return None if folder is None else FolderListing(folder, storage.list(folder))

    files = state.files
    base = (files.consolidated() if files.layers else files).base
    buckets = files.bucket_ids()
    for bucket, listing in zip(buckets, map_concurrently(storage, listed, buckets), strict=True):
        if listing is not None:
            for part in _live_in(base, bucket, listing.folder):
                yield from _unlike(part, listing)
    index_files = list(_index_files(state))
    if index_files:
        folder = paths.index_folder(state.table.location)
        for each in _unlike(index_files, FolderListing(folder, storage.list(folder))):
            # Options may put index files into buckets' folders; entries do not record that.
            in_bucket = folder_of(each.bucket) or folder
            found = storage.status(paths.join(in_bucket, posixpath.basename(each.path)))
            if found is None or found.size_bytes != each.size_bytes:
                yield each


def _live_in(base: BaseFiles, bucket: BucketId, folder: str) -> Iterator[Sequence[_Live]]:
    rows = base.rows_of(bucket)
    for start in range(rows.start, rows.stop, _AT_ONCE):
        part = []
        for entry in base.entries(np.arange(start, min(start + _AT_ONCE, rows.stop))):
            file = entry.file
            path: str | None = paths.join(folder, file.file_name)
            if file.external_path is not None:
                path = paths.external_path(folder, file.external_path)
            if path is not None:
                part.append(_Live(path=path, size_bytes=file.file_size, bucket=bucket))
        yield part


def _index_files(state: TableState) -> Iterator[_Live]:
    location = state.table.location
    for entry in state.indexes.entries:
        path: str | None = paths.index_path(location, entry.file_name)
        if entry.external_path is not None:
            path = paths.external_path(location, entry.external_path)
        if entry.index_type == INDEX_TYPE and path is not None:
            yield _Live(
                path=path, size_bytes=entry.file_size, bucket=entry.bucket, noun=VECTORS_FILE
            )


def _unlike(lives: Sequence[_Live], listing: FolderListing) -> Iterable[_Live]:
    sizes = listing.sizes_of([posixpath.basename(each.path) for each in lives])
    wanted = np.fromiter((each.size_bytes for each in lives), np.int64, len(lives))
    is_unlike = sizes != wanted
    # Files in other folders are checked one by one.
    return [
        each
        for each, unlike in zip(lives, is_unlike.tolist(), strict=True)
        if unlike or posixpath.dirname(each.path) != listing.folder
    ]
