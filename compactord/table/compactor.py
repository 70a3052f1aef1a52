"""The daemon's work on one table, in a thread of its pool: cycles, dispatches, expiry.

The daemon's loop never blocks; whatever reads or writes a store is a method here. One thread at a
time runs `cycle` and `dispatch`; `expire` and `sweep` may run beside them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import structlog

from compactord.clock import Clock
from compactord.commit.publish import SnapshotPublisher
from compactord.errors import CommitUnknown, CompactordError, DataFileMissing, ObjectNotFound
from compactord.maintenance.expire import Expired, expire_snapshots
from compactord.model import Compaction, LostCommit, Subcompaction
from compactord.paimon.data_file import BucketId, DataFile, file_identity
from compactord.paimon.snapshot import earliest_snapshot_id
from compactord.paimon.table import TableRef
from compactord.plan.table import PlanRequest, TableKind, plan_bucket
from compactord.state.published import last_commit
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.table.backlog import (
    DamagedBucket,
    PendingCompaction,
    Skip,
    TableBacklog,
    TopBucket,
    without_busy,
)
from compactord.table.in_flight import Failed, Finished
from compactord.table.info import table_info
from compactord.table.opening import OpenTable
from compactord.table.planning import StatePlanner
from compactord.table.session import SessionRequest, Settled, TableSession, UnderWay, neighbours
from compactord.table.status import (
    Backlog,
    RestingPartition,
    TableInfo,
    TableShape,
    measured_stop_trigger,
)
from compactord.table.subcompactions import WorkerSpec

_log = structlog.get_logger()
# Compactions of one partition of a table without buckets that are kept planned.
_WAITING_MAX = 64
# How many buckets of each table are candidates for those with the most runs.
TOP_MAX = 20
# More bytes of one subcompaction would hold a slot for too long.
_SUBCOMPACTION_BYTES_MAX = 2 << 30


class Phase(enum.Enum):
    """What a table's job does, for heartbeats."""

    PLAN = "planner"
    COMMIT = "committer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The table's status and what is due. `appended_bytes` were added since the last plan.

    `workable` is the backlog without the buckets that were to be skipped.
    """

    snapshot_id: int
    info: TableInfo
    shape: TableShape
    offered: tuple[PendingCompaction, ...]
    backlog: Backlog
    workable: Backlog
    top: tuple[TopBucket, ...]
    discovery_interval_ms: int
    appended_bytes: int
    # Buckets that have no files any more.
    gone: frozenset[BucketId] = frozenset()
    manifests_read: int
    entries_read: int
    entries_skipped: int
    seconds: float
    resting: tuple[RestingPartition, ...] = ()
    # Buckets that cannot be planned; the others are.
    damaged: tuple[DamagedBucket, ...] = ()

    @property
    def offers_all(self) -> bool:
        """Whether every due bucket is among the offered ones."""
        return self.backlog.tasks <= sum(pending.tasks for pending in self.offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCommit:
    """A commit of compactord, by whichever process; `ended_ms` is steady."""

    snapshot_id: int
    ended_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The outcome of a cycle. `planned` is None when nothing is new since the last one.

    `error` ended it: in the commit when `in_commit`, else in polling the table. The compactions
    passed in are settled in any case.
    """

    settled: Settled | None
    commit_seconds: float
    planned: Planned | None
    lost_snapshots: tuple[str, ...]
    replaced_snapshots: int
    error: CompactordError | None
    in_commit: bool
    # Why manifests that wait for no compaction could not be merged; the plan holds all the same.
    merge_error: CompactordError | None = None
    # What the table is; None where nothing new was read of it.
    info: TableInfo | None = None
    # For the failed compactions that were passed in: whether others had replaced and expired their
    # inputs, as far as is known.
    outrun: Mapping[int, bool] = field(default_factory=dict)
    # For those whose inputs nobody replaced: the data file that is gone.
    missing: Mapping[int, DataFileMissing] = field(default_factory=dict)
    # What writers lost to late renames, committed again or not.
    lost_commits: tuple[LostCommit, ...] = ()
    # The last commit of ours that the table itself tells of; only after a start.
    last_commit: OwnCommit | None = None
    # How long nothing may be built on our newest snapshot; `planned` is None meanwhile.
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """A decision with its subcompactions, planned on a state whose snapshot is `snapshot_id`."""

    number: int
    compaction: Compaction
    subcompactions: tuple[Subcompaction, ...]
    neighbours: tuple[DataFile, ...]
    index_entries: tuple[bytes, ...]
    snapshot_id: int
    partition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outrun:
    """A decision that others made void: they replaced and expired an input before it was read."""

    number: int
    why: str


class TableCompactor:
    """See the module. Opening raises what `open_table` raises."""

    def __init__(
        self,
        ref: TableRef,
        request: SessionRequest,
        *,
        storage: Storage,
        publisher: SnapshotPublisher,
        clock: Clock,
        worker: WorkerSpec,
        stop_trigger_fallback: int,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._fallback = stop_trigger_fallback
        self._session = TableSession(
            ref, request, storage=storage, publisher=publisher, clock=clock, worker=worker
        )
        self._backlog = TableBacklog(stop_trigger=self._stop_trigger)
        self._planner: StatePlanner | None = None
        self._planned_on: TableState | None = None
        self._indexes: Mapping[BucketId, tuple[bytes, ...]] = {}
        # Compactions under way, by number: their inputs are not planned again.
        self._reading: dict[int, Compaction] = {}
        # Of a table without buckets these are objects only when their turn comes.
        self._waiting: dict[BucketId, Iterator[Compaction]] = {}
        # Buckets whose files became busy or free since they were planned.
        self._touched: set[BucketId] = set()
        # Whether all buckets must be planned again.
        self._is_stale = True
        # Work that was not offered the last time.
        self._skip = Skip()
        self.phase = Phase.PLAN

    @property
    def seen(self) -> tuple[OpenTable, TableState, PlanRequest] | None:
        """The table, the state that was planned on last, and how: values, for any thread."""
        state, planner = self._planned_on, self._planner
        if state is None or planner is None:
            return None
        return self._session.table, state, planner.request

    def cycle(self, ended: Sequence[Finished | Failed], skip: Skip) -> Cycle:
        """Publish what has finished, take in what is new, and plan; merge manifests if that is all.

        `ended` are compactions of this table; they are no longer under way afterwards.
        What `skip` covers is counted and not offered.
        Errors that a user or a store can cause come back in the answer; after them the next cycle
        starts from nothing that was known.
        """
        start = self._clock.monotonic_s()
        finished = [each for each in ended if isinstance(each, Finished)]
        failed = [each for each in ended if isinstance(each, Failed)]
        settled, planned, error, merge_error = None, None, None, None
        in_commit = bool(finished)
        commit_seconds = 0.0
        outrun: dict[int, bool] = {}
        missing: dict[int, DataFileMissing] = {}
        try:
            self._session.discard(failed=failed)
            if finished:
                self.phase = Phase.COMMIT
                settled = self._session.settle(finished, busy=self._busy().keys())
                commit_seconds = self._clock.monotonic_s() - start
                in_commit = False
            self.phase = Phase.PLAN
            self._release(ended)
            planned = None if self._session.wait_ms() else self._plan(skip)
            for each in failed:
                found_out = self._is_outrun(each)
                if found_out is not None:
                    outrun[each.number] = found_out
                if found_out is False and each.failure.error == ObjectNotFound.__name__:
                    gone = self._session.missing_input(each.compaction)
                    missing |= {each.number: gone} if gone is not None else {}
            if settled is None and not self._session.wait_ms() and self._is_idle(skip):
                start = self._clock.monotonic_s()
                settled, merge_error = self._merged_manifests()
                commit_seconds = self._clock.monotonic_s() - start
        except CompactordError as found:
            self._release(ended)
            self._is_stale = True
            if isinstance(found, CommitUnknown):
                self._session.forget_state()
            error, planned = found, None
        except BaseException:
            # A defect, or no memory: nothing may stay busy for ever.
            self._release(ended)
            self._is_stale = True
            self._session.forget_state()
            raise
        return Cycle(
            settled=settled,
            commit_seconds=commit_seconds,
            planned=planned,
            lost_snapshots=self._session.take_lost(),
            lost_commits=self._session.take_lost_commits(),
            replaced_snapshots=self._session.replaced_snapshots,
            error=error,
            in_commit=in_commit,
            merge_error=merge_error,
            info=planned.info if planned is not None else None,
            outrun=outrun,
            missing=missing,
            wait_ms=self._session.wait_ms(),
        )

    def dispatch(
        self, bucket: BucketId, *, number: int, free_slots: int
    ) -> Dispatch | Outrun | None:
        """The next decision on a bucket, cut into subcompactions; None when there is none any more.

        Raises what cutting into key ranges raises: footers of the inputs are read. Of a live file
        that is gone, `DataFileMissing`.
        """
        # Plan the bucket again in any case: its pending compaction has been taken.
        self._touched.add(bucket)
        compaction = self._next(bucket)
        if compaction is None:
            return None
        state = self._planned_on
        assert state is not None, "a cycle comes first"
        snapshot = state.snapshot
        assert snapshot is not None, "a decision is about files"
        size = sum(file.file_size for file in compaction.inputs)
        slots = max(free_slots, -(-size // _SUBCOMPACTION_BYTES_MAX))
        try:
            cut = self._session.subcompactions(compaction, number=number, free_slots=slots)
        except CompactordError as error:
            if self._session.is_outrun(number, compaction, type(error).__name__, str(error)):
                return Outrun(number=number, why=str(error))
            if isinstance(error, ObjectNotFound):
                raise self._session.missing_input(compaction) or error from error
            raise
        dispatched = Dispatch(
            number=number,
            compaction=compaction,
            subcompactions=cut,
            neighbours=neighbours(compaction, state),
            index_entries=self._indexes.get(bucket, ()),
            snapshot_id=snapshot.id,
            partition=self._session.table.partition_text(bucket.partition),
        )
        self._reading[number] = compaction
        return dispatched

    def last_commit(self) -> OwnCommit | None:
        """The last commit of compactord before this process; None: not among the last snapshots.

        Reads a few snapshots, and raises what reading raises.
        """
        state = self._planned_on
        if state is None or state.snapshot is None:
            return None
        found = last_commit(self._storage, state.table.location, state.snapshot)
        if found is None:
            return None
        age_ms = max(0, self._clock.now_ms() - found.time_ms)
        return OwnCommit(snapshot_id=found.id, ended_ms=self._clock.steady_ms() - age_ms)

    def expire(self, *, keep_from: int | None) -> Expired:
        """One round of snapshot expiry; see `expire_snapshots`, also for what it raises."""
        why_keep = self._session.why_keep()
        if why_keep is not None:
            return Expired(why_not=why_keep)
        table = self._session.table
        return expire_snapshots(
            self._storage,
            table.ref,
            bucket_folder=table.bucket_folder,
            options=table.options.expire,
            now_ms=self._clock.now_ms(),
            keep_from=keep_from,
            remove_empty_folder=self._storage.remove_empty_folder,
        )

    def sweep(self, *, grace_ms: int, under_way: UnderWay | None) -> int:
        """Remove files that dead compactord processes and workers left; returns how many.

        See `TableSession.remove_orphans`.
        """
        return self._session.remove_orphans(grace_ms=grace_ms, under_way=under_way)

    def reconfigure(self, request: SessionRequest, stop_trigger_fallback: int) -> None:
        """Use other options from the next cycle on."""
        self._fallback = stop_trigger_fallback
        self._session.reconfigure(request)
        self._is_stale = True

    def discard(self, ended: Sequence[Finished | Failed]) -> None:
        """Remove the files of compactions that will never be published."""
        self._release(ended)
        self._session.discard(
            finished=[each for each in ended if isinstance(each, Finished)],
            failed=[each for each in ended if isinstance(each, Failed)],
        )

    @property
    def _stop_trigger(self) -> int:
        return measured_stop_trigger(self._session.table.options.compaction, self._fallback)

    def _plan(self, skip: Skip) -> Planned | None:
        start = self._clock.monotonic_s()
        session = self._session
        is_new = session.refresh()
        before = session.state
        session.look_back(busy=self._busy().keys(), may_commit=skip.may_commit)
        if session.wait_ms():
            # Another process has just published, or a lost commit was made again.
            self._is_stale = True
            return None
        is_new = is_new or session.state is not before
        context = session.plan_context()
        options = session.table.options
        is_time = self._backlog.is_time(context.steady_ms, options.compaction)
        is_same = skip == self._skip
        if is_same and not (is_new or self._touched or self._is_stale or is_time):
            return None
        state = session.state
        assert state is not None, "just refreshed"
        drift = session.take_drift()
        changed = None if self._is_stale or drift.changed is None else drift.changed | self._touched
        old = self._planner
        if old is not None and old.request.options != options.compaction:
            changed = None
        if changed is None:
            self._backlog = TableBacklog(stop_trigger=self._stop_trigger)
            self._waiting.clear()
        planner = StatePlanner(self._storage, session.table, state, context)
        self._indexes = session.index_entries()
        self._backlog.update(planner, state, changed, self._busy(), context)
        gone = self._gone(state, changed)
        session.forget_buckets(gone)
        self._planner, self._planned_on = planner, state
        self._touched.clear()
        self._is_stale, self._skip = False, skip
        return Planned(
            snapshot_id=state.snapshot.id if state.snapshot else 0,
            info=table_info(
                session.table,
                stop_trigger_fallback=self._fallback,
                rewrite=state.rewrites.newest if state.rewrites else None,
            ),
            shape=self._backlog.shape(
                session.table.kind,
                options.compaction,
                context,
                snapshots=self._snapshot_count(state),
            ),
            offered=self._backlog.offered(skip),
            backlog=self._backlog.backlog(),
            workable=self._backlog.backlog(without=skip.buckets),
            damaged=self._backlog.damaged(),
            top=self._backlog.top_buckets(TOP_MAX, session.table.partition_text)
            if session.table.kind is TableKind.PRIMARY_KEY
            else (),
            discovery_interval_ms=options.discovery_interval_ms,
            appended_bytes=drift.appended_bytes,
            gone=gone,
            manifests_read=drift.manifests,
            entries_read=drift.entries,
            entries_skipped=drift.skipped_entries,
            seconds=self._clock.monotonic_s() - start,
            resting=tuple(
                RestingPartition(
                    partition=session.table.partition_text(partition),
                    rewrite=rest.rewrite,
                    until_ms=rest.until_ms,
                )
                for partition, rest in self._backlog.rests().items()
            ),
        )

    def _is_outrun(self, failed: Failed) -> bool | None:
        number, failure = failed.number, failed.failure
        return self._session.is_outrun(number, failed.compaction, failure.error, failure.message)

    def _merged_manifests(self) -> tuple[Settled | None, CompactordError | None]:
        """What merging came to; an error leaves the table and the plan as they are.

        It is tried again with the next plan.
        """
        self.phase = Phase.COMMIT
        try:
            merged = self._session.merge_manifests()
        except CompactordError as error:
            _log.warning("manifests_not_merged", error=str(error))
            if isinstance(error, CommitUnknown):
                self._session.forget_state()
                self._is_stale = True
            return None, error
        return (Settled(committed=merged) if merged is not None else None), None

    def _is_idle(self, skip: Skip) -> bool:
        """Whether manifests wait in vain for the commit of a compaction."""
        return not (skip.manifests or self._reading or self._backlog.has_work)

    def _next(self, bucket: BucketId) -> Compaction | None:
        planner, state = self._planner, self._planned_on
        assert planner is not None, "a cycle comes first"
        assert state is not None, "it planned on something"
        busy = self._busy().get(bucket, set())
        for compaction in self._waiting.get(bucket, ()):
            if all(
                file.file_name not in busy and state.files.contains(file_identity(bucket, file))
                for file in compaction.inputs
            ):
                return compaction
        self._waiting.pop(bucket, None)
        found = without_busy(planner.files(bucket), busy)
        if found is None:
            return None
        compactions = plan_bucket(found, planner.request).compactions
        if len(compactions) > 1:
            others = range(1, min(len(compactions), _WAITING_MAX))
            self._waiting[bucket] = map(compactions.__getitem__, others)
        return compactions[0] if compactions else None

    def _busy(self) -> dict[BucketId, set[str]]:
        """Files that compactions under way read."""
        busy: dict[BucketId, set[str]] = {}
        for compaction in self._reading.values():
            names = busy.setdefault(compaction.bucket, set())
            names.update(file.file_name for file in compaction.inputs)
        return busy

    def _release(self, ended: Sequence[Finished | Failed]) -> None:
        for each in ended:
            compaction = self._reading.pop(each.number, None)
            if compaction is not None:
                self._touched.add(compaction.bucket)

    def _gone(self, state: TableState, changed: Set[BucketId] | None) -> frozenset[BucketId]:
        """Buckets that had files when they were planned last, or were taken, and have none now."""
        if changed is not None:
            return frozenset(b for b in changed if not state.files.summary(b).file_count)
        before = self._planned_on.files.bucket_ids() if self._planned_on is not None else ()
        return frozenset(self._touched.union(before).difference(state.files.bucket_ids()))

    def _snapshot_count(self, state: TableState) -> int:
        if state.snapshot is None:
            return 0
        earliest = earliest_snapshot_id(self._storage, state.table.location)
        return 0 if earliest is None else max(0, state.snapshot.id - earliest + 1)
