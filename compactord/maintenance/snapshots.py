"""Snapshot expiry: deletes old snapshots and the files that only they need.

An expiry can be interrupted at any moment. Everything is decided before the first deletion. Then
data files are deleted, then manifests, then the lists that name them, finally the snapshots, oldest
first. After an interruption the kept snapshots are complete, and the next expiry, ours or Java's,
finds the rest by the remaining metadata. An expiring snapshot may be unreadable meanwhile, as with
Java.

Where changelogs outlive their snapshots, each snapshot is written as a changelog before the first
deletion, and the files that its readers need are kept (`expire_plan`).

Other processes may expire, roll back or tag at the same time. The snapshot that becomes the oldest
is checked repeatedly: if it is missing or replaced, or if tags have changed, the expiry stops.

Agrees with table/ExpireSnapshotsImpl.java (expire), except that `expire_plan` keeps more files and
`expire_range` refuses two cases in which Java would harm the table.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from compactord.errors import CompactordError, StorageError, UsageError
from compactord.maintenance.changelogs import (
    keep_changelog,
    require_same,
    write_changelog_hint,
)
from compactord.maintenance.copied_files import watched
from compactord.maintenance.expire_plan import ExpirePlan, ExpiringHistory, plan_expiry
from compactord.maintenance.kind import (
    OpenedTable,
    Round,
    RuledKind,
    UnderWay,
)
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.maintenance.own_files import own_files
from compactord.maintenance.planned_deletion import PlannedDeletion, TableChanged, Versions
from compactord.maintenance.rounds import Plan, PlannedKind, RoundResult
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
    snapshot_unless_absent,
    write_earliest_hint,
)
from compactord.state.metadata_reader import MetadataReader
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently
from compactord.table.opening import OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRange:
    """Snapshots from `first` to `end` (exclusive); none if `is_empty`.

    With `more`, only the limit per round keeps later ones.
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
    lowest that is being read now: these and all later ones are kept. `time_of` returns the time of
    a snapshot in milliseconds, or None if it is missing; it is called at most `limit` + 2 times. A
    snapshot expires by age once its successor is older than the time retained; beyond
    `num_retained_max` it expires at any age.

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

    # A limit of 0 switches expiry off, without a next round.
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

    `earliest` and `latest` are the first and last changelog; the last never expires. `snapshots`
    are the oldest and the newest snapshot. Numbers retained count both. A changelog expires by its
    own age, a snapshot by its successor's. As table/ExpireChangelogImpl.java, except that
    changelogs of existing snapshots stay.

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
NO_RANGE = ExpireRange(first=0, end=0, more=False)


class ExpiringRound(Protocol):
    """One range of versions, read completely before the first deletion."""

    @property
    def versions(self) -> Versions: ...

    def plan(self) -> ExpirePlan:
        """The files to delete. Raises `TableChanged` if the table changed meanwhile."""
        ...

    def delete(self, plan: ExpirePlan, result: RoundResult[int]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireVersions(RuledKind[RoundResult[int]], PlannedKind[int]):
    """Expiry of snapshots or changelogs, due after a plan, in the table's windows.

    Figures count files (extra files of data files included): `manifests` are all files of the
    manifest folder, `index_files` include statistics.
    """

    after_plans = True
    figures = ("data_files", "changelog_files", "manifests", "index_files", "size_bytes")

    @abstractmethod
    def due(
        self, table: OpenedTable, now_ms: int, under_way: UnderWay | None
    ) -> tuple[ExpireRange, Callable[[], ExpiringRound]]:
        """The versions that expire now, and a function that reads a round of them.

        Raises `TableChanged` if snapshots may be missing.
        """

    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[int]:
        """At most `snapshot.expire.limit` versions of the table's own branch.

        Raises `FormatError`, `StorageError` or `UnsupportedTable` if required metadata cannot be
        read, and `UsageError` for options that contradict each other.
        """
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return Plan(why_not=expiry_blocker)
        wanted = NO_RANGE
        try:
            wanted, round_of = self.due(table, table.clock.now_ms(), under_way)
            if wanted.is_empty:
                return Plan(files=(), more=wanted.more, first=wanted.first, end=wanted.end)
            round_ = round_of()
            found = round_.plan()
        except TableChanged as changed:
            return Plan(files=(), why_not=str(changed), first=wanted.first, end=wanted.end)
        figures, files = Counter(size_bytes=found.size_bytes), list[str]()
        for kind, unneeded in (*found.files, *found.metadata):
            figures[kind] += len(unneeded)
            files += unneeded
        versions = round_.versions
        return Plan(
            items=tuple(versions),
            figures=figures,
            files=[*files, *versions.values()],
            more=wanted.more,
            first=wanted.first,
            end=wanted.end,
            context=(round_, found),
        )

    def apply(self, table: OpenedTable, plan: Plan[int], result: RoundResult[int]) -> None:
        """Raises `StorageError` if a deletion fails: the next round continues there."""
        round_, found = plan.context
        round_.delete(found, result)

    def data(self, result: RoundResult[int]) -> Mapping[str, Any]:
        return {
            "first": result.first,
            "end": result.end,
            "snapshots": 0,
            "changelogs": 0,
            self.key: len(result.items),
            **{name: result.figures[name] for name in self.figures},
            "more": result.more,
            "why_not": result.why_not,
        }


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
        """The snapshot, or None if it is missing. Raises `StorageError` if it is unreadable."""
        if snapshot_id in self._listed and snapshot_id not in self._known:
            found = snapshot_unless_absent(self._storage, self._root, snapshot_id)
            self._known[snapshot_id] = found
        return self._known.get(snapshot_id)

    def time_ms(self, snapshot_id: int) -> int | None:
        found = self.get(snapshot_id)
        return None if found is None else found.time_ms

    def within(self, first: int, end: float = math.inf) -> tuple[Snapshot, ...]:
        """The existing snapshots from `first` to `end`, exclusive."""
        ids = [id_ for id_ in self.ids if first <= id_ < end]
        found = map_concurrently(self._storage, self.get, ids)
        return tuple(snapshot for snapshot in found if snapshot is not None)


class _Round:
    """One range of snapshots: read completely, then deleted."""

    def __init__(
        self,
        table: OpenTable,
        wanted: ExpireRange,
        snapshots: Snapshots,
        later: LaterSnapshots,
    ) -> None:
        self._table, self._storage, self._root = table, table.storage, table.ref.root
        options = table.options.expire
        self._cleans, retention = options.clean_empty_directories, options.changelogs
        end = snapshots.get(wanted.end)
        expiring = snapshots.within(wanted.first, wanted.end)
        if end is None or not expiring:
            what = f"snapshot {wanted.end} is gone" if end is None else "they are already gone"
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
    def versions(self) -> Versions:
        return {s.id: paths.snapshot_path(self._root, s.id) for s in self._history.expiring}

    def plan(self) -> ExpirePlan:
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

    def delete(self, plan: ExpirePlan, result: RoundResult[int]) -> None:
        if self._history.retention is not None:
            self._keep_changelogs()
        remove = self._storage.remove_empty_folder if self._cleans else None
        self._deletion.run(plan, self.versions, result.items, result.figures, remove)
        try:
            write_earliest_hint(self._storage, self._root, self._end.id)
        except StorageError as error:
            # Readers that do not find the hint list the folder.
            _log.warning("earliest_hint_not_written", error=str(error))

    def _keep_changelogs(self) -> None:
        """Write the changelogs of expiring snapshots, so that readers always find each id."""
        own = own_files(self._table)
        for snapshot in self._history.expiring:
            own.require(paths.changelog_path(self._root, snapshot.id))
            if not keep_changelog(self._storage, self._root, snapshot):
                raise TableChanged(f"snapshot {snapshot.id} is gone or was replaced")
        write_changelog_hint(self._storage, self._root, paths.LATEST, self._history.expiring[-1].id)
        self._deletion.check()

    def _require_end(self) -> None:
        found = snapshot_unless_absent(self._storage, self._root, self._end.id)
        require_same(self._end, found, "snapshot")


def _own_changelogs(
    storage: Storage,
    root: str,
    expiring: Sequence[Snapshot],
    retention: ChangelogRetention | None,
) -> Iterator[Snapshot]:
    """Long-lived changelogs of the branch that may need files of expiring snapshots.

    With a retention, changelog files are not deleted: only changelogs without any matter.
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


def _range_of(
    table: OpenTable, snapshots: Snapshots, kept: Sequence[int], now_ms: int
) -> ExpireRange:
    options = table.options.expire
    is_held = options.changelogs is None or not options.changelogs.holds_changelogs_only
    consumers = read_consumers(table.storage, table.ref.root).values()
    return expire_range(
        options,
        earliest=snapshots.ids[0],
        latest=snapshots.ids[-1],
        next_of_consumers=min(consumers, default=None) if is_held else None,
        keep_from=min(kept, default=None),
        time_of=snapshots.time_ms,
        now_ms=now_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSnapshots(ExpireVersions):
    """Due after each plan, `interval_ms` after the last round, in the table's windows."""

    name = "expire"
    choice = key = "snapshots"
    noun = "snapshot"
    finished = "expire_finished"
    stopped = "expire_stopped"
    rule = "expire_snapshots"
    always_runs = True
    duration_metric = ("expire_duration_seconds", "Time of an expiry of a table's snapshots.")

    def due(
        self, table: OpenedTable, now_ms: int, under_way: UnderWay | None
    ) -> tuple[ExpireRange, Callable[[], ExpiringRound]]:
        values = table.table
        storage, ref = values.storage, values.ref
        hint = hinted_snapshot_id(storage, ref.root)
        snapshots = Snapshots(storage, ref.root)
        wanted = NO_RANGE
        later = table.memory(LaterSnapshots)
        is_new = hint is None and len(snapshots.ids) == 1 and ref.branch != paths.MAIN_BRANCH
        # A branch is made from a tag with one snapshot, without a hint.
        if snapshots.ids and not is_new:
            trouble = hint_trouble(storage, ref.root, hint, snapshots.ids)
            trouble = trouble or main_trouble(storage, ref, now_ms)
            if trouble is not None:
                raise TableChanged(trouble)
            # A hint that lags stays until the next commit. Without its snapshot the table would
            # look as if it was being restored.
            kept = [hint, None if under_way is None else under_way.reads_from]
            wanted = _range_of(values, snapshots, [id_ for id_ in kept if id_ is not None], now_ms)
        if not wanted.is_empty:
            trouble = watched(table, self.grace_ms).why_wait(values, now_ms, snapshots.get)
            if trouble is not None:
                raise TableChanged(trouble)
        return wanted, lambda: _Round(values, wanted, snapshots, later)

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> RoundResult[int]:
        result = PlannedKind.run(self, table, under_way)
        if result.first and not result.items and result.why_not is None:
            storage, root = table.table.storage, table.table.ref.root
            if not has_earliest_hint(storage, root):
                write_earliest_hint(storage, root, result.first)
        return result

    def fields(self, result: RoundResult[int], seconds: float) -> Mapping[str, Any]:
        return {
            "expired_snapshots": len(result.items),
            "first_snapshot_id": result.first,
            "earliest_snapshot_id": result.end,
            "data_files": result.figures["data_files"],
            "manifests": result.figures["manifests"],
            "size_bytes": result.figures["size_bytes"],
            "duration_s": seconds,
        }

    def counted(self, result: RoundResult[int]) -> Mapping[str, int]:
        files = sum(result.figures[name] for name in self.figures if name != "size_bytes")
        return {"expired_snapshots": len(result.items), "expired_files": files}

    def ended(self, result: RoundResult[int] | CompactordError, seconds: float) -> Round:
        ended = PlannedKind.ended(self, result, seconds)
        if isinstance(result, CompactordError):
            return replace(ended, counts={"expire_failures": 1})
        return replace(ended, first_snapshot_id=result.end if result.items else None)
