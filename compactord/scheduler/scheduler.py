"""The scheduler: what each table does next. Pure; no threads, no clock.

Pure except for its state.

Nothing here blocks, reads a clock or touches a store: the daemon runs the effects and brings
their results back as events, and a simulation does the same on a virtual clock. One thread uses it.

Bounds: one cycle or dispatch at a time for each table, and about `jobs_max` over all tables, shared
by their catalogs (`Jobs`), and rounds of maintenance in the same way; at most `slots`
subcompactions at the engine; for each table at most the compactions that one plan offers.

Subcompactions end, hang, or are lost with the engine. Pure except for its state.

The same for all kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from compactord.clock import WallTime
from compactord.config.model import Limits, Retry
from compactord.config.policy import TablePolicy
from compactord.errors import CompactordError, ErrorKind
from compactord.maintenance.kind import AnyKind, MaintenanceRecord, Round, UnderWay
from compactord.model import (
    CompactReason,
    Conflict,
    FailureKind,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
    TableName,
    WorkKind,
)
from compactord.paimon.schema import TableRef
from compactord.scheduler import effects
from compactord.scheduler.accounting import Accounting, is_undecided
from compactord.scheduler.compaction import CompactionRecord, Outcome, Status
from compactord.scheduler.cycles import Cycles
from compactord.scheduler.effects import Cancel, MaintenanceJob, RemoveOutputs, RestartEngine
from compactord.scheduler.events import NotDispatched, Observer, Polled, SubcompactionHung
from compactord.scheduler.halts import Failure
from compactord.scheduler.scheduled_table import HUNG_JOB_MS, ScheduledTable
from compactord.scheduler.slots import Jobs, Slots
from compactord.table.jobs import CycleResult, InFlight, InputsReplaced, Planned


class Compactions:
    """Ends of compactions: outcomes, hung workers, a lost engine."""

    def __init__(self, accounting: Accounting, slots: Slots, cycles: Cycles) -> None:
        self._accounting = accounting
        self._slots = slots
        self._cycles = cycles
        # Results that came too late, whose files must be removed.
        self._late: list[RemoveOutputs] = []

    def take_late(self) -> list[RemoveOutputs]:
        """Returns the late results, once."""
        late, self._late = self._late, []
        return late

    def subcompaction_ended(self, outcome: SubcompactionOutcome, now_ms: int) -> None:
        """Records an outcome; if the compaction has ended, only its files are removed."""
        submitted = self._slots.engine.ended((outcome.compaction_id, outcome.index))
        if submitted is None:
            return
        record = submitted.record
        if submitted.is_abandoned:
            if isinstance(outcome, SubcompactionResult) and outcome.outputs:
                work = submitted.subcompaction
                self._late.append(RemoveOutputs(subcompaction=work, result=outcome))
            return
        record.table.version += 1
        self._slots.want(record.table)
        attempts_max = 1 if self._cycles.is_draining else self._accounting.retry.task_attempts
        record.in_flight.record_outcome(outcome, record.table.name, attempts_max=attempts_max)
        self.record_outcome(record, now_ms)

    def engine_lost(self, tables: Iterable[ScheduledTable], why: str, now_ms: int) -> None:
        """Books lost subcompactions: their compactions are planned again, no table has failed."""
        self._slots.engine.clear()
        for scheduled in tables:
            for record in [r for r in scheduled.compactions.values() if r.is_under_way]:
                self.abandon(record, why, now_ms)
                if record.started_ms and not self._cycles.is_draining:
                    self._accounting.engine_died(record, why, now_ms)

    def give_up_hung(self, at_once: int, now_ms: int) -> list[Cancel | RestartEngine]:
        """Ends compactions whose subcompactions have exceeded their time limit.

        Their buckets are quarantined, and their workers cancelled. If that has no effect, the
        engine is restarted. `at_once` is the engine's parallelism.
        """
        effects: list[Cancel | RestartEngine] = []
        for each in list(self._slots.engine.overdue(at_once, now_ms)):
            record = each.record
            ran_ms = now_ms - each.began_ms
            record.table.tell(
                SubcompactionHung(name=record.table.name, submitted=each, ran_ms=ran_ms)
            )
            if each.is_abandoned:
                # Its compaction has ended before, and it was cancelled then.
                continue
            record.table.version += 1
            index, seconds = each.subcompaction.index, each.limit_ms // 1000
            record.timed_out(index, size_bytes=each.size_bytes, seconds=seconds)
            self.record_outcome(record, now_ms)
            left = self._slots.engine.of_compaction(record.compaction_id)
            effects += [Cancel(subcompaction=other.subcompaction) for other in left]
            self._slots.want(record.table)
        why = None if self._cycles.is_draining else self._slots.engine.why_restart(now_ms)
        if why is not None:
            effects.append(RestartEngine(why=why))
        return effects

    def record_outcome(self, record: CompactionRecord, now_ms: int) -> None:
        """Leaves a compaction that has ended at the workers to the table's next cycle."""
        if record.in_flight.result is None:
            return
        failure = record.failure
        if failure is not None:
            # The table's next choice may be this bucket.
            record.table.best_candidate = None
            if not is_undecided(failure):
                self._failed(record, failure, now_ms)
        record.finished(now_ms)
        self._cycles.want(record.table)

    def drop_unsubmitted(self, scheduled: ScheduledTable, why: str, now_ms: int) -> None:
        for record in scheduled.with_status(Status.DISPATCHED):
            self.abandon(record, why, now_ms)

    def abandon(self, record: CompactionRecord, why: str, now_ms: int) -> None:
        """Ends a compaction whose outcomes will not arrive; it is no failure of the table."""
        self._accounting.ended(record, Outcome.CANCELLED, why, now_ms)
        record.in_flight.abandon(_lost(why))
        record.finished(now_ms)
        self._cycles.want(record.table)

    def _failed(self, record: CompactionRecord, failure: SubcompactionFailure, now_ms: int) -> None:
        is_stopped = self._cycles.is_draining and failure.kind is FailureKind.LOST
        outcome = Outcome.CANCELLED if is_stopped else Outcome.FAILED
        self._accounting.ended(record, outcome, failure.message, now_ms)
        if not is_stopped:
            failed = Failure(message=failure.message, error=failure.error)
            self._accounting.bucket_failed(record, failed, now_ms)


def _lost(why: str) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=0, index=0, kind=FailureKind.LOST, error=ErrorKind.CANCELLED, message=why
    )


# Parallel rounds: at most two of one catalog next to rounds of others. Rounds need memory.
ROUNDS_MAX = 8
# Threads that only short rounds use.
_SHORT_ROUNDS = 2


class Maintenance:
    """The running rounds of all tables; `jobs` shares the threads among catalogs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        # Whether a second has passed since `begin` looked.
        self._has_ticked = False
        # Catalogs with a round that may be due before the next second, and waiting catalogs.
        self._due: set[str] = set()
        self._waiting: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether a round may begin now."""
        return self._has_ticked or bool(self._due)

    def tick(self, tables: Collection[ScheduledTable], now_ms: int) -> None:
        """Called every second: overlong rounds no longer hold up others."""
        self._has_ticked = True
        for scheduled in tables:
            running = scheduled.maintenance
            if running is not None and now_ms - running.since_ms > HUNG_JOB_MS:
                self._jobs.hung(scheduled.name)

    def begin(
        self,
        tables: Collection[ScheduledTable],
        kinds: Sequence[AnyKind],
        *,
        now_ms: int,
        wall: WallTime,
    ) -> Iterator[MaintenanceJob]:
        """Starts the rounds that may begin now; none before a table's first plan.

        Least recently maintained tables first. A round spares the files of running work.
        A catalog has one long round at a time, with its folder to itself: branches have their files
        in the table's. If only short ones have place, these are looked for once a second.
        """
        ticks, self._has_ticked = self._has_ticked, False
        looked = set(self._jobs.catalogs) if ticks else self._due
        self._due = set()
        open_to_short, open_ = self._open_to(looked, ticks)
        self._waiting -= looked
        if not open_to_short:
            self._waiting |= looked
            return
        # Whether the folder's round is a long one.
        running = {
            each.ref.location: job.kind.is_long for each in tables if (job := each.maintenance)
        }
        have_long = _with_long_rounds(tables, now_ms)
        for scheduled in sorted(tables, key=lambda scheduled: scheduled.maintained_ms):
            location, catalog = scheduled.ref.location, scheduled.name.catalog
            if catalog not in looked or not _may(scheduled):
                continue
            if catalog not in open_to_short or running.get(location):
                self._waiting.add(catalog)
                continue
            may_be_long = location not in running and catalog not in have_long
            able = [
                kind
                for kind in kinds
                if (kind.is_short or catalog in open_)
                and (may_be_long or not kind.is_long)
                and kind.is_due(scheduled, scheduled.rounds_of(kind.name), now_ms, wall)
            ]
            if catalog not in open_ or not may_be_long:
                self._waiting.add(catalog)
            if able:
                kind = _first(scheduled, able, kinds)
                running[location] = kind.is_long
                if kind.is_long:
                    have_long.add(catalog)
                self._jobs.began(scheduled.name)
                yield _start_round(scheduled, kind, tables, now_ms=now_ms, wall=wall)
                open_to_short, open_ = self._open_to(looked, ticks)
                if not open_to_short:
                    self._waiting |= looked
                    return

    def _open_to(self, catalogs: Collection[str], ticks: bool) -> tuple[set[str], set[str]]:
        """The catalogs that may begin short rounds, and the catalogs that may begin any."""
        may_begin = self._jobs.may_begin
        to_all = {each for each in catalogs if may_begin(each, spare=_SHORT_ROUNDS)}
        return ({each for each in catalogs if may_begin(each)} if ticks else to_all), to_all

    def ended(self, scheduled: ScheduledTable, kind: AnyKind, round_: Round, now_ms: int) -> None:
        """Records a round's end; the same kind is due at once if there is more to do."""
        self._jobs.ended(scheduled.name)
        self._due |= self._waiting
        if round_.more:
            self._due.add(scheduled.name.catalog)
        scheduled.maintenance = None
        record = scheduled.rounds.setdefault(kind.name, MaintenanceRecord())
        # A cycle may have found new snapshots meanwhile.
        record.has_news = record.has_news or round_.more
        record.ended_ms = 0 if round_.more else now_ms
        record.counts.update(round_.counts)
        record.why_not = round_.why_not or ""
        if round_.has_failed:
            record.snapshot_id = 0
        else:
            record.succeeded_ms = now_ms


def _with_long_rounds(tables: Collection[ScheduledTable], now_ms: int) -> set[str]:
    """The catalogs that have a long round, unless it hangs."""
    return {
        each.name.catalog
        for each in tables
        if (job := each.maintenance) is not None
        and job.kind.is_long
        and not each.is_maintenance_hung(now_ms)
    }


def _may(scheduled: ScheduledTable) -> bool:
    """Whether the table may begin a round."""
    if scheduled.maintenance is not None or scheduled.planned is None or scheduled.is_leaving:
        return False
    return scheduled.is_worked_on and not scheduled.keeps_snapshots


def _first(
    scheduled: ScheduledTable, able: Collection[AnyKind], kinds: Collection[AnyKind]
) -> AnyKind:
    """The kind that goes first: a short one; among others the one that began longest ago.

    A short one goes first once: then others have their turn, however often short ones are due.
    """

    def began_ms(kind: AnyKind) -> int:
        return scheduled.rounds_of(kind.name).began_ms

    others_ms = max((began_ms(kind) for kind in kinds if not kind.is_short), default=0)

    def rank(kind: AnyKind) -> tuple[bool, bool, int]:
        return kind.is_short and began_ms(kind) > others_ms, not kind.is_short, began_ms(kind)

    return min(able, key=rank)


def _start_round(
    scheduled: ScheduledTable,
    kind: AnyKind,
    tables: Collection[ScheduledTable],
    *,
    now_ms: int,
    wall: WallTime,
) -> MaintenanceJob:
    # Branches have their files in the same folders.
    sharing = [each for each in tables if each.ref.location == scheduled.ref.location]
    began_ms = min(each.under_way_since_ms(now_ms) for each in sharing)
    under_way = UnderWay(
        since_ms=wall.lowest_since(began_ms),
        for_ms=now_ms - began_ms,
        reads_from=scheduled.oldest_read_snapshot(now_ms),
    )
    scheduled.maintenance = job = MaintenanceJob(
        name=scheduled.name,
        since_ms=now_ms,
        kind=kind.for_table(scheduled.policy),
        under_way=under_way,
    )
    scheduled.maintained_ms = now_ms
    record = scheduled.rounds.setdefault(kind.name, MaintenanceRecord())
    record.began_ms, record.has_news = now_ms, False
    record.snapshot_id = scheduled.snapshot_id
    return job


class Scheduler:
    """Schedules all tables. Times are steady (`Clock.steady_ms`): they never jump.

    `wall` converts steady time to the wall clock's, for windows; the code that detects a change of
    the wall clock updates it.
    """

    def __init__(
        self,
        *,
        retry: Retry,
        wall: WallTime,
        observers: Sequence[Observer],
        jobs_max: int,
        limits: Limits,
        kinds: Sequence[AnyKind],
    ) -> None:
        self.tables: dict[TableName, ScheduledTable] = {}
        self.slots = 0
        # The engine's parallelism, if that is not `slots`.
        self.at_once: int | None = None
        self.wall = wall
        self.accounting = Accounting(retry)
        self.recent = self.accounting.recent
        self.picks: Counter[tuple[WorkKind, CompactReason]] = Counter()
        # Plans received so far.
        self.plans = 0
        self._observers = observers
        self._kinds = kinds
        # Catalogs whose store or server does not respond.
        self._silent: set[str] = set()
        self._jobs = Jobs(jobs_max, self._silent)
        self._rounds = Jobs(ROUNDS_MAX, self._silent)
        self._slots = Slots(jobs=self._jobs, wall=wall, limits=limits)
        self.engine = self._slots.engine
        self._cycles = Cycles(self._jobs, self._slots)
        self._compactions = Compactions(self.accounting, self._slots, self._cycles)
        self._maintenance = Maintenance(self._rounds)
        self._added = 0
        self._leaving: dict[TableName, None] = {}

    # -- queries

    @property
    def is_draining(self) -> bool:
        """Whether no new work begins."""
        return self._cycles.is_draining

    @property
    def is_ending(self) -> bool:
        """Whether no new commit may begin."""
        return self._cycles.is_ending

    def last_progress_ms(self, now_ms: int) -> int:
        """The last start or end of a cycle or dispatch if no other can begin now; else `now_ms`.

        No other can begin if all threads that a table may have are taken.
        """
        jobs = [each.job.since_ms for each in self.tables.values() if each.job is not None]
        is_free = any(
            each.job is None and self._jobs.may_begin(each.name.catalog)
            for each in self.tables.values()
        )
        return now_ms if is_free or not jobs else max(jobs)

    @property
    def is_idle(self) -> bool:
        """Whether no table has running work."""
        return all(scheduled.is_idle for scheduled in self.tables.values())

    @property
    def has_results(self) -> bool:
        """Whether merges run, or have results that are being committed or will be."""
        return any(
            record.status is Status.RUNNING
            or (
                record.has_result
                and not isinstance(scheduled.job, effects.DiscardJob)
                and not (self.is_ending and record.status is Status.FINISHED)
            )
            for scheduled in self.tables.values()
            for record in scheduled.compactions.values()
        )

    def configure(self, *, retry: Retry, limits: Limits, kinds: Sequence[AnyKind]) -> None:
        """Uses other settings for work that begins from now on."""
        self.accounting.retry = retry
        self._slots.limits = limits
        self._kinds = kinds

    def set_policy(self, name: TableName, policy: TablePolicy) -> None:
        """Sets the table's policy from now on."""
        scheduled = self._touched(name)
        if not scheduled.is_worked_on:
            self._slots.forget_credit(scheduled)
        scheduled.policy, scheduled.best_candidate_expires_ms = policy, 0
        self._slots.want(scheduled)

    # -- events

    def add(self, name: TableName, ref: TableRef, policy: TablePolicy, now_ms: int) -> None:
        """Serves the table from now on; a table that was leaving stays."""
        known = self.tables.get(name)
        if known is not None:
            known.is_leaving = False
            self._leaving.pop(name, None)
            return
        self._added += 1
        scheduled = ScheduledTable(
            name=name, ref=ref, policy=policy, index=self._added, observers=self._observers
        )
        self.tables[name] = scheduled
        self._jobs.added(name)
        self._rounds.added(name)
        self.poll_due(name, now_ms)

    def poll_now(self, name: TableName, now_ms: int) -> None:
        """Polls the table now, regardless of its pause after a failure."""
        scheduled = self._touched(name)
        scheduled.next_try_ms = scheduled.next_poll_ms = 0
        self.poll_due(name, now_ms)

    def try_again(self, name: TableName, now_ms: int) -> None:
        """Operator retry: poll now and retry failures.

        A table that must not be changed is resumed.
        """
        scheduled = self._touched(name)
        if scheduled.is_unsafe:
            self.accounting.acknowledge(scheduled)
        if scheduled.end_pauses(now_ms):
            self._slots.want(scheduled)
            self.poll_due(name, now_ms)

    def remove(self, name: TableName) -> None:
        """Stops new work of the table, and forgets it once its running work has ended."""
        self.tables[name].is_leaving = True
        self._leaving[name] = None

    def poll_due(self, name: TableName, now_ms: int) -> None:
        """Records that the poll interval has passed. A table that already waits keeps its place."""
        scheduled = self.tables.get(name)
        if scheduled is not None and scheduled.poll_due_ms is None:
            scheduled.poll_due_ms = now_ms
            self._cycles.want(scheduled)

    def store_unresponsive(self, catalog: str, why: str) -> None:
        """Pauses the catalog's tables until `store_answers`; they show the reason."""
        if self.is_draining:
            return
        self._silent.add(catalog)
        for name in self.tables:
            if name.catalog == catalog:
                self._touched(name).error = why

    def store_answers(self, catalog: str, now_ms: int) -> None:
        """Polls the catalog's tables at once, since its store responds again."""
        self._silent.discard(catalog)
        for name, scheduled in self.tables.items():
            if name.catalog == catalog:
                self.poll_now(name, now_ms)
                self._slots.want(scheduled)

    def job_ended(
        self, job: effects.Job, outcome: effects.JobOutcome, seconds: float, now_ms: int
    ) -> None:
        """Records a job's outcome, after `seconds`."""
        scheduled = self._touched(job.name)
        if isinstance(job, effects.MaintenanceJob):
            round_ = outcome if isinstance(outcome, Round) else Round(has_failed=True)
            self._maintenance.ended(scheduled, job.kind, round_, now_ms)
            self.accounting.maintained(scheduled, job, seconds, round_)
            return
        scheduled.job = None
        self._jobs.ended(job.name)
        match job, outcome:
            case effects.CycleJob(), CycleResult():
                self._cycle_ended(scheduled, outcome, seconds, now_ms)
            case effects.DispatchJob(), InFlight():
                self._dispatched(scheduled, outcome, now_ms)
            case effects.DispatchJob(), (None | InputsReplaced() | CompactordError()):
                self._not_dispatched(scheduled, outcome, now_ms)
            case effects.DiscardJob(), _:
                self._discarded(scheduled, now_ms)
            case _:
                raise AssertionError(f"{outcome} is no outcome of {job}")
        if scheduled.has_finished or scheduled.poll_due_ms is not None:
            self._cycles.want(scheduled)

    def _cycle_ended(
        self, scheduled: ScheduledTable, cycle: CycleResult, seconds: float, now_ms: int
    ) -> None:
        before = scheduled.planned
        self.accounting.settled(scheduled, cycle, now_ms)
        self.accounting.polled(scheduled, cycle, now_ms)
        if cycle.planned is not None:
            self._take_offered(scheduled, cycle.planned, now_ms)
            for record in scheduled.rounds.values():
                record.has_news = True
        if cycle.wait_ms:
            # Offered work was planned before our newest snapshot, and is planned again.
            scheduled.settling_until_ms = now_ms + cycle.wait_ms
            scheduled.offered.clear()
            scheduled.best_candidate_expires_ms = 0
            self.poll_due(scheduled.name, now_ms)
        if scheduled.offered:
            self._slots.want(scheduled)
        scheduled.tell(
            Polled(name=scheduled.name, seconds=seconds, planned=cycle.planned, before=before)
        )

    def _dispatched(self, scheduled: ScheduledTable, in_flight: InFlight, now_ms: int) -> None:
        (record,) = scheduled.with_status(Status.PLANNED)
        self._slots.want(scheduled)
        record.status, record.dispatched = Status.DISPATCHED, in_flight
        scheduled.last_compaction_id = record.compaction_id
        self.picks[record.pending.kind, in_flight.compaction.reason] += 1
        if self.is_draining or scheduled.is_leaving:
            self._compactions.abandon(record, "stopped before it began", now_ms)
            return
        if in_flight.ended() is not None:
            # There is no subcompaction: files only change their level.
            record.mark_submitted(now_ms)
            self._compactions.record_outcome(record, now_ms)

    def _not_dispatched(
        self, scheduled: ScheduledTable, why: InputsReplaced | CompactordError | None, now_ms: int
    ) -> None:
        (record,) = scheduled.with_status(Status.PLANNED)
        self._slots.want(scheduled)
        del scheduled.compactions[record.compaction_id]
        match why:
            case None:
                outcome = Outcome.EMPTY
            case InputsReplaced(why=text):
                outcome = Outcome.CONFLICT
                scheduled.last_compaction_id = record.compaction_id
                self.accounting.conflicted(record, Conflict.FILE_REMOVED, text, now_ms)
            case CompactordError():
                outcome = Outcome.FAILED
                self.accounting.bucket_failed(record, Failure.of(why), now_ms)
        scheduled.tell(
            NotDispatched(name=scheduled.name, kind=record.pending.kind, outcome=outcome)
        )

    def _discarded(self, scheduled: ScheduledTable, now_ms: int) -> None:
        for record in scheduled.with_status(Status.COMMITTING):
            del scheduled.compactions[record.compaction_id]
            if record.outcome is None:
                why = "stopped before it could be committed"
                self.accounting.ended(record, Outcome.CANCELLED, why, now_ms)

    def subcompaction_ended(self, outcome: SubcompactionOutcome, now_ms: int) -> None:
        """Records an outcome; if the compaction has ended, only its files are removed."""
        self._compactions.subcompaction_ended(outcome, now_ms)

    def engine_lost(self, why: str, now_ms: int) -> None:
        """Books lost subcompactions: their compactions are planned again, no table has failed."""
        self._compactions.engine_lost(self.tables.values(), why, now_ms)

    def drain(self, now_ms: int) -> None:
        """Begins no new work; compactions without a submitted subcompaction are dropped."""
        self._cycles.is_draining = True
        # Finished compactions are committed or discarded, even if a store does not respond.
        self._silent.clear()
        for scheduled in self.tables.values():
            scheduled.offered.clear()
            scheduled.best_candidate_expires_ms = 0
            self._compactions.drop_unsubmitted(scheduled, "stopped before it began", now_ms)

    def end(self) -> None:
        """Begins no more commits: compactions that finish from now on are discarded."""
        self._cycles.is_ending = True
        for scheduled in self.tables.values():
            for record in scheduled.with_status(Status.DISPATCHED, Status.RUNNING):
                record.in_flight.waiting.clear()
            if scheduled.has_finished:
                self._cycles.want(scheduled)

    def tick(self, now_ms: int) -> list[effects.Effect]:
        """Called about once a second: starts work that is due by the clock."""
        self._maintenance.tick(self.tables.values(), now_ms)
        for scheduled in self.tables.values():
            if scheduled.offered or scheduled.next_waiting:
                self._slots.want(scheduled)
        return [*self.give_up_hung(now_ms), *self.decide(now_ms)]

    def give_up_hung(self, now_ms: int) -> list[effects.Cancel | effects.RestartEngine]:
        """Ends compactions whose subcompactions have exceeded their time limit."""
        at_once = self.slots if self.at_once is None else self.at_once
        return self._compactions.give_up_hung(at_once, now_ms)

    # -- decisions

    def decide(self, now_ms: int) -> list[effects.Effect]:
        """Starts all work that can begin now."""
        for name in self._leaving:
            why = "its table is no longer served"
            self._compactions.drop_unsubmitted(self.tables[name], why, now_ms)
        found: list[effects.Effect] = [*self._compactions.take_late()]
        found += self._cycles.begin(now_ms)
        if not self.is_ending:
            found += self._slots.give(self.tables.values(), slots=self.slots, now_ms=now_ms)
        if self._maintenance.is_due and not self.is_draining:
            found += self._maintenance.begin(
                self.tables.values(), self._kinds, now_ms=now_ms, wall=self.wall
            )
        for name in list(self._leaving):
            scheduled = self.tables[name]
            if scheduled.is_idle:
                self._slots.forget(scheduled)
                self._cycles.forget(scheduled)
                self._jobs.removed(name)
                self._rounds.removed(name)
                del self._leaving[name], self.tables[name]
                found.append(effects.Forget(name=name))
        return found

    # -- what follows from outcomes

    def _touched(self, name: TableName) -> ScheduledTable:
        """The table, with its version increased so that its view is made again."""
        scheduled = self.tables[name]
        scheduled.version += 1
        return scheduled

    def _take_offered(self, scheduled: ScheduledTable, planned: Planned, now_ms: int) -> None:
        self.plans += 1
        had_work = bool(scheduled.offered or scheduled.in_flight)
        for record in scheduled.in_flight:
            record.started_after_plan = True
        scheduled.offered = (
            {} if self.is_draining else {pending.bucket: pending for pending in planned.offered}
        )
        scheduled.queued_ms = {b: scheduled.queued_ms.get(b, now_ms) for b in scheduled.offered}
        scheduled.best_candidate_expires_ms = 0
        if scheduled.offered and not had_work:
            self._slots.forget_credit(scheduled)
