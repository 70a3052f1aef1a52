"""Finds and deletes orphan files: old enough, and named by no metadata.

A file that we wrote (`ids.owner_of` its name) goes if its owner is proved dead and the file has not
changed for ten minutes, or its owner cannot be checked and the file has not changed for the grace.
A file of others goes only if it is asked for, once it has not changed for a time of its own.

And no snapshot, tag or branch of the table, nor a long-lived changelog, may name it. If any of
these cannot be read, nothing is deleted. All is decided before the first deletion. In between,
what has come since is read, and spares what it names.

While a table is being restored or copied, its data may exist before its snapshots: nothing is
deleted while the snapshots of main or of a branch may not be complete (`restored`).

Folders as in operation/OrphanFilesClean.java. Not looked at are those of schemas, branches and
consumers, what others have in a partition's folder beside its buckets, such as `_SUCCESS`, and in
folders of tags. Nor are folders whose files may be those of another table: what
links lead to, and partition folders and external paths in which a table lies.
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

from compactord.errors import CompactordError, TransientStorageError
from compactord.ids import Liveness, Owner, owner_of
from compactord.maintenance.own_files import OwnFiles
from compactord.maintenance.used_names import Incomplete, UsedNames
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.storage.base import ObjectStatus, Storage, UnfinishedUpload
from compactord.storage.calls import for_each_concurrently, map_concurrently


class FileNames:
    """Names by their hashes: a million take 9 MB. With the hash of another it is named."""

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
        """These are named by metadata; many at once."""
        places, is_one = self._places(hashes_of(names))
        self._is_named[places[is_one]] = True

    def unnamed(self, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each is one of them, and no metadata names it; many at once."""
        places, is_one = self._places(hashes_of(names))
        is_one[is_one] = ~self._is_named[places[is_one]]
        return is_one

    def is_unnamed(self) -> Callable[[str], bool]:
        """Whether one of them is not named as of now, for many that are asked for one by one."""
        unnamed = frozenset(self._hashes[~self._is_named].tolist())
        return lambda name: hash(name) in unnamed

    def _places(
        self, hashes: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Where each hash is, and whether it is there at all."""
        if not self.count:
            return hashes, np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        return places, self._hashes[places] == hashes


def hashes_of(names: Iterable[str]) -> npt.NDArray[np.int64]:
    """A number for each name, in order; others in another process."""
    return np.fromiter(map(hash, names), dtype=np.int64)


# Packs of managed blobs (blob/ManagedBlobReferenceFile.java): several data files refer to one.
_SHARED_SUFFIX = ".managed.blob"
# What a store tells of a folder in one answer.
_PAGE = 1_000
_HINTS = (paths.EARLIEST, paths.LATEST)
# A folder with these is that of a table.
_OF_TABLES = ("schema", "snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFolders:
    """Where a table's files are.

    Bucket folders are `partition_depth` folders deep, the number of partition keys, below the
    location and each of `other_roots`. `of_others`: also where compactord never writes.
    """

    location: str
    partition_depth: int
    other_roots: tuple[str, ...] = ()
    of_others: bool = False

    @property
    def data_roots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.location, *self.other_roots)))


class FileListing:
    """One listing of all files, or of those whose names are wanted.

    Of all of them `empty` are then the bucket and partition folders in which it found none.
    `folders` are those that it has listed so far.
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
        """Each with its folder. No snapshot, changelog or hint, and nothing that files share."""
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
            for folder, listed in self._begun(self._list, buckets):
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
        """The folders of all but data files; what begins so, or is a hint, is not to be found."""
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
        """All bucket folders below a root. `inner` gets them, after those of partitions.

        `own` gets the files that we left beside them: marks and holds that were not renamed.
        """
        level = [root]
        for depth in range(self._folders.partition_depth, -1, -1):
            above, level = level, []
            for folder, listed in self._begun(self._storage.list, above):
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

    def _begun(
        self, listing: Callable[[str], Iterator[ObjectStatus]], folders: Sequence[str]
    ) -> Iterator[tuple[str, Iterable[ObjectStatus]]]:
        """Listings of which a page has been read, of several ahead where that is a request."""

        def begun(folder: str) -> tuple[str, Iterable[ObjectStatus]]:
            listed = listing(folder)
            return folder, chain(list(islice(listed, _PAGE)), listed)

        yield from map_concurrently(self._storage, begun, folders)


def _above(path: str, root: str) -> Iterator[str]:
    while path != root:
        path = path.rpartition("/")[0]
        yield path


def outer_table(storage: Storage, location: str) -> str | None:
    """The table in one of whose partition folders this one lies: its buckets look like the inner's.

    None where there is none. Raises what listing raises.
    """
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

    None of `roots` goes. As operation/FileDeletionBase.java (cleanEmptyDirectories).
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
# What has come since is read once in this many deletions.
_CHECK_INTERVAL = 500
# Why nothing may be deleted now, None for no reason.
WhyWait: TypeAlias = Callable[[], str | None]
# Names that are looked up together.
_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A file that no living process needs: its length, and when it changed last.

    With `upload` it is none yet: somebody began to write it, and died.
    """

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

    Ten minutes after it if the owner is dead, `grace_ms` after it if that cannot be checked, and
    `others_grace_ms` after it if they are not ours; None: those stay.

    Files of this process are deleted if they are older than `own_before_ms` (0: never): no running
    compaction had started then, so a killed worker left them.
    """

    myself: Owner
    liveness: Callable[[Owner], Liveness]
    now_ms: int
    grace_ms: int
    own_before_ms: int = 0
    others_grace_ms: int | None = None

    def lets_go(self, status: ObjectStatus) -> bool:
        """Whether the rule allows to delete this file."""
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


def remove_orphans(
    storage: Storage,
    location: str,
    *,
    partition_depth: int,
    rule: OwnerRule,
    among: Callable[[Sequence[Orphan]], Sequence[Orphan]] = tuple,
    why_wait: WhyWait = lambda: None,
) -> Sequence[Orphan]:
    """Delete the orphan files that earlier runs left in a table; returns the deleted files.

    Of all that are found `among` chooses those to be deleted. `why_wait` as of `OrphanSearch`.

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
    return tuple(removed)


def find_orphans(
    storage: Storage,
    location: str,
    *,
    partition_depth: int,
    rule: OwnerRule,
    why_wait: WhyWait = lambda: None,
) -> Sequence[Orphan]:
    """What earlier runs left in a table and nothing names; deletes nothing."""
    return _found(_search(storage, location, partition_depth, rule, why_wait))


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

    Lists every folder once; reads metadata only if there may be something to delete, and lists
    again what nothing names. Only these files are in memory as objects: of a table's others a
    number each. `told` gets a text now and then, which says how far it is; what it raises ends the
    search. `why_wait` tells why the table may be being restored, beyond what its versions show.
    """

    def __init__(
        self,
        storage: Storage,
        folders: TableFolders,
        rule: OwnerRule,
        told: Callable[[str], None] = lambda text: None,
        why_wait: WhyWait = lambda: None,
    ) -> None:
        self.uploads: Sequence[Orphan] = ()
        # Files that the rule lets go, live or not.
        self.old_files = 0
        # Bucket and partition folders in which nothing has been for so long.
        self.empty_folders: Sequence[str] = ()
        self._storage = storage
        self._folders = folders
        self._own = OwnFiles(storage, folders.location, folders.other_roots)
        # What was found out of an owner holds: the dead stay dead, and the living spare files.
        self._rule = replace(rule, liveness=cache(rule.liveness))
        self._told, self._why_wait = told, why_wait
        self._names = FileNames(())
        self._used = UsedNames(
            storage,
            folders.location,
            self._note,
            since_ms=rule.now_ms - rule.grace_ms,
            of_others=rule.others_grace_ms is not None,
        )

    def find(self) -> Sequence[Orphan]:
        """What nothing names; deletes nothing.

        Raises `Incomplete` if the table may be being restored, or its folders may be those of
        another one, `UnsupportedTable` for files behind links that lead out of it, and what reading
        raises.
        """
        outer = outer_table(self._storage, self._folders.location)
        if outer is not None:
            raise Incomplete(f"it lies in a partition folder of the table at {outer}")
        uploads = _left_uploads(self._storage, self._folders.location, self._rule)
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
        # Only what was there before metadata was read.
        again = FileListing(self._storage, self._folders, self._names.is_unnamed())
        orphans = tuple(map(_orphan, self._old(again)))
        for orphan in orphans:
            self._own.require(orphan.path)
        return (*self.uploads, *orphans)

    def removed(
        self,
        orphans: Sequence[Orphan],
        delete: Callable[[Orphan], None] | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Orphan]:
        """Delete some of those that were found, by `delete`, a few at once; each once it is gone.

        Spares what has been named since, and ends early once `is_stopped`. Raises what reading
        raises, and `TransientStorageError` once the table may be being restored: nothing more is
        deleted then. Raises what deleting one raises, once those under way have ended.
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
        self._told("metadata is read")

    def _old(self, listing: FileListing) -> Iterator[tuple[str, ObjectStatus]]:
        """What the rule lets go, live or not, with its folder."""
        lets_go = self._rule.lets_go
        for count, (folder, status) in enumerate(listing.files(), 1):
            if count % _AT_ONCE == 0:
                self._told(f"{count:,} files listed")
            if lets_go(status):
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


def _left_uploads(storage: Storage, location: str, rule: OwnerRule) -> Sequence[Orphan]:
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
                        size_bytes=0,
                        changed_ms=upload.started_ms,
                        upload=upload,
                    )
                )
    except CompactordError as error:
        _log.warning("uploads_not_listed", error=str(error))
        return ()
    return tuple(found)
