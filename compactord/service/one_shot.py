"""One table, compacted until nothing is left to do: the service's scheduler with a single table.

What the daemon does in threads happens here in the caller's, one effect after the other; only the
engine works beside it. The differences are settings: a bucket that failed stays quarantined until
the run ends, and an error that concerns the whole table ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import structlog

from compactord.clock import Clock, WallTime
from compactord.commit.publish import SnapshotPublisher
from compactord.config.choices import Mode, SnapshotExpiry
from compactord.config.model import Alerts, Backoff, Limits, Retry
from compactord.config.policy import TablePolicy
from compactord.engine.base import Engine
from compactord.engine.worker import discard, file_names
from compactord.errors import CompactordError, EngineUnavailable, TransientStorageError
from compactord.model import LossOutcome, TableName, TaskOutcome
from compactord.paimon.table import TableRef
from compactord.scheduler.at_engine import TimeLimit
from compactord.scheduler.effects import (
    Cancel,
    Discard,
    Effect,
    RemoveOutputs,
    RestartEngine,
    StartCycle,
    StartDispatch,
    Submit,
)
from compactord.scheduler.record import Status
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.scheduler import Scheduler
from compactord.service.capacity import time_limit
from compactord.service.totalling import TotallingObserver
from compactord.storage.base import Storage
from compactord.table.compactor import TableCompactor
from compactord.table.cycle import Dispatch, Outrun
from compactord.table.in_flight import Finished
from compactord.table.planning import PartitionTest, rest_text
from compactord.table.request import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from compactord.table.totals import CompactTotals, Progress

_log = structlog.get_logger()
_YEAR_MS = 365 * 86_400_000
# Cycles and dispatches: one of them at a time, and the scheduler reserves two for cycles.
_JOBS_MAX = 4
# Attempts in a row at a cycle that fails with a transient error.
_CYCLE_ATTEMPTS = 3
_RETRY_WAIT_S = 0.5
# How long cancelled work may take to remove its outputs before the engine is closed.
_CANCEL_WAIT_S = 10
# How soon a signal is heard while nothing can be done.
_STOP_POLL_S = 0.2
# A run is short: what failed is not tried again, and the caller hears of every failure.
_RETRY = Retry(
    backoff=Backoff.model_validate({"min": "365 d", "max": "365 d"}),
    halt_after_consecutive_failures=2**31,
    halt_after_lost_snapshots=2**31,
)
# Where nobody says otherwise: how long a subcompaction may run, how long a compaction waits for
# others, and how many runs count as a stall.
TIME_LIMIT = time_limit(Limits())
MAX_COMMIT_DELAY_MS = Limits().max_commit_delay_ms
STOP_TRIGGER_FALLBACK = Alerts().stop_trigger_fallback
_POLICY = TablePolicy(
    mode=Mode.AUTO,
    only_write_only=False,
    priority=0,
    windows=(),
    windows_strict=False,
    max_backlog_age_ms=_YEAR_MS,
    max_concurrent_tasks=2**31,
    discovery_interval_ms=None,
    append_wait_ms=None,
    quiet_for_ms=0,
    expire_snapshots=SnapshotExpiry.OFF,
    options={},
)


class OneShot:
    """Compacts one table. To be used once, by one thread; `stop` may be set from anywhere.

    Opening raises what `open_table` raises.
    """

    def __init__(
        self,
        table: TableRef,
        request: CompactRequest,
        *,
        storage: Storage,
        publisher: SnapshotPublisher,
        start_engine: Callable[[], Engine],
        clock: Clock,
        worker: WorkerSpec,
        progress: Progress,
        stop: threading.Event,
        limit: TimeLimit = TIME_LIMIT,
        max_commit_delay_ms: int = MAX_COMMIT_DELAY_MS,
        stop_trigger_fallback: int = STOP_TRIGGER_FALLBACK,
    ) -> None:
        self._start_engine = start_engine
        self._engine: Engine | None = None
        self._clock = clock
        self._progress = progress
        self._stop = stop
        self._partitions = request.partitions
        self._compactor = TableCompactor(
            table,
            # A run is over soon: it looks back in every cycle.
            replace(request, look_interval_ms=0),
            storage=storage,
            publisher=publisher,
            clock=clock,
            worker=worker,
            stop_trigger_fallback=stop_trigger_fallback,
        )
        self.totals = CompactTotals()
        # Whether workers of this run did not end: the engine must not be used for another one.
        self.leaves_workers = False
        self._observer = TotallingObserver(self.totals, progress, clock)
        self._scheduler = Scheduler(
            retry=_RETRY,
            wall=WallTime(worker.zone),
            observer=self._observer,
            jobs_max=_JOBS_MAX,
            max_commit_delay_ms=max_commit_delay_ms,
            time_limit=limit,
            sweep_interval_ms=_YEAR_MS,
            expire_interval_ms=_YEAR_MS,
        )
        # A first decision needs a free slot before it is known whether an engine is needed.
        self._scheduler.slots = 1
        self._name = TableName(catalog="", database=table.database, table=table.name)
        self._scheduler.add(self._name, table, _POLICY, clock.steady_ms())
        self._failed_cycles = 0
        self._is_planned = False
        # How many snapshots had been published when the table was polled for nothing else.
        self._looked_after = 0

    def run(self) -> CompactTotals:
        """Compact until a plan is empty, or until `stop` is set.

        Failed buckets are quarantined and named in the totals. Raises what concerns the whole
        table; the totals then hold what was published before.
        """
        self._observer.begin()
        try:
            while not self._stop.is_set() and (
                self._carry_out() or self._receive() or self._stand_by() or self._look_again()
            ):
                pass
        except EngineUnavailable:
            # A signal to the whole process group ends the engine as well: that is the stop.
            if not self._stop.is_set():
                raise
        finally:
            self.totals.stopped = self._stop.is_set()
            self._observer.end(self._table.counts)
            self._abandon()
        return self.totals

    def remove_orphans(self, *, grace_ms: int) -> None:
        """Delete files that earlier runs left; a failure is logged, and the run goes on."""
        self.totals.orphans_removed = self._compactor.sweep(grace_ms=grace_ms, under_way=None)

    @property
    def _table(self) -> ScheduledTable:
        return self._scheduler.tables[self._name]

    def _carry_out(self) -> bool:
        """Carry out what can begin now; whether there was anything."""
        if self._engine is not None:
            # Twice what can run at once: the engine has work while a snapshot is published.
            self._scheduler.at_once = self._engine.capacity
            self._scheduler.slots = 2 * self._engine.capacity
        now_ms = self._clock.steady_ms()
        # One at a time: an engine that is lost decides what begins next.
        given_up = self._scheduler.give_up_hung(now_ms)
        for each in given_up:
            self._run(each)
        effects = self._scheduler.decide(now_ms)
        for effect in effects:
            self._run(effect)
        return bool(given_up or effects)

    def _run(self, effect: Effect) -> None:
        match effect:
            case StartCycle():
                self._cycle(effect)
            case StartDispatch():
                self._dispatch(effect)
            case Submit(subcompaction=subcompaction):
                self._running_engine().submit(subcompaction)
            case Cancel(subcompaction=subcompaction):
                self._running_engine().cancel_one(subcompaction.compaction, subcompaction.index)
            case RestartEngine(why=why):
                self.leaves_workers = True
                has_more = bool(self._table.offered or self._table.in_flight)
                self._scheduler.engine_lost(why, self._clock.steady_ms())
                if has_more:
                    raise EngineUnavailable(f"the rest was not compacted: {why}")
            case RemoveOutputs(subcompaction=subcompaction, result=result):
                discard(subcompaction, file_names(result))
            case Discard(ended=ended):
                self._compactor.discard(ended)
                self._scheduler.discarded(self._name, self._clock.steady_ms())
            case _:
                raise AssertionError(f"{effect} is not for a run over one table")

    def _cycle(self, effect: StartCycle) -> None:
        cycle = self._compactor.cycle(effect.ended, effect.skip)
        for lost in cycle.lost_commits:
            is_healed = lost.outcome is LossOutcome.HEALED
            (self.totals.lost_commits if is_healed else self.totals.failures).append(str(lost))
        self._scheduler.cycle_ended(self._name, cycle, self._clock.steady_ms())
        if cycle.error is not None:
            self._failed_cycles += 1
            is_transient = isinstance(cycle.error, TransientStorageError)
            if not is_transient or self._failed_cycles == _CYCLE_ATTEMPTS:
                raise cycle.error
            _log.warning("cycle_retry", attempt=self._failed_cycles, error=str(cycle.error))
            self._clock.sleep(_RETRY_WAIT_S * 2**self._failed_cycles)
            self._scheduler.look_again(self._name, self._clock.steady_ms())
            return
        self._failed_cycles = 0
        if cycle.planned is not None:
            now_ms = self._clock.now_ms()
            self.totals.resting = {
                each.partition: rest_text(each.rewrite, now_ms - each.rewrite.time_ms)
                for each in cycle.planned.resting
            }
        if not self._is_planned and cycle.planned is not None:
            self._is_planned = True
            self._note_absent_partitions()
        if cycle.merge_error is not None:
            # No other plan comes that would try again.
            raise cycle.merge_error

    def _note_absent_partitions(self) -> None:
        """Later plans may find fewer partitions; it counts that the first one found them."""
        seen = self._compactor.seen
        assert seen is not None, "a cycle has just planned"
        table, state, _ = seen
        asked = PartitionTest(table, self._partitions)
        live = (bucket.partition for bucket in state.files.bucket_ids())
        self.totals.absent_partitions = asked.absent(live)

    def _dispatch(self, effect: StartDispatch) -> None:
        (record,) = self._table.with_status(Status.PLANNED)
        free_slots = 1
        if record.pending.reads_files:
            engine = self._running_engine()
            free_slots = max(1, engine.capacity - self._scheduler.running_subcompactions)
        result: Dispatch | Outrun | CompactordError | None
        try:
            result = self._compactor.dispatch(
                effect.bucket, number=effect.number, free_slots=free_slots
            )
        except CompactordError as error:
            result = error
        if isinstance(result, Dispatch):
            seen = self._compactor.seen
            assert seen is not None, "a cycle comes first"
            self._progress.planned(seen[0], result.compaction)
        now_ms = self._clock.steady_ms()
        self._scheduler.dispatched(self._name, result, now_ms)
        if isinstance(result, Outrun):
            # The bucket moved on: it is planned anew.
            self._scheduler.look_again(self._name, now_ms)

    def _receive(self) -> bool:
        """Take in the outcomes that have come; False when none can come any more.

        Waits for the first one, but not for long, so that a signal is heard.
        """
        scheduler = self._scheduler
        # A hung worker is given time to end, so that it removes its files.
        if not (scheduler.running_subcompactions or scheduler.hung_subcompactions):
            return False
        outcome = self._running_engine().next_outcome(timeout_s=0.2)
        while outcome is not None:
            self._take_in(outcome)
            outcome = self._running_engine().next_outcome(timeout_s=0)
        return True

    def _stand_by(self) -> bool:
        """Wait while our last snapshot may still be replaced; False when there is no need to."""
        wait_ms = self._table.held_until_ms - self._clock.steady_ms()
        if wait_ms <= 0:
            return False
        self._progress.waiting(wait_ms)
        while wait_ms > 0 and not self._stop.is_set():
            self._clock.sleep(min(wait_ms / 1000, _STOP_POLL_S))
            wait_ms = self._table.held_until_ms - self._clock.steady_ms()
        return True

    def _look_again(self) -> bool:
        """After snapshots of ours: writers may have come meanwhile, and manifests may be due."""
        published = len(self.totals.snapshots)
        if published == self._looked_after:
            return False
        self._looked_after = published
        self._scheduler.look_again(self._name, self._clock.steady_ms())
        return True

    def _take_in(self, outcome: TaskOutcome) -> None:
        self._scheduler.subcompaction_ended(outcome, self._clock.steady_ms())
        record = self._table.compactions.get(outcome.compaction)
        if record is None or record.status is not Status.FINISHED:
            return
        if isinstance(record.result, Finished):
            self._progress.finished(record.result)

    def _running_engine(self) -> Engine:
        """The engine, started when it is first needed: a run that reads no file needs none."""
        if self._engine is None:
            start = self._clock.monotonic_s()
            self._engine = self._start_engine()
            self.totals.start_seconds = self._clock.monotonic_s() - start
        return self._engine

    def _abandon(self) -> None:
        """After a stop or an error: cancel what runs, and remove outputs of what has finished."""
        self._scheduler.drain(self._clock.steady_ms())
        self._scheduler.end()
        if self._engine is not None and self._scheduler.running_subcompactions:
            self._engine.cancel()
            while self._scheduler.running_subcompactions:
                outcome = self._engine.next_outcome(_CANCEL_WAIT_S)
                if outcome is None:
                    break
                self._take_in(outcome)
        self._scheduler.engine_lost("stopped", self._clock.steady_ms())
        for effect in self._scheduler.decide(self._clock.steady_ms()):
            self._run(effect)
