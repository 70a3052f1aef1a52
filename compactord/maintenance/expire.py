"""Snapshot expiry: deletes snapshots that are too old or too many, and files that only they need.

It can be interrupted at any moment. Everything is decided before the first deletion. Then data
files are deleted, then manifests, then the lists that name them, finally the snapshots, oldest
first. After an interruption the kept snapshots are complete, and the next expiry, ours or Java's,
finds the rest by the remaining metadata. An expiring snapshot may be unreadable meanwhile, as with
Java.

Other processes may expire, roll back or tag at the same time. The snapshot that becomes the oldest
is checked repeatedly: if it is gone or replaced, or if tags have changed, deleting stops.
Agrees with table/ExpireSnapshotsImpl.java; `expire_plan` says where it keeps more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import structlog

from compactord.errors import ObjectNotFound, StorageError
from compactord.maintenance.expire_plan import ExpirePlan, ExpiringHistory, plan_expiry
from compactord.maintenance.expire_range import ExpireRange, expire_range
from compactord.maintenance.expire_reader import MetadataReader
from compactord.maintenance.kind import TableValues
from compactord.maintenance.restored import hint_trouble, main_trouble
from compactord.maintenance.table_files import remove_folders
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId
from compactord.paimon.options.table_options import ExpireOptions
from compactord.paimon.snapshot import (
    Snapshot,
    branch_names,
    has_earliest_hint,
    hinted_snapshot_id,
    read_changelogs,
    read_consumers,
    read_snapshot,
    read_tags,
    snapshot_ids,
    snapshot_unless_gone,
    write_earliest_hint,
)
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage

_log = structlog.get_logger()
# The table is checked against the plan once in this many deletions.
_CHECK_INTERVAL = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What one round removed: snapshots `first` to `end` - 1 and the files that only they needed.

    Counts are of files (extra files of data files included); `manifests` are all files of the
    manifest folder, `index_files` include statistics. `more`: the limit per round kept some.
    `why_not`: nothing (more) was removed for this reason; the next round tries again.
    """

    first: int = 0
    end: int = 0
    snapshots: int = 0
    data_files: int = 0
    changelog_files: int = 0
    manifests: int = 0
    index_files: int = 0
    size_bytes: int = 0
    more: bool = False
    why_not: str | None = None


def expire_snapshots(
    storage: Storage,
    table: TableRef,
    *,
    bucket_folder: Callable[[BucketId], str],
    options: ExpireOptions,
    now_ms: int,
    keep_from: int | None,
    remove_empty_folder: Callable[[str], bool] | None = None,
) -> Expired:
    """One round: at most `options.limit` snapshots of the branch that `table` is.

    `keep_from` is the lowest snapshot that is being read now; it, all later ones and their files
    are kept. `remove_empty_folder` removes a folder unless something is in it and returns whether
    it is gone; without it no folder is removed, whatever the options say.

    Raises `FormatError`, `StorageError` or `UnsupportedTable` if any metadata that matters cannot
    be read, and `UsageError` for options that contradict each other: nothing is deleted then.
    Raises `StorageError` if a deletion fails: the next round continues there.
    """
    found = _due(storage, table, options, now_ms=now_ms, keep_from=keep_from)
    if isinstance(found, Expired):
        if found.first and not has_earliest_hint(storage, table.root):
            write_earliest_hint(storage, table.root, found.first)
        return found
    wanted, snapshots = found
    counts: Counter[str] = Counter()
    why_not = None
    try:
        round_ = _Round(storage, table, wanted, snapshots)
        round_.delete(bucket_folder, counts, remove_empty_folder, options)
    except _TableChanged as changed:
        why_not = str(changed)
    more = wanted.more and why_not is None
    return Expired(first=wanted.first, end=wanted.end, more=more, why_not=why_not, **counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryPreview:
    """What the next round would delete: the figures, and every file in the order of deletion."""

    figures: Expired
    files: tuple[str, ...] = ()


def preview_expiry(table: TableValues, options: ExpireOptions, now_ms: int) -> ExpiryPreview:
    """What `expire_snapshots` would delete if nothing were being read; changes nothing.

    Raises what that raises before its first deletion.
    """
    found = _due(table.storage, table.ref, options, now_ms=now_ms, keep_from=None)
    if isinstance(found, Expired):
        return ExpiryPreview(figures=found)
    wanted, snapshots = found
    try:
        round_ = _Round(table.storage, table.ref, wanted, snapshots)
        plan = round_.plan(table.bucket_folder)
    except _TableChanged as moved:
        figures = Expired(first=wanted.first, end=wanted.end, why_not=str(moved))
        return ExpiryPreview(figures=figures)
    counts, files = Counter({"size_bytes": plan.size_bytes}), list[str]()
    for kind, unneeded in (*plan.files, *plan.metadata, ("snapshots", round_.snapshot_paths)):
        counts[kind] += len(unneeded)
        files += unneeded
    first, end = wanted.first, wanted.end
    figures = Expired(first=first, end=end, more=wanted.more, why_not=None, **counts)
    return ExpiryPreview(figures=figures, files=tuple(files))


def _due(
    storage: Storage, table: TableRef, options: ExpireOptions, *, now_ms: int, keep_from: int | None
) -> Expired | tuple[ExpireRange, Snapshots]:
    """The snapshots that expire now, and those that there are; or why there are none."""
    if options.changelog_decoupled:
        return Expired(why_not="its options keep changelogs longer than snapshots")
    hint = hinted_snapshot_id(storage, table.root)
    snapshots = Snapshots(storage, table.root)
    is_new = hint is None and len(snapshots.ids) == 1 and table.branch != paths.MAIN_BRANCH
    if is_new or not snapshots.ids:
        # A branch is made from a tag with one snapshot, without a hint.
        return Expired()
    trouble = hint_trouble(hint, snapshots.ids) or main_trouble(storage, table, now_ms)
    if trouble is not None:
        return Expired(why_not=trouble)
    wanted = expire_range(
        options,
        earliest=snapshots.ids[0],
        latest=snapshots.ids[-1],
        next_of_consumers=min(read_consumers(storage, table.root).values(), default=None),
        keep_from=keep_from,
        time_of=snapshots.time_ms,
        now_ms=now_ms,
    )
    if wanted.is_empty:
        return Expired(first=wanted.first, end=wanted.first, more=wanted.more)
    return wanted, snapshots


class _TableChanged(Exception):
    """Another process has changed the table since it was read."""


class Snapshots:
    """The snapshots of one listing, whose files are read once each."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        # In ascending order.
        self.ids = snapshot_ids(storage, root)
        self._listed = frozenset(self.ids)
        self._known: dict[int, Snapshot | None] = {}

    def get(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot, None if it is gone. Raises `StorageError` if it only cannot be read."""
        if snapshot_id in self._listed and snapshot_id not in self._known:
            found = snapshot_unless_gone(self._storage, self._root, snapshot_id)
            self._known[snapshot_id] = found
        return self._known.get(snapshot_id)

    def time_ms(self, snapshot_id: int) -> int | None:
        found = self.get(snapshot_id)
        return None if found is None else found.time_ms

    def within(self, first: int, end: float = math.inf) -> tuple[Snapshot, ...]:
        """Those from `first` to `end`, exclusive, that are there."""
        ids = (id_ for id_ in self.ids if first <= id_ < end)
        return tuple(found for id_ in ids if (found := self.get(id_)) is not None)


class _Round:
    """One range of snapshots: read completely, then deleted."""

    def __init__(
        self,
        storage: Storage,
        table: TableRef,
        wanted: ExpireRange,
        snapshots: Snapshots,
    ) -> None:
        self._storage = storage
        self._location, self._root = table.location, table.root
        end = snapshots.get(wanted.end)
        expiring = snapshots.within(wanted.first, wanted.end)
        if end is None or not expiring:
            what = f"snapshot {wanted.end} is gone" if end is None else "they are gone already"
            raise _TableChanged(what)
        self._end = end
        self._keepers = self._list_keepers()
        self._history = ExpiringHistory(
            expiring=expiring,
            end=end,
            later=snapshots.within(wanted.end + 1),
            tags=tuple(read_tags(storage, table.root).values()),
            others=tuple(other_versions(storage, table)),
        )

    @property
    def snapshot_paths(self) -> tuple[str, ...]:
        """Those that expire, the oldest first."""
        return tuple(paths.snapshot_path(self._root, s.id) for s in self._history.expiring)

    def plan(self, bucket_folder: Callable[[BucketId], str]) -> ExpirePlan:
        """What is deleted; the table is as it was when that was decided."""
        reader = MetadataReader(self._storage, self._location)
        try:
            plan = plan_expiry(reader, self._history, bucket_folder=bucket_folder)
        except ObjectNotFound:
            # Another expiry has deleted the file; otherwise the table is damaged.
            self._check()
            raise
        self._check()
        return plan

    def delete(
        self,
        bucket_folder: Callable[[BucketId], str],
        counts: Counter[str],
        remove_empty_folder: Callable[[str], bool] | None,
        options: ExpireOptions,
    ) -> None:
        """Delete the files; `counts` (by fields of `Expired`) are right even after an error."""
        plan = self.plan(bucket_folder)
        for kind, unneeded in plan.files:
            self._delete(kind, unneeded, counts)
        if options.clean_empty_directories and remove_empty_folder is not None:
            remove_folders([self._location], plan.bucket_folders, remove_empty_folder)
        self._check()
        for kind, unneeded in plan.metadata:
            self._delete(kind, unneeded, counts)
        counts["size_bytes"] = plan.size_bytes
        for path in self.snapshot_paths:
            self._check()
            self._delete("snapshots", [path], counts)
        self._check()
        try:
            write_earliest_hint(self._storage, self._root, self._end.id)
        except StorageError as error:
            # Readers that do not find the hint list the folder.
            _log.warning("earliest_hint_not_written", error=str(error))

    def _delete(self, kind: str, unneeded: Iterable[str], counts: Counter[str]) -> None:
        for number, path in enumerate(unneeded, 1):
            if number % _CHECK_INTERVAL == 0:
                self._check()
            self._storage.delete(path)
            counts[kind] += 1

    def _check(self) -> None:
        try:
            found = read_snapshot(self._storage, self._root, self._end.id)
        except ObjectNotFound:
            raise _TableChanged(f"snapshot {self._end.id} is gone") from None
        if found.identity != self._end.identity:
            raise _TableChanged(f"snapshot {self._end.id} was replaced by another one")
        if self._list_keepers() != self._keepers:
            raise _TableChanged("tags or branches were created or deleted meanwhile")

    def _list_keepers(self) -> frozenset[tuple[str, int]]:
        """Tags by names and modification times, as one may be put on another snapshot; branches."""
        tags = self._storage.list(paths.tag_folder(self._root))
        branches = branch_names(self._storage, self._location)
        return frozenset((s.name, s.changed_ms) for s in tags).union((b, 0) for b in branches)


def other_versions(storage: Storage, table: TableRef) -> Iterator[Snapshot]:
    """What keeps files besides the branch's own snapshots and tags.

    Its changelogs, and the snapshots, tags and changelogs of all other branches, main included.
    """
    yield from read_changelogs(storage, table.root)
    for branch in (paths.MAIN_BRANCH, *branch_names(storage, table.location)):
        if branch == table.branch:
            continue
        root = paths.branch_root(table.location, branch)
        yield from Snapshots(storage, root).within(0)
        yield from read_tags(storage, root).values()
        yield from read_changelogs(storage, root)
