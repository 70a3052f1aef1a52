"""A scheduler on a virtual clock: events in a heap, effects answered as the daemon's threads would.

Everything follows from the seed. `trace` lists what happened; `Rules` checks each step.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timezone

from compactord.clock import WallTime
from compactord.commit.changes import BucketChange, LossOutcome
from compactord.config.model import Backoff, Limits, Retry
from compactord.config.policy import TablePolicy
from compactord.errors import CommitGaveUp, CompactordError, ErrorKind, FormatError, StorageError
from compactord.maintenance.kind import Round
from compactord.maintenance.orphans import SweepOrphans
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import (
    DATA,
    FailureKind,
    Output,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionResult,
    TableName,
)
from compactord.paimon.data_file import DataFile
from compactord.paimon.schema import TableRef
from compactord.scheduler.effects import (
    Cancel,
    CycleJob,
    DiscardJob,
    DispatchJob,
    Effect,
    Forget,
    MaintenanceJob,
    RemoveOutputs,
    RestartEngine,
    Submit,
)
from compactord.scheduler.scheduler import Scheduler
from compactord.table.jobs import InFlight
from tests.simulation.faults import Faults
from tests.simulation.rules import Rules
from tests.simulation.tables import MIB, SimTable

START_MS = 1_700_000_000_000
TICK_MS = 1_000
JOBS_MAX = 8
# Nothing that works is ever this slow.
LIMITS = Limits.model_validate({"task_timeout": "60 s", "task_min_rate": "512 kb"})
# What is known of the file does not matter here.
LATE_OUTPUTS = (Output(DATA, object.__new__(DataFile)),)
RETRY = Retry(
    task_attempts=2,
    halt_after_consecutive_failures=6,
    halt_after_lost_snapshots=1,
    backoff=Backoff.model_validate({"min": "1 s", "max": "20 s"}),
)


@dataclass(kw_only=True)
class Odds:
    """How often things go wrong; times are milliseconds."""

    look_fails: float = 0.0
    commit_fails: float = 0.0
    conflict: float = 0.0
    snapshot_lost: float = 0.0
    late_rename: float = 0.0
    dispatch_fails: float = 0.0
    subcompaction_fails: float = 0.0
    subcompaction_lost: float = 0.0
    slow_store: float = 0.0
    # A worker never answers; its engine cannot end it either.
    hangs: float = 0.0
    deaf: float = 0.0
    job_ms: tuple[int, int] = (5, 200)
    bytes_per_ms: int = 50 * MIB // 1000


@dataclass(kw_only=True)
class Plan:
    """When a table is written to, and how much into how many buckets."""

    interval_ms: int
    size: tuple[int, int]
    buckets: int = 1
    until_ms: int = field(default=1 << 60)


def policy(**settings: object) -> TablePolicy:
    values = {"branches": (), "max_backlog_age_ms": 30_000, "append_wait_ms": None, **settings}
    return TablePolicy().model_copy(update=values)


class World:
    """`at` schedules an event, `run` lets time pass; the other methods are what may happen."""

    def __init__(
        self,
        seed: int,
        *,
        slots: int = 4,
        odds: Odds | None = None,
        scheduler: Callable[..., Scheduler] = Scheduler,
        limits: Limits = LIMITS,
    ) -> None:
        self.random = random.Random(seed)
        self.odds = odds or Odds()
        self.faults = Faults()
        self.now_ms = START_MS
        self.tables: dict[TableName, SimTable] = {}
        self.rules = Rules(self)
        self.expiry = ExpireSnapshots(interval_ms=2_000)
        self.jobs_max = JOBS_MAX
        self.scheduler = scheduler(
            retry=RETRY,
            wall=WallTime(timezone.utc),
            observers=(self.rules,),
            jobs_max=JOBS_MAX,
            limits=limits,
            kinds=(
                SweepOrphans(interval_ms=30_000, grace_ms=1),
                self.expiry,
            ),
        )
        self.limits = limits
        self.capacity = slots
        self.scheduler.slots = slots
        self.is_up = True
        self.trace: list[tuple[int, str]] = []
        self.sizes: dict[int, int] = {}
        self.restarts = 0
        # Tables whose jobs never end, and catalogs whose rounds of maintenance do not.
        self.stuck: set[TableName] = set()
        self.hung_rounds: set[str] = set()
        # Expiries that began, with what they keep.
        self.expired_from: dict[TableName, int | None] = {}
        self._engine: dict[tuple[int, int], int] = {}
        self._deaf: set[tuple[int, int]] = set()
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self.at(0, self._tick)

    # -- what a test asks for

    def at(self, delay_ms: int, event: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_ms + delay_ms, next(self._sequence), event))

    def run(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, event = heapq.heappop(self._heap)
            event()
            self.perform(self.scheduler.decide(self.now_ms))
        self.now_ms = end_ms

    def add(
        self,
        name: str,
        table: SimTable,
        plan: Plan | None = None,
        *,
        rules: TablePolicy | None = None,
        interval_ms: int = 2_000,
        catalog: str = "c",
    ) -> TableName:
        key = TableName(catalog, "db", name)
        self.tables[key] = table
        self.scheduler.add(
            key,
            TableRef(database="db", name=name, location=f"/{name}"),
            rules or policy(),
            self.now_ms,
        )
        self.at(self.random.randrange(interval_ms), lambda: self._poll(key, interval_ms))
        if plan is not None:
            self.at(self.random.randrange(plan.interval_ms), lambda: self._write(key, plan))
        return key

    def lose_engine(self, for_ms: int) -> None:
        if not self.is_up:
            return
        self._note("engine lost")
        self.is_up = False
        self._engine.clear()
        self.scheduler.slots = 0
        self.rules.engine_lost()
        self.scheduler.engine_lost("it died", self.now_ms)
        self.at(for_ms, self._engine_up)

    def resize(self, slots: int) -> None:
        self.capacity = slots
        if self.is_up:
            self.scheduler.slots = slots

    def cancel(self) -> None:
        """The end of a stop: subcompactions are cancelled, soon after the engine is given up."""
        self.scheduler.end()
        for key in list(self._engine):
            self.at(self.random.randrange(1, 300), lambda key=key: self._subcompaction_lost(key))
        self.at(400, self._stopped)

    def lift_halts(self) -> None:
        for scheduled in self.scheduler.tables.values():
            if scheduled.is_unsafe:
                self.scheduler.accounting.acknowledge(scheduled)

    @property
    def running(self) -> dict[tuple[int, int], int]:
        """Subcompactions at the engine and how much each reads."""
        return self._engine

    # -- time

    def _tick(self) -> None:
        self.at(TICK_MS, self._tick)
        self.perform(self.scheduler.tick(self.now_ms))
        self.rules.look()

    def _poll(self, name: TableName, interval_ms: int) -> None:
        if name in self.tables:
            self.scheduler.poll_due(name, self.now_ms)
            self.at(interval_ms, lambda: self._poll(name, interval_ms))

    def _write(self, name: TableName, plan: Plan) -> None:
        table = self.tables.get(name)
        if table is None or self.now_ms >= plan.until_ms:
            return
        chosen = self.random.sample(sorted(table.buckets), min(plan.buckets, len(table.buckets)))
        table.commit({b: self.random.randint(*plan.size) for b in chosen}, self.now_ms)
        self.at(plan.interval_ms, lambda: self._write(name, plan))

    def _stopped(self) -> None:
        self.rules.engine_lost()
        self.scheduler.engine_lost("stopped", self.now_ms)

    def _engine_up(self) -> None:
        self.is_up = True
        self.scheduler.slots = self.capacity

    # -- effects

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.rules.effect(effect)
            match effect:
                case Submit(subcompaction=subcompaction):
                    self._submit(subcompaction)
                case Cancel(subcompaction=subcompaction):
                    self._cancel((subcompaction.compaction_id, subcompaction.index))
                case RestartEngine():
                    self.restarts += 1
                    self.lose_engine(500)
                case RemoveOutputs(subcompaction=subcompaction):
                    self._note(f"remove {subcompaction.compaction_id} {subcompaction.index}")
                case CycleJob(name=name) | DispatchJob(name=name) if name in self.stuck:
                    pass
                case MaintenanceJob(name=name) if name.catalog in self.hung_rounds:
                    pass
                case CycleJob(name=name, ended=ended):
                    commits = any(isinstance(each.result, BucketChange) for each in ended)
                    silent_ms = self.faults.silence_ms(name, commits=commits)
                    self._job(lambda effect=effect: self._cycle(effect), silent_ms)
                case DispatchJob(name=name):
                    silent_ms = self.faults.silence_ms(name, commits=False)
                    self._job(lambda effect=effect: self._dispatch(effect), silent_ms)
                case DiscardJob():
                    self._job(lambda effect=effect: self._discard(effect))
                case MaintenanceJob(name=name, kind=ExpireSnapshots(), under_way=under_way):
                    self.tables[name].expired_to = under_way.reads_from or 0
                    self.expired_from[name] = under_way.reads_from
                    round_ = Round(more=self.random.random() < 0.1)
                    self._care(lambda job=effect, round_=round_: self._maintained(job, round_))
                case MaintenanceJob():
                    self._care(lambda job=effect: self._maintained(job, Round()))
                case Forget(name=name):
                    self._note(f"forget {name}")
                    del self.tables[name]

    def _job_ms(self) -> int:
        if self.random.random() < self.odds.slow_store:
            return self.random.randint(2_000, 10_000)
        return self.random.randint(*self.odds.job_ms)

    def _care(self, done: Callable[[], None]) -> None:
        self.at(self._job_ms(), done)

    def _job(self, done: Callable[[], None], took_ms: int | None = None) -> None:
        """In a thread of its own; None: it takes as long as any."""
        self.at(self._job_ms() if took_ms is None else took_ms, done)

    def _cycle(self, effect: CycleJob) -> None:
        name, ended = effect.name, effect.ended
        odds, chance = self.odds, self.random.random
        finished = [each.compaction_id for each in ended if isinstance(each.result, BucketChange)]
        error: CompactordError | None = None
        if chance() < (odds.commit_fails if finished else odds.look_fails):
            errors = [StorageError("/t", "read failed"), FormatError("/t/snapshot-1", "torn")]
            error = CommitGaveUp("lost too often") if finished else self.random.choice(errors)
        error = self.faults.of_cycle(name, commits=bool(finished)) or error
        conflicts = frozenset(n for n in finished if chance() < odds.conflict)
        lost = chance() < odds.snapshot_lost or self.faults.loses_ours(name)
        table, late = self.tables[name], self.faults.loses_theirs(name)
        if chance() < odds.late_rename:
            late = self.random.choice(list(LossOutcome))
        cycle = table.cycle(
            ended, effect.skip, error=error, conflicts=conflicts, lost=lost, late=late
        )
        self._note(f"cycle_ended {name} {_numbers(ended)} {error} {cycle.planned is not None}")
        self.rules.cycle_ended(name, ended, cycle)
        self.scheduler.job_ended(effect, cycle, 0.0, self.now_ms)

    def _dispatch(self, effect: DispatchJob) -> None:
        table, name = self.tables[effect.name], effect.name
        self._note(f"dispatched {name} {effect.bucket.bucket} {effect.compaction_id}")
        error = self.faults.of_dispatch(name, effect.bucket.bucket)
        if self.random.random() < self.odds.dispatch_fails:
            error = error or StorageError("/t", "footer unreadable")
        if error is not None:
            table.restarted()
            self.rules.failed(name, effect.bucket)
            self.scheduler.job_ended(effect, error, 0.0, self.now_ms)
            return
        dispatched = table.dispatch(
            effect.bucket.bucket, compaction_id=effect.compaction_id, free_slots=effect.free_slots
        )
        self.rules.dispatched(name, effect, dispatched)
        if dispatched is not None:
            size = table.in_flight[effect.compaction_id].size
            self.sizes[effect.compaction_id] = size // max(1, len(dispatched.subcompactions))
        self.scheduler.job_ended(effect, dispatched, 0.0, self.now_ms)

    def _discard(self, effect: DiscardJob) -> None:
        name, ended = effect.name, effect.ended
        self._note(f"discarded {name} {_numbers(ended)}")
        self.tables[name].release(ended)
        self.rules.discarded(name, ended)
        self.scheduler.job_ended(effect, None, 0.0, self.now_ms)

    def _maintained(self, job: MaintenanceJob, round_: Round) -> None:
        self.rules.cared(job.name)
        self.scheduler.job_ended(job, round_, 0.0, self.now_ms)

    # -- the engine

    def _submit(self, subcompaction: Subcompaction) -> None:
        key = (subcompaction.compaction_id, subcompaction.index)
        if not self.is_up:
            return
        self._note(f"submit {key}")
        size = self.sizes[subcompaction.compaction_id]
        self._engine[key] = size
        hangs = self.faults.merge_hangs(*self._in_flight(subcompaction.compaction_id))
        if self.random.random() < self.odds.hangs or hangs:
            self._note(f"{key} hangs")
            if self.random.random() < self.odds.deaf:
                self._deaf.add(key)
            return
        took_ms = 200 + int(size / self.odds.bytes_per_ms * self.random.uniform(0.8, 1.3))
        self.at(took_ms, lambda: self._subcompaction_done(key))

    def _cancel(self, key: tuple[int, int]) -> None:
        if key not in self._deaf:
            self.at(self.random.randrange(1, 300), lambda: self._end_late(key))

    def _end_late(self, key: tuple[int, int]) -> None:
        """The compaction has ended before; some workers were just about to finish."""
        if self._engine.pop(key, None) is None:
            return
        if self.random.random() < 0.3:
            self._note(f"{key} finishes late")
            self.rules.finished_late(key)
            self.scheduler.subcompaction_ended(self._result(key, LATE_OUTPUTS), self.now_ms)
        else:
            self._fail(key, FailureKind.LOST)

    def _subcompaction_done(self, key: tuple[int, int]) -> None:
        if key in self._engine and self.rules.is_cancelled(key[0]):
            self._end_late(key)
            return
        if self._engine.pop(key, None) is None:
            return
        number = key[0]
        name, bucket = self._in_flight(number)
        chance, kind = self.random.random(), None
        if self.tables[name].buckets[bucket].is_poison:
            kind = FailureKind.POISON
        elif chance < self.odds.subcompaction_fails:
            kind = FailureKind.TRANSIENT
        elif chance < self.odds.subcompaction_fails + self.odds.subcompaction_lost:
            kind = FailureKind.LOST
        kind = kind or self.faults.of_merge(name, bucket)
        self._note(f"subcompaction {key} {kind}")
        if kind is not None:
            self._fail(key, kind)
            return
        self.scheduler.subcompaction_ended(self._result(key, ()), self.now_ms)

    def _result(self, key: tuple[int, int], outputs: tuple[Output, ...]) -> SubcompactionResult:
        number, index = key
        size = self.sizes[number]
        stats = RewriteStats(
            input_records=1,
            output_records=1,
            input_bytes=size,
            output_bytes=size,
            cpu_s=0,
            peak_rss_bytes=0,
        )
        return SubcompactionResult(compaction_id=number, index=index, outputs=outputs, stats=stats)

    def _subcompaction_lost(self, key: tuple[int, int]) -> None:
        if self._engine.pop(key, None) is not None:
            self._fail(key, FailureKind.LOST)

    def _fail(self, key: tuple[int, int], kind: FailureKind) -> None:
        number, index = key
        failure = SubcompactionFailure(
            compaction_id=number,
            index=index,
            kind=kind,
            error=ErrorKind("E"),
            message="it failed",
            traceback="",
        )
        self.rules.subcompaction_failed(number, index, kind)
        self.scheduler.subcompaction_ended(failure, self.now_ms)

    def _in_flight(self, number: int) -> tuple[TableName, int]:
        for name, table in self.tables.items():
            if number in table.in_flight:
                return name, table.in_flight[number].bucket
        raise AssertionError(f"compaction {number} is at the engine and belongs to no table")

    def _note(self, what: str) -> None:
        self.trace.append((self.now_ms - START_MS, what))


def _numbers(ended: Sequence[InFlight]) -> list[int]:
    return sorted(each.compaction_id for each in ended)
