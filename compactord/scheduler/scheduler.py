"""Decides what is done next, over all tables: events in, effects out. Pure except for its state.

Nothing here blocks, reads a clock or touches a store: the daemon runs the effects and brings
their results back as events, and a simulation does the same on a virtual clock. One thread uses it.

Bounds: one cycle or dispatch at a time for each table, and about `jobs_max` over all tables, shared
by their catalogs (`Jobs`), and rounds of maintenance in the same way; at most `slots`
subcompactions at the engine; for each table at most the compactions that one plan offers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from compactord.clock import WallTime
from compactord.commit.changes import Conflict
from compactord.config.model import Limits, Retry
from compactord.config.policy import TablePolicy
from compactord.errors import CompactordError
from compactord.maintenance.kind import AnyKind, Round
from compactord.model import CompactReason, SubcompactionOutcome, TableName, WorkKind
from compactord.paimon.schema import TableRef
from compactord.scheduler import effects
from compactord.scheduler.accounting import Accounting
from compactord.scheduler.compactions import Compactions
from compactord.scheduler.cycles import Cycles
from compactord.scheduler.events import NotDispatched, Observer, Polled
from compactord.scheduler.halts import Failure
from compactord.scheduler.maintenance import ROUNDS_MAX, Maintenance
from compactord.scheduler.record import Status
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.slots import Jobs, Slots
from compactord.scheduler.status import Outcome
from compactord.table.jobs import Cycle, InFlight, InputsReplaced, Planned


class Scheduler:
    """See the module. Times are steady (`Clock.steady_ms`): they never jump.

    `wall` converts steady time to the wall clock's, for windows; the code that detects a change of
    the wall clock updates it.
    """

    def __init__(
        self,
        *,
        retry: Retry,
        wall: WallTime,
        observer: Observer,
        jobs_max: int,
        limits: Limits,
        kinds: Sequence[AnyKind],
    ) -> None:
        self.tables: dict[TableName, ScheduledTable] = {}
        self.slots = 0
        # How many subcompactions the engine runs at a time, where that is not `slots`.
        self.at_once: int | None = None
        self.wall = wall
        self.accounting = Accounting(retry)
        self.recent = self.accounting.recent
        self.picks: Counter[tuple[WorkKind, CompactReason]] = Counter()
        # Plans received so far.
        self.plans = 0
        self._observer = observer
        self._kinds = kinds
        # Catalogs whose store or server does not answer.
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
        """Whether nothing new begins."""
        return self._cycles.is_draining

    @property
    def is_ending(self) -> bool:
        """Whether no new commit may begin."""
        return self._cycles.is_ending

    def last_progress_ms(self, now_ms: int) -> int:
        """When a cycle or dispatch began or ended last, if none can begin now; else `now_ms`.

        None can begin when all threads that a table may have are taken.
        """
        jobs = [each.job.since_ms for each in self.tables.values() if each.job is not None]
        is_free = any(
            each.job is None and self._jobs.may_begin(each.name.catalog)
            for each in self.tables.values()
        )
        return now_ms if is_free or not jobs else max(jobs)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way for any table."""
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
        """Use other settings for what begins from now on."""
        self.accounting.retry = retry
        self._slots.limits = limits
        self._kinds = kinds

    def set_policy(self, name: TableName, policy: TablePolicy) -> None:
        """Set the table's policy from now on."""
        scheduled = self._touched(name)
        if not scheduled.is_worked_on:
            self._slots.forget_credit(scheduled)
        scheduled.policy, scheduled.head_until_ms = policy, 0
        self._slots.want(scheduled)

    # -- events

    def add(self, name: TableName, ref: TableRef, policy: TablePolicy, now_ms: int) -> None:
        """Serve the table from now on; one that was leaving stays."""
        known = self.tables.get(name)
        if known is not None:
            known.is_leaving = False
            self._leaving.pop(name, None)
            return
        self._added += 1
        scheduled = ScheduledTable(
            name=name, ref=ref, policy=policy, index=self._added, observer=self._observer
        )
        self.tables[name] = scheduled
        self._jobs.added(name)
        self._rounds.added(name)
        self.poll_due(name, now_ms)

    def poll_now(self, name: TableName, now_ms: int) -> None:
        """Poll the table now, whatever pause its last failure has earned it."""
        scheduled = self._touched(name)
        scheduled.next_try_ms = scheduled.next_poll_ms = 0
        self.poll_due(name, now_ms)

    def try_again(self, name: TableName, now_ms: int) -> None:
        """An operator has mended something: poll the table and try what failed, at once.

        A table to which nothing may be committed is resumed.
        """
        scheduled = self._touched(name)
        if scheduled.is_unsafe:
            self.accounting.acknowledge(scheduled)
        if scheduled.end_pauses(now_ms):
            self._slots.want(scheduled)
            self.poll_due(name, now_ms)

    def remove(self, name: TableName) -> None:
        """Begin nothing new for the table, and forget it once its running work has ended."""
        self.tables[name].is_leaving = True
        self._leaving[name] = None

    def poll_due(self, name: TableName, now_ms: int) -> None:
        """The poll interval has passed. A table that already waits for a cycle keeps its place."""
        scheduled = self.tables.get(name)
        if scheduled is not None and scheduled.poll_due_ms is None:
            scheduled.poll_due_ms = now_ms
            self._cycles.want(scheduled)

    def store_silent(self, catalog: str, why: str) -> None:
        """Begin nothing for the catalog's tables until `store_answers`; they wait, and say why."""
        if self.is_draining:
            return
        self._silent.add(catalog)
        for name in self.tables:
            if name.catalog == catalog:
                self._touched(name).error = why

    def store_answers(self, catalog: str, now_ms: int) -> None:
        """It is asked again: the catalog's tables are polled at once."""
        self._silent.discard(catalog)
        for name, scheduled in self.tables.items():
            if name.catalog == catalog:
                self.poll_now(name, now_ms)
                self._slots.want(scheduled)

    def job_ended(
        self, job: effects.Job, outcome: effects.JobOutcome, seconds: float, now_ms: int
    ) -> None:
        """A job has ended, after `seconds`."""
        scheduled = self._touched(job.name)
        if isinstance(job, effects.MaintenanceJob):
            round_ = outcome if isinstance(outcome, Round) else Round(has_failed=True)
            self._maintenance.ended(scheduled, job.kind, round_, now_ms)
            self.accounting.maintained(scheduled, job, seconds, round_)
            return
        scheduled.job = None
        self._jobs.ended(job.name)
        match job, outcome:
            case effects.CycleJob(), Cycle():
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
        self, scheduled: ScheduledTable, cycle: Cycle, seconds: float, now_ms: int
    ) -> None:
        before = scheduled.planned
        self.accounting.settled(scheduled, cycle, now_ms)
        self.accounting.polled(scheduled, cycle, now_ms)
        if cycle.planned is not None:
            self._take_offered(scheduled, cycle.planned, now_ms)
            for record in scheduled.rounds.values():
                record.has_news = True
        if cycle.wait_ms:
            # What was offered was planned before our newest snapshot, and is planned again.
            scheduled.held_until_ms = now_ms + cycle.wait_ms
            scheduled.offered.clear()
            scheduled.head_until_ms = 0
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
        scheduled.last_number = record.number
        self.picks[record.pending.kind, in_flight.compaction.reason] += 1
        if self.is_draining or scheduled.is_leaving:
            self._compactions.give_up(record, "stopped before it began", now_ms)
            return
        if in_flight.ended() is not None:
            # Nothing to submit: files only change their level.
            record.begun(now_ms)
            self._compactions.arrived(record, now_ms)

    def _not_dispatched(
        self, scheduled: ScheduledTable, why: InputsReplaced | CompactordError | None, now_ms: int
    ) -> None:
        (record,) = scheduled.with_status(Status.PLANNED)
        self._slots.want(scheduled)
        del scheduled.compactions[record.number]
        match why:
            case None:
                outcome = Outcome.EMPTY
            case InputsReplaced(why=text):
                outcome = Outcome.CONFLICT
                scheduled.last_number = record.number
                self.accounting.conflicted(record, Conflict.FILE_REMOVED, text, now_ms)
            case CompactordError():
                outcome = Outcome.FAILED
                self.accounting.bucket_failed(record, Failure.of(why), now_ms)
        scheduled.tell(
            NotDispatched(name=scheduled.name, kind=record.pending.kind, outcome=outcome)
        )

    def _discarded(self, scheduled: ScheduledTable, now_ms: int) -> None:
        for record in scheduled.with_status(Status.COMMITTING):
            del scheduled.compactions[record.number]
            if record.outcome is None:
                why = "stopped before it could be committed"
                self.accounting.ended(record, Outcome.CANCELLED, why, now_ms)

    def subcompaction_ended(self, outcome: SubcompactionOutcome, now_ms: int) -> None:
        """It has succeeded or failed; of a compaction that has ended only files are removed."""
        self._compactions.subcompaction_ended(outcome, now_ms)

    def engine_lost(self, why: str, now_ms: int) -> None:
        """All subcompactions are lost: their compactions are planned again, no table has failed."""
        self._compactions.engine_lost(self.tables.values(), why, now_ms)

    def drain(self, now_ms: int) -> None:
        """Begin nothing new; compactions of which nothing has begun are dropped."""
        self._cycles.is_draining = True
        # What has finished is committed or discarded, whatever a store does.
        self._silent.clear()
        for scheduled in self.tables.values():
            scheduled.offered.clear()
            scheduled.head_until_ms = 0
            self._compactions.drop_unbegun(scheduled, "stopped before it began", now_ms)

    def end(self) -> None:
        """Begin no more commits: compactions that finish from now on are discarded."""
        self._cycles.is_ending = True
        for scheduled in self.tables.values():
            for record in scheduled.with_status(Status.DISPATCHED, Status.RUNNING):
                record.in_flight.waiting.clear()
            if scheduled.has_finished:
                self._cycles.want(scheduled)

    def tick(self, now_ms: int) -> list[effects.Effect]:
        """Called about once a second: starts what is due by the clock alone."""
        self._maintenance.tick(self.tables.values(), now_ms)
        for scheduled in self.tables.values():
            if scheduled.offered or scheduled.next_waiting:
                self._slots.want(scheduled)
        return [*self.give_up_hung(now_ms), *self.decide(now_ms)]

    def give_up_hung(self, now_ms: int) -> list[effects.Cancel | effects.RestartEngine]:
        """End compactions whose subcompactions have run for longer than they may."""
        at_once = self.slots if self.at_once is None else self.at_once
        return self._compactions.give_up_hung(at_once, now_ms)

    # -- decisions

    def decide(self, now_ms: int) -> list[effects.Effect]:
        """Everything that can begin now."""
        for name in self._leaving:
            why = "its table is no longer served"
            self._compactions.drop_unbegun(self.tables[name], why, now_ms)
        begun: list[effects.Effect] = [*self._compactions.take_late(), *self._cycles.begin(now_ms)]
        if not self.is_ending:
            begun += self._slots.give(self.tables.values(), slots=self.slots, now_ms=now_ms)
        if self._maintenance.is_due and not self.is_draining:
            begun += self._maintenance.begin(
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
                begun.append(effects.Forget(name=name))
        return begun

    # -- what follows from outcomes

    def _touched(self, name: TableName) -> ScheduledTable:
        """The table; its version grows, so its view is made again."""
        scheduled = self.tables[name]
        scheduled.version += 1
        return scheduled

    def _take_offered(self, scheduled: ScheduledTable, planned: Planned, now_ms: int) -> None:
        self.plans += 1
        had_work = bool(scheduled.offered or scheduled.in_flight)
        for record in scheduled.in_flight:
            record.is_beside_plan = True
        scheduled.offered = (
            {} if self.is_draining else {pending.bucket: pending for pending in planned.offered}
        )
        scheduled.queued_ms = {b: scheduled.queued_ms.get(b, now_ms) for b in scheduled.offered}
        scheduled.head_until_ms = 0
        if scheduled.offered and not had_work:
            self._slots.forget_credit(scheduled)
