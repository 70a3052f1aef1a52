"""One table, compacted until nothing is left to do.

Rounds of: refresh the state, plan the buckets that have something to do, hand parts to the engine,
and commit every bucket as soon as it is finished. The table is the only memory between rounds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from compactord.clock import Clock
from compactord.commit.publish import SnapshotPublisher
from compactord.engine.base import Engine
from compactord.errors import (
    AccessDenied,
    CompactordError,
    EngineUnavailable,
    TransientStorageError,
)
from compactord.model import Committed, Compaction, MergeCompaction, Subcompaction
from compactord.paimon.data_file import BucketId
from compactord.paimon.table import TableRef
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.table.in_flight import Failed, Finished, InFlight
from compactord.table.opening import OpenTable
from compactord.table.planning import PartitionTest, rest_text
from compactord.table.session import SessionRequest, TableSession, neighbours
from compactord.table.subcompactions import WorkerSpec

_log = structlog.get_logger()
# Attempts in all for a part, or a round of planning, that fails with a transient error.
_ATTEMPTS = 3
_RETRY_WAIT_S = 0.5
# A bucket whose result was dropped this often is left to a later run: writers are faster.
_DROPS_PER_BUCKET = 5
# How long cancelled parts may take to remove their outputs before the engine is closed.
_CANCEL_WAIT_S = 10


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
    # From the first plan to the last snapshot, without the start of the engine.
    seconds: float = 0.0
    start_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    # Failures for lack of permission.
    denied: int = 0
    lost_snapshots: list[str] = field(default_factory=list)
    orphans_removed: int = 0
    # Partitions that were asked for and have no live files.
    absent_partitions: list[str] = field(default_factory=list)
    # Partitions with something to do that were skipped, and why.
    resting: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


class Progress(Protocol):
    """Receives the events of a run; must not block."""

    def planned(self, table: OpenTable, compaction: Compaction) -> None: ...

    def finished(self, finished: Finished) -> None: ...

    def committed(self, committed: Committed) -> None: ...


class OneShot:
    """Compacts one table. To be used once, by one thread; `stop` may be set from anywhere."""

    def __init__(
        self,
        table: TableRef,
        request: SessionRequest,
        *,
        storage: Storage,
        publisher: SnapshotPublisher,
        start_engine: Callable[[], Engine],
        clock: Clock,
        worker: WorkerSpec,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._start_engine = start_engine
        self._engine: Engine | None = None
        self._clock = clock
        self._progress = progress
        self._stop = stop
        self._session = TableSession(
            table, request, storage=storage, publisher=publisher, clock=clock, worker=worker
        )
        self._partitions = request.partitions
        self._is_first_round = True
        self._in_flight = InFlight(part_attempts=_ATTEMPTS)
        self._started = 0
        self._ready: list[Finished] = []
        self._quarantined: set[BucketId] = set()
        self._drops: Counter[BucketId] = Counter()
        # Buckets with a fruitless compaction in this round.
        self._dropped: set[BucketId] = set()
        self._start_s = 0.0
        self._is_abandoned = False
        self.totals = CompactTotals()

    def run(self) -> CompactTotals:
        """Compact until a plan is empty, or until `stop` is set.

        Failed buckets are quarantined and named in the totals. Raises what concerns the whole
        table; the totals then hold what was published before.
        """
        self._start_s = self._clock.monotonic_s()
        try:
            worked = True
            while worked and not self._stop.is_set():
                worked = self._tried_round()
            if not self._stop.is_set():
                self._merge_manifests()
        except EngineUnavailable:
            # A signal to the whole process group ends the engine as well: that is the stop.
            if not self._stop.is_set():
                raise
        finally:
            self.totals.stopped = self._stop.is_set()
            self.totals.lost_snapshots = list(self._session.lost_snapshots)
            self._abandon()
        return self.totals

    def remove_orphans(self, *, grace_ms: int) -> None:
        """Delete files that earlier runs left; a failure is logged, and the run goes on."""
        self.totals.orphans_removed = self._session.remove_orphans(grace_ms=grace_ms)

    def _tried_round(self) -> bool:
        """Run a round, again after transient failures; returns whether there was anything to do."""
        for attempt in range(1, _ATTEMPTS):
            try:
                return self._round()
            except TransientStorageError as error:
                _log.warning(
                    "plan_retry",
                    table=self._session.ref.full_name,
                    attempt=attempt,
                    reason=str(error),
                )
                self._clock.sleep(_RETRY_WAIT_S * 2**attempt)
                # Compactions in flight were planned before: settle them first.
                self._advance(room=1)
        return self._round()

    def _round(self) -> bool:
        """Run one pass over the table; returns whether there was anything to do."""
        session = self._session
        self._dropped.clear()
        session.refresh()
        planned_on, indexes = session.state, session.index_entries()
        assert planned_on is not None, "just refreshed"
        if self._is_first_round:
            # Later rounds may find fewer partitions; it counts that the first round found them.
            asked = PartitionTest(session.table, self._partitions)
            self.totals.absent_partitions = asked.absent(
                bucket.partition for bucket in planned_on.files.bucket_ids()
            )
            self._is_first_round = False
        worked = False
        self.totals.resting = {}
        for plan in session.plans():
            if plan.rest is not None:
                partition = session.table.partition_text(plan.bucket.partition)
                self.totals.resting[partition] = rest_text(plan.rest)
            for compaction in plan.compactions:
                if plan.bucket in self._quarantined or self._stop.is_set():
                    continue
                worked = True
                self._dispatch(compaction, planned_on, indexes.get(plan.bucket, ()))
                self._advance(room=self._room())
        self._advance(room=1)
        return worked

    def _dispatch(
        self, compaction: Compaction, planned_on: TableState, indexes: tuple[bytes, ...]
    ) -> None:
        """Submit a decision's parts to the engine."""
        self._started += 1
        self._progress.planned(self._session.table, compaction)
        # Files that only change their level need no engine.
        only_upgrades = len(compaction.inputs) == _upgraded(compaction)
        free_slots = 0 if only_upgrades else self._capacity() - len(self._in_flight)
        if self._stop.is_set():
            return
        try:
            parts = self._session.parts(compaction, number=self._started, free_slots=free_slots)
        except CompactordError as error:
            self._fail(self._started, compaction, type(error).__name__, str(error))
            return
        finished = self._in_flight.dispatch(
            self._started,
            compaction,
            parts,
            neighbours=neighbours(compaction, planned_on),
            index_entries=indexes,
        )
        if finished is not None:
            self._ready.append(finished)
        for part in parts:
            self._running_engine().submit(part)

    def _advance(self, *, room: int) -> None:
        """Receive outcomes until fewer than `room` compactions run; commit finished ones."""
        while len(self._in_flight) >= room and not self._stop.is_set():
            # Short waits, so that a signal is heard.
            if self._take_in(timeout_s=0.2):
                while self._take_in(timeout_s=0):
                    pass
                self._commit()
        self._commit()

    def _take_in(self, *, timeout_s: float) -> bool:
        outcome = self._running_engine().next_outcome(timeout_s)
        if outcome is None:
            return False
        if self._stop.is_set():
            self._in_flight.stop_retrying()
        match self._in_flight.arrived(outcome):
            case Finished() as finished:
                self._progress.finished(finished)
                self._ready.append(finished)
            case Failed() as failed:
                self._session.discard(failed=[failed])
                if self._is_abandoned:
                    # Cancelled by this run, which reports the reason when it ends.
                    return True
                failure = failed.failure
                self.totals.denied += failure.error == AccessDenied.__name__
                self._fail(failed.number, failed.compaction, failure.error, failure.message)
            case Subcompaction() as again:
                _log.warning("compaction_retry", table=again.table, compaction_id=again.compaction)
                self._running_engine().submit(again)
            case None:
                pass
        return True

    def _commit(self) -> None:
        """Publish all finished compactions in one snapshot."""
        ready, self._ready = self._ready, []
        if not ready:
            return
        settled = self._session.settle(ready)
        if settled.committed is not None:
            self._count(settled.committed, settled.published)
        for finished, drop in settled.dropped:
            wasted = sum(stats.bytes_out for stats in finished.stats)
            self._drop(finished.number, finished.compaction, wasted, drop.why)

    def _merge_manifests(self) -> None:
        """What commits of compactions do on their way, for a table that had none."""
        committed = self._session.merge_manifests()
        if committed is not None:
            self._count(committed, ())

    def _count(self, committed: Committed, published: Sequence[Finished]) -> None:
        totals = self.totals
        totals.snapshots.append(committed.snapshot_id)
        totals.seconds = self._clock.monotonic_s() - self._start_s - totals.start_seconds
        for finished in published:
            inputs, upgraded = finished.compaction.inputs, _upgraded(finished.compaction)
            totals.compactions += 1
            totals.upgraded_files += upgraded
            totals.files_in += len(inputs) - upgraded
            totals.files_out += len(finished.change.after) - upgraded
            for stats in finished.stats:
                totals.bytes_in += stats.bytes_in
                totals.bytes_out += stats.bytes_out
                totals.rows_in += stats.rows_in
                totals.rows_out += stats.rows_out
                totals.worker_cpu_s += stats.cpu_s
                totals.peak_worker_rss_bytes = max(
                    totals.peak_worker_rss_bytes, stats.peak_rss_bytes
                )
        self._progress.committed(committed)

    def _fail(self, number: int, compaction: Compaction, error: str, why: str) -> None:
        """It failed for good, by an error of this class."""
        if self._session.is_outrun(number, compaction, error, why):
            self._drop(number, compaction, 0, why)
        else:
            self._quarantine(number, compaction, why)

    def _drop(self, number: int, compaction: Compaction, wasted_bytes: int, why: str) -> None:
        """The bucket moved on under us: the next round plans it anew."""
        self.totals.dropped += 1
        self.totals.wasted_bytes += wasted_bytes
        if compaction.bucket in self._dropped:
            # One commit of a writer may invalidate several compactions of one round.
            return
        self._dropped.add(compaction.bucket)
        self._drops[compaction.bucket] += 1
        if self._drops[compaction.bucket] >= _DROPS_PER_BUCKET:
            self._quarantine(
                number, compaction, f"{why}; writers changed it during {_DROPS_PER_BUCKET} attempts"
            )

    def _quarantine(self, number: int, compaction: Compaction, why: str) -> None:
        """Leave a bucket alone for the rest of this run."""
        self._quarantined.add(compaction.bucket)
        named = self._session.named(compaction.bucket)
        _log.error("compaction_failed", compaction_id=number, **named, reason=why)
        place = f"partition {named['partition']} " if named["partition"] else ""
        self.totals.failures.append(f"{place}bucket {named['bucket']}: {why}")

    def _capacity(self) -> int:
        return self._running_engine().capacity

    def _room(self) -> int:
        """How many compactions may run at once: enough to keep the engine busy, if it runs."""
        return 2 * self._capacity() if len(self._in_flight) else 1

    def _running_engine(self) -> Engine:
        """The engine, started when the first part needs it: a run without work needs none."""
        if self._engine is None:
            start = self._clock.monotonic_s()
            self._engine = self._start_engine()
            self.totals.start_seconds = self._clock.monotonic_s() - start
        return self._engine

    def _abandon(self) -> None:
        """After a stop or an error: cancel running parts, remove outputs of finished ones."""
        if len(self._in_flight):
            self._in_flight.stop_retrying()
            self._is_abandoned = True
            self._running_engine().cancel()
            while len(self._in_flight) and self._take_in(timeout_s=_CANCEL_WAIT_S):
                pass
        self._session.discard(finished=self._ready)
        self._ready = []


def _upgraded(compaction: Compaction) -> int:
    return len(compaction.upgraded) if isinstance(compaction, MergeCompaction) else 0
