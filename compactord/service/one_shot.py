"""Compacts one table until no work is left, with the service's scheduler.

The daemon's jobs run in the caller's thread, one after the other; only the engine runs
concurrently. The policy differs: a failed bucket stays quarantined until the run ends, an error of
the whole table ends the run, and progress is reported.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from compactord.catalog.access import TableAccess
from compactord.clock import Clock, WallTime
from compactord.commit.changes import Committed, LossOutcome
from compactord.config.model import Backoff, Limits, Retry
from compactord.config.policy import config_of_warehouse
from compactord.engine.base import Engine
from compactord.errors import (
    EngineUnavailable,
    ErrorKind,
    TransientStorageError,
)
from compactord.maintenance.kind import AnyKind
from compactord.model import SubcompactionOutcome, TableName
from compactord.scheduler import effects
from compactord.scheduler.compaction import Outcome, Status, TableCounters
from compactord.scheduler.events import (
    BucketQuarantined,
    Event,
    Observer,
    SnapshotCommitted,
    SnapshotLost,
)
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.scheduler import Scheduler
from compactord.service.jobs import JobRunner, OwnThread, TableJobs, TableSpec
from compactord.table.jobs import CompactTotals, CycleResult, InFlight, InputsReplaced, Progress
from compactord.table.planning import CompactRequest, PartitionTest, cooldown_text
from compactord.table.subcompactions import WorkerSpec

_log = structlog.get_logger()
_DENIED = {ErrorKind.ACCESS_DENIED, ErrorKind.READ_ONLY_FILE_SYSTEM}
_YEAR_MS = 365 * 86_400_000
# Cycles and dispatches: one runs at a time, and the scheduler reserves two for cycles.
_JOBS_MAX = 4
# Attempts in a row at a cycle that fails with a transient error.
_CYCLE_ATTEMPTS = 3
_RETRY_WAIT_S = 0.5
# How long cancelled work may take to remove its outputs before the engine is closed.
_CANCEL_WAIT_S = 10
# How soon a signal is noticed while the run waits.
_STOP_POLL_S = 0.2
# A run is short: failed work is not retried, and the totals list every failure.
_RETRY = Retry(
    backoff=Backoff.model_validate({"min": "365 d", "max": "365 d"}),
    halt_after_consecutive_failures=2**31,
    halt_after_lost_snapshots=2**31,
)
_DEFAULTS = config_of_warehouse(".").config
# A run postpones no work.
_POLICY = _DEFAULTS.defaults.model_copy(
    update={"max_backlog_age_ms": _YEAR_MS, "max_concurrent_tasks": 2**31}
)


class OneShot:
    """Compacts one table. One thread uses it once; any thread may set `stop`.

    The constructor raises what `open_table` raises.
    """

    def __init__(
        self,
        table: TableAccess,
        request: CompactRequest,
        *,
        start_engine: Callable[[], Engine],
        clock: Clock,
        worker: WorkerSpec,
        progress: Progress,
        stop: threading.Event,
        limits: Limits = _DEFAULTS.limits,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._start_engine = start_engine
        self._engine: Engine | None = None
        self._clock = clock
        self._progress = progress
        self._stop = stop
        self._partitions = request.partitions
        self._name = TableName(catalog="", database=table.ref.database, table=table.ref.name)
        tables = TableJobs(clock=clock, worker=worker)
        tables.pace.per_second = limits.max_deletes_per_second
        tables.specs[self._name] = TableSpec(
            ref=table.ref,
            # A run is short: it rechecks snapshots in every cycle.
            request=replace(request, look_interval_ms=0),
            open=lambda _: table,
        )
        self._compactor = tables.open(self._name)
        own = OwnThread()
        self._runner = JobRunner(
            tables=tables,
            jobs=own,
            maintenance=own,
            engine=self._running_engine,
            restart=self._engine_hangs,
            ended=self._job_ended,
        )
        self.totals = CompactTotals()
        # Whether workers of this run did not end: the engine must not serve another run.
        self.leaves_workers = False
        self._scheduler = Scheduler(
            retry=_RETRY,
            wall=WallTime(worker.zone),
            observers=(self, *observers),
            jobs_max=_JOBS_MAX,
            limits=limits,
            kinds=(),
        )
        # The first decision needs a free slot, before the run knows whether it needs an engine.
        self._scheduler.slots = 1
        self._scheduler.add(self._name, table.ref, _POLICY, clock.steady_ms())
        self._start_s = 0.0
        self._failed_cycles = 0
        self._is_planned = False
        # Number of published snapshots at the last poll without other work.
        self._polled_after = 0

    def run(self) -> CompactTotals:
        """Compact until a plan is empty, or until `stop` is set.

        Failed buckets are quarantined and named in the totals. Raises errors of the whole table;
        the totals then hold what was published before.
        """
        self._start_s = self._clock.monotonic_s()
        try:
            while not self._stop.is_set() and (
                self._carry_out() or self._receive() or self._stand_by() or self._poll_again()
            ):
                pass
        except EngineUnavailable:
            # A signal to the process group ends the engine as well: treat that as the stop.
            if not self._stop.is_set():
                raise
        finally:
            self.totals.stopped = self._stop.is_set()
            self._total_up(self._table.counters)
            self._abandon()
        return self.totals

    def maintain(self, kind: AnyKind) -> Mapping[str, int]:
        """One round of maintenance before the run; returns its counters by name.

        Logs a failure and continues the run.
        """
        self._runner.run(effects.MaintenanceJob(name=self._name, kind=kind, under_way=None))
        return self._table.rounds_of(kind.name).counts

    @property
    def _table(self) -> ScheduledTable:
        return self._scheduler.tables[self._name]

    def _carry_out(self) -> bool:
        """Run all effects that are due now; returns whether there were any."""
        if self._engine is not None:
            # Twice the slots: the engine has work while a snapshot is published.
            self._scheduler.at_once = self._engine.capacity
            self._scheduler.slots = 2 * self._engine.capacity
        now_ms = self._clock.steady_ms()
        # One at a time: a lost engine changes what starts next.
        given_up = self._scheduler.give_up_hung(now_ms)
        for each in given_up:
            self._runner.run(each)
        begun = self._scheduler.decide(now_ms)
        for effect in begun:
            self._begin(effect)
        return bool(given_up or begun)

    def _begin(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.DispatchJob):
            # The engine is not running yet, or has grown or shrunk since.
            (record,) = self._table.with_status(Status.PLANNED)
            free = 1
            if record.pending.reads_files:
                free = self._running_engine().capacity - self._scheduler.engine.running
            effect = replace(effect, free_slots=max(1, free))
        self._runner.run(effect)

    def _engine_hangs(self, why: str) -> None:
        """End the run unless it is over: a run for one table does not restart the engine."""
        self.leaves_workers = True
        has_more = bool(self._table.offered or self._table.in_flight)
        self._scheduler.engine_lost(why, self._clock.steady_ms())
        if has_more:
            raise EngineUnavailable(f"the rest was not compacted: {why}")

    # -- results of jobs

    def _job_ended(self, job: effects.Job, outcome: effects.JobOutcome, seconds: float) -> None:
        now_ms = self._clock.steady_ms()
        self._scheduler.job_ended(job, outcome, seconds, now_ms)
        match job, outcome:
            case effects.CycleJob(ended=ended), CycleResult():
                self._cycle_ended(ended, outcome)
            case _, InFlight():
                self._progress.planned(self._compactor.table, outcome.compaction)
            case _, InputsReplaced():
                # The bucket has changed: it is planned again.
                self._scheduler.poll_now(self._name, now_ms)

    def _cycle_ended(self, ended: Sequence[InFlight], cycle: CycleResult) -> None:
        commit = cycle.commit
        if isinstance(commit, Committed):
            published = commit.compaction_ids
            stats = [s for each in ended if each.compaction_id in published for s in each.stats]
            self.totals.worker_cpu_s += sum(each.cpu_s for each in stats)
            peaks = [self.totals.peak_worker_rss_bytes, *(each.peak_rss_bytes for each in stats)]
            self.totals.peak_worker_rss_bytes = max(peaks)
            self._progress.committed(commit.snapshot_id)
        for lost in cycle.lost_commits:
            is_back = lost.outcome is LossOutcome.HEALED
            (self.totals.lost_commits if is_back else self.totals.failures).append(str(lost))
        if cycle.error is not None:
            self._failed_cycles += 1
            is_transient = isinstance(cycle.error, TransientStorageError)
            if not is_transient or self._failed_cycles == _CYCLE_ATTEMPTS:
                raise cycle.error
            _log.warning("cycle_retry", attempt=self._failed_cycles, error=str(cycle.error))
            self._clock.sleep(_RETRY_WAIT_S * 2**self._failed_cycles)
            self._scheduler.poll_now(self._name, self._clock.steady_ms())
            return
        self._failed_cycles = 0
        if cycle.planned is not None:
            now_ms = self._clock.now_ms()
            self.totals.resting = {
                each.partition: cooldown_text(each.rewrite, now_ms - each.rewrite.time_ms)
                for each in cycle.planned.cooling_down
            }
        if not self._is_planned and cycle.planned is not None:
            self._is_planned = True
            self._note_absent_partitions()
        if cycle.merge_error is not None:
            # No later plan would retry.
            raise cycle.merge_error

    def _note_absent_partitions(self) -> None:
        """Use the first plan: later plans may find fewer partitions."""
        last_plan = self._compactor.last_plan
        assert last_plan is not None, "a cycle has just planned"
        wanted = PartitionTest(last_plan.table, self._partitions)
        live = (bucket.partition for bucket in last_plan.state.files.bucket_ids())
        self.totals.absent_partitions = wanted.absent(live)

    # -- totals

    def on_event(self, event: Event) -> None:
        """Observe the scheduler; the table's log already has the events that are ignored here."""
        totals = self.totals
        match event:
            case SnapshotCommitted(commit=commit):
                totals.snapshots.append(commit.snapshot_id)
                totals.seconds = self._clock.monotonic_s() - self._start_s - totals.start_seconds
            case BucketQuarantined(bucket=bucket, quarantined=quarantined):
                # For the rest of the run.
                why, partition = quarantined.message, quarantined.partition
                # At this level since the result of the command has it too.
                _log.info("compaction_failed", partition=partition, bucket=bucket.bucket, error=why)
                place = f"partition {partition} " if partition else ""
                totals.failures.append(f"{place}bucket {bucket.bucket}: {why}")
                totals.denied += quarantined.error in _DENIED
            case SnapshotLost(why=why):
                totals.lost_snapshots.append(why)

    def _total_up(self, counters: TableCounters) -> None:
        totals, outcomes = self.totals, Counter[Outcome]()
        for (_, outcome), number in counters.compactions.items():
            outcomes[outcome] += number
        totals.compactions, totals.dropped = outcomes[Outcome.COMMITTED], outcomes[Outcome.CONFLICT]
        totals.files_in, totals.files_out = counters.input_files, counters.output_files
        totals.bytes_in, totals.bytes_out = counters.input_bytes, counters.output_bytes
        totals.rows_in, totals.rows_out = counters.input_records, counters.output_records
        totals.upgraded_files, totals.wasted_bytes = counters.upgraded_files, counters.wasted_bytes

    # -- waiting

    def _receive(self) -> bool:
        """Process the outcomes received so far; False if no more can arrive.

        Waits for the first one, but only briefly, to notice signals.
        """
        scheduler = self._scheduler
        # Give a hung worker time to remove its files and end.
        if not (scheduler.engine.running or scheduler.engine.hung):
            return False
        outcome = self._running_engine().next_outcome(timeout_s=0.2)
        while outcome is not None:
            self._take_in(outcome)
            outcome = self._running_engine().next_outcome(timeout_s=0)
        return True

    def _stand_by(self) -> bool:
        """Wait while our last snapshot may still be replaced; False if no wait is needed."""
        wait_ms = self._table.settling_until_ms - self._clock.steady_ms()
        if wait_ms <= 0:
            return False
        self._progress.waiting(wait_ms)
        while wait_ms > 0 and not self._stop.is_set():
            self._clock.sleep(min(wait_ms / 1000, _STOP_POLL_S))
            wait_ms = self._table.settling_until_ms - self._clock.steady_ms()
        return True

    def _poll_again(self) -> bool:
        """Poll after our snapshots: writers may have committed, and manifests may be due."""
        published = len(self.totals.snapshots)
        if published == self._polled_after:
            return False
        self._polled_after = published
        self._scheduler.poll_now(self._name, self._clock.steady_ms())
        return True

    def _take_in(self, outcome: SubcompactionOutcome) -> None:
        self._scheduler.subcompaction_ended(outcome, self._clock.steady_ms())
        record = self._table.compactions.get(outcome.compaction_id)
        if record is None or record.status is not Status.FINISHED:
            return
        if record.failure is None:
            self._progress.finished(record.in_flight)

    def _running_engine(self) -> Engine:
        """The engine, started at its first use: a run that reads no file needs none."""
        if self._engine is None:
            start = self._clock.monotonic_s()
            self._engine = self._start_engine()
            self.totals.start_seconds = self._clock.monotonic_s() - start
        return self._engine

    def _abandon(self) -> None:
        """After a stop or an error, cancel running work and remove outputs of finished work."""
        self._scheduler.drain(self._clock.steady_ms())
        self._scheduler.end()
        if self._engine is not None and self._scheduler.engine.running:
            self._engine.cancel()
            while self._scheduler.engine.running:
                outcome = self._engine.next_outcome(_CANCEL_WAIT_S)
                if outcome is None:
                    break
                self._take_in(outcome)
        self._scheduler.engine_lost("stopped", self._clock.steady_ms())
        for effect in self._scheduler.decide(self._clock.steady_ms()):
            self._runner.run(effect)
