"""Conflict checks: compares the planned state with the newest one, and checks added files.

A compaction never changes the table's rows, so after any conflict the result of that bucket is
dropped and the bucket planned again; other buckets are not affected. Agrees with the checks of
operation/commit/ConflictDetection.java for COMPACT commits, and adds two that Java lacks: files
must still have the deletion vectors with which they were read, and no new file may have appeared on
the output level or above (whether deletes were dropped depends on the files above). Other files may
get vectors: the commit takes over the newest ones (`index_files`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from compactord.commit.attempt import CommitSettings
from compactord.commit.changes import BucketChange, DroppedChange
from compactord.commit.index_files import read_index_file
from compactord.errors import CommitUnknown, FormatError, ObjectNotFound
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile, FileIdentity
from compactord.paimon.deletion_vectors import VectorRef, bitmap_in, stored_in
from compactord.paimon.manifest.entries import Deletions, identity_hashes
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.state.index_files import IndexFiles
from compactord.state.loading import deleted_files
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.calls import prefetch

# This many old and new files are in memory: each has vectors of many files.
_INDEX_FILES = 4


def still_valid(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    settings: CommitSettings,
) -> tuple[list[BucketChange], list[DroppedChange]]:
    """Changes that still fit the newest state, and the dropped ones with the reason.

    Reads deletion vectors that have moved since their files were read. Raises the errors of
    reading, and `CommitUnknown` if outputs are live already: dropping the change would delete them.
    """
    valid, dropped = [], []
    are_same = partial(
        _delete_the_same,
        lru_cache(_INDEX_FILES)(storage.read),
        lru_cache(_INDEX_FILES)(partial(read_index_file, storage, state)),
    )
    buckets = {change.bucket for change in changes}
    vectors = {bucket: state.indexes.vectors(bucket) for bucket in buckets}
    for change in changes:
        live = _relevant_files(state, change, settings)
        live_output = already_live(change, live)
        if live_output is not None:
            raise CommitUnknown(
                f"table {state.table.full_name}: {live_output} is live although no snapshot of "
                "ours was confirmed; no file was deleted, the next run plans again"
            )
        summary = state.files.summary(change.bucket)
        found = conflict(
            change,
            live=live,
            total_buckets=summary.total_buckets if summary.file_count else None,
            vectors=vectors[change.bucket],
            key_of=settings.key_of,
            are_same=are_same,
        ) or _unexpected(state.indexes, change, settings)
        if found is None:
            valid.append(change)
        else:
            kind, why = found
            dropped.append(DroppedChange(change=change, conflict=kind, why=why))
    return valid, dropped


def _relevant_files(
    state: TableState, change: BucketChange, settings: CommitSettings
) -> Sequence[DataFile]:
    """The live files that the check needs: the whole bucket for key ranges, otherwise by name.

    A partition without buckets is one bucket and may have very many files.
    """
    if settings.key_of is not None:
        return state.files.files_in(change.bucket)
    return state.files.still_live(change.bucket, (*change.before, *change.after))


def conflict(
    change: BucketChange,
    *,
    live: Sequence[DataFile],
    total_buckets: int | None,
    vectors: Mapping[str, VectorRef],
    key_of: Callable[[bytes], Any] | None,
    are_same: Callable[[VectorRef, VectorRef], bool],
) -> tuple[Conflict, str] | None:
    """Why `change` must not be published in a bucket that now has the files `live`, or None.

    `vectors` are the bucket's current deletion vectors; `are_same(old, new)` compares the rows that
    they delete. `total_buckets` is None if the bucket has no files any more; `key_of` makes
    serialised keys comparable and is None for tables without a primary key.
    """
    if total_buckets is not None and total_buckets != change.total_buckets:
        why = f"the bucket count is now {total_buckets}, not {change.total_buckets}"
        return Conflict.BUCKET_COUNT_CHANGED, why
    now = {file.identity(change.bucket) for file in live}
    for file in change.before:
        if file.identity(change.bucket) not in now:
            is_empty = total_buckets is None
            gone = Conflict.PARTITION_EXPIRED if is_empty else Conflict.FILE_REMOVED
            return gone, f"input {file.file_name} of level {file.level} is no longer live"
    found = _vector_changed(change, vectors, are_same)
    if found is not None:
        return found
    before = {file.file_name for file in change.before}
    if key_of is None:
        return None
    remaining = [file for file in live if file.file_name not in before]
    unread = change.only_read.difference(file.file_name for file in remaining)
    if unread:
        return Conflict.FILE_REMOVED, f"{min(unread)}, in which rows were looked up, is gone"
    for file in remaining:
        if file.level >= change.closed_level and file.file_name not in change.files_above:
            return Conflict.OTHER, f"{file.file_name} appeared on level {file.level}"
    try:
        overlap = _overlap([*remaining, *change.after], key_of)
    except FormatError as error:
        return Conflict.BUCKET_DAMAGED, str(error)
    return (Conflict.OTHER, overlap) if overlap else None


def _vector_changed(
    change: BucketChange,
    now: Mapping[str, VectorRef],
    are_same: Callable[[VectorRef, VectorRef], bool],
) -> tuple[Conflict, str] | None:
    """A file that was read with other deleted rows: its output would restore them."""
    for name in sorted((change.removed | change.only_read) & (change.vectors.keys() | now.keys())):
        old, new = change.vectors.get(name), now.get(name)
        if old == new:
            continue
        try:
            if old is not None and new is not None and are_same(old, new):
                continue
        except FormatError as error:
            return Conflict.BUCKET_DAMAGED, str(error)
        return Conflict.DV_CHANGED, f"other rows of {name} are deleted than when it was read"
    return None


def _delete_the_same(
    read_old: Callable[[str], bytes],
    read_new: Callable[[str], bytes],
    old: VectorRef,
    new: VectorRef,
) -> bool:
    """Whether two vectors delete the same rows: other vectors in the index file may have changed.

    The newest state has the new one. Raises `FormatError` if it is damaged, and the errors of
    reading it.
    """
    if None not in (old.cardinality, new.cardinality) and old.cardinality != new.cardinality:
        return False
    now = bitmap_in(stored_in(read_new(new.path), new), new.path)
    try:
        return bitmap_in(stored_in(read_old(old.path), old), old.path) == now
    except (ObjectNotFound, FormatError):
        # Comparison is impossible; perhaps its snapshot has expired.
        return False


def _unexpected(
    indexes: IndexFiles, change: BucketChange, settings: CommitSettings
) -> tuple[Conflict, str] | None:
    """Indexes that appeared after planning, or that the table must not have now."""
    has_vectors = settings.options.vectors is not None
    if change.marks and not has_vectors:
        return Conflict.DV_CHANGED, "the table has no deletion vectors any more"
    for entry in indexes.of(change.bucket):
        if not entry.is_served(has_vectors=has_vectors):
            return Conflict.OTHER, f"its bucket has an index of type {entry.index_type} now"
        if entry.vectors and not has_vectors:
            return Conflict.DV_CHANGED, "its bucket has deletion vectors now"
    return None


def already_live(change: BucketChange, live: Sequence[DataFile]) -> str | None:
    """A new file of `change` that is live before its publication is confirmed, or None.

    Possible if an unconfirmed snapshot of ours was replaced after another was built on it.
    """
    new = {output.file.file_name for output in change.outputs}
    return next((file.file_name for file in live if file.file_name in new), None)


def _overlap(files: Iterable[DataFile], key_of: Callable[[bytes], Any]) -> str | None:
    """Files of one level above 0 whose key ranges overlap: two compactions wrote the same range.

    Raises `FormatError` for unreadable keys.
    """
    levels: dict[int, list[tuple[Any, Any, str]]] = {}
    for file in files:
        if file.level > 0:
            entry = (*file.key_range(key_of), file.file_name)
            levels.setdefault(file.level, []).append(entry)
    for level, ranges in levels.items():
        ranges.sort()
        for (_, left_max, left), (right_min, _, right) in itertools.pairwise(ranges):
            if left_max >= right_min:
                return f"{left} and {right} would overlap on level {level}"
    return None


_STATUS_THREADS = 16


class AddedFilesCheck:
    """Checks that the files added by commits to one table exist and will be live.

    Each file must exist with its written length: a sweep of another host, or Java's orphan cleaning
    (operation/OrphanFilesClean.java), deletes files that waited too long for their commit. No
    manifest may delete a file of its name: readers consider a file live if a manifest adds it and
    none deletes it, in any order, so a file with a reused name would never be live.

    Costs one status call for each new file, and one read of each manifest with deletions while this
    object lives, unless the state was read from it. It stores 8 bytes for each deletion in a
    manifest that is in use.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._deleted: dict[str, Deletions] = {}
        self._lost: Callable[[], dict[int, str]] = dict

    @contextlib.contextmanager
    def looking(
        self, changes: Sequence[BucketChange], bucket_folder: Callable[[BucketId], str]
    ) -> Iterator[None]:
        """Checks the new files of an attempt in the background while the context is open."""
        with prefetch(self._storage, partial(self._found, changes, bucket_folder)) as self._lost:
            yield

    def passed(
        self, state: TableState, changes: Sequence[BucketChange], manifests: Sequence[ManifestFile]
    ) -> tuple[list[BucketChange], list[DroppedChange]]:
        """The changes whose files all pass, and the dropped ones with the reason.

        `manifests` are the manifests of the snapshot of `state`, to build on. `looking` was called
        for all of the changes. Raises the errors of reading.
        """
        deleted, lost = self._already_deleted(state, changes, manifests), self._lost()
        troubles = {id(each): lost[id(each)] or deleted.get(id(each), "") for each in changes}
        dropped = [
            DroppedChange(change=change, conflict=Conflict.OUTPUT_LOST, why=why)
            for change in changes
            if (why := troubles[id(change)])
        ]
        return [change for change in changes if not troubles[id(change)]], dropped

    def _found(
        self, changes: Sequence[BucketChange], bucket_folder: Callable[[BucketId], str]
    ) -> dict[int, str]:
        """The reason for missing or incomplete files, or "", by the `id` of their change."""
        wanted: list[tuple[int, int | None, str]] = []
        for change in changes:
            folder = bucket_folder(change.bucket)
            for output in change.outputs:
                # Manifests have no sizes of companions.
                sizes: dict[str, int | None] = dict.fromkeys(output.companions)
                sizes[output.file.file_name] = output.file.file_size
                wanted += ((id(change), sizes[name], paths.join(folder, name)) for name in sizes)
        troubles = dict.fromkeys(map(id, changes), "")
        if not wanted:
            return troubles
        with ThreadPoolExecutor(min(_STATUS_THREADS, len(wanted))) as pool:
            statuses = list(pool.map(self._storage.status, (path for _, _, path in wanted)))
        for (key, written, path), status in zip(wanted, statuses, strict=True):
            if status is None:
                troubles[key] = f"output {path} was removed before it was committed"
            elif written not in (None, status.size_bytes):
                found = status.size_bytes
                troubles[key] = f"output {path} has {found} bytes, {written} were written"
        return troubles

    def _already_deleted(
        self, state: TableState, changes: Sequence[BucketChange], manifests: Sequence[ManifestFile]
    ) -> dict[int, str]:
        """The reason why a file would not be live after its commit, by the `id` of its change."""
        location, known = state.table.location, state.files.deleted
        added: dict[FileIdentity, int] = {
            file.identity(change.bucket): id(change) for change in changes for file in change.after
        }
        if not added:
            return {}
        hashes = identity_hashes(list(added))
        deleting = [manifest for manifest in manifests if manifest.num_deleted_files]
        if not known.may_have(hashes).any():
            deleting = [each for each in deleting if each.file_name not in known.manifests]
        # Only manifests in use are remembered.
        self._deleted = {each.file_name: self._deletions(location, each) for each in deleting}
        troubles: dict[int, str] = {}
        for manifest in deleting:
            if not self._deleted[manifest.file_name].may_have(hashes).any():
                continue
            # Hashes of different files may be equal: their identities decide.
            again = added.keys() & deleted_files(self._storage, location, manifest)
            for identity in again:
                troubles[added[identity]] = (
                    f"manifest {manifest.file_name} deletes a file called {identity.file_name}: "
                    "readers would take a new file of that name for deleted"
                )
        return troubles

    def _deletions(self, location: str, manifest: ManifestFile) -> Deletions:
        known = self._deleted.get(manifest.file_name)
        if known is not None:
            return known
        found = deleted_files(self._storage, location, manifest)
        return Deletions.of([manifest.file_name], found)
