"""Snapshot expiry: deletes snapshots that are too old or too many, and files that only they need.

It can be interrupted at any moment. Everything is decided before the first deletion. Then data
files are deleted, then manifests, then the lists that name them, finally the snapshots, oldest
first. After an interruption the kept snapshots are complete, and the next expiry, ours or Java's,
finds the rest by the remaining metadata. An expiring snapshot may be unreadable meanwhile, as with
Java.

Where changelogs outlive their snapshots, each snapshot is written as a changelog before the first
deletion, and what its readers need is kept (`expire_plan`).

Other processes may expire, roll back or tag at the same time. The snapshot that becomes the oldest
is checked repeatedly: if it is gone or replaced, or if tags have changed, deleting stops.
Agrees with table/ExpireSnapshotsImpl.java; `expire_plan` says where it keeps more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog

from compactord.errors import StorageError
from compactord.maintenance.changelogs import (
    keep_changelog,
    require_same,
    write_changelog_hint,
)
from compactord.maintenance.copied_files import NO_WATCH, CopyWatch
from compactord.maintenance.expire_files import ExpirePlan
from compactord.maintenance.expire_plan import ExpiringHistory, plan_expiry
from compactord.maintenance.expire_range import ExpireRange, expire_range
from compactord.maintenance.expire_reader import MetadataReader
from compactord.maintenance.kind import Done, TableValues
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.maintenance.own_files import own_files
from compactord.maintenance.planned_deletion import PlannedDeletion, TableChanged
from compactord.maintenance.restored import hint_trouble, main_trouble
from compactord.paimon import paths
from compactord.paimon.options.maintenance import ChangelogRetention, ExpireOptions
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import (
    Snapshot,
    branch_names,
    has_earliest_hint,
    hinted_snapshot_id,
    read_changelogs,
    read_consumers,
    read_tags,
    snapshot_files,
    snapshot_unless_gone,
    write_earliest_hint,
)
from compactord.storage.base import Storage
from compactord.storage.calls import results_of

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What one round removed: snapshots `first` to `end` - 1 and the files that only they needed.

    Or changelogs that had outlived theirs. Counts are of files (extra files of data files
    included); `manifests` are all files of the manifest folder, `index_files` include statistics.
    `more`: the limit per round kept some. `why_not`: nothing (more) was removed for this reason;
    the next round tries again.
    """

    first: int = 0
    end: int = 0
    snapshots: int = 0
    changelogs: int = 0
    data_files: int = 0
    changelog_files: int = 0
    manifests: int = 0
    index_files: int = 0
    size_bytes: int = 0
    more: bool = False
    why_not: str | None = None


def expire_snapshots(
    table: TableValues,
    options: ExpireOptions,
    *,
    now_ms: int,
    keep_from: int | None,
    copies: CopyWatch = NO_WATCH,
    later: LaterSnapshots | None = None,
) -> Expired:
    """One round: at most `options.limit` snapshots of the branch that `table` is.

    `keep_from` is the lowest snapshot that is being read now; it, all later ones and their files
    are kept. `copies` tells whether the table may be being restored, `later` is kept from round to
    round.

    Raises `FormatError`, `StorageError` or `UnsupportedTable` if any metadata that matters cannot
    be read, and `UsageError` for options that contradict each other: nothing is deleted then.
    Raises `StorageError` if a deletion fails: the next round continues there.
    """
    storage, root = table.storage, table.ref.root
    found = _due(table, options, now_ms=now_ms, keep_from=keep_from, copies=copies)
    if isinstance(found, Expired):
        if found.first and not has_earliest_hint(storage, root):
            write_earliest_hint(storage, root, found.first)
        return found
    wanted, snapshots = found
    counts: Counter[str] = Counter()
    why_not = None
    try:
        _Round(table, wanted, snapshots, options, later or LaterSnapshots()).delete(counts)
    except TableChanged as changed:
        why_not = str(changed)
    more = wanted.more and why_not is None
    return Expired(first=wanted.first, end=wanted.end, more=more, why_not=why_not, **counts)


def preview_snapshots(
    table: TableValues,
    now_ms: int,
    copies: CopyWatch = NO_WATCH,
    later: LaterSnapshots | None = None,
) -> Done[Expired]:
    """What `expire_snapshots` would delete by the table's options if nothing were being read.

    Changes nothing. Raises what that raises before its first deletion.
    """
    options = table.options.expire
    found = _due(table, options, now_ms=now_ms, keep_from=None, copies=copies)
    if isinstance(found, Expired):
        return Done(rounds=[found], files=())
    wanted, snapshots = found
    try:
        round_ = _Round(table, wanted, snapshots, options, later or LaterSnapshots())
        return preview_of(wanted, round_.plan(), round_.versions)
    except TableChanged as moved:
        kept = Expired(first=wanted.first, end=wanted.end, why_not=str(moved))
        return Done(rounds=[kept], files=())


def preview_of(
    wanted: ExpireRange, plan: ExpirePlan, versions: tuple[str, Sequence[str]]
) -> Done[Expired]:
    """What a plan deletes, and then `versions`, which have this name among the counts."""
    counts, files = Counter({"size_bytes": plan.size_bytes}), list[str]()
    for kind, unneeded in (*plan.files, *plan.metadata, versions):
        counts[kind] += len(unneeded)
        files += unneeded
    first, end = wanted.first, wanted.end
    expired = Expired(first=first, end=end, more=wanted.more, why_not=None, **counts)
    return Done(rounds=[expired], files=files)


def _due(
    table: TableValues,
    options: ExpireOptions,
    *,
    now_ms: int,
    keep_from: int | None,
    copies: CopyWatch,
) -> Expired | tuple[ExpireRange, Snapshots]:
    """The snapshots that expire now, and those that there are; or why there are none."""
    storage, root = table.storage, table.ref.root
    hint = hinted_snapshot_id(storage, root)
    snapshots = Snapshots(storage, root)
    is_new = hint is None and len(snapshots.ids) == 1 and table.ref.branch != paths.MAIN_BRANCH
    if is_new or not snapshots.ids:
        # A branch is made from a tag with one snapshot, without a hint.
        return Expired()
    trouble = hint_trouble(storage, root, hint, snapshots.ids)
    trouble = trouble or main_trouble(storage, table.ref, now_ms)
    if trouble is not None:
        return Expired(why_not=trouble)
    # A hint that lags stays until the next commit: were its snapshot gone, the table would pass for
    # one that is being restored.
    kept = [id_ for id_ in (keep_from, hint) if id_ is not None]
    changelogs = options.changelogs
    consumers = read_consumers(storage, root).values()
    is_held = changelogs is None or not changelogs.held_alone
    wanted = expire_range(
        options,
        earliest=snapshots.ids[0],
        latest=snapshots.ids[-1],
        next_of_consumers=min(consumers, default=None) if is_held else None,
        keep_from=min(kept, default=None),
        time_of=snapshots.time_ms,
        now_ms=now_ms,
    )
    if wanted.is_empty:
        return Expired(first=wanted.first, end=wanted.first, more=wanted.more)
    trouble = copies.why_wait(table, now_ms, snapshots.get)
    return (wanted, snapshots) if trouble is None else Expired(why_not=trouble)


class Snapshots:
    """The snapshots of one listing, whose files are read once each."""

    def __init__(self, storage: Storage, root: str) -> None:
        self._storage = storage
        self._root = root
        self.files = snapshot_files(storage, root)
        # In ascending order.
        self.ids = tuple(sorted(self.files))
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
        ids = [id_ for id_ in self.ids if first <= id_ < end]
        found = results_of(self._storage, self.get, ids)
        return tuple(snapshot for snapshot in found if snapshot is not None)


class _Round:
    """One range of snapshots: read completely, then deleted."""

    def __init__(
        self,
        table: TableValues,
        wanted: ExpireRange,
        snapshots: Snapshots,
        options: ExpireOptions,
        later: LaterSnapshots,
    ) -> None:
        self._table, self._storage, self._root = table, table.storage, table.ref.root
        self._cleans, retention = options.clean_empty_directories, options.changelogs
        end = snapshots.get(wanted.end)
        expiring = snapshots.within(wanted.first, wanted.end)
        if end is None or not expiring:
            what = f"snapshot {wanted.end} is gone" if end is None else "they are gone already"
            raise TableChanged(what)
        self._end, self._snapshots = end, snapshots
        self._deletion = PlannedDeletion(table, self._require_end)
        changelogs = list(others_changelogs(self._storage, table.ref))
        if retention is None or not retention.from_deltas:
            changelogs += _own_changelogs(self._storage, self._root, expiring, retention)
        self._history = ExpiringHistory(
            expiring=expiring,
            end=end,
            later=later,
            tags=tuple(read_tags(self._storage, self._root).values()),
            others=tuple(other_versions(self._storage, table.ref)),
            changelogs=changelogs,
            retention=retention,
        )

    @property
    def versions(self) -> tuple[str, tuple[str, ...]]:
        """The files of those that expire, the oldest first, and their name in the counts."""
        expiring = self._history.expiring
        return "snapshots", tuple(paths.snapshot_path(self._root, s.id) for s in expiring)

    def plan(self) -> ExpirePlan:
        """What is deleted; the table is as it was when that was decided."""
        reader = MetadataReader(self._storage, self._table.ref.location)
        folder = self._table.bucket_folder

        def planned() -> ExpirePlan:
            self._read_later(reader)
            return plan_expiry(reader, self._history, bucket_folder=folder)

        return self._deletion.planned(planned, self.versions)

    def _read_later(self, reader: MetadataReader) -> None:
        later, files = self._history.later, self._snapshots.files
        unread = later.unread(self._end, files)
        for snapshot in results_of(self._storage, self._snapshots.get, unread):
            if snapshot is not None:
                later.add(reader, snapshot, files[snapshot.id])

    def delete(self, counts: Counter[str]) -> None:
        """Delete the files; `counts` (by fields of `Expired`) are right even after an error."""
        plan = self.plan()
        if self._history.retention is not None:
            self._keep_changelogs()
        remove = self._storage.remove_empty_folder if self._cleans else None
        self._deletion.run(plan, self.versions, counts, remove)
        try:
            write_earliest_hint(self._storage, self._root, self._end.id)
        except StorageError as error:
            # Readers that do not find the hint list the folder.
            _log.warning("earliest_hint_not_written", error=str(error))

    def _keep_changelogs(self) -> None:
        """Write the changelogs of what expires: readers find each id at any moment."""
        own = own_files(self._table)
        for snapshot in self._history.expiring:
            own.require(paths.changelog_path(self._root, snapshot.id))
            if not keep_changelog(self._storage, self._root, snapshot):
                raise TableChanged(f"snapshot {snapshot.id} is gone or was replaced")
        write_changelog_hint(self._storage, self._root, paths.LATEST, self._history.expiring[-1].id)
        self._deletion.check()

    def _require_end(self) -> None:
        found = snapshot_unless_gone(self._storage, self._root, self._end.id)
        require_same(self._end, found, "snapshot")


def _own_changelogs(
    storage: Storage,
    root: str,
    expiring: Sequence[Snapshot],
    retention: ChangelogRetention | None,
) -> Iterator[Snapshot]:
    """Long-lived changelogs of the branch whose needs an expiry may meet.

    Where changelogs are kept, their own files are not deleted, so only those without any matter.
    """
    known = {snapshot.identity for snapshot in expiring}
    for changelog in read_changelogs(storage, root):
        is_expiring = retention is not None and changelog.identity in known
        has_own = retention is not None and changelog.changelog_manifest_list is not None
        if not is_expiring and not has_own:
            yield changelog


def other_versions(storage: Storage, table: TableRef) -> Iterator[Snapshot]:
    """The snapshots and tags of all other branches, main included."""
    for root in _other_roots(storage, table):
        yield from Snapshots(storage, root).within(0)
        yield from read_tags(storage, root).values()


def others_changelogs(storage: Storage, table: TableRef) -> Iterator[Snapshot]:
    """The long-lived changelogs of all other branches, main included."""
    for root in _other_roots(storage, table):
        yield from read_changelogs(storage, root)


def _other_roots(storage: Storage, table: TableRef) -> Iterator[str]:
    for branch in (paths.MAIN_BRANCH, *branch_names(storage, table.location)):
        if branch != table.branch:
            yield paths.branch_root(table.location, branch)
