"""Compacts one table, for a command or for months: cycles and dispatches.

The daemon's loop never blocks: everything that reads or writes a store is a method here. One thread
at a time runs `cycle` and `dispatch`; maintenance may run on `table` at the same time. Everything
that updates table state takes the same lock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from compactord.catalog.access import TableAccess
from compactord.clock import Clock
from compactord.commit.changes import BucketChange, CommitOutcome, Committed, remove_outputs
from compactord.errors import (
    CommitUnknown,
    CompactordError,
    DataFileDamaged,
    DataFileMissing,
    ObjectNotFound,
)
from compactord.model import Compaction, Conflict, SubcompactionFailure, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.state.ancestry import last_commit
from compactord.state.table_state import TableState
from compactord.storage.calls import DeleteRateLimiter
from compactord.storage.ranges import read_twice
from compactord.table.backlog import DispatchFilter
from compactord.table.jobs import (
    Cause,
    CycleResult,
    InFlight,
    InputsReplaced,
    OwnCommit,
    Phase,
)
from compactord.table.lost_commits import DROPPED, at_input, lost_input
from compactord.table.opening import OpenTable
from compactord.table.planner import OwnWork, TablePlanner
from compactord.table.planning import CompactRequest, PartitionTest, StatePlanner
from compactord.table.session import ChosenPartitions, TableSession
from compactord.table.subcompactions import WorkerSpec, subcompactions
from compactord.verify.holds import Hold, TableHolds, text_of

T = TypeVar("T")

_log = structlog.get_logger()
# More bytes of one subcompaction would hold a slot for too long.
_SUBCOMPACTION_BYTES_MAX = 2 << 30


class TableCompactor:
    """Cycles and dispatches of one table. Raises what `open_table` and `PartitionTest` raise."""

    watches_files = True

    def __init__(
        self,
        access: TableAccess,
        request: CompactRequest,
        *,
        clock: Clock,
        worker: WorkerSpec,
        pace: DeleteRateLimiter | None = None,
    ) -> None:
        """`pace` limits the deletions of maintenance."""
        self._storage = access.storage
        self._turn = threading.Lock()
        self.clock = clock
        # The owner of this process's files.
        self.owner = worker.owner
        # Any thread may set it.
        self.is_stopping = False
        self._memories: dict[type, Any] = {}
        self._worker, self._pace = worker, pace
        self._followed = TableSession(
            access,
            request,
            clock=clock,
            owner=worker.owner,
            registries=worker.registries,
        )
        # Validate partitions first.
        PartitionTest(self._followed.table, request.partitions)
        self._holds = TableHolds(access.storage, access.ref, clock, worker.owner)
        self._own_work = OwnWork()
        self._planner = TablePlanner(self._followed, self._own_work, clock=clock, zone=worker.zone)
        self.phase = Phase.PLAN

    @property
    def table(self) -> OpenTable:
        """The table in its newest known schema, for any thread; deletions are rate-limited."""
        table = self._followed.table
        return replace(table, access=table.access.rate_limited(self._pace)) if self._pace else table

    @property
    def last_plan(self) -> StatePlanner | None:
        """The last plan, with its table and state. Safe to read from any thread."""
        return self._planner.last_plan

    def memory(self, type_: type[T]) -> T:
        """See `OpenedTable`."""
        found: T = self._memories.setdefault(type_, type_())
        return found

    def newest_state(self) -> TableState:
        """The newest state, read from the last planned one. Thread-safe.

        Raises what reading raises.
        """
        access, last = self._followed.table.access, self.last_plan
        return (access.newest_state() if last is None else access.refreshed_state(last.state)).state

    def cycle(self, ended: Sequence[InFlight], skip: DispatchFilter) -> CycleResult:
        """Publishes finished compactions, reads news and plans; merges manifests of an idle table.

        `ended` are compactions of this table; they are no longer running afterwards.
        Work that `skip` covers is counted and not offered.
        Errors that a user or a store can cause are returned in the result; after them the next
        cycle starts without any known state.
        """
        with self._turn, self._planner.prefetching(will_plan=bool(ended)):
            return self._cycle(ended, skip)

    def _cycle(self, ended: Sequence[InFlight], skip: DispatchFilter) -> CycleResult:
        followed = self._followed
        finished = [each for each in ended if isinstance(each.result, BucketChange)]
        failed = [
            (each, each.result) for each in ended if isinstance(each.result, SubcompactionFailure)
        ]
        commit: CommitOutcome | None = None
        planned, error, merge_error = None, None, None
        in_commit, start_s, commit_seconds = bool(finished), self.clock.monotonic_s(), 0.0
        causes: dict[int, Cause | None] = {}
        for each, why in failed:
            self._own_work.cannot_read(each.compaction.bucket, why.unreadable)
        try:
            self._remove_outputs(each for each, _ in failed)
            if finished:
                with self._committing():
                    commit = self._publish(finished)
                commit_seconds = self.clock.monotonic_s() - start_s
                in_commit = False
            self._planner.release(each.compaction_id for each in ended)
            # A run that ends needs no further plan.
            if not (followed.wait_ms() or self.is_stopping):
                has_published = isinstance(commit, Committed)
                planned = self._planner.plan(
                    skip, is_current=has_published and followed.newest_is_ours
                )
            drops = commit.dropped if commit else ()
            damaged = {
                drop.change.compaction_id
                for drop in drops
                if drop.conflict is Conflict.BUCKET_DAMAGED
            }
            causes = self._causes(failed, [each for each in ended if each.compaction_id in damaged])
            may_merge = commit is None and not (followed.wait_ms() or self.is_stopping)
            if may_merge and self._planner.is_idle(skip):
                start_s = self.clock.monotonic_s()
                commit, merge_error = self._merged_manifests()
                commit_seconds = self.clock.monotonic_s() - start_s
        except CompactordError as found:
            self._start_anew(ended, forget=isinstance(found, CommitUnknown))
            error, planned = found, None
        except BaseException:
            # A bug, or no memory: no input may stay busy forever.
            self._start_anew(ended, forget=True)
            raise
        return CycleResult(
            commit=commit,
            commit_seconds=commit_seconds,
            planned=planned,
            lost_snapshots=followed.take_lost(),
            lost_commits=followed.take_lost_commits(),
            replaced_snapshots=followed.replaced_snapshots,
            error=error,
            in_commit=in_commit,
            merge_error=merge_error,
            info=planned.info if planned is not None else None,
            causes=causes,
            wait_ms=followed.wait_ms(),
            hold=self._holds.known,
        )

    def dispatch(
        self, bucket: BucketId, *, compaction_id: int, free_slots: int
    ) -> InFlight | InputsReplaced | None:
        """The next decision on a bucket, cut into subcompactions, or None if none is left.

        Cutting into key ranges reads footers of the inputs and raises its read errors. A live file
        that is missing or damaged raises `DataFileMissing` or `DataFileDamaged`.
        """
        with self._turn:
            taken = self._planner.take(bucket)
            if taken is None:
                return None
            compaction, state = taken
            assert state.snapshot is not None, "a decision is about files"
            size = compaction.input_bytes
            vectors = state.indexes.vectors(bucket)
            cutting = partial(
                subcompactions,
                self._followed.table,
                compaction,
                compaction_id=compaction_id,
                free_slots=max(1, free_slots, -(-size // _SUBCOMPACTION_BYTES_MAX)),
                worker=self._worker,
                clock=self.clock,
                vectors=vectors,
            )
            try:
                cut = read_twice(cutting)
            except (ObjectNotFound, DataFileDamaged) as error:
                if self._are_inputs_replaced(compaction_id, compaction, str(error)):
                    return InputsReplaced(why=str(error))
                raise self._held(compaction, error) or error from error
            # Only merges depend on neighbouring files.
            is_merge = compaction.kind is not WorkKind.APPEND
            in_flight = InFlight(
                compaction_id,
                compaction,
                cut,
                neighbours=state.files.files_in(bucket) if is_merge else (),
                vectors=vectors,
                snapshot_id=state.snapshot.id,
                partition=self._followed.table.partition_text(bucket.partition),
            )
            self._planner.mark_busy(in_flight)
            return in_flight

    def last_commit(self) -> OwnCommit | None:
        """The last commit of compactord before this process, or None if no recent snapshot is ours.

        Reads a few snapshots, and raises what reading raises.
        """
        state = self.last_plan.state if self.last_plan is not None else None
        if state is None or state.snapshot is None:
            return None
        found = last_commit(self._storage, state.table.root, state.snapshot)
        if found is None:
            return None
        age_ms = max(0, self.clock.now_ms() - found.time_ms)
        return OwnCommit(snapshot_id=found.id, ended_ms=self.clock.steady_ms() - age_ms)

    def why_held(self) -> Hold | None:
        """See `OpenedTable`. Thread-safe."""
        return self._holds.why_held(self.newest_state, self.table.bucket_folder)

    def expiry_blocker(self) -> str | None:
        """See `OpenedTable`. Thread-safe."""
        return self._followed.expiry_blocker() or text_of(self.why_held())

    def drop_partitions(self, chosen: ChosenPartitions) -> CommitOutcome:
        """See `OpenedTable`; the next cycle plans on the remaining files. Thread-safe."""
        with self._turn:
            try:
                with self._committing():
                    return self._followed.drop_partitions(chosen, busy=self._planner.busy.keys())
            except BaseException as error:
                is_known = isinstance(error, CompactordError) and not isinstance(
                    error, CommitUnknown
                )
                self._start_anew((), forget=not is_known)
                raise

    def reconfigure(self, request: CompactRequest) -> None:
        """Use other options from the next cycle on."""
        with self._turn:
            self._followed.request = request
            self._planner.forget()

    def discard(self, ended: Sequence[InFlight]) -> None:
        """Remove the files of compactions that will never be published."""
        with self._turn:
            self._planner.release(each.compaction_id for each in ended)
        self._remove_outputs(ended)

    def _publish(self, finished: Sequence[InFlight]) -> CommitOutcome:
        """Publishes finished compactions in one snapshot; removes files of dropped ones.

        Raises what `TableSession.commit` raises; except for `CommitUnknown`, no file is left then.
        """
        by_id = {each.compaction_id: each for each in finished}
        changes = [each.result for each in finished if isinstance(each.result, BucketChange)]
        try:
            outcome = self._followed.commit(changes, busy=self._planner.busy.keys())
        except CommitUnknown:
            raise
        except CompactordError:
            # Certainly not published, and no snapshot needs these files.
            self._remove_outputs(finished)
            raise
        for drop in outcome.dropped:
            compaction_id, named = drop.change.compaction_id, self._named(drop.change.bucket)
            _log.warning("commit_conflict", compaction_id=compaction_id, **named, reason=drop.why)
        self._remove_outputs(by_id[drop.change.compaction_id] for drop in outcome.dropped)
        if isinstance(outcome, Committed):
            now_ms = self.clock.steady_ms()
            interval_ms = self._followed.table.options.compaction.optimization_interval_ms
            for change in outcome.published:
                compaction = by_id[change.compaction_id].compaction
                self._own_work.published(compaction, change, now_ms=now_ms, interval_ms=interval_ms)
        return outcome

    def _causes(
        self, failed: Sequence[tuple[InFlight, SubcompactionFailure]], dropped: Sequence[InFlight]
    ) -> dict[int, Cause | None]:
        """`CycleResult.causes`; the commit `dropped` some because of a damaged bucket."""
        asked = [(each, at_input(why), each.vectors) for each, why in failed]
        asked += [(each, DROPPED, NO_VECTORS) for each in dropped]
        causes: dict[int, Cause | None] = {}
        for each, error, vectors in asked:
            if error is None:
                continue
            why, compaction = error.message, each.compaction
            is_replaced = self._are_inputs_replaced(each.compaction_id, compaction, why, vectors)
            if is_replaced:
                causes[each.compaction_id] = InputsReplaced(why=why)
            elif is_replaced is not None:
                causes[each.compaction_id] = self._held(compaction, error)
        return causes

    def _held(
        self, compaction: Compaction, error: ObjectNotFound | DataFileDamaged
    ) -> DataFileMissing | DataFileDamaged | None:
        """The live file that a compaction cannot read, or None; a finding stops all deletions."""
        damage = lost_input(self._followed.table, compaction, self._followed.state, error)
        if damage is None:
            return None
        self._holds.add(damage)
        return damage.error

    def _are_inputs_replaced(
        self,
        compaction_id: int,
        compaction: Compaction,
        why: str,
        vectors: Mapping[str, VectorRef] = NO_VECTORS,
    ) -> bool | None:
        """Whether a file was not found because another writer replaced it; `vectors` of plan time.

        Expiry removed it before it was read. None if the newest snapshot cannot be read.
        """
        named = self._named(compaction.bucket)
        try:
            if not self._followed.has_replaced(compaction, vectors):
                return False
        except CompactordError as found:
            _log.warning("refresh_failed", compaction_id=compaction_id, **named, error=str(found))
            return None
        _log.warning("inputs_gone", compaction_id=compaction_id, **named, error=why)
        return True

    def _merged_manifests(self) -> tuple[Committed | None, CompactordError | None]:
        """The result of merging manifests; an error leaves the table and the plan unchanged.

        The merge is retried with the next plan.
        """
        try:
            with self._committing():
                merged = self._followed.merge_manifests()
        except CompactordError as error:
            _log.warning("manifests_not_merged", error=str(error))
            if isinstance(error, CommitUnknown):
                self._followed.forget_state()
                self._planner.forget()
            return None, error
        return merged, None

    @contextlib.contextmanager
    def _committing(self) -> Iterator[None]:
        self.phase = Phase.COMMIT
        try:
            yield
        finally:
            self.phase = Phase.PLAN

    def _start_anew(self, ended: Sequence[InFlight], *, forget: bool) -> None:
        """Resets after an error: `ended` is no longer busy, and everything is planned again."""
        self._planner.release(each.compaction_id for each in ended)
        self._planner.forget()
        if forget:
            self._followed.forget_state()

    def _remove_outputs(self, ended: Iterable[InFlight]) -> None:
        for each in ended:
            folder = self._followed.table.bucket_folder(each.compaction.bucket)
            remove_outputs(self._storage, folder, each.outputs)

    def _named(self, bucket: BucketId) -> dict[str, str | int]:
        """The fields that name a bucket in a log event."""
        partition = self._followed.table.partition_text(bucket.partition)
        return {"partition": partition, "bucket": bucket.bucket}
