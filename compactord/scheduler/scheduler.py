"""What is done next, over all tables: events in, effects out. Pure but for its own state.

Nothing here blocks, reads a clock or touches a store: the daemon performs the effects and brings
their results back as events, and a simulation does the same on a virtual clock. One thread uses it.

Bounds: one turn or take-off at a time for each table and `jobs_max` over all; parts at the engine
never more than `slots`; of each table at most the dues that one plan offers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

from compactord.clock import WallTime
from compactord.config.model import Retry
from compactord.config.policy import TablePolicy
from compactord.errors import CompactordError
from compactord.model import (
    CompactReason,
    FailureKind,
    Subcompaction,
    TableName,
    TaskFailure,
    TaskOutcome,
    WorkKind,
)
from compactord.paimon.table import TableRef
from compactord.scheduler import accounting
from compactord.scheduler.accounting import Witness
from compactord.scheduler.effects import Discard, Effect, Forget, StartTurn
from compactord.scheduler.maintenance import due_care
from compactord.scheduler.scheduled_table import Flight, Job, Served
from compactord.scheduler.slots import Grants, Jobs
from compactord.scheduler.status import CompactionView, Outcome
from compactord.table.compactor import TakeOff, Turn
from compactord.table.in_flight import Crashed, Flights, Landed

_RECENT_MAX = 200


class Fleet:
    """See the module. Times are steady ones (`Clock.steady_ms`), which never jump.

    `wall` tells what the wall clock shows meanwhile, for windows; who sees it set says so there.
    """

    def __init__(
        self,
        *,
        retry: Retry,
        wall: WallTime,
        witness: Witness,
        jobs_max: int,
        sweep_interval_ms: int,
        expire_interval_ms: int,
    ) -> None:
        self.tables: dict[TableName, Served] = {}
        self.slots = 0
        self.retry = retry
        self.wall = wall
        self.sweep_interval_ms = sweep_interval_ms
        self.recent: deque[CompactionView] = deque(maxlen=_RECENT_MAX)
        self.picks: Counter[tuple[WorkKind, CompactReason]] = Counter()
        # How many plans were taken in.
        self.plans = 0
        self.is_draining = False
        # No new commit begins any more.
        self.is_ending = False
        self._witness = witness
        self._jobs = Jobs(jobs_max)
        self._grants = Grants(jobs=self._jobs, wall=wall, witness=witness)
        self._expire_interval_ms = expire_interval_ms
        self._flights = Flights(part_attempts=retry.task_attempts)
        self._table_of: dict[int, TableName] = {}
        self._added = 0
        # Whether sweeps and expiry may have something to begin.
        self._is_care_due = False
        # Those that may want their turn, in the order in which they began to.
        self._turn_wanted: dict[TableName, None] = {}
        self._leaving: dict[TableName, None] = {}

    # -- what others may ask

    @property
    def running_parts(self) -> int:
        return self._grants.running_parts

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way for any table."""
        return all(served.is_idle for served in self.tables.values())

    def set_policy(self, name: TableName, policy: TablePolicy) -> None:
        """What holds for the table from now on."""
        served = self._touched(name)
        if not served.is_worked_on:
            self._grants.forget_credit(served)
        served.policy, served.head_until_ms = policy, 0
        self._grants.want(served)

    # -- events

    def add(self, name: TableName, ref: TableRef, policy: TablePolicy, now_ms: int) -> None:
        """A table is served from now on; one that was leaving stays."""
        known = self.tables.get(name)
        if known is not None:
            known.is_leaving = False
            self._leaving.pop(name, None)
            return
        self._added += 1
        served = Served(name=name, ref=ref, policy=policy, index=self._added)
        served.sweep_due_ms = now_ms
        self.tables[name] = served
        self.poll_due(name, now_ms)

    def remove(self, name: TableName) -> None:
        """Begin nothing new for the table; what runs ends, and then it is forgotten."""
        self.tables[name].is_leaving = True
        self._leaving[name] = None

    def poll_due(self, name: TableName, now_ms: int) -> None:
        """It is time to look at a table. One that is still waiting for its turn waits on."""
        served = self.tables.get(name)
        if served is not None and served.poll_due_ms is None:
            served.poll_due_ms = now_ms
            self._turn_wanted[name] = None

    def turned(self, name: TableName, turn: Turn, now_ms: int) -> None:
        served = self._job_ended(name)
        for view in accounting.settle(served, turn, self.retry, now_ms, self._witness):
            self._ended(view)
        accounting.take_in(served, turn, self.retry, now_ms, self._witness)
        if turn.planned is not None:
            self._take_dues(served, now_ms)
            served.expire_due = True
        if served.dues:
            self._grants.want(served)
        if served.ended or served.poll_due_ms is not None:
            self._turn_wanted[name] = None

    def took_off(
        self, name: TableName, result: TakeOff | CompactordError | None, now_ms: int
    ) -> None:
        """The answer to `StartTakeOff`: None when the bucket has nothing to do any more."""
        served = self._job_ended(name)
        due, served.taking_off = served.taking_off, None
        assert due is not None, "a take-off is for a due"
        self._grants.want(served)
        if served.poll_due_ms is not None or served.ended:
            self._turn_wanted[name] = None
        queued_ms = served.queued_ms.pop(due.bucket, now_ms)
        if result is None:
            served.counts.compactions[due.kind, Outcome.EMPTY] += 1
            return
        if isinstance(result, CompactordError):
            text, where = str(result), due.partition
            backoff = self.retry.backoff
            accounting.park_bucket(served, due.bucket, where, text, backoff, now_ms, self._witness)
            kind = type(result).__name__
            accounting.fail(served, text, kind, self.retry, now_ms, self._witness)
            served.counts.compactions[due.kind, Outcome.FAILED] += 1
            return
        number = result.number
        self._table_of[number] = name
        flight = Flight(
            take_off=result,
            due=due,
            priority_class=served.taking_off_class,
            queued_ms=queued_ms,
        )
        served.flights[number] = flight
        reason = result.compaction.reason
        self.picks[due.kind, reason] += 1
        if self.is_draining or served.is_leaving:
            crashed = Crashed(
                compaction=result.compaction, failure=_lost("stopped before it began"), finished=()
            )
            self._cancelled(served, number, crashed, now_ms)
            return
        landed = self._flights.take_off(
            number,
            result.compaction,
            result.parts,
            neighbours=result.neighbours,
            index_entries=result.index_entries,
        )
        if landed is not None:
            flight.started_ms = now_ms
            self._land(served, number, landed)
        served.parts.extend((number, part) for part in result.parts)

    def part_ended(self, outcome: TaskOutcome, now_ms: int) -> None:
        """A part has succeeded or failed; one of a compaction given up long ago is ignored."""
        number = outcome.compaction
        if not self._grants.part_ended(number, outcome.part) or number not in self._flights:
            return
        served = self._touched(self._table_of[number])
        served.slots -= 1
        self._grants.want(served)
        flight = served.flights[number]
        match self._flights.arrived(outcome):
            case Landed() as landed:
                flight.parts_done = len(flight.take_off.parts)
                self._land(served, number, landed)
            case Crashed() as crashed:
                self._crash(served, number, crashed, now_ms)
            case Subcompaction() as again:
                served.parts.append((number, again))
            case None:
                flight.parts_done += 1
                self._skip_rest(served, number, outcome, now_ms)

    def engine_lost(self, why: str, now_ms: int) -> None:
        """All parts are gone: their compactions are planned anew, no table is to blame."""
        self._grants.engine_lost()
        for served in self.tables.values():
            served.slots = 0
            for number in [n for n in served.flights if n in self._flights]:
                flight = served.flights[number]
                self._give_up(served, number, why, now_ms)
                if flight.started_ms and not self.is_draining:
                    text = (
                        f"the engine died {accounting.DROPS_MAX} times while it was merged: {why}"
                    )
                    accounting.in_vain(
                        served, flight, text, self.retry.backoff, now_ms, self._witness
                    )

    def expired(self, name: TableName, more: bool, now_ms: int) -> None:
        """A round of expiry has ended; with `more` to do the next one comes at once."""
        served = self._touched(name)
        served.maintenance = None
        self._is_care_due = True
        # A turn may have brought new snapshots meanwhile.
        served.expire_due = served.expire_due or more
        served.last_expire_ms = 0 if more else now_ms

    def swept(self, name: TableName, now_ms: int) -> None:
        served = self._touched(name)
        served.maintenance = None
        self._is_care_due = True
        served.sweep_due_ms = now_ms + self.sweep_interval_ms

    def discarded(self, name: TableName, now_ms: int) -> None:
        """The answer to `Discard`."""
        served = self._job_ended(name)
        if served.ended or served.poll_due_ms is not None:
            self._turn_wanted[name] = None
        settling, served.settling = served.settling, {}
        for flight, ended in settling.values():
            if isinstance(ended, Landed):
                why = "stopped before it could be committed"
                view = accounting.unpublished(served, flight, Outcome.CANCELLED, why, now_ms)
                self._ended(view)

    def drain(self, now_ms: int) -> None:
        """Begin nothing new; compactions whose parts have not begun are dropped."""
        self.is_draining = True
        self._flights.stop_retrying()
        for served in self.tables.values():
            served.dues.clear()
            served.head_until_ms = 0
            self._drop_unbegun(served, "stopped before it began", now_ms)

    def end(self) -> None:
        """No commit begins any more: what lands from now on is discarded."""
        self.is_ending = True
        for served in self.tables.values():
            served.parts.clear()
            if served.ended:
                self._turn_wanted[served.name] = None

    def tick(self, now_ms: int) -> list[Effect]:
        """About once a second: what is due by the clock alone."""
        self._is_care_due = True
        for served in self.tables.values():
            if served.dues or served.parts:
                self._grants.want(served)
        return self.decide(now_ms)

    # -- decisions

    def decide(self, now_ms: int) -> list[Effect]:
        """All that can begin now."""
        for name in self._leaving:
            self._drop_unbegun(self.tables[name], "its table is no longer served", now_ms)
        effects: list[Effect] = [*self._turns(now_ms)]
        if not self.is_ending:
            effects += self._grants.give(self.tables.values(), slots=self.slots, now_ms=now_ms)
        if self._is_care_due and not self.is_draining:
            self._is_care_due = False
            effects.extend(
                due_care(
                    self.tables.values(),
                    expire_interval_ms=self._expire_interval_ms,
                    now_ms=now_ms,
                    wall=self.wall,
                )
            )
        for name in list(self._leaving):
            if self.tables[name].is_idle:
                self._grants.forget(self.tables[name])
                del self._leaving[name], self.tables[name]
                self._turn_wanted.pop(name, None)
                effects.append(Forget(name=name))
        return effects

    def _turns(self, now_ms: int) -> Iterator[Effect]:
        if not self._turn_wanted:
            return
        free = self._jobs.free
        # Results first: they hold files that nobody can read yet.
        for name in sorted(self._turn_wanted, key=lambda name: not self.tables[name].ended):
            served = self.tables[name]
            if served.job is None and free <= 0:
                return
            del self._turn_wanted[name]
            if served.job is not None:
                # When that ends, it wants its turn again.
                continue
            may_poll = not (self.is_draining or served.is_leaving)
            if not served.ended and not (may_poll and served.next_try_ms <= now_ms):
                served.poll_due_ms = None
                continue
            free -= 1
            self._jobs.begin(served, Job.TURN, now_ms)
            served.poll_due_ms = None
            ended, served.ended = served.ended, {}
            served.settling = {n: (served.flights.pop(n), each) for n, each in ended.items()}
            if ended and (self.is_ending or accounting.is_unsafe(served)):
                yield Discard(name=name, ended=ended)
            else:
                skip = self._grants.skip(served, now_ms, may_begin=may_poll)
                yield StartTurn(name=name, ended=ended, skip=skip)

    # -- bookkeeping

    def _job_ended(self, name: TableName) -> Served:
        served = self._touched(name)
        self._jobs.end(served)
        return served

    def _touched(self, name: TableName) -> Served:
        """The table, of which a new picture has to be painted."""
        served = self.tables[name]
        served.version += 1
        return served

    def _take_dues(self, served: Served, now_ms: int) -> None:
        planned = served.planned
        assert planned is not None, "just taken in"
        self.plans += 1
        had_work = bool(served.dues or served.flights)
        served.flying_at_plan = frozenset(served.flights)
        served.dues = {} if self.is_draining else {due.bucket: due for due in planned.dues}
        served.queued_ms = {b: served.queued_ms.get(b, now_ms) for b in served.dues}
        served.head_until_ms = 0
        if served.dues and not had_work:
            self._grants.forget_credit(served)

    def _land(self, served: Served, number: int, ended: Landed | Crashed) -> None:
        """A compaction has ended; the table's next turn settles it."""
        self._table_of.pop(number, None)
        served.ended[number] = ended
        self._turn_wanted[served.name] = None

    def _drop_unbegun(self, served: Served, why: str, now_ms: int) -> None:
        for number, flight in list(served.flights.items()):
            if not flight.started_ms and number in self._flights:
                self._give_up(served, number, why, now_ms)

    def _give_up(self, served: Served, number: int, why: str, now_ms: int) -> None:
        """End a compaction whose outcomes will not come; the table is not to blame."""
        self._cancelled(served, number, self._flights.give_up(number, _lost(why)), now_ms)

    def _cancelled(self, served: Served, number: int, crashed: Crashed, now_ms: int) -> None:
        flight, why = served.flights[number], crashed.failure.message
        self._ended(accounting.unpublished(served, flight, Outcome.CANCELLED, why, now_ms))
        self._drop_parts(served, number)
        self._land(served, number, crashed)

    def _skip_rest(self, served: Served, number: int, outcome: TaskOutcome, now_ms: int) -> None:
        """Once a part has failed for good, those that have not begun would run for nothing."""
        if not isinstance(outcome, TaskFailure):
            return
        for part in self._drop_parts(served, number):
            skipped = replace(outcome, part=part.part, kind=FailureKind.POISON)
            ended = self._flights.arrived(skipped)
            if isinstance(ended, Crashed):
                self._crash(served, number, ended, now_ms)

    @staticmethod
    def _drop_parts(served: Served, number: int) -> list[Subcompaction]:
        dropped = [part for owner, part in served.parts if owner == number]
        served.parts = deque(each for each in served.parts if each[0] != number)
        return dropped

    def _crash(self, served: Served, number: int, crashed: Crashed, now_ms: int) -> None:
        flight, message = served.flights[number], crashed.failure.message
        was_stopped = self.is_draining and crashed.failure.kind is FailureKind.LOST
        outcome = Outcome.CANCELLED if was_stopped else Outcome.FAILED
        self._ended(accounting.unpublished(served, flight, outcome, message, now_ms))
        if not was_stopped:
            accounting.park(served, flight, message, self.retry.backoff, now_ms, self._witness)
            kind = crashed.failure.error
            accounting.fail(served, message, kind, self.retry, now_ms, self._witness)
        # What was chosen next may be of this very bucket.
        served.head = None
        self._drop_parts(served, number)
        self._land(served, number, crashed)

    def _ended(self, view: CompactionView) -> None:
        self.recent.appendleft(view)
        self._witness.ended(view)


def _lost(why: str) -> TaskFailure:
    return TaskFailure(
        compaction=0, part=0, kind=FailureKind.LOST, error="Cancelled", message=why, traceback=""
    )
