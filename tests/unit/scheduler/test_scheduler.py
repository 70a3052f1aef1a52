"""Single decisions of the scheduler; `tests/simulation` is about all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timezone

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from compactord.clock import WallTime
from compactord.commit.changes import BucketChange
from compactord.config.choices import Mode
from compactord.config.model import Backoff, Limits, Retry
from compactord.config.windows import Window
from compactord.errors import ErrorKind, StorageError
from compactord.maintenance.kind import AnyKind, Round
from compactord.maintenance.orphans import SweepOrphans
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import (
    FailureKind,
    RewriteStats,
    SubcompactionFailure,
    SubcompactionResult,
    TableName,
)
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.scheduler.compaction import Outcome, Status
from compactord.scheduler.effects import (
    CycleJob,
    DiscardJob,
    DispatchJob,
    Effect,
    Forget,
    JobOutcome,
    MaintenanceJob,
    Submit,
)
from compactord.scheduler.events import Event
from compactord.scheduler.scheduler import Scheduler
from tests.simulation.tables import MIB, Bucket, SimTable
from tests.simulation.world import policy

NOW = 1_700_000_000_000
NAME, OTHER = TableName("c", "db", "t"), TableName("c", "db", "u")
NOTHING = Round()
STATS = RewriteStats(
    input_records=1, output_records=1, input_bytes=5, output_bytes=3, cpu_s=0.5, peak_rss_bytes=0
)


KINDS = (
    SweepOrphans(interval_ms=10**12, grace_ms=1),
    ExpireSnapshots(interval_ms=1_000),
)


class Silent:
    """An observer that remembers which events it was told of."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @property
    def halts(self) -> list[str]:
        return [each for each in self.events if each in ("TableHalted", "TableResumed")]

    def on_event(self, event: Event) -> None:
        self.events.append(type(event).__name__)


class Stage:
    """A scheduler and its tables; the test runs the effects."""

    def __init__(
        self,
        *,
        slots: int = 2,
        commit_delay_ms: int = 0,
        jobs_max: int = 4,
        kinds: Sequence[AnyKind] = KINDS,
        **retry: object,
    ) -> None:
        self.observer = Silent()
        backoff = Backoff.model_validate({"min": "1 s", "max": "60 s"})
        self.scheduler = Scheduler(
            retry=Retry(**{"backoff": backoff, "task_attempts": 1, **retry}),  # type: ignore[arg-type]
            wall=WallTime(timezone.utc),
            observers=[self.observer],
            jobs_max=jobs_max,
            limits=Limits().model_copy(update={"max_commit_delay_ms": commit_delay_ms}),
            kinds=kinds,
        )
        self.scheduler.slots = slots
        self.tables: dict[TableName, SimTable] = {}
        self.now = NOW

    def add(
        self,
        name: TableName = NAME,
        *,
        buckets: int = 1,
        size: int = MIB,
        settle_ms: int = 0,
        location: str = "",
        **settings: object,
    ) -> SimTable:
        made = SimTable([Bucket() for _ in range(buckets)], settle_ms=settle_ms)
        table = self.tables[name] = made
        for _ in range(5):
            table.commit(dict.fromkeys(range(buckets), size), self.now)
        location = location or f"/{name.table}"
        ref = TableRef(database=name.database, name=name.table, location=location)
        self.scheduler.add(name, ref, policy(**settings), self.now)
        return table

    def decide(self, after_ms: int = 0) -> list[Effect]:
        """What begins now, without maintenance."""
        self.now += after_ms
        effects = self.scheduler.tick(self.now)
        for effect in effects:
            if isinstance(effect, MaintenanceJob):
                self.maintained(effect)
        return [e for e in effects if not isinstance(e, MaintenanceJob)]

    def maintained(self, job: MaintenanceJob, round_: Round = NOTHING) -> None:
        self.scheduler.job_ended(job, round_, 0.0, self.now)

    def job_ends(self, outcome: JobOutcome, name: TableName = NAME) -> None:
        """The running cycle or dispatch of the table ends with this outcome."""
        running = self.scheduler.tables[name].job
        assert running is not None
        self.scheduler.job_ended(running, outcome, 0.0, self.now)

    def cycle_ended(self, effect: Effect, **how: object) -> None:
        assert isinstance(effect, CycleJob)
        how.setdefault("error", None)
        told = {each: how.pop(each) for each in ("causes", "hold", "last_commit") if each in how}
        cycle = self.tables[effect.name].cycle(effect.ended, effect.skip, **how)  # type: ignore[arg-type]
        cycle = replace(cycle, **told)  # type: ignore[arg-type]
        self.scheduler.job_ended(effect, cycle, 0.0, self.now)

    def dispatched(self, effect: Effect, *, subcompactions: int | None = None) -> None:
        assert isinstance(effect, DispatchJob)
        result = self.tables[effect.name].dispatch(
            effect.bucket.bucket, compaction_id=effect.compaction_id, free_slots=subcompactions or 1
        )
        self.scheduler.job_ended(effect, result, 0.0, self.now)

    def planned(self) -> list[Effect]:
        """The effects after the first cycle of each table."""
        for effect in self.decide():
            self.cycle_ended(effect)
        return self.decide()

    def submitted(self, *, subcompactions: int = 1) -> list[Submit]:
        """The subcompactions submitted after the first dispatch."""
        for effect in self.planned():
            self.dispatched(effect, subcompactions=subcompactions)
        submits = [effect for effect in self.decide() if isinstance(effect, Submit)]
        assert submits
        return submits

    def next_dispatch(self, step_ms: int) -> DispatchJob:
        """Looks at the table, as often as it takes, until it begins something."""
        for _ in range(200):
            self.poll()
            for effect in [*self.decide(step_ms)]:
                self.cycle_ended(effect)
            for effect in self.decide():
                assert isinstance(effect, DispatchJob)
                return effect
        raise AssertionError("nothing begins")

    def poll(self, name: TableName = NAME) -> None:
        self.scheduler.poll_due(name, self.now)

    def ends(self, submit: Submit, kind: FailureKind | None = None, *, error: str = "E") -> None:
        number, index = submit.subcompaction.compaction_id, submit.subcompaction.index
        if kind is None:
            done = SubcompactionResult(compaction_id=number, index=index, outputs=(), stats=STATS)
            self.scheduler.subcompaction_ended(done, self.now)
            return
        failure = SubcompactionFailure(
            compaction_id=number,
            index=index,
            kind=kind,
            error=ErrorKind(error),
            message="bad",
            traceback="",
        )
        self.scheduler.subcompaction_ended(failure, self.now)

    def outcomes(self, name: TableName = NAME) -> dict[Outcome, int]:
        found = self.scheduler.tables[name].counters.compactions
        return {outcome: count for (_, outcome), count in found.items()}


def is_sweep(effect: Effect) -> bool:
    return isinstance(effect, MaintenanceJob) and isinstance(effect.kind, SweepOrphans)


def is_expiry(effect: Effect) -> bool:
    return isinstance(effect, MaintenanceJob) and isinstance(effect.kind, ExpireSnapshots)


def only(effects: list[Effect]) -> Effect:
    assert len(effects) == 1, effects
    return effects[0]


def test_from_a_first_look_to_a_commit() -> None:
    stage = Stage()
    stage.add()
    stage.ends(only(stage.submitted()))  # type: ignore[arg-type]
    cycle = only(stage.decide())
    assert isinstance(cycle, CycleJob)
    assert [type(each.result) for each in cycle.ended] == [BucketChange]
    stage.cycle_ended(cycle)
    assert stage.decide() == []
    scheduled = stage.scheduler.tables[NAME]
    assert stage.outcomes() == {Outcome.COMMITTED: 1}
    assert scheduled.counters.input_bytes == STATS.input_bytes
    assert scheduled.counters.commits_committed == 1
    assert stage.scheduler.recent[0].outcome is Outcome.COMMITTED
    assert stage.scheduler.is_idle


def test_a_table_has_one_job_at_a_time_and_its_wishes_wait() -> None:
    stage = Stage()
    stage.add()
    cycle = only(stage.decide())
    stage.poll()
    assert stage.decide() == [], "the cycle runs"
    stage.cycle_ended(cycle)
    assert isinstance(only(stage.decide()), CycleJob), "and is asked for again"


def test_cycles_over_all_tables_are_bounded_and_results_go_first() -> None:
    stage = Stage()
    for n in range(7):
        stage.add(TableName("c", "db", f"t{n}"))
    assert len(stage.decide()) == 4


def test_threads_are_left_to_cycles_however_many_tables_could_dispatch() -> None:
    stage = Stage(slots=50)
    for n in range(30):
        stage.add(TableName("c", "db", f"t{n}"))
    begun: list[Effect] = []
    for _ in range(12):
        for effect in stage.decide():
            if isinstance(effect, CycleJob):
                stage.cycle_ended(effect)
            else:
                begun.append(effect)
    assert 1 <= len(begun) < 4


def test_subcompactions_never_exceed_slots_and_fewer_slots_let_them_end() -> None:
    stage = Stage(slots=2)
    for n in range(4):
        stage.add(TableName("c", "db", f"t{n}"))
    for _ in range(12):
        for effect in stage.decide():
            if isinstance(effect, CycleJob):
                stage.cycle_ended(effect)
            elif isinstance(effect, DispatchJob):
                stage.dispatched(effect)
        assert stage.scheduler.engine.running <= 2
    assert stage.scheduler.engine.running == 2
    stage.scheduler.slots = 1
    assert stage.decide(1_000) == []
    assert stage.scheduler.engine.running == 2


def test_when_one_subcompaction_fails_for_good_the_others_are_not_begun() -> None:
    stage = Stage(slots=2)
    stage.add(size=200 * MIB)
    submits = stage.submitted(subcompactions=5)
    assert len(submits) == 2
    stage.ends(submits[0], FailureKind.POISON)
    assert stage.decide() == [], "three subcompactions that are left would run for nothing"
    stage.ends(submits[1])
    cycle = only(stage.decide())
    assert isinstance(cycle, CycleJob)
    assert [type(each.result) for each in cycle.ended] == [SubcompactionFailure]
    assert stage.outcomes() == {Outcome.FAILED: 1}
    assert stage.scheduler.engine.running == 0


def test_a_subcompaction_that_may_succeed_is_tried_again_before_its_bucket_is_quarantined() -> None:
    stage = Stage(task_attempts=2)
    stage.add()
    (submit,) = stage.submitted()
    with capture_logs(processors=[merge_contextvars]) as logs:
        stage.ends(submit, FailureKind.TRANSIENT)
    assert [{**log, **NAME.log_fields} for log in logs] == logs
    assert [log["event"] for log in logs] == ["compaction_retry"]
    again = only(stage.decide())
    assert again == submit
    stage.ends(submit, FailureKind.TRANSIENT)
    assert stage.scheduler.tables[NAME].quarantined


def test_a_bucket_that_fails_again_is_quarantined_for_longer() -> None:
    stage = Stage()
    stage.add()
    submits = stage.submitted()
    for pause_ms in (1_000, 2_000, 4_000):
        stage.ends(submits[0], FailureKind.POISON)
        stage.cycle_ended(only(stage.decide()))
        stage.poll()
        stage.cycle_ended(only(stage.decide(pause_ms - 1)))
        assert stage.decide() == []
        stage.now += 1
        stage.poll()
        cycle = only([e for e in stage.decide() if isinstance(e, CycleJob)])
        stage.cycle_ended(cycle)
        stage.dispatched(only(stage.decide()))
        submits = stage.decide()  # type: ignore[assignment]
    assert stage.scheduler.tables[NAME].quarantined[BucketId(b"", 0)].failures == 3


def test_a_dispatch_that_fails_quarantines_its_bucket_under_its_partition() -> None:
    stage = Stage()
    table = stage.add()
    effect = only(stage.planned())
    assert isinstance(effect, DispatchJob)
    scheduled = stage.scheduler.tables[NAME]
    (record,) = scheduled.with_status(Status.PLANNED)
    record.pending = replace(record.pending, partition="day=1")
    stage.job_ends(StorageError("/t", "unreadable"))
    assert scheduled.quarantined[effect.bucket].partition == "day=1"
    assert stage.outcomes() == {Outcome.FAILED: 1}
    table.restarted()
    stage.poll()
    stage.cycle_ended(only(stage.decide()))
    assert stage.decide(999) == []


def test_what_is_lost_with_the_engine_is_planned_anew_and_nobody_is_to_blame() -> None:
    stage = Stage()
    stage.add()
    (submit,) = stage.submitted()
    stage.scheduler.slots = 0
    stage.scheduler.engine_lost("it died", stage.now)
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    scheduled = stage.scheduler.tables[NAME]
    assert not scheduled.quarantined
    assert scheduled.failures == 0
    assert stage.outcomes() == {Outcome.CANCELLED: 1}
    stage.scheduler.slots = 1
    assert isinstance(only(stage.decide()), DispatchJob)


def test_a_bucket_that_makes_the_engine_die_each_time_is_quarantined() -> None:
    stage = Stage()
    stage.add()
    scheduled = stage.scheduler.tables[NAME]
    stage.cycle_ended(only(stage.decide()))
    for _ in range(5):
        assert not scheduled.quarantined
        stage.dispatched(only(stage.decide()))
        assert isinstance(only(stage.decide()), Submit)
        stage.scheduler.engine_lost("it died", stage.now)
        stage.cycle_ended(only(stage.decide()))
    (quarantined,) = scheduled.quarantined.values()
    assert "the engine died 5 times while it was merged: it died" in quarantined.message
    assert stage.decide() == []


def test_an_engine_that_dies_during_a_cycle_does_not_end_the_cycle() -> None:
    stage = Stage()
    stage.add()
    stage.ends(stage.submitted()[0])
    cycle = only(stage.decide())
    stage.scheduler.engine_lost("it died", stage.now)
    stage.cycle_ended(cycle)
    assert stage.outcomes() == {Outcome.COMMITTED: 1}


def test_a_leaving_table_gets_nothing_new_and_is_forgotten_when_it_is_idle() -> None:
    stage = Stage()
    stage.add()
    (submit,) = stage.submitted()
    stage.scheduler.remove(NAME)
    stage.poll()
    assert stage.decide() == []
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    assert only(stage.decide()) == Forget(name=NAME)
    assert NAME not in stage.scheduler.tables


def test_what_had_not_begun_is_dropped_with_its_table() -> None:
    stage = Stage()
    stage.add()
    dispatch = only(stage.planned())
    stage.scheduler.remove(NAME)
    stage.dispatched(dispatch)
    cycle = only(stage.decide())
    assert isinstance(cycle, CycleJob)
    stage.cycle_ended(cycle)
    assert stage.outcomes() == {Outcome.CANCELLED: 1}
    assert only(stage.decide()) == Forget(name=NAME)


def test_a_table_that_is_listed_again_before_it_was_forgotten_stays() -> None:
    stage = Stage()
    stage.add()
    (submit,) = stage.submitted()
    stage.scheduler.remove(NAME)
    scheduled = stage.scheduler.tables[NAME]
    stage.scheduler.add(NAME, scheduled.ref, scheduled.policy, stage.now)
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    assert stage.decide() == []
    assert stage.scheduler.tables[NAME] is scheduled


@pytest.mark.parametrize("settings", [{"mode": Mode.PAUSED}, {}])
def test_paused_and_excluded_tables_are_looked_at_and_left_alone(
    settings: dict[str, object],
) -> None:
    stage = Stage()
    stage.add(**settings)
    stage.scheduler.tables[NAME].is_excluded = not settings
    assert stage.planned() == []
    assert len(stage.scheduler.tables[NAME].offered) == 1


def test_draining_drops_what_has_not_begun_and_commits_what_has() -> None:
    stage = Stage(slots=1)
    stage.add(buckets=2)
    stage.add(OTHER)
    for effect in stage.decide():
        stage.cycle_ended(effect)
    dispatch = only(stage.decide())
    stage.dispatched(dispatch)
    (submit,) = stage.decide()
    stage.scheduler.drain(stage.now)
    stage.poll()
    assert stage.decide() == []
    assert isinstance(submit, Submit)
    stage.ends(submit)
    stage.cycle_ended(only(stage.decide()))
    assert stage.decide() == []
    assert stage.scheduler.is_idle


def test_while_draining_a_subcompaction_is_not_tried_again() -> None:
    stage = Stage(task_attempts=3)
    stage.add()
    (submit,) = stage.submitted()
    stage.scheduler.drain(stage.now)
    stage.ends(submit, FailureKind.TRANSIENT)
    cycle = only(stage.decide())
    assert isinstance(cycle, CycleJob)
    assert stage.outcomes() == {Outcome.FAILED: 1}


def test_after_the_end_results_are_discarded_whenever_they_finish() -> None:
    stage = Stage(slots=2)
    stage.add()
    stage.submitted()
    stage.scheduler.drain(stage.now)
    stage.scheduler.end()
    scheduled = stage.scheduler.tables[NAME]
    number = scheduled.in_flight[0].compaction_id
    stage.scheduler.engine_lost("stopped", stage.now)
    discard = only(stage.decide())
    assert isinstance(discard, DiscardJob)
    assert [each.compaction_id for each in discard.ended] == [number]
    stage.job_ends(None)
    assert stage.scheduler.is_idle


def test_what_comes_while_something_is_discarded_is_not_forgotten() -> None:
    stage = Stage(slots=2)
    stage.add(buckets=2)
    for effect in stage.planned():
        stage.dispatched(effect)
    first, dispatch = stage.decide()
    stage.dispatched(dispatch)
    second = only(stage.decide())
    assert isinstance(first, Submit)
    stage.scheduler.drain(stage.now)
    stage.scheduler.end()
    stage.ends(first)
    assert isinstance(only(stage.decide()), DiscardJob)
    assert isinstance(second, Submit)
    stage.ends(second)
    stage.poll()
    assert stage.decide() == []
    stage.job_ends(None)
    assert isinstance(only(stage.decide()), DiscardJob)


def test_expiry_keeps_what_is_read_and_looks_again_at_what_came_meanwhile() -> None:
    stage = Stage()
    table = stage.add()
    stage.submitted()
    table.commit({0: MIB}, stage.now)
    stage.poll()
    stage.cycle_ended(only(stage.decide()))
    stage.now += 1_000
    effects = stage.scheduler.tick(stage.now)
    expire = next(e for e in effects if is_expiry(e))
    assert expire.under_way.reads_from == 6, "the snapshot of what is under way, not the newest"
    table.commit({0: MIB}, stage.now)
    stage.poll()
    stage.cycle_ended(only(stage.decide()))
    stage.maintained(expire)
    assert any(is_expiry(e) for e in stage.scheduler.tick(stage.now + 2_000))


# It is a quarter past ten in the evening; from midnight on for three hours, and back then.
NIGHTLY = Window(**{"from": "00:00", "to": "03:00"})
EARLIER = Window(**{"from": "18:00", "to": "21:00"})


@pytest.mark.parametrize(("window", "hours"), [(NIGHTLY, 3), (EARLIER, -3), (EARLIER, 69)])
def test_windows_open_when_the_wall_clock_is_set_into_them(window: Window, hours: int) -> None:
    stage = Stage()
    stage.add(windows=(window,), windows_strict=True)
    stage.cycle_ended(only(stage.decide()))
    assert stage.decide(10_000) == []
    stage.scheduler.wall.set(hours * 3_600_000, stage.now)
    stage.poll()
    stage.cycle_ended(only(stage.decide(10_000)))
    assert isinstance(only(stage.decide()), DispatchJob)


def test_a_policy_change_counts_at_once() -> None:
    stage = Stage()
    stage.add(mode=Mode.PAUSED)
    assert stage.planned() == []
    stage.scheduler.set_policy(NAME, policy())
    assert isinstance(only(stage.scheduler.decide(stage.now)), DispatchJob)
