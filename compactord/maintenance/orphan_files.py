"""Deletes orphan files: files of a table that nobody needs and no metadata names.

A file that we wrote (`ids.owner_of` its name) goes if its owner is proved dead and the file has not
changed for ten minutes, or its owner cannot be checked and the file has not changed for the grace.
A file of others goes only if it is asked for, once it has not changed for a time of its own.

And no snapshot, tag or branch of the table, nor a long-lived changelog, may name it. If any of
these cannot be read, nothing is deleted. All is decided before the first deletion. In between,
what has come since is read, and spares what it names.

While a table is being restored or copied, its data may exist before its snapshots: nothing is
deleted while the snapshots of main or of a branch may not be complete (`restored`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeAlias

import structlog

from compactord.errors import CompactordError, TransientStorageError
from compactord.ids import Liveness, Owner, owner_of
from compactord.maintenance.file_names import FileNames
from compactord.maintenance.own_files import OwnFiles
from compactord.maintenance.table_files import FileListing, TableFolders, outer_table
from compactord.maintenance.used_names import Incomplete, UsedNames
from compactord.paimon import paths
from compactord.storage.base import ObjectStatus, Storage, UnfinishedUpload
from compactord.storage.calls import done_with

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
            yield from done_with(
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
