"""Which table gets a free slot, and what it begins with it. Pure but for its own state.

A table asks by `want`; it is on the list until it has nothing to do. With a slot it runs a part
that is cut already, or prepares its next decision: a take-off, which needs a thread besides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from compactord.clock import WallTime
from compactord.config.policy import TablePolicy
from compactord.config.windows import may_start
from compactord.model import TableName, WorkKind
from compactord.scheduler import accounting
from compactord.scheduler.accounting import Witness
from compactord.scheduler.effects import StartTakeOff, Submit
from compactord.scheduler.priority import (
    LARGE_PART_BYTES,
    Contender,
    choose,
    cost,
    most_urgent,
    priority_class,
)
from compactord.scheduler.scheduled_table import Job, Served
from compactord.scheduler.status import PriorityClass
from compactord.table.backlog import Due, Skip

# A choice among a table's dues holds so long: time makes them more urgent.
_HEAD_MS = 5_000
# Threads that take-offs leave to turns.
_TURN_JOBS = 2

_COMPACTING = frozenset({WorkKind.MINOR, WorkKind.FULL, WorkKind.APPEND})


class Jobs:
    """Turns and take-offs that run: one at a time for each table, at most `most` over all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0

    @property
    def free(self) -> int:
        return self._most - self._running

    def begin(self, served: Served, job: Job, now_ms: int) -> None:
        served.job, served.job_since_ms = job, now_ms
        self._running += 1

    def end(self, served: Served) -> None:
        served.job = None
        self._running -= 1


class Grants:
    """The slots that are in use, who would like one, and whose turn it is."""

    def __init__(self, *, jobs: Jobs, wall: WallTime, witness: Witness) -> None:
        self._jobs = jobs
        self._wall = wall
        self._witness = witness
        # Parts at the engine; whether they are large ones.
        self._running: dict[tuple[int, int], bool] = {}
        self._numbers = 0
        # The time of all: the virtual time of the table that got the last slot.
        self._virtual_time = 0.0
        # In the order in which they began to.
        self._wanted: dict[TableName, Served] = {}

    @property
    def running_parts(self) -> int:
        return len(self._running)

    def want(self, served: Served) -> None:
        """The table may have something to do."""
        self._wanted[served.name] = served

    def forget(self, served: Served) -> None:
        self._wanted.pop(served.name, None)

    def forget_credit(self, served: Served) -> None:
        """Time in which a table wanted nothing, or was let do nothing, is not owed to it."""
        served.virtual_time = max(served.virtual_time, self._virtual_time)

    def part_ended(self, number: int, part: int) -> bool:
        """The slot is free again; False for a part that is not at the engine."""
        return self._running.pop((number, part), None) is not None

    def engine_lost(self) -> None:
        self._running.clear()

    def give(
        self, tables: Collection[Served], *, slots: int, now_ms: int
    ) -> Iterator[Submit | StartTakeOff]:
        """What begins with the slots that are free, of `slots` there are."""
        if not self._wanted:
            return
        preparing = sum(served.taking_off is not None for served in tables)
        free = slots - len(self._running) - preparing
        large = sum(self._running.values())
        if free <= 0:
            return
        contenders: dict[int, tuple[Served, Contender]] = {}
        for served in list(self._wanted.values()):
            self._contend(served, contenders, now_ms)
        while free > 0:
            # Some threads are left to turns: what has landed must not wait for what takes off.
            may_take_off = self._jobs.free > _TURN_JOBS
            able = [c for served, c in contenders.values() if served.parts or may_take_off]
            chosen = choose(able, slots=slots, free=free, large_running=large)
            if chosen is None:
                return
            served, _ = contenders.pop(chosen.index)
            # That at which the slot was given, not what it will cost.
            self._virtual_time = max(self._virtual_time, served.virtual_time)
            if served.parts:
                large += chosen.is_large
                yield self._submit(served, chosen, now_ms)
            else:
                yield self._begin_take_off(served, free, now_ms)
            free -= 1
            self._contend(served, contenders, now_ms)

    def skip(self, served: Served, now_ms: int, *, may_begin: bool) -> Skip:
        """What the table need not offer, because it could not begin now."""
        policy = served.policy
        closed = {kind for kind in WorkKind if not self._is_open(policy, kind, now_ms)}
        is_at_work = may_begin and served.is_worked_on and served.halt is None
        parked = (b for b, parked in served.parked.items() if parked.until_ms > now_ms)
        return Skip(
            buckets=frozenset(parked),
            kinds=frozenset(closed),
            spare_forced=not policy.windows_strict,
            manifests=not is_at_work or closed >= _COMPACTING,
        )

    def _contend(
        self, served: Served, contenders: dict[int, tuple[Served, Contender]], now_ms: int
    ) -> None:
        """Add the table to those that could use a slot, or take it off the list of candidates."""
        contender = self._contender(served, now_ms)
        if contender is None:
            if not served.dues:
                self.forget(served)
        else:
            contenders[served.index] = (served, contender)

    def _contender(self, served: Served, now_ms: int) -> Contender | None:
        if served.parts:
            number, _ = served.parts[0]
            flight = served.flights[number]
            due, size = flight.due, flight.due.size_bytes // len(flight.take_off.parts)
        else:
            head = self._head(served, now_ms)
            if head is None:
                return None
            due, size = head, head.size_bytes // max(1, head.tasks)
        return Contender(
            index=served.index,
            # A part that waits becomes as urgent as a due would.
            priority_class=self._urgency(served, due, now_ms),
            benefit=due.benefit,
            weight=served.weight,
            slots=served.slots,
            slots_max=served.policy.max_concurrent_tasks,
            is_large=size >= LARGE_PART_BYTES,
            virtual_time=served.virtual_time,
        )

    def _head(self, served: Served, now_ms: int) -> Due | None:
        """What the table would do next, None when it may do nothing."""
        if served.job is not None or served.is_leaving:
            return None
        if not served.is_worked_on or served.next_try_ms > now_ms:
            return None
        # A halted table that is tried again is tried with one compaction.
        if served.halt is not None and (served.flights or accounting.is_unsafe(served)):
            return None
        if served.head_until_ms <= now_ms:
            eligible = [due for due in served.dues.values() if self._may(served, due, now_ms)]
            if served.halt is not None:
                # One bucket that always fails must not keep the table halted for ever.
                least = min((served.failures_of(due.bucket) for due in eligible), default=0)
                eligible = [due for due in eligible if served.failures_of(due.bucket) == least]
            max_age_ms = served.policy.max_backlog_age_ms
            served.head = most_urgent(eligible, max_age_ms=max_age_ms, now_ms=now_ms)
            served.head_until_ms = now_ms + _HEAD_MS
        return served.head

    def _may(self, served: Served, due: Due, now_ms: int) -> bool:
        parked = served.parked.get(due.bucket)
        if parked is not None and parked.until_ms > now_ms:
            return False
        policy = served.policy
        if due.is_forced and not policy.windows_strict:
            return True
        return self._is_open(policy, due.kind, now_ms)

    def _is_open(self, policy: TablePolicy, kind: WorkKind, now_ms: int) -> bool:
        return may_start(policy.windows, kind, self._wall.at(now_ms), self._wall.zone)

    def _urgency(self, served: Served, due: Due, now_ms: int) -> PriorityClass:
        return priority_class(due, max_age_ms=served.policy.max_backlog_age_ms, now_ms=now_ms)

    def _submit(self, served: Served, chosen: Contender, now_ms: int) -> Submit:
        served.version += 1
        number, part = served.parts.popleft()
        flight = served.flights[number]
        if not flight.started_ms:
            flight.started_ms = now_ms
            self._witness.started(served.name, flight, now_ms)
        size = flight.due.size_bytes // len(flight.take_off.parts)
        served.virtual_time += cost(size) / served.weight
        served.slots += 1
        self._running[number, part.part] = chosen.is_large
        return Submit(part=part)

    def _begin_take_off(self, served: Served, free: int, now_ms: int) -> StartTakeOff:
        due = served.head
        assert due is not None, "chosen for it"
        served.version += 1
        served.taking_off, served.taking_off_class = due, self._urgency(served, due, now_ms)
        served.head_until_ms = 0
        if due.tasks > 1:
            one = replace(
                due, tasks=1, files=due.files // due.tasks, size_bytes=due.size_bytes // due.tasks
            )
            served.dues[due.bucket] = replace(
                due,
                tasks=due.tasks - 1,
                files=due.files - one.files,
                size_bytes=due.size_bytes - one.size_bytes,
            )
            served.taking_off = one
        else:
            del served.dues[due.bucket]
        self._jobs.begin(served, Job.TAKE_OFF, now_ms)
        self._numbers += 1
        return StartTakeOff(
            name=served.name, bucket=due.bucket, number=self._numbers, free_slots=free
        )
