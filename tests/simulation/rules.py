"""Invariants of the scheduler, checked against its effects and not against its state.

`Rules` is told of every effect and every answer, and is the scheduler's observer. It derives
pauses, halts and slots from those alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import timezone
from typing import TYPE_CHECKING

from compactord.commit.changes import Committed
from compactord.config.choices import Mode
from compactord.config.windows import may_start
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import FailureKind, SubcompactionFailure, TableName
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import EndedCompaction, Halt, HaltReason, Outcome, Status
from compactord.scheduler.effects import (
    Cancel,
    CycleJob,
    DiscardJob,
    DispatchJob,
    Effect,
    Forget,
    MaintenanceJob,
    RemoveOutputs,
    Submit,
)
from compactord.scheduler.events import (
    BucketQuarantined,
    CompactionStarted,
    Event,
    SubcompactionHung,
    TableHalted,
    TableResumed,
)
from compactord.scheduler.priority import cost, time_limit_ms
from compactord.scheduler.scheduled_table import HUNG_JOB_MS, PIN_MAX_MS
from compactord.scheduler.scheduler import ROUNDS_MAX
from compactord.table.jobs import CycleResult, InFlight

if TYPE_CHECKING:
    from tests.simulation.world import World

LARGE = 256 << 20
# Some intervals of expiry, or a few rounds in a store that is slow.
CARE_WAIT_MS = 30_000


class Rules:
    """`look` is called after each tick, `at_the_end` when everything is idle."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.table_of: dict[int, TableName] = {}
        self.bucket_of: dict[int, BucketId] = {}
        # Compactions that were cut into subcompactions and whose end nobody has seen.
        self.active: dict[int, InFlight] = {}
        self.dispatched_count: Counter[TableName] = Counter()
        self.published: Counter[TableName] = Counter()
        # What slots were given for, as the scheduler counts it.
        self.given: defaultdict[TableName, float] = defaultdict(float)
        self.outcomes: Counter[Outcome] = Counter()
        self.ended_of: Counter[TableName] = Counter()
        self.answered: Counter[TableName] = Counter()
        self.first_submits: dict[int, int] = {}
        self.attempts_at: dict[tuple[TableName, BucketId], list[int]] = {}
        # Compactions that were given up because a worker did not answer.
        self._cancelled: set[int] = set()
        # Workers that finished after that, whose files are to be removed.
        self._late: set[tuple[int, int]] = set()
        self._submitted_at: dict[tuple[int, int], int] = {}
        self._chosen_at: dict[int, int] = {}
        self._looked_at: dict[TableName, int] = {}
        self._jobs: dict[TableName, str] = {}
        # Rounds of maintenance under way, and since when.
        self._maintenance: dict[TableName, int] = {}
        # Since when catalogs have tables that may expire and begin nothing.
        self._uncared_ms: dict[str, int] = {}
        self._handed_back: set[int] = set()
        self._running_of: dict[tuple[int, int], TableName] = {}
        self._attempts: Counter[tuple[int, int]] = Counter()
        self._doomed: dict[int, int] = {}
        self._failures: Counter[tuple[TableName, BucketId]] = Counter()
        self._rests_until: dict[tuple[TableName, BucketId], int] = {}
        self._halts: dict[TableName, Halt] = {}
        # Until when nothing may be built on the table's newest snapshot.
        self._held_until: dict[TableName, int] = {}

    # -- effects

    def effect(self, effect: Effect) -> None:
        match effect:
            case Submit(subcompaction=subcompaction):
                self._submit(subcompaction.compaction_id, subcompaction.index)
            case CycleJob(name=name, ended=ended) | DiscardJob(name=name, ended=ended):
                if isinstance(effect, CycleJob) and ended:
                    assert not self._world.scheduler.is_ending, "a commit begins after the end"
                    assert not self._is_unsafe(name), f"a commit to {name}, which is unsafe"
                if isinstance(effect, CycleJob) and effect.skip.may_commit:
                    assert not self._is_unsafe(name), f"{name} is unsafe, and might be changed"
                if isinstance(effect, CycleJob):
                    assert not self._is_held(name), f"{name} has to wait for its last snapshot"
                self._job(name, "cycle")
                self._hand_back(name, ended)
            case DispatchJob():
                assert not self._is_held(effect.name), "planned before its last snapshot"
                self._job(effect.name, "dispatch")
                self._begin(effect)
            case MaintenanceJob(name=name, kind=ExpireSnapshots(), under_way=under_way):
                keep_from = under_way.reads_from
                self._care(name)
                assert not self._is_held(name), "expiry may take what a replacement needs"
                read = self._reads(name)
                if read:
                    assert keep_from is not None, "what is read now is known"
                    assert keep_from <= min(read), "expiry would take what is being read"
            case Cancel(subcompaction=subcompaction):
                self._cancel(subcompaction.compaction_id, subcompaction.index)
            case RemoveOutputs(subcompaction=subcompaction):
                self._late.remove((subcompaction.compaction_id, subcompaction.index))
            case MaintenanceJob(name=name):
                self._care(name)
            case Forget(name=name):
                assert name not in self._jobs, "forgotten while a thread works on it"
                assert name not in self._maintenance, "forgotten while it is being swept"
                assert name not in map(self.table_of.get, self.active), "forgotten in flight"
                self._halts.pop(name, None)
                self._held_until.pop(name, None)
                for key in [key for key in self._rests_until if key[0] == name]:
                    del self._rests_until[key], self._failures[key]
                for counter in (self.ended_of, self.answered):
                    del counter[name]

    def _reads(self, name: TableName) -> list[int]:
        """The snapshots that work of the table reads, and has not read for too long."""
        since_ms = self._world.now_ms - PIN_MAX_MS
        read = [
            dispatch.snapshot_id
            for number, dispatch in self.active.items()
            if self.table_of[number] == name and self._chosen_at[number] >= since_ms
        ]
        if self._looked_at[name] >= since_ms:
            read.append(self._world.tables[name].planned_snapshot_id)
        return read

    def _cancel(self, number: int, index: int) -> None:
        world = self._world
        assert (number, index) in world.running, "cancelled, but not at the engine"
        if number in self._cancelled:
            return
        waits = [
            world.now_ms - self._submitted_at[key] for key in world.running if key[0] == number
        ]
        limit_ms = time_limit_ms(world.limits, 0)
        assert max(waits) > limit_ms, f"compaction {number} is given up after {max(waits)} ms"
        self._cancelled.add(number)
        self._doomed.setdefault(number, world.now_ms)

    def is_cancelled(self, number: int) -> bool:
        """Whether its compaction has been given up."""
        return number in self._cancelled

    def finished_late(self, key: tuple[int, int]) -> None:
        """A worker has written its files although its compaction was given up."""
        self._late.add(key)

    def _is_held(self, name: TableName) -> bool:
        return self._world.now_ms < self._held_until.get(name, 0)

    def _is_unsafe(self, name: TableName) -> bool:
        halt = self._halts.get(name)
        return halt is not None and halt.reason is HaltReason.UNSAFE_COMMIT

    def _job(self, name: TableName, what: str) -> None:
        assert name not in self._jobs, f"{what} beside {self._jobs[name]} of {name}"
        self._jobs[name] = what
        assert len(self._jobs) <= self._world.jobs_max + 2 * self._catalogs, "too many threads"

    def _care(self, name: TableName) -> None:
        assert name not in self._maintenance, f"two threads sweep or expire {name}"
        self._maintenance[name] = now_ms = self._world.now_ms
        self._uncared_ms.pop(name.catalog, None)
        rounds = sum(now_ms - since_ms <= HUNG_JOB_MS for since_ms in self._maintenance.values())
        assert rounds <= ROUNDS_MAX + 2 * self._catalogs, "too many rounds"
        of_catalog = sum(each.catalog == name.catalog for each in self._maintenance)
        assert of_catalog <= 2 * ROUNDS_MAX, "hung rounds pile up"

    @property
    def _catalogs(self) -> int:
        return len({name.catalog for name in self._world.tables})

    def _look_at_maintenance(self) -> None:
        """Whatever hangs elsewhere: no catalog whose rounds end waits for long to begin one."""
        world, expiry = self._world, ExpireSnapshots
        due = {
            name.catalog
            for name, scheduled in world.scheduler.tables.items()
            if name not in self._maintenance
            and not self._is_held(name)
            and scheduled.planned is not None
            and scheduled.is_worked_on
            and not (scheduled.is_leaving or scheduled.keeps_snapshots)
            and world.expiry.is_due(
                scheduled, scheduled.rounds_of(expiry.name), world.now_ms, world.scheduler.wall
            )
        }
        if world.scheduler.is_draining:
            due.clear()
        hung = {
            name.catalog
            for name, since_ms in self._maintenance.items()
            if world.now_ms - since_ms > CARE_WAIT_MS // 2
        }
        since = self._uncared_ms
        self._uncared_ms = {each: since.get(each, world.now_ms) for each in due - hung}
        for catalog, since_ms in self._uncared_ms.items():
            waits_ms = world.now_ms - since_ms
            assert waits_ms <= CARE_WAIT_MS, f"nothing of {catalog} expires for {waits_ms} ms"

    def _submit(self, number: int, index: int) -> None:
        world, key = self._world, (number, index)
        name = self.table_of[number]
        scheduled = world.scheduler.tables[name]
        running = world.running
        assert world.is_up, "nothing is submitted to an engine that is gone"
        assert not world.scheduler.is_ending, "a subcompaction begins after the end"
        assert key not in running, f"subcompaction {key} is under way twice"
        assert number in self.active, f"subcompaction {key} of a compaction that has ended"
        assert number not in self._doomed, (
            f"subcompaction {key} of a compaction that failed already"
        )
        assert len(running) < world.capacity, "more subcompactions than slots"
        mine = self._held(name)
        assert mine < scheduled.policy.max_concurrent_tasks, f"{name} holds too many slots"
        large = sum(size >= LARGE for size in running.values())
        self._submitted_at[key] = world.now_ms
        if world.sizes[number] >= LARGE and world.capacity > 1 and not self._cancelled:
            assert large < world.capacity - 1, "large subcompactions hold every slot"
        self.given[name] += cost(world.sizes[number])
        self._attempts[key] += 1
        assert self._attempts[key] <= world.scheduler.accounting.retry.task_attempts
        if number not in self.first_submits:
            assert not scheduled.is_leaving, "a compaction begins late"
            assert not world.scheduler.is_draining, "a compaction begins late"
            self.first_submits[number] = world.now_ms

    def _begin(self, effect: DispatchJob) -> None:
        world, name, bucket = self._world, effect.name, effect.bucket
        scheduled = world.scheduler.tables[name]
        assert not world.scheduler.is_draining, "nothing is decided while draining"
        assert not scheduled.is_leaving, "nothing is decided for a table that leaves"
        assert not scheduled.is_excluded, "nothing is decided for an excluded table"
        assert scheduled.policy.mode is Mode.AUTO, "nothing is decided for a paused table"
        rests_until = self._rests_until.get((name, bucket), 0)
        assert world.now_ms >= rests_until, f"{name} {bucket.bucket} is tried again too early"
        table = world.tables[name]
        pending = table.pending(bucket.bucket)
        assert pending is not None, "it was due, and nothing was begun since"
        if not pending.is_forced or scheduled.policy.windows_strict:
            windows = scheduled.policy.windows
            assert may_start(windows, pending.kind, world.now_ms, timezone.utc), (
                "outside its window"
            )
        halt = scheduled.halt
        if halt is not None:
            assert not self._is_unsafe(name), f"{name} is not to be touched"
            assert world.now_ms >= halt.next_try_ms, f"{name} is halted"
            assert name not in map(self.table_of.get, self.active), "a halted table tries one"
        self._chosen_at[effect.compaction_id] = world.now_ms
        self.table_of[effect.compaction_id], self.bucket_of[effect.compaction_id] = name, bucket
        self.attempts_at.setdefault((name, bucket), []).append(world.now_ms)

    def _hand_back(self, name: TableName, ended: Sequence[InFlight]) -> None:
        for each in ended:
            number = each.compaction_id
            assert self.table_of[number] == name
            assert number not in self._handed_back, f"compaction {number} ends twice"
            self._handed_back.add(number)
            assert number in self.active, f"compaction {number} was never dispatched"
            still_run = any(n == number for n, _ in self._world.running)
            assert not still_run or number in self._cancelled, "its subcompactions still run"
            failed_ms = self._doomed.get(number)
            if isinstance(each.result, SubcompactionFailure) and failed_ms is not None:
                self.failed(name, self.bucket_of[number], failed_ms)

    # -- answers

    def failed(self, name: TableName, bucket: BucketId, now_ms: int | None = None) -> None:
        """A merge or a dispatch failed for good: its bucket is quarantined, longer each time."""
        if now_ms is None:
            now_ms = self._world.now_ms
            self.answered[name] += 1
            del self._jobs[name]
        backoff = self._world.scheduler.accounting.retry.backoff
        self._failures[name, bucket] += 1
        pause = backoff.min_ms * 2 ** (self._failures[name, bucket] - 1)
        self._rests_until[name, bucket] = now_ms + min(backoff.max_ms, pause)

    def dispatched(self, name: TableName, effect: DispatchJob, result: InFlight | None) -> None:
        del self._jobs[name]
        self.answered[name] += 1
        if result is None:
            return
        scheduled = self._world.scheduler.tables[name]
        assert result.snapshot_id >= self._world.tables[name].expired_to, "its inputs have expired"
        in_flight = sum(self.table_of[n] == name for n in self.active)
        finished = len(scheduled.with_status(Status.FINISHED))
        # Parts that are tried again may have given their slots to others meanwhile.
        most = 2 * scheduled.policy.max_concurrent_tasks
        assert in_flight - finished <= most, "compactions pile up"
        self.dispatched_count[name] += 1
        self.active[result.compaction_id] = result

    def cycle_ended(self, name: TableName, ended: Sequence[InFlight], cycle: CycleResult) -> None:
        self.discarded(name, ended)
        if cycle.error is None:
            self._looked_at[name] = self._world.now_ms
        if cycle.wait_ms:
            self._held_until[name] = self._world.now_ms + cycle.wait_ms
        if isinstance(cycle.commit, Committed):
            for each in ended:
                number = each.compaction_id
                if number in cycle.commit.compaction_ids:
                    key = (name, self.bucket_of[number])
                    self.published[name] += 1
                    if self.first_submits[number] >= self._rests_until.get(key, 0):
                        self._failures.pop(key, None)
                        self._rests_until.pop(key, None)

    def discarded(self, name: TableName, ended: Sequence[InFlight]) -> None:
        del self._jobs[name]
        for each in ended:
            del self.active[each.compaction_id]

    def cared(self, name: TableName) -> None:
        del self._maintenance[name]

    def subcompaction_failed(self, number: int, index: int, kind: FailureKind) -> None:
        scheduler = self._world.scheduler
        attempts = 1 if scheduler.is_draining else scheduler.accounting.retry.task_attempts
        is_last = kind is FailureKind.POISON or self._attempts[number, index] >= attempts
        if is_last and not (scheduler.is_draining and kind is FailureKind.LOST):
            self._doomed[number] = self._world.now_ms

    def engine_lost(self) -> None:
        """What was under way is nobody's fault."""
        for number in self.active:
            self._doomed.pop(number, None)

    # -- the scheduler's observer

    def on_event(self, event: Event) -> None:
        match event:
            case CompactionStarted(record=record):
                assert record.compaction_id not in self.first_submits, "it starts twice"
            case EndedCompaction():
                self.outcomes[event.outcome] += 1
                self.ended_of[event.name] += 1
            case BucketQuarantined(quarantined=quarantined, now_ms=now_ms):
                backoff = self._world.scheduler.accounting.retry.backoff
                pause = min(backoff.max_ms, backoff.min_ms * 2 ** (quarantined.failures - 1))
                assert quarantined.until_ms == now_ms + pause == self._world.now_ms + pause
            case TableHalted(halt=halt):
                self._halts[event.name] = halt
            case TableResumed():
                del self._halts[event.name]
            case SubcompactionHung(submitted=submitted):
                since_ms = self._submitted_at[submitted.key]
                assert self._world.now_ms - since_ms > submitted.limit_ms

    def _held(self, name: TableName) -> int:
        """Slots that the table's compactions hold; not those that hung workers took from all."""
        numbers = [number for number, _ in self._world.running if number not in self._cancelled]
        return sum(self.table_of[number] == name for number in numbers)

    # -- at any time

    def look(self) -> None:
        """Sums and bounds."""
        scheduler = self._world.scheduler
        hung = scheduler.engine.hung
        assert scheduler.engine.running + hung == len(self._world.running)
        assert not self._late, "files of late workers are not removed"
        self._look_at_maintenance()
        for name, scheduled in scheduler.tables.items():
            mine = self._held(name)
            assert scheduled.slots == mine, f"{name} holds {mine} slots, not {scheduled.slots}"
            assert (scheduled.shown_halt is not None) == (name in self._halts), (
                "nobody was told of a halt"
            )
            if scheduled.shown_halt is not None:
                self._halts[name] = scheduled.shown_halt
            queued = [
                each.compaction_id for each in scheduled.compactions.values() if each.has_waiting
            ]
            assert len(set(queued)) <= scheduled.policy.max_concurrent_tasks + 1
            assert all(number in self.active for number in queued)

    def at_the_end(self) -> None:
        """Nothing is under way and every compaction has ended in one way."""
        scheduler = self._world.scheduler
        assert scheduler.is_idle, "something is under way"
        assert not self.active, f"nobody knows what became of {sorted(self.active)}"
        assert all(number in self._cancelled for number, _ in self._world.running)
        assert scheduler.engine.running == 0
        assert sum(self.dispatched_count.values()) == sum(self.outcomes.values())
        for name, scheduled in scheduler.tables.items():
            booked = sum(scheduled.counters.compactions.values())
            assert booked == self.answered[name], f"{name} counted {booked} ends"
            assert scheduled.slots == 0
            assert not scheduled.compactions
