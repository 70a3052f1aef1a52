"""Finds and deletes orphan files: old enough, and named by no metadata.

A file that we wrote (`ids.owner_of` its name) is deleted if its owner is proved dead and the file
has not changed for ten minutes, or if its owner cannot be checked and the file has not changed for
the grace. A file of another program is deleted only on request, with a grace of its own.

No snapshot, tag or branch of the table, and no long-lived changelog, may name the file. If any of
these cannot be read, no file is deleted. Everything is decided before the first deletion. Between
deletions new versions are read, and the files that they name are kept.

While a table is being restored or copied, its data may exist before its snapshots: no file is
deleted while the snapshots of main or of a branch may be incomplete (`used_names`).

Folders as in operation/OrphanFilesClean.java. These are not searched: folders of schemas, branches
and consumers; files of other programs in folders of tags, or in a partition's folder next to its
buckets, such as `_SUCCESS`. Nor are folders that may belong to another table: targets of links,
and partition folders and external paths that contain a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import structlog

from compactord.errors import CompactordError, StorageError, TransientStorageError
from compactord.ids import Liveness, Owner, owner_of
from compactord.maintenance.own_files import OwnFiles
from compactord.maintenance.used_names import Incomplete, UsedNames
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.storage.base import ObjectStatus, Storage, UnfinishedUpload
from compactord.storage.calls import for_each_concurrently, map_concurrently


class FileNames:
    """Hashes of names: a million take 9 MB. A name that shares a used name's hash is kept."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = np.unique(hashes_of(names))
        self._is_named = np.zeros(len(self._hashes), dtype=np.bool_)

    @property
    def count(self) -> int:
        return len(self._hashes)

    @property
    def are_all_named(self) -> bool:
        return bool(self._is_named.all())

    def note(self, names: Iterable[str]) -> None:
        """Mark many names as named by metadata."""
        places, is_one = self._places(hashes_of(names))
        self._is_named[places[is_one]] = True

    def unnamed(self, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each name is in the set and no metadata names it; for many at once."""
        places, is_one = self._places(hashes_of(names))
        is_one[is_one] = ~self._is_named[places[is_one]]
        return is_one

    def is_unnamed(self) -> Callable[[str], bool]:
        """A fast test of single names against the present state of the set."""
        unnamed = frozenset(self._hashes[~self._is_named].tolist())
        return lambda name: hash(name) in unnamed

    def _places(
        self, hashes: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The place of each hash, and whether it is in the set."""
        if not self.count:
            return hashes, np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        return places, self._hashes[places] == hashes


def hashes_of(names: Iterable[str]) -> npt.NDArray[np.int64]:
    """A number for each name, in order; they differ between processes."""
    return np.fromiter(map(hash, names), dtype=np.int64)


# Packs of managed blobs (blob/ManagedBlobReferenceFile.java): several data files refer to one.
_SHARED_SUFFIX = ".managed.blob"
# Objects in one response of a store to a listing.
_PAGE = 1_000
_HINTS = (paths.EARLIEST, paths.LATEST)
# A folder that contains one of these belongs to a table.
_OF_TABLES = ("schema", "snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFolders:
    """The folders of a table's files.

    Bucket folders are `partition_depth` folders deep, the number of partition keys, below the
    location and each of `other_roots`. `of_others` adds folders in which compactord never writes.
    """

    location: str
    partition_depth: int
    other_roots: tuple[str, ...] = ()
    of_others: bool = False

    @property
    def data_roots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.location, *self.other_roots)))


class FileListing:
    """One listing of all files, or of the files whose names are wanted.

    After a listing of all files, `empty` has the bucket and partition folders without files.
    `folders` has the folders listed so far.
    """

    def __init__(
        self,
        storage: Storage,
        folders: TableFolders,
        is_wanted: Callable[[str], bool] | None = None,
    ) -> None:
        self.empty: list[tuple[str, ObjectStatus]] = []
        self.folders: set[str] = set()
        self._storage = storage
        self._folders = folders
        self._is_wanted = is_wanted

    def files(self) -> Iterator[tuple[str, ObjectStatus]]:
        """Each file with its folder, except snapshots, changelogs, hints and shared packs."""
        for folder, kept in self._shared_folders():
            for status in self._list(folder):
                is_kept = kept is not None and (
                    status.name.startswith(kept) or status.name in _HINTS
                )
                if not status.is_folder and not is_kept:
                    yield folder, status
        wanted = self._is_wanted
        finds_empty = wanted is None and self._storage.capabilities.has_folders
        for root in self._folders.data_roots:
            # Folders are remembered only where empty ones can be removed.
            inner: dict[str, ObjectStatus] | None = {} if finds_empty else None
            filled: set[str] = set()
            own: list[tuple[str, ObjectStatus]] = []
            buckets = self._buckets(root, inner, own)
            yield from own if wanted is None else [each for each in own if wanted(each[1].name)]
            for folder, listed in self._started(self._list, buckets):
                for status in listed:
                    if not status.is_folder and not status.name.endswith(_SHARED_SUFFIX):
                        if inner is not None:
                            filled.add(folder)
                        yield folder, status
            if inner is not None:
                filled.update(each for path in tuple(filled) for each in _above(path, root))
                self.empty += [item for item in reversed(inner.items()) if item[0] not in filled]

    def _list(self, folder: str) -> Iterator[ObjectStatus]:
        self.folders.add(folder)
        if self._is_wanted is None:
            return self._storage.list(folder)
        return self._storage.list_some(folder, self._is_wanted)

    def _shared_folders(self) -> Iterator[tuple[str, str | None]]:
        """Folders of metadata. Hints, and names with the given prefix, are not listed."""
        location, of_others = self._folders.location, self._folders.of_others
        yield paths.manifest_folder(location), None
        yield paths.index_folder(location), None
        if of_others:
            yield paths.statistics_folder(location), None
        for branch in (paths.MAIN_BRANCH, *branch_names(self._storage, location)):
            root = paths.branch_root(location, branch)
            yield paths.snapshot_folder(root), paths.SNAPSHOT_PREFIX
            yield paths.changelog_folder(root), paths.CHANGELOG_PREFIX
            if not of_others:
                yield paths.tag_folder(root), paths.TAG_PREFIX

    def _buckets(
        self,
        root: str,
        inner: dict[str, ObjectStatus] | None,
        own: list[tuple[str, ObjectStatus]],
    ) -> Sequence[str]:
        """All bucket folders below a root. `inner` gets partition folders, then bucket folders.

        `own` gets the files that we left next to them: marks and holds that were not renamed.
        """
        level = [root]
        for depth in range(self._folders.partition_depth, -1, -1):
            above, level = level, []
            for folder, listed in self._started(self._storage.list, above):
                if folder != self._folders.location:
                    listed = list(listed)
                    if _is_of_table(listed):
                        continue
                for status in listed:
                    name = status.name
                    is_inner = "=" in name if depth else name.startswith(paths.BUCKET_PREFIX)
                    if status.is_folder and not status.is_link and is_inner:
                        level.append(paths.join(folder, name))
                        if inner is not None:
                            inner[level[-1]] = status
                    elif not status.is_folder and owner_of(name):
                        own.append((folder, status))
        return level

    def _started(
        self, listing: Callable[[str], Iterator[ObjectStatus]], folders: Sequence[str]
    ) -> Iterator[tuple[str, Iterable[ObjectStatus]]]:
        """Listings with their first page read, several ahead where a page is a request."""

        def started(folder: str) -> tuple[str, Iterable[ObjectStatus]]:
            listed = listing(folder)
            return folder, chain(list(islice(listed, _PAGE)), listed)

        yield from map_concurrently(self._storage, started, folders)


def _above(path: str, root: str) -> Iterator[str]:
    while path != root:
        path = path.rpartition("/")[0]
        yield path


def outer_table(storage: Storage, location: str) -> str | None:
    """The table that has this one in a partition folder, or None. Raises what listing raises."""
    folder, _, name = location.rpartition("/")
    while folder and "=" in name:
        if _is_of_table(storage.list(folder)):
            return folder
        folder, _, name = folder.rpartition("/")
    return None


def _is_of_table(listed: Iterable[ObjectStatus]) -> bool:
    return any(each.is_folder and each.name in _OF_TABLES for each in listed)


def remove_folders(
    roots: Collection[str], buckets: Iterable[str], remove_empty: Callable[[str], bool]
) -> None:
    """Remove bucket folders that have become empty, then their partitions', deepest first.

    `roots` stay. As operation/FileDeletionBase.java (cleanEmptyDirectories).
    """
    level = dict.fromkeys(buckets)
    while level:
        above: dict[str, None] = {}
        for folder in level:
            remove_empty(folder)
            parent = folder.rsplit("/", 1)[0]
            if parent not in roots:
                above[parent] = None
        level = above


_log = structlog.get_logger()
# A file whose owner is dead may just have been restored or copied before its snapshot.
_DEAD_GRACE_MS = 600_000
# New versions are read once in this many deletions.
_CHECK_INTERVAL = 500
# The reason why no file may be deleted now, or None.
WhyWait: TypeAlias = Callable[[], str | None]
# Names that are looked up together.
_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A file that no living process needs, or an unfinished `upload` of a dead process."""

    path: str
    size_bytes: int
    changed_ms: int
    upload: UnfinishedUpload | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRule:
    """When files may be deleted, by their last change.

    Ten minutes after it if the owner is dead, `grace_ms` after it if the owner cannot be checked,
    and `others_grace_ms` after it if another program wrote them. Without `others_grace_ms` files of
    other programs stay.

    Files of this process are deleted if they are older than `own_before_ms` (never if it is 0): no
    running compaction had started then, so a killed worker left them.
    """

    myself: Owner
    liveness: Callable[[Owner], Liveness]
    now_ms: int
    grace_ms: int
    own_before_ms: int = 0
    others_grace_ms: int | None = None

    def may_delete(self, status: ObjectStatus) -> bool:
        owner = owner_of(status.name)
        if status.is_folder:
            return False
        if owner is None:
            grace_ms = self.others_grace_ms
            return grace_ms is not None and status.changed_ms < self.now_ms - grace_ms
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The orphans that were found or removed. `error`: why unfinished uploads are not among them,
    or None.
    """

    orphans: Sequence[Orphan] = ()
    error: CompactordError | None = None


def remove_orphans(
    storage: Storage,
    location: str,
    *,
    partition_depth: int,
    rule: OwnerRule,
    among: Callable[[Sequence[Orphan]], Sequence[Orphan]] = tuple,
    why_wait: WhyWait = lambda: None,
) -> Sweep:
    """Delete the orphan files that earlier runs left in a table; returns the deleted files.

    `among` chooses the files to delete. `why_wait` as in `OrphanSearch`.

    Raises what `OrphanSearch.find` raises, before anything is deleted.
    """
    search = _search(storage, location, partition_depth, rule, why_wait)
    removed: list[Orphan] = []
    for orphan in search.removed(among(_found(search))):
        removed.append(orphan)
        if orphan.upload is None:
            _log.info("orphan_removed", path=orphan.path, size_bytes=orphan.size_bytes)
        else:
            _log.info("upload_aborted", path=orphan.path)
    return Sweep(orphans=tuple(removed), error=search.uploads_error)


def find_orphans(
    storage: Storage,
    location: str,
    *,
    partition_depth: int,
    rule: OwnerRule,
    why_wait: WhyWait = lambda: None,
) -> Sweep:
    """The orphan files that earlier runs left in a table; deletes none."""
    search = _search(storage, location, partition_depth, rule, why_wait)
    return Sweep(orphans=_found(search), error=search.uploads_error)


def _search(
    storage: Storage, location: str, partition_depth: int, rule: OwnerRule, why_wait: WhyWait
) -> OrphanSearch:
    folders = TableFolders(location=location, partition_depth=partition_depth)
    return OrphanSearch(storage, folders, rule, why_wait=why_wait)


def _found(search: OrphanSearch) -> Sequence[Orphan]:
    """Only uploads while the table may be being restored."""
    try:
        return search.find()
    except Incomplete as why:
        _log.warning("sweep_skipped", reason=why.reason, files=search.old_files)
        return search.uploads


class OrphanSearch:
    """One search for the orphans of a table.

    Lists every folder once, reads metadata only if a file may be deleted, and lists unnamed files
    again. Only these are objects in memory; each other file takes one number. `on_progress` gets a
    text now and then; an exception that it raises ends the search. `why_wait` returns a reason to
    suspect a restore, besides the signs in the table's versions.
    """

    def __init__(
        self,
        storage: Storage,
        folders: TableFolders,
        rule: OwnerRule,
        on_progress: Callable[[str], None] = lambda text: None,
        why_wait: WhyWait = lambda: None,
    ) -> None:
        self.uploads: Sequence[Orphan] = ()
        # The reason if uploads could not be listed: files are swept all the same.
        self.uploads_error: CompactordError | None = None
        # Files that the rule allows to delete, live or not.
        self.old_files = 0
        # Bucket and partition folders that have been empty for the grace of other programs' files.
        self.empty_folders: Sequence[str] = ()
        self._storage = storage
        self._folders = folders
        self._own = OwnFiles(storage, folders.location, folders.other_roots)
        # Each owner is checked once: the dead stay dead, and files of living owners are kept.
        self._rule = replace(rule, liveness=cache(rule.liveness))
        self._on_progress, self._why_wait = on_progress, why_wait
        self._names = FileNames(())
        self._used = UsedNames(
            storage,
            folders.location,
            self._note,
            since_ms=rule.now_ms - rule.grace_ms,
            of_others=rule.others_grace_ms is not None,
        )

    def find(self) -> Sequence[Orphan]:
        """The orphans; deletes none.

        Raises `Incomplete` if the table may be being restored, or if its folders may belong to
        another table, `UnsupportedTable` for files behind links that lead out of the table, and
        what reading raises.
        """
        outer = outer_table(self._storage, self._folders.location)
        if outer is not None:
            raise Incomplete(f"it is in a partition folder of the table at {outer}")
        uploads = self._left_uploads()
        listing = FileListing(self._storage, self._folders)
        self._names = FileNames(status.name for _, status in self._old(listing))
        # Another table may lie in a folder that is not listed.
        self.uploads = tuple(
            each
            for each in uploads
            if owner_of(each.name) or each.path.rpartition("/")[0] in listing.folders
        )
        self.empty_folders = self._old_folders(listing)
        self.old_files = self._names.count
        if not self.old_files:
            return self.uploads
        why = self._why_wait()
        if why is not None:
            raise Incomplete(why)
        self._used.read()
        if self._names.are_all_named:
            return self.uploads
        # Only files that existed before metadata was read.
        again = FileListing(self._storage, self._folders, self._names.is_unnamed())
        orphans = tuple(map(_orphan, self._old(again)))
        for orphan in orphans:
            self._own.require(orphan.path)
        return (*self.uploads, *orphans)

    def _left_uploads(self) -> Sequence[Orphan]:
        """Unfinished uploads that the rule allows to abort, by their start time.

        Their files do not exist, so no metadata can need them. Listing uploads takes a permission
        of its own.
        """
        location, found = self._folders.location, []
        try:
            for upload in self._storage.unfinished_uploads(location):
                name = upload.path.rpartition("/")[2]
                started = ObjectStatus(
                    name=name, is_folder=False, size_bytes=0, changed_ms=upload.started_ms
                )
                if self._rule.may_delete(started):
                    found.append(
                        Orphan(
                            path=upload.path,
                            size_bytes=0,
                            changed_ms=upload.started_ms,
                            upload=upload,
                        )
                    )
        except CompactordError as error:
            why = f"unfinished uploads cannot be listed, so they stay ({error})"
            self.uploads_error = StorageError(location, why)
            return ()
        return tuple(found)

    def removed(
        self,
        orphans: Sequence[Orphan],
        delete: Callable[[Orphan], None] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Orphan]:
        """Delete found orphans with `delete`, a few at once; yields each after its deletion.

        Keeps files that have been named since, and ends early once `is_stopped`. Raises what
        reading raises, and `TransientStorageError` once the table may be being restored: no further
        file is deleted then. If a deletion fails, raises its error after the running ones have
        ended.
        """
        for start in range(0, len(orphans), _CHECK_INTERVAL):
            if is_stopped():
                return
            some = orphans[start : start + _CHECK_INTERVAL]
            if any(orphan.upload is None for orphan in some):
                self._read_again()
            unnamed = self._names.unnamed([orphan.name for orphan in some]).tolist()
            going = [
                o for o, is_unnamed in zip(some, unnamed, strict=True) if o.upload or is_unnamed
            ]
            yield from for_each_concurrently(
                self._storage, partial(self._delete, delete), going, is_stopped=is_stopped
            )

    def _delete(self, delete: Callable[[Orphan], None] | None, orphan: Orphan) -> None:
        if orphan.upload is not None:
            self._storage.abort_upload(orphan.upload)
        elif delete is not None:
            delete(orphan)
        else:
            self._own.delete(orphan.path)

    def _read_again(self) -> None:
        try:
            self._used.read()
        except Incomplete as why:
            raise TransientStorageError(self._folders.location, why.reason) from None

    def _note(self, names: Iterable[str]) -> None:
        self._names.note(names)
        self._on_progress("metadata is read")

    def _old(self, listing: FileListing) -> Iterator[tuple[str, ObjectStatus]]:
        """The files that the rule allows to delete, live or not, with their folders."""
        may_delete = self._rule.may_delete
        for count, (folder, status) in enumerate(listing.files(), 1):
            if count % _AT_ONCE == 0:
                self._on_progress(f"{count:,} files listed")
            if may_delete(status):
                yield folder, status

    def _old_folders(self, listing: FileListing) -> Sequence[str]:
        grace_ms = self._rule.others_grace_ms
        if grace_ms is None or not self._storage.capabilities.has_folders:
            return ()
        before_ms = self._rule.now_ms - grace_ms
        return [path for path, status in listing.empty if status.changed_ms < before_ms]


def _orphan(found: tuple[str, ObjectStatus]) -> Orphan:
    folder, status = found
    return Orphan(
        path=paths.join(folder, status.name),
        size_bytes=status.size_bytes,
        changed_ms=status.changed_ms,
    )
