"""Snapshot expiry: deletes old snapshots and the files that only they need.

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

Agrees with table/ExpireSnapshotsImpl.java (expire), except for two cases in which Java would harm
the table: see `expire_range`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from compactord.errors import CompactordError, StorageError, UsageError
from compactord.maintenance.changelogs import (
    keep_changelog,
    require_same,
    write_changelog_hint,
)
from compactord.maintenance.copied_files import NO_WATCH, CopyWatch, watched
from compactord.maintenance.expire_plan import ExpirePlan, ExpiringHistory, plan_expiry
from compactord.maintenance.expire_reader import MetadataReader
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Round,
    RuledKind,
    ShownTable,
    TableValues,
    Told,
    UnderWay,
    because,
)
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.maintenance.own_files import own_files
from compactord.maintenance.planned_deletion import PlannedDeletion, TableChanged
from compactord.maintenance.used_names import hint_trouble, main_trouble
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
from compactord.storage.calls import map_concurrently
from compactord.text import count_text, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRange:
    """Snapshots from `first` to `end` (exclusive); none if `is_empty`.

    `more`: only the limit per round keeps later ones.
    """

    first: int
    end: int
    more: bool

    @property
    def is_empty(self) -> bool:
        return self.end <= self.first


def expire_range(
    options: ExpireOptions,
    *,
    earliest: int,
    latest: int,
    next_of_consumers: int | None,
    keep_from: int | None,
    time_of: Callable[[int], int | None],
    now_ms: int,
) -> ExpireRange:
    """The snapshots that expire now.

    `next_of_consumers` is the lowest snapshot that a consumer still has to read, `keep_from` the
    lowest that is being read now: these and all later ones are kept. `time_of` is the time in
    milliseconds of a snapshot, None if it is gone; it is called for `limit` + 2 snapshots at most.
    A snapshot expires by age once its successor is older than the time retained; beyond
    `num_retained_max` it expires whatever its age.

    Raises `UsageError` for options with which Java expires nothing or everything: a maximum below
    the minimum, a minimum below 1.
    """
    fewest, most = options.num_retained_min, options.num_retained_max
    if fewest < 1:
        raise UsageError(
            f"option snapshot.num-retained.min={fewest}: expected 1 or more, "
            "or the newest snapshot would expire"
        )
    _require_ordered("snapshot", fewest, most)
    always_kept = [latest - fewest + 1]
    always_kept += [id_ for id_ in (next_of_consumers, keep_from) if id_ is not None]
    by_age = max(latest - most + 1, earliest)

    def end_within(limit: int) -> int:
        end = min(*always_kept, earliest + limit)
        for snapshot_id in range(by_age, end):
            successor_ms = time_of(snapshot_id + 1)
            if successor_ms is not None and now_ms - options.time_retained_ms <= successor_ms:
                return snapshot_id
        return end

    # A limit of 0 switches expiry off: there is no next round then.
    limit = max(options.limit, 0)
    end = max(end_within(limit), earliest)
    return ExpireRange(first=earliest, end=end, more=limit > 0 and end_within(limit + 1) > end)


def changelog_range(
    retention: ChangelogRetention,
    *,
    limit: int,
    earliest: int,
    latest: int,
    snapshots: tuple[int, int],
    next_of_consumers: int | None,
    time_of: Callable[[int], int | None],
    now_ms: int,
) -> ExpireRange:
    """The long-lived changelogs that expire now.

    `earliest` and `latest` are those there are, of which the latest never expires; `snapshots` are
    the oldest and the newest snapshot. Numbers retained count both. A changelog expires by its own
    age, where a snapshot does by its successor's. As table/ExpireChangelogImpl.java, but that here
    changelogs of snapshots that are still there stay.

    Raises `UsageError` for a maximum below the minimum.
    """
    oldest_snapshot, newest = snapshots
    fewest, most = retention.num_retained_min, retention.num_retained_max
    _require_ordered("changelog", fewest, most)
    always_kept = [newest - fewest + 1, latest, oldest_snapshot]
    if next_of_consumers is not None:
        always_kept.append(next_of_consumers)
    by_age = max(newest - most + 1, earliest)

    def end_within(limit: int) -> int:
        end = min(*always_kept, earliest + limit)
        for changelog_id in range(by_age, end):
            time_ms = time_of(changelog_id)
            if time_ms is not None and now_ms - retention.time_retained_ms <= time_ms:
                return changelog_id
        return end

    limit = max(limit, 0)
    end = max(end_within(limit), earliest)
    return ExpireRange(first=earliest, end=end, more=limit > 0 and end_within(limit + 1) > end)


def _require_ordered(what: str, fewest: int, most: int) -> None:
    if most < fewest:
        raise UsageError(
            f"option {what}.num-retained.max={most}: expected at least {fewest}, "
            f"which is {what}.num-retained.min"
        )


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
        found = map_concurrently(self._storage, self.get, ids)
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
        for snapshot in map_concurrently(self._storage, self._snapshots.get, unread):
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


_COUNTS = (
    ("data_files", "data file"),
    ("changelog_files", "changelog file"),
    ("manifests", "manifest file"),
    ("index_files", "index file"),
)
_SUMMED = ("snapshots", "changelogs", "size_bytes", *(name for name, _ in _COUNTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSnapshots(RuledKind[Expired]):
    """Due after each plan, `interval_ms` after the last round, in the table's windows."""

    name = "expire"
    choice = "snapshots"
    rule = "expire_snapshots"
    always_runs = True
    after_plans = True
    duration_metric = ("expire_duration_seconds", "Time of an expiry of a table's snapshots.")

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Expired:
        expiry_blocker, values = table.expiry_blocker(), table.table
        if expiry_blocker is not None:
            return Expired(why_not=expiry_blocker)
        return expire_snapshots(
            values,
            values.options.expire,
            now_ms=table.clock.now_ms(),
            keep_from=under_way.reads_from if under_way is not None else None,
            copies=watched(table, self.grace_ms),
            later=table.memory(LaterSnapshots),
        )

    def preview(self, table: OpenedTable) -> Done[Expired]:
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return Done(why_not=expiry_blocker)
        copies, later = watched(table, self.grace_ms), table.memory(LaterSnapshots)
        return preview_snapshots(table.table, table.clock.now_ms(), copies, later)

    def ended(self, result: Expired | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("expire_failed", error=str(result))
            return Round(counts={"expire_failures": 1}, has_failed=True)
        if result.why_not is not None:
            _log.warning("expire_stopped", message=result.why_not)
        elif result.snapshots:
            _log.info(
                "expire_finished",
                expired_snapshots=result.snapshots,
                first_snapshot_id=result.first,
                earliest_snapshot_id=result.end,
                data_files=result.data_files,
                manifests=result.manifests,
                size_bytes=result.size_bytes,
                duration_s=round(seconds, 3),
            )
        files = result.data_files + result.changelog_files + result.manifests + result.index_files
        return Round(
            counts={"expired_snapshots": result.snapshots, "expired_files": files},
            more=result.more,
            first_snapshot_id=result.end if result.snapshots else None,
        )

    def told(self, shown: ShownTable, done: Done[Expired], *others: Done[Any]) -> Told:
        return expiry_told(shown, done, "snapshot")


def expiry_told(shown: ShownTable, done: Done[Expired], unit: str) -> Told:
    """That so many of `unit` expired. The data are the fields of `Expired`, of all rounds."""
    figures = _of_all(done)
    count = figures.snapshots + figures.changelogs
    line = f"{shown.name}: no {unit} {shown.expired}"
    if count:
        files = [count_text(n, what) for key, what in _COUNTS if (n := getattr(figures, key))]
        line = (
            f"{shown.name}: {shown.expired} {count_text(count, unit)} "
            f"({figures.first}..{figures.end - 1}): "
            f"{', '.join([*files, size_text(figures.size_bytes)])}"
        )
    found = asdict(figures)
    if done.files is not None:
        found["files"] = list(done.files)
    return Told(lines=[line, *because(figures.why_not, has_some=count)], found=found)


def _of_all(done: Done[Expired]) -> Expired:
    if not done.rounds:
        return Expired(why_not=done.why_not)
    sums = {name: sum(getattr(each, name) for each in done.rounds) for name in _SUMMED}
    first = next((each.first for each in done.rounds if each.first), 0)
    # A later round that was kept from beginning has none.
    end = next((each.end for each in reversed(done.rounds) if each.end), 0)
    of_all: dict[str, Any] = {**sums, "first": first, "end": end}
    return replace(done.rounds[-1], **of_all)
