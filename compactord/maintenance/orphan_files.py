"""Deletes orphan files: files that we wrote and that no metadata names.

A file is deleted only if three conditions hold: its name says that it is ours (`ids.owner_of`); its
owner is proved dead and the file has not changed for ten minutes, or its owner cannot be checked
and the file has not changed for the grace; and no snapshot, tag or branch of the table, nor a
long-lived changelog, names it. If any of these cannot be read, nothing is deleted.

While a table is being restored or copied, its data may exist before its snapshots: nothing is
deleted while the snapshots of main or of a branch may not be complete (`restored`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog

from compactord.errors import CompactordError, ObjectNotFound, TransientStorageError
from compactord.ids import Liveness, Owner, owner_of
from compactord.maintenance.restored import is_restored, why_incomplete
from compactord.paimon import paths
from compactord.paimon.manifest.index_manifest import read_entries_but_hash
from compactord.paimon.manifest.manifest_files import ManifestFile, read_entries, read_manifest_list
from compactord.paimon.snapshot import (
    Snapshot,
    branch_names,
    read_changelogs,
    read_snapshot,
    read_tags,
    snapshot_files,
)
from compactord.storage.absence import Absences
from compactord.storage.base import ObjectStatus, Storage, UnfinishedUpload

_log = structlog.get_logger()
# A file whose owner is dead may just have been restored or copied before its snapshot.
_DEAD_GRACE_MS = 600_000
# The snapshots are listed at most this many times; then the sweep of a very active table fails.
_LISTINGS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A file of ours that no living process needs: its length, and when it changed last.

    With `upload` it is none yet: somebody began to write it, and died.
    """

    path: str
    name: str
    size_bytes: int
    changed_ms: int
    upload: UnfinishedUpload | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRule:
    """When an owner's files may be deleted, by their last change.

    Ten minutes after it if the owner is dead, `grace_ms` after it if that cannot be checked.

    Files of this process are deleted if they are older than `own_before_ms` (0: never): no running
    compaction had started then, so a killed worker left them.
    """

    myself: Owner
    liveness: Callable[[Owner], Liveness]
    now_ms: int
    grace_ms: int
    own_before_ms: int = 0

    def lets_go(self, status: ObjectStatus) -> bool:
        """Whether the rule allows to delete this file."""
        owner = owner_of(status.name)
        if owner is None or status.is_folder:
            return False
        if owner == self.myself:
            return status.changed_ms < self.own_before_ms
        match self.liveness(owner):
            case Liveness.DEAD:
                grace_ms = _DEAD_GRACE_MS
            case Liveness.ALIVE:
                return False
            case Liveness.UNKNOWN:
                grace_ms = self.grace_ms
        return status.changed_ms < self.now_ms - grace_ms


def remove_orphans(
    storage: Storage,
    location: str,
    *,
    partition_depth: int,
    rule: OwnerRule,
    among: Callable[[Sequence[Orphan]], Sequence[Orphan]] = tuple,
) -> Sequence[Orphan]:
    """Delete the orphan files that earlier runs left in a table; returns the deleted files.

    Of all that are found `among` chooses those to be deleted.

    Raises what `find_orphans` raises, before anything is deleted.
    """
    orphans = among(find_orphans(storage, location, partition_depth=partition_depth, rule=rule))
    for orphan in orphans:
        if orphan.upload is None:
            storage.delete(orphan.path)
            _log.info("orphan_removed", path=orphan.path, size_bytes=orphan.size_bytes)
        else:
            storage.abort_upload(orphan.upload)
            _log.info("upload_aborted", path=orphan.path)
    return orphans


def find_orphans(
    storage: Storage, location: str, *, partition_depth: int, rule: OwnerRule
) -> tuple[Orphan, ...]:
    """What earlier runs left in a table and nothing names; deletes nothing.

    `partition_depth` is the number of partition keys: bucket folders are that many folders deep.
    Raises what reading raises. Lists every bucket folder once; reads metadata only if there may be
    something to delete, and lists again what nothing names. Only these files are in memory as
    objects: of a table's others, most of which dead processes may have written, a number each.
    """
    uploads = _left_uploads(storage, location, rule)
    candidates = _Names(each.name for each in _old_files(storage, location, partition_depth, rule))
    if not candidates.count:
        return uploads
    try:
        _note_named(storage, location, candidates, since_ms=rule.now_ms - rule.grace_ms)
    except _Incomplete as why:
        _log.warning("sweep_skipped", reason=why.reason, files=candidates.count)
        return uploads
    if candidates.are_all_named:
        return uploads
    again = _old_files(storage, location, partition_depth, rule)
    # Only what was there before metadata was read.
    return (*uploads, *(orphan for orphan in again if candidates.is_unnamed(orphan.name)))


def _left_uploads(storage: Storage, location: str, rule: OwnerRule) -> tuple[Orphan, ...]:
    """Uploads that the rule lets go, by when they were started.

    What they would have become is not there, so no metadata can need them. Listing them takes a
    permission of its own, without which files are swept all the same.
    """
    found = []
    try:
        for upload in storage.unfinished_uploads(location):
            name = upload.path.rpartition("/")[2]
            started = ObjectStatus(
                name=name, is_folder=False, size_bytes=0, changed_ms=upload.started_ms
            )
            if rule.lets_go(started):
                found.append(
                    Orphan(
                        path=upload.path,
                        name=name,
                        size_bytes=0,
                        changed_ms=upload.started_ms,
                        upload=upload,
                    )
                )
    except CompactordError as error:
        _log.warning("uploads_not_listed", error=str(error))
        return ()
    return tuple(found)


class _Names:
    """Names of files by their hashes: a million take 9 MB. With the hash of another it is named."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = np.unique(_hashes(names))
        self._is_named = np.zeros(len(self._hashes), dtype=np.bool_)

    @property
    def count(self) -> int:
        return len(self._hashes)

    @property
    def are_all_named(self) -> bool:
        return bool(self._is_named.all())

    def note(self, names: Iterable[str]) -> None:
        """These are named by metadata; many at once."""
        found = _hashes(names)
        places = np.searchsorted(self._hashes, found)
        places[places == len(self._hashes)] = 0
        self._is_named[places[self._hashes[places] == found]] = True

    def is_unnamed(self, name: str) -> bool:
        """Whether it is one of them, and no metadata names it."""
        found = hash(name)
        place = int(np.searchsorted(self._hashes, found))
        if place == len(self._hashes) or self._hashes[place] != found:
            return False
        return not self._is_named[place]


def _hashes(names: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, names), dtype=np.int64)


def _old_files(
    storage: Storage, location: str, partition_depth: int, rule: OwnerRule
) -> Iterator[Orphan]:
    """What the rule lets go, live or not."""
    branches = (paths.MAIN_BRANCH, *branch_names(storage, location))
    roots = [paths.branch_root(location, branch) for branch in branches]
    folders = [paths.manifest_folder(location), paths.index_folder(location)]
    folders += (*map(paths.snapshot_folder, roots), *map(paths.tag_folder, roots))
    for folder in (*folders, *_bucket_folders(storage, location, partition_depth)):
        for status in storage.list(folder):
            # Somebody may give a tag any name, also one that looks like ours.
            if rule.lets_go(status) and not status.name.startswith(paths.TAG_PREFIX):
                yield Orphan(
                    path=paths.join(folder, status.name),
                    name=status.name,
                    size_bytes=status.size_bytes,
                    changed_ms=status.changed_ms,
                )


def _bucket_folders(storage: Storage, folder: str, depth: int) -> Iterator[str]:
    for status in storage.list(folder):
        if not status.is_folder:
            continue
        path = paths.join(folder, status.name)
        if depth > 0 and "=" in status.name:
            yield from _bucket_folders(storage, path, depth - 1)
        elif depth == 0 and status.name.startswith("bucket-"):
            yield path


class _Incomplete(Exception):
    """Not all that names files may be there; `reason` says what tells it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def _note_named(storage: Storage, location: str, names: _Names, *, since_ms: int) -> None:
    """Note those of `names` that some snapshot, tag, branch or changelog of the table names.

    Raises `_Incomplete` if the table may be being restored; copies before `since_ms` are complete.
    """
    branches = (paths.MAIN_BRANCH, *branch_names(storage, location))
    for branch in branches:
        why = why_incomplete(storage, location, branch, since_ms)
        if why is not None:
            raise _Incomplete(why)
    seen: set[str] = set()
    # A branch may keep files that main has dropped.
    for root in (paths.branch_root(location, branch) for branch in branches):
        _note_named_by_snapshots(storage, location, root, names, seen, since_ms=since_ms)
        tags, changelogs = read_tags(storage, root), read_changelogs(storage, root)
        absences = Absences(storage)
        for tag in tags.values():
            try:
                _note_named_by(storage, location, tag, names, seen, absences)
            except ObjectNotFound:
                # Deleted while we read it, not renamed: it needs no files any more.
                if tag in read_tags(storage, root).values():
                    raise
        for changelog in changelogs:
            # Some of its metadata may have been deleted with its snapshot.
            _note_named_by(storage, location, changelog, names, seen, absences, missing_ok=True)
    if branch_names(storage, location) != branches[1:]:
        raise _Incomplete("branches were created or dropped meanwhile")


def _note_named_by_snapshots(
    storage: Storage, location: str, root: str, names: _Names, seen: set[str], *, since_ms: int
) -> None:
    """Note those of `names` that the snapshots of the table or of one branch name.

    Snapshots may expire while they are read; then they need no files, but a later one, which was
    not listed, may have the same files. Left-over files that a later one has are also in the newest
    that was listed. So that one is read first; if it is gone, all are listed again.
    """
    for _ in range(_LISTINGS_MAX):
        files = snapshot_files(storage, root)
        missing: dict[int, ObjectNotFound] = {}
        absences = Absences(storage)
        for snapshot_id in sorted(files, reverse=True):
            try:
                snapshot = read_snapshot(storage, root, snapshot_id)
                _note_named_by(storage, location, snapshot, names, seen, absences)
            except ObjectNotFound as error:
                missing[snapshot_id] = error
                continue
            if is_restored(snapshot, files[snapshot_id], since_ms):
                raise _Incomplete(
                    f"snapshot {snapshot_id} of {root} was copied lately: a restore may go on"
                )
        if not missing:
            return
        for snapshot_id in missing.keys() & snapshot_files(storage, root).keys():
            # It has not expired: the table is damaged, or the store's answer was wrong.
            raise missing[snapshot_id]
        if max(files) not in missing:
            return
    raise TransientStorageError(
        paths.snapshot_folder(root),
        f"the newest snapshot expired {_LISTINGS_MAX} times while it was read",
    )


def _note_named_by(
    storage: Storage,
    location: str,
    snapshot: Snapshot,
    names: _Names,
    seen: set[str],
    absences: Absences,
    *,
    missing_ok: bool = False,
) -> None:
    """Note those of `names` that a snapshot leads to. Manifests in `seen` have been checked before.

    `missing_ok`: files that are gone name nothing. A changelog may always be gone: that of a tagged
    snapshot is deleted with the snapshot, and branches are made from tags.
    """
    lists = (
        (snapshot.delta_manifest_list, snapshot.delta_manifest_list_size, missing_ok),
        (snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size, True),
        (snapshot.base_manifest_list, snapshot.base_manifest_list_size, missing_ok),
    )
    names.note(name for name, *_ in lists if name is not None)
    index_manifest = snapshot.index_manifest
    if index_manifest is not None and index_manifest not in seen:
        names.note([index_manifest])
        with absences.suppressed() if missing_ok else contextlib.nullcontext():
            # HASH indexes are never ours.
            entries = read_entries_but_hash(storage, location, index_manifest)
            names.note(entry.file_name for entry in entries)
            seen.add(index_manifest)
    for name, size, is_optional in lists:
        manifests: tuple[ManifestFile, ...] = ()
        with absences.suppressed() if is_optional else contextlib.nullcontext():
            if name is not None:
                manifests = read_manifest_list(storage, paths.manifest_path(location, name), size)
        for manifest in manifests:
            names.note((manifest.file_name, *manifest.extra_files))
            if manifest.file_name in seen:
                continue
            with absences.suppressed() if is_optional else contextlib.nullcontext():
                files = (entry.file for entry in read_entries(storage, location, manifest))
                names.note(name for file in files for name in (file.file_name, *file.extra_files))
                seen.add(manifest.file_name)
