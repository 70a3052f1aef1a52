"""Decides what is done next, over all tables: events in, effects out. Pure except for its state.

Nothing here blocks, reads a clock or touches a store: the daemon runs the effects and brings
their results back as events, and a simulation does the same on a virtual clock. One thread uses it.

Bounds: one cycle or dispatch at a time for each table, and `jobs_max` over all tables, shared by
their catalogs (`Jobs`); at most
`slots` subcompactions at the engine; for each table at most the compactions that one plan offers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from compactord.clock import WallTime
from compactord.config.model import Retry
from compactord.config.policy import TablePolicy
from compactord.errors import CompactordError
from compactord.model import (
    CompactReason,
    Conflict,
    FailureKind,
    SubcompactionResult,
    TableName,
    TaskFailure,
    TaskOutcome,
    WorkKind,
)
from compactord.paimon.table import TableRef
from compactord.scheduler import accounting, quarantine
from compactord.scheduler.at_engine import TimeLimit
from compactord.scheduler.effects import (
    Cancel,
    Discard,
    Effect,
    Forget,
    RemoveOutputs,
    RestartEngine,
    StartCycle,
)
from compactord.scheduler.maintenance import due_maintenance
from compactord.scheduler.observer import Observer
from compactord.scheduler.record import CompactionRecord, Status
from compactord.scheduler.scheduled_table import Job, ScheduledTable
from compactord.scheduler.slots import Jobs, Slots
from compactord.scheduler.status import EndedCompaction, Outcome
from compactord.table.cycle import Cycle, Dispatch, Outrun
from compactord.table.in_flight import Failed, Finished

_RECENT_MAX = 200


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
        max_commit_delay_ms: int,
        time_limit: TimeLimit,
        sweep_interval_ms: int,
        expire_interval_ms: int,
    ) -> None:
        self.tables: dict[TableName, ScheduledTable] = {}
        self.slots = 0
        # How many subcompactions the engine runs at a time, where that is not `slots`.
        self.at_once: int | None = None
        self.retry = retry
        self.wall = wall
        self.max_commit_delay_ms = max_commit_delay_ms
        self.sweep_interval_ms = sweep_interval_ms
        self.recent: deque[EndedCompaction] = deque(maxlen=_RECENT_MAX)
        self.picks: Counter[tuple[WorkKind, CompactReason]] = Counter()
        # Plans received so far.
        self.plans = 0
        self.is_draining = False
        # Whether no new commit may begin.
        self.is_ending = False
        self._observer = observer
        self._jobs = Jobs(jobs_max)
        self._slots = Slots(jobs=self._jobs, wall=wall, observer=observer, time_limit=time_limit)
        # Results that came too late, whose files have to go.
        self._late: list[RemoveOutputs] = []
        self._expire_interval_ms = expire_interval_ms
        self._added = 0
        # Whether sweeps and expiry may have something to begin.
        self._is_maintenance_due = False
        # Tables that may want a cycle, in the order in which they began to want it.
        self._cycle_wanted: dict[TableName, None] = {}
        self._leaving: dict[TableName, None] = {}

    # -- queries

    @property
    def running_subcompactions(self) -> int:
        """Subcompactions at the engine that have time left to answer."""
        return self._slots.running

    @property
    def hung_subcompactions(self) -> int:
        """Subcompactions at the engine that did not answer in time; each takes a slot away."""
        return self._slots.hung

    def all_hung_since_ms(self, now_ms: int) -> int:
        """Since when every slot is lost to a hung subcompaction; `now_ms` while one is not."""
        return self._slots.all_hung_since_ms(self.slots, now_ms)

    def last_progress_ms(self, now_ms: int) -> int:
        """When a cycle or dispatch began or ended last, if none can begin now; else `now_ms`.

        None can begin when all threads that a table may have are taken.
        """
        jobs = [each.job_since_ms for each in self.tables.values() if each.job is not None]
        is_free = any(
            each.job is None and self._jobs.may_begin(each.name.catalog)
            for each in self.tables.values()
        )
        return now_ms if is_free or not jobs else max(jobs)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way for any table."""
        return all(scheduled.is_idle for scheduled in self.tables.values())

    def set_time_limit(self, limit: TimeLimit) -> None:
        """Set how long subcompactions that are submitted from now on may run."""
        self._slots.time_limit = limit

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
        scheduled = ScheduledTable(name=name, ref=ref, policy=policy, index=self._added)
        scheduled.sweep_due_ms = now_ms
        self.tables[name] = scheduled
        self._jobs.added(name)
        self.poll_due(name, now_ms)

    def look_again(self, name: TableName, now_ms: int) -> None:
        """Poll the table now, whatever pause its last failure has earned it."""
        scheduled = self._touched(name)
        scheduled.next_try_ms = scheduled.next_poll_ms = 0
        self.poll_due(name, now_ms)

    def try_again(self, name: TableName, now_ms: int) -> None:
        """An operator has mended something: poll the table and try what failed, at once."""
        scheduled = self._touched(name)
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
            self._cycle_wanted[name] = None

    def store_silent(self, catalog: str, why: str) -> None:
        """Begin nothing for the catalog's tables until `store_answers`; they wait, and say why."""
        if self.is_draining:
            return
        self._jobs.silent.add(catalog)
        for name in self._names_in(catalog):
            self._touched(name).error = why

    def store_answers(self, catalog: str, now_ms: int) -> None:
        """The catalog's store is asked again: its tables are polled at once."""
        self._jobs.silent.discard(catalog)
        for name in self._names_in(catalog):
            self.look_again(name, now_ms)
            self._slots.want(self.tables[name])

    def _names_in(self, catalog: str) -> list[TableName]:
        return [name for name in self.tables if name.catalog == catalog]

    def cycle_ended(self, name: TableName, cycle: Cycle, now_ms: int) -> None:
        scheduled = self._job_ended(name)
        for view in accounting.settle(scheduled, cycle, self.retry, now_ms, self._observer):
            self._ended(view)
        accounting.take_in(scheduled, cycle, self.retry, now_ms, self._observer)
        if cycle.planned is not None:
            self._take_offered(scheduled, now_ms)
            scheduled.expire_due = True
        if cycle.wait_ms:
            # What was offered was planned before our newest snapshot, and is planned again.
            scheduled.held_until_ms = now_ms + cycle.wait_ms
            scheduled.offered.clear()
            scheduled.head_until_ms = 0
            self.poll_due(name, now_ms)
        if scheduled.offered:
            self._slots.want(scheduled)
        self._want_cycle(scheduled)

    def dispatched(
        self, name: TableName, result: Dispatch | Outrun | CompactordError | None, now_ms: int
    ) -> None:
        """The answer to `StartDispatch`: None when the bucket has nothing to do any more."""
        scheduled = self._job_ended(name)
        (record,) = scheduled.with_status(Status.PLANNED)
        self._slots.want(scheduled)
        self._want_cycle(scheduled)
        if isinstance(result, Dispatch):
            record.dispatched(result)
            scheduled.last_number = record.number
            self.picks[record.pending.kind, result.compaction.reason] += 1
            if self.is_draining or scheduled.is_leaving:
                self._give_up(scheduled, record, "stopped before it began", now_ms)
                return
            ended = record.in_flight.ended()
            if ended is not None:
                # Nothing to submit: files only change their level.
                record.begun(now_ms)
                self._arrived(scheduled, record, ended, now_ms)
            return
        del scheduled.compactions[record.number]
        pending, observer = record.pending, self._observer
        match result:
            case None:
                outcome = Outcome.EMPTY
            case Outrun(why=why):
                outcome = Outcome.CONFLICT
                scheduled.last_number = record.number
                accounting.conflicted(
                    scheduled, record, Conflict.FILE_REMOVED, why, self.retry, now_ms, observer
                )
            case CompactordError():
                outcome = Outcome.FAILED
                text, kind = str(result), type(result).__name__
                accounting.blame(scheduled, pending, text, kind, self.retry, now_ms, observer)
        scheduled.counts.compactions[pending.kind, outcome] += 1

    def subcompaction_ended(self, outcome: TaskOutcome, now_ms: int) -> None:
        """It has succeeded or failed; of a compaction that has ended only files are removed."""
        submitted = self._slots.freed(outcome.compaction, outcome.index)
        if submitted is None:
            return
        record = submitted.record
        if record is None:
            if isinstance(outcome, SubcompactionResult) and outcome.outputs:
                work = submitted.subcompaction
                self._late.append(RemoveOutputs(subcompaction=work, result=outcome))
            return
        scheduled = self._touched(submitted.scheduled.name)
        self._slots.want(scheduled)
        attempts_max = 1 if self.is_draining else self.retry.task_attempts
        ended = record.in_flight.arrived(outcome, scheduled.name, attempts_max=attempts_max)
        self._arrived(scheduled, record, ended, now_ms)

    def engine_lost(self, why: str, now_ms: int) -> None:
        """All subcompactions are lost: their compactions are planned again, no table has failed."""
        self._slots.engine_lost()
        for scheduled in self.tables.values():
            scheduled.slots = 0
            scheduled.abandoned.clear()
            for record in [r for r in scheduled.compactions.values() if r.is_under_way]:
                self._give_up(scheduled, record, why, now_ms)
                if record.started_ms and not self.is_draining:
                    times = quarantine.DROPS_MAX
                    text = f"the engine died {times} times while it was merged: {why}"
                    quarantine.in_vain(scheduled, record, text, self.retry, now_ms, self._observer)

    def expired(self, name: TableName, more: bool, now_ms: int) -> None:
        """A round of expiry has ended; with `more` to do the next one comes at once."""
        scheduled = self._touched(name)
        scheduled.maintenance = None
        self._is_maintenance_due = True
        # A cycle may have found new snapshots meanwhile.
        scheduled.expire_due = scheduled.expire_due or more
        scheduled.last_expire_ms = 0 if more else now_ms

    def swept(self, name: TableName, now_ms: int) -> None:
        scheduled = self._touched(name)
        scheduled.maintenance = None
        self._is_maintenance_due = True
        scheduled.sweep_due_ms = now_ms + self.sweep_interval_ms

    def discarded(self, name: TableName, now_ms: int) -> None:
        """The answer to `Discard`."""
        scheduled = self._job_ended(name)
        self._want_cycle(scheduled)
        for record in scheduled.with_status(Status.COMMITTING):
            del scheduled.compactions[record.number]
            if record.outcome is None:
                why = "stopped before it could be committed"
                self._unpublished(scheduled, record, Outcome.CANCELLED, why, now_ms)

    def drain(self, now_ms: int) -> None:
        """Begin nothing new; compactions of which nothing has begun are dropped."""
        self.is_draining = True
        # What has finished is committed or discarded, whatever a store does.
        self._jobs.silent.clear()
        for scheduled in self.tables.values():
            scheduled.offered.clear()
            scheduled.head_until_ms = 0
            self._drop_unbegun(scheduled, "stopped before it began", now_ms)

    def end(self) -> None:
        """Begin no more commits: compactions that finish from now on are discarded."""
        self.is_ending = True
        for scheduled in self.tables.values():
            for record in scheduled.with_status(Status.DISPATCHED, Status.RUNNING):
                record.in_flight.waiting.clear()
            if scheduled.has_finished:
                self._cycle_wanted[scheduled.name] = None

    def tick(self, now_ms: int) -> list[Effect]:
        """Called about once a second: starts what is due by the clock alone."""
        self._is_maintenance_due = True
        for scheduled in self.tables.values():
            if scheduled.offered or scheduled.next_waiting:
                self._slots.want(scheduled)
        return [*self.give_up_hung(now_ms), *self.decide(now_ms)]

    def give_up_hung(self, now_ms: int) -> list[Cancel | RestartEngine]:
        """End compactions whose subcompactions have run for longer than they may.

        Their buckets are quarantined, and their workers cancelled. Where that is of no use, the
        engine is started again.
        """
        at_once = self.slots if self.at_once is None else self.at_once
        effects: list[Cancel | RestartEngine] = []
        for each in list(self._slots.overdue(at_once, now_ms)):
            self._observer.hung(each.scheduled.name, each, now_ms)
            record = each.record
            if record is None:
                # Its compaction has ended before, and it was cancelled then.
                continue
            scheduled = self._touched(each.scheduled.name)
            index, seconds = each.subcompaction.index, each.limit_ms // 1000
            failed = record.timed_out(index, size_bytes=each.size_bytes, seconds=seconds)
            self._arrived(scheduled, record, failed, now_ms)
            left = self._slots.abandon(record)
            effects += [Cancel(subcompaction=other.subcompaction) for other in left]
            self._slots.want(scheduled)
        why = None if self.is_draining else self._slots.why_restart(now_ms)
        if why is not None:
            effects.append(RestartEngine(why=why))
        return effects

    # -- decisions

    def decide(self, now_ms: int) -> list[Effect]:
        """Everything that can begin now."""
        for name in self._leaving:
            self._drop_unbegun(self.tables[name], "its table is no longer served", now_ms)
        effects: list[Effect] = [*self._late, *self._cycles(now_ms)]
        self._late.clear()
        if not self.is_ending:
            effects += self._slots.give(self.tables.values(), slots=self.slots, now_ms=now_ms)
        if self._is_maintenance_due and not self.is_draining:
            self._is_maintenance_due = False
            effects.extend(
                due_maintenance(
                    self.tables.values(),
                    silent=self._jobs.silent,
                    expire_interval_ms=self._expire_interval_ms,
                    now_ms=now_ms,
                    wall=self.wall,
                )
            )
        for name in list(self._leaving):
            if self.tables[name].is_idle:
                self._slots.forget(self.tables[name])
                del self._leaving[name], self.tables[name]
                self._jobs.removed(name)
                self._cycle_wanted.pop(name, None)
                effects.append(Forget(name=name))
        return effects

    def _cycles(self, now_ms: int) -> Iterator[Effect]:
        if not self._cycle_wanted:
            return
        # Tables with results first: readers profit only once these are committed.
        for name in sorted(self._cycle_wanted, key=lambda name: not self.tables[name].has_finished):
            scheduled = self.tables[name]
            if scheduled.job is None and self._jobs.free <= 0:
                return
            if scheduled.job is not None:
                # It wants a cycle again when its running job ends.
                del self._cycle_wanted[name]
                continue
            if not self._jobs.may_begin(name.catalog):
                continue
            if scheduled.held_until_ms > now_ms and not self.is_ending:
                continue
            may_poll = not (self.is_draining or scheduled.is_leaving)
            is_polled = scheduled.poll_due_ms is not None
            is_polled = is_polled and may_poll and scheduled.next_poll_ms <= now_ms
            finished = scheduled.with_status(Status.FINISHED)
            if finished and self._may_wait(scheduled, finished, now_ms):
                if not is_polled:
                    continue
                finished = []
            del self._cycle_wanted[name]
            if not (finished or is_polled):
                scheduled.poll_due_ms = None
                continue
            self._jobs.begin(scheduled, Job.CYCLE, now_ms)
            scheduled.poll_due_ms = None
            for record in finished:
                record.status = Status.COMMITTING
            ended = tuple(record.result for record in finished)
            if ended and (self.is_ending or accounting.is_unsafe(scheduled)):
                yield Discard(name=name, ended=ended)
            else:
                skip = self._slots.skip(scheduled, now_ms, may_begin=may_poll)
                yield StartCycle(name=name, ended=ended, skip=skip)

    def _may_wait(
        self, scheduled: ScheduledTable, finished: Sequence[CompactionRecord], now_ms: int
    ) -> bool:
        """Whether what has finished waits for others, to be published in one snapshot with them.

        Not for long, not for nothing, and not where writers are about to stall.
        """
        if self.is_draining or scheduled.is_leaving or scheduled.halt is not None:
            return False
        oldest_ms = min(record.finished_ms for record in finished)
        if now_ms - oldest_ms >= self.max_commit_delay_ms:
            return False
        if any(each.pending.is_forced or isinstance(each.result, Failed) for each in finished):
            return False
        has_others = any(record.is_under_way for record in scheduled.compactions.values())
        return has_others or self._slots.may_begin(scheduled, now_ms)

    # -- accounting

    def _job_ended(self, name: TableName) -> ScheduledTable:
        scheduled = self._touched(name)
        self._jobs.end(scheduled)
        return scheduled

    def _touched(self, name: TableName) -> ScheduledTable:
        """The table; its version grows, so its view is made again."""
        scheduled = self.tables[name]
        scheduled.version += 1
        return scheduled

    def _want_cycle(self, scheduled: ScheduledTable) -> None:
        """Ask for a cycle if compactions wait for one, or a poll is due."""
        if scheduled.has_finished or scheduled.poll_due_ms is not None:
            self._cycle_wanted[scheduled.name] = None

    def _take_offered(self, scheduled: ScheduledTable, now_ms: int) -> None:
        planned = scheduled.planned
        assert planned is not None, "just taken in"
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

    def _arrived(
        self,
        scheduled: ScheduledTable,
        record: CompactionRecord,
        ended: Finished | Failed | None,
        now_ms: int,
    ) -> None:
        """The table's next cycle settles a compaction that has ended at the workers."""
        if ended is None:
            return
        if isinstance(ended, Failed):
            # The table's next choice may be of this bucket.
            scheduled.head = None
            if not accounting.is_undecided(ended):
                self._blame(scheduled, record, ended, now_ms)
        record.finished(ended, now_ms)
        self._cycle_wanted[scheduled.name] = None

    def _drop_unbegun(self, scheduled: ScheduledTable, why: str, now_ms: int) -> None:
        for record in scheduled.with_status(Status.DISPATCHED):
            self._give_up(scheduled, record, why, now_ms)

    def _give_up(
        self, scheduled: ScheduledTable, record: CompactionRecord, why: str, now_ms: int
    ) -> None:
        """End a compaction whose outcomes will not come; the table is not to blame."""
        self._unpublished(scheduled, record, Outcome.CANCELLED, why, now_ms)
        record.finished(record.in_flight.give_up(_lost(why)), now_ms)
        self._cycle_wanted[scheduled.name] = None

    def _blame(
        self, scheduled: ScheduledTable, record: CompactionRecord, failed: Failed, now_ms: int
    ) -> None:
        message, failure = failed.failure.message, failed.failure
        if self.is_draining and failure.kind is FailureKind.LOST:
            self._unpublished(scheduled, record, Outcome.CANCELLED, message, now_ms)
            return
        self._unpublished(scheduled, record, Outcome.FAILED, message, now_ms)
        pending, kind = record.pending, failure.error
        accounting.blame(scheduled, pending, message, kind, self.retry, now_ms, self._observer)

    def _unpublished(
        self,
        scheduled: ScheduledTable,
        record: CompactionRecord,
        outcome: Outcome,
        why: str,
        now_ms: int,
    ) -> None:
        self._ended(accounting.unpublished(scheduled, record, outcome, why, now_ms))

    def _ended(self, view: EndedCompaction) -> None:
        self.recent.appendleft(view)
        self._observer.ended(view)


def _lost(why: str) -> TaskFailure:
    return TaskFailure(
        compaction=0, index=0, kind=FailureKind.LOST, error="Cancelled", message=why, traceback=""
    )
