"""One table, compacted until nothing is left to do.

Rounds of: refresh the state, plan the buckets that have something to do, hand parts to the engine,
and commit every bucket as soon as it is finished. The table is the only memory between rounds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from compactord import ids
from compactord.clock import Clock, local_ms
from compactord.commit.cleanup import OwnerRule, discard_outputs, remove_files, remove_orphans
from compactord.commit.committer import Committer, index_entries
from compactord.engine.base import Engine
from compactord.errors import AccessDenied, CommitUnknown, CompactordError, EngineUnavailable
from compactord.model import (
    Committed,
    Compaction,
    CompactReason,
    MergeCompaction,
    NothingCommitted,
    Replaced,
    Subcompaction,
)
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.table import TableRef, TableState, load_state
from compactord.plan.table import Strategy, settled_by
from compactord.service.flight import Crashed, Flights, Landed
from compactord.service.parts import WorkerSpec, subcompactions
from compactord.service.planning import PartitionTest, PlanContext, plan_state
from compactord.service.table import OpenTable, open_table, refuse_live_state
from compactord.storage.base import Storage

_log = structlog.get_logger()
# A part that fails in a way that may pass is tried so often in all.
_PART_ATTEMPTS = 3
# A bucket whose result was dropped so often is left to a later run: writers outrun us there.
_DROPS_PER_BUCKET = 5
# Cancelled parts have so long to remove what they wrote, before the engine is closed.
_CANCEL_WAIT_S = 10
# The reasons that make a compaction full: the clock of compaction.optimization-interval.
_FULL = {
    CompactReason.FULL,
    CompactReason.DELTA_COMMITS,
    CompactReason.EARLY_FULL_INTERVAL,
    CompactReason.EARLY_FULL_TOTAL_SIZE,
    CompactReason.EARLY_FULL_INCREMENTAL_SIZE,
    CompactReason.SIZE_AMPLIFICATION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest:
    """What to compact; `partitions` None: all. `append_wait_ms` None: few small files just wait."""

    table: TableRef
    strategy: Strategy
    overrides: Mapping[str, str]
    partitions: tuple[Mapping[str, str], ...]
    append_wait_ms: int | None


@dataclass(slots=True)
class CompactTotals:
    """What was published so far, and what was lost on the way. Sizes in bytes."""

    snapshots: list[int] = field(default_factory=list)
    compactions: int = 0
    files_in: int = 0
    files_out: int = 0
    upgraded_files: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows_in: int = 0
    rows_out: int = 0
    dropped: int = 0
    wasted_bytes: int = 0
    worker_cpu_s: float = 0.0
    peak_worker_rss_bytes: int = 0
    # From the first plan to the last snapshot, the start of the engine not counted.
    seconds: float = 0.0
    start_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    # Failures for lack of permission.
    denied: int = 0
    lost_snapshots: list[str] = field(default_factory=list)
    orphans_removed: int = 0
    stopped: bool = False


class Progress(Protocol):
    """Is told what happens; must not block."""

    def planned(self, table: OpenTable, compaction: Compaction) -> None: ...

    def landed(self, landed: Landed) -> None: ...

    def committed(self, committed: Committed) -> None: ...


class OneShot:
    """Compacts one table. To be used once, by one thread; `stop` may be set from anywhere."""

    def __init__(
        self,
        request: CompactRequest,
        *,
        storage: Storage,
        start_engine: Callable[[], Engine],
        clock: Clock,
        worker: WorkerSpec,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._request = request
        self._storage = storage
        self._start_engine = start_engine
        self._engine: Engine | None = None
        self._clock = clock
        self._worker = worker
        self._progress = progress
        self._stop = stop
        self._table = open_table(storage, request.table, request.overrides)
        # What cannot be meant is said before anything is touched.
        PartitionTest(self._table, request.partitions)
        self._committer = Committer(
            storage=storage,
            clock=clock,
            owner=worker.owner,
            user_prefix=self._table.options.commit.user_prefix,
        )
        self._flights = Flights(part_attempts=_PART_ATTEMPTS)
        self._started = 0
        self._ready: list[Landed] = []
        self._set_aside: set[BucketId] = set()
        self._drops: Counter[BucketId] = Counter()
        self._settled: set[str] = set()
        self._last_full_ms: dict[BucketId, int] = {}
        self._start_s = 0.0
        self.totals = CompactTotals()

    def run(self) -> CompactTotals:
        """Compact until a plan is empty, or until `stop` is set.

        Failed buckets are set aside and named in the totals. Raises what concerns the whole table;
        the totals then hold what was published before.
        """
        self._start_s = self._clock.monotonic_s()
        try:
            state = load_state(self._storage, self._request.table)
            worked = True
            while worked and not self._stop.is_set():
                state, worked = self._round(state)
        except EngineUnavailable:
            # A signal to the whole process group ends the engine as well: that is the stop.
            if not self._stop.is_set():
                raise
        finally:
            self.totals.stopped = self._stop.is_set()
            self.totals.lost_snapshots = self._committer.lost_snapshots
            self._abandon()
        return self.totals

    def remove_orphans(self, *, grace_ms: int) -> None:
        """Delete what earlier runs left; a failure is logged and keeps nothing from going on."""
        rule = OwnerRule(
            myself=self._worker.owner,
            liveness=ids.liveness,
            now_ms=self._clock.now_ms(),
            grace_ms=grace_ms,
        )
        location, keys = self._request.table.location, self._table.schema.partition_keys
        try:
            removed = remove_orphans(self._storage, location, partition_depth=len(keys), rule=rule)
        except CompactordError as error:
            _log.warning("orphans_kept", table=self._request.table.full_name, reason=str(error))
        else:
            self.totals.orphans_removed = len(removed)

    def _round(self, state: TableState) -> tuple[TableState, bool]:
        """One pass over the table; whether there was anything to do."""
        state = self._committer.refreshed(state)
        self._table = open_table(self._storage, self._request.table, self._request.overrides)
        refuse_live_state(self._table, state)
        planned_on = state
        indexes = index_entries(self._storage, state)
        context = PlanContext(
            strategy=self._request.strategy,
            partitions=self._request.partitions,
            append_wait_ms=self._request.append_wait_ms,
            now_ms=self._clock.now_ms(),
            zone=self._worker.zone,
            last_full_ms=self._last_full_ms,
            settled=self._settled,
        )
        worked = False
        for plan in plan_state(self._storage, self._table, planned_on, context):
            for compaction in plan.compactions:
                if plan.bucket in self._set_aside or self._stop.is_set():
                    continue
                worked = True
                self._take_off(compaction, planned_on, indexes.get(plan.bucket, ()))
                state = self._advance(state, room=2 * self._running_engine().capacity)
        return self._advance(state, room=1), worked

    def _take_off(
        self, compaction: Compaction, state: TableState, indexes: tuple[bytes, ...]
    ) -> None:
        """Hand a decision's parts to the engine."""
        self._started += 1
        self._progress.planned(self._table, compaction)
        free_slots = self._running_engine().capacity - len(self._flights)
        if self._stop.is_set():
            return
        try:
            parts = subcompactions(
                self._table,
                compaction,
                number=self._started,
                free_slots=max(1, free_slots),
                worker=self._worker,
                clock=self._clock,
            )
        except CompactordError as error:
            self._fail(compaction, str(error))
            return
        landed = self._flights.take_off(
            self._started,
            compaction,
            parts,
            neighbours=_neighbours(compaction, state),
            index_entries=indexes,
        )
        if landed is not None:
            self._ready.append(landed)
        for part in parts:
            self._running_engine().submit(part)

    def _advance(self, state: TableState, *, room: int) -> TableState:
        """Take in outcomes until fewer than `room` compactions fly; commit what is finished."""
        while len(self._flights) >= room and not self._stop.is_set():
            # Short waits, so that a signal is heard.
            if self._take_in(timeout_s=0.2):
                while self._take_in(timeout_s=0):
                    pass
                state = self._commit(state)
        return self._commit(state)

    def _take_in(self, *, timeout_s: float) -> bool:
        outcome = self._running_engine().next_outcome(timeout_s)
        if outcome is None:
            return False
        if self._stop.is_set():
            self._flights.stop_retrying()
        match self._flights.arrived(outcome):
            case Landed() as landed:
                self._progress.landed(landed)
                self._ready.append(landed)
            case Crashed() as crashed:
                folder = self._table.bucket_folder(crashed.compaction.bucket)
                remove_files(self._storage, folder, crashed.finished)
                self.totals.denied += crashed.failure.error == AccessDenied.__name__
                self._fail(crashed.compaction, crashed.failure.message)
            case Subcompaction() as again:
                _log.warning("task_retry", table=again.table, compaction=again.compaction)
                self._running_engine().submit(again)
            case None:
                pass
        return True

    def _commit(self, state: TableState) -> TableState:
        """Publish all finished compactions in one snapshot."""
        ready, self._ready = self._ready, []
        if not ready:
            return state
        landed_by_change = {id(landed.change): landed for landed in ready}
        try:
            outcome, state = self._committer.commit(
                state, [landed.change for landed in ready], self._table.commit_settings
            )
        except CommitUnknown:
            raise
        except CompactordError:
            # Certainly not published, and nobody will ask for these files any more.
            for landed in ready:
                discard_outputs(
                    self._storage, self._table.bucket_folder(landed.change.bucket), landed.change
                )
            raise
        match outcome:
            case Committed(published=published, dropped=dropped):
                self._count(outcome, [landed_by_change[id(change)] for change in published])
            case NothingCommitted(dropped=dropped) | Replaced(dropped=dropped):
                pass
        for drop in dropped:
            self._drop(landed_by_change[id(drop.change)], drop.why)
        return state

    def _count(self, committed: Committed, published: list[Landed]) -> None:
        totals = self.totals
        totals.snapshots.append(committed.snapshot_id)
        totals.seconds = self._clock.monotonic_s() - self._start_s - totals.start_seconds
        for landed in published:
            inputs, upgraded = landed.compaction.inputs, _upgraded(landed.compaction)
            totals.compactions += 1
            totals.upgraded_files += upgraded
            totals.files_in += len(inputs) - upgraded
            totals.files_out += len(landed.change.after) - upgraded
            self._settled |= settled_by(landed.compaction, landed.change.after)
            if landed.compaction.reason in _FULL:
                self._last_full_ms[landed.compaction.bucket] = local_ms(
                    self._clock.now_ms(), self._worker.zone
                )
            for stats in landed.stats:
                totals.bytes_in += stats.bytes_in
                totals.bytes_out += stats.bytes_out
                totals.rows_in += stats.rows_in
                totals.rows_out += stats.rows_out
                totals.worker_cpu_s += stats.cpu_s
                totals.peak_worker_rss_bytes = max(
                    totals.peak_worker_rss_bytes, stats.peak_rss_bytes
                )
        self._progress.committed(committed)

    def _drop(self, landed: Landed, why: str) -> None:
        """The bucket moved on under us: its result goes, the next round plans it anew."""
        bucket = landed.compaction.bucket
        self.totals.dropped += 1
        self.totals.wasted_bytes += sum(stats.bytes_out for stats in landed.stats)
        _log.warning("commit_conflict", **self._named(bucket), reason=why)
        discard_outputs(self._storage, self._table.bucket_folder(bucket), landed.change)
        self._drops[bucket] += 1
        if self._drops[bucket] >= _DROPS_PER_BUCKET:
            self._fail(landed.compaction, f"{why}; writers outran {_DROPS_PER_BUCKET} attempts")

    def _fail(self, compaction: Compaction, why: str) -> None:
        """Leave a bucket alone for the rest of this run."""
        self._set_aside.add(compaction.bucket)
        named = self._named(compaction.bucket)
        _log.error("task_failed", **named, reason=why)
        place = f"partition {named['partition']} " if named["partition"] else ""
        self.totals.failures.append(f"{place}bucket {named['bucket']}: {why}")

    def _named(self, bucket: BucketId) -> dict[str, str | int]:
        return {
            "table": self._request.table.full_name,
            "partition": self._table.partition_text(bucket.partition),
            "bucket": bucket.bucket,
        }

    def _running_engine(self) -> Engine:
        """The engine, started when the first part needs it: a run without work needs none."""
        if self._engine is None:
            start = self._clock.monotonic_s()
            self._engine = self._start_engine()
            self.totals.start_seconds = self._clock.monotonic_s() - start
        return self._engine

    def _abandon(self) -> None:
        """After a stop or an error: cancel what runs and remove what had been finished."""
        if len(self._flights):
            self._flights.stop_retrying()
            self._running_engine().cancel()
            while len(self._flights) and self._take_in(timeout_s=_CANCEL_WAIT_S):
                pass
        for landed in self._ready:
            discard_outputs(
                self._storage, self._table.bucket_folder(landed.change.bucket), landed.change
            )
        self._ready = []


def _neighbours(compaction: Compaction, state: TableState) -> tuple[DataFile, ...]:
    """What lies beside a merge matters to its commit; append files have no levels."""
    if isinstance(compaction, MergeCompaction):
        return state.files.files_in(compaction.bucket)
    return ()


def _upgraded(compaction: Compaction) -> int:
    return len(compaction.upgraded) if isinstance(compaction, MergeCompaction) else 0
