"""Compactions of one table that finish close together are published in one snapshot."""

from __future__ import annotations

from compactord.model import FailureKind
from compactord.scheduler.effects import CycleJob, DiscardJob, DispatchJob, Effect, Submit
from tests.simulation.tables import MIB
from tests.unit.scheduler.test_scheduler import NAME, Stage, only

DELAY_MS = 5_000
SETTLE_MS = 10_000


def _stage(*, buckets: int, slots: int = 2, delay_ms: int = DELAY_MS) -> Stage:
    stage = Stage(slots=slots, commit_delay_ms=delay_ms)
    stage.add(buckets=buckets)
    stage.cycle_ended(only(stage.decide()))
    return stage


def _begun(stage: Stage, count: int) -> list[Submit]:
    """So many compactions at the engine."""
    submits: list[Submit] = []
    while len(submits) < count:
        for effect in stage.decide():
            if isinstance(effect, DispatchJob):
                stage.dispatched(effect)
            else:
                assert isinstance(effect, Submit)
                submits.append(effect)
    return submits


def _commits(effects: list[Effect]) -> list[int]:
    """How many compactions each of the cycles among the effects publishes."""
    return [len(each.ended) for each in effects if isinstance(each, CycleJob)]


def test_all_that_a_plan_holds_is_published_at_once_however_few_slots_there_are() -> None:
    for slots in (1, 2, 4):
        stage, published = _stage(buckets=32, slots=slots), []
        while effects := stage.decide(10):
            for effect in effects:
                match effect:
                    case DispatchJob():
                        stage.dispatched(effect)
                    case Submit():
                        stage.ends(effect)
                    case CycleJob(ended=ended):
                        published.append(len(ended))
                        stage.cycle_ended(effect)
        assert published == [32], slots


def test_what_has_finished_waits_for_what_is_under_way_but_not_longer_than_the_delay() -> None:
    stage = _stage(buckets=2)
    first, _ = _begun(stage, 2)
    stage.ends(first)
    assert stage.decide(DELAY_MS - 1) == []
    assert _commits(stage.decide(1)) == [1]


def test_the_last_one_of_a_plan_does_not_wait() -> None:
    stage = _stage(buckets=2)
    first, second = _begun(stage, 2)
    stage.ends(first)
    stage.decide(10)
    stage.ends(second)
    assert _commits(stage.decide()) == [2]


def test_without_a_delay_nothing_waits() -> None:
    stage = _stage(buckets=2, delay_ms=0)
    first, _ = _begun(stage, 2)
    stage.ends(first)
    assert _commits(stage.decide()) == [1]


def test_a_bucket_whose_writers_are_about_to_stall_takes_the_others_along() -> None:
    stage = Stage(slots=3, commit_delay_ms=DELAY_MS)
    table = stage.add(buckets=3)
    for _ in range(3):
        table.commit({0: MIB}, stage.now)
    stage.cycle_ended(only(stage.decide()))
    submits = _begun(stage, 3)
    records = stage.scheduler.tables[NAME].compactions
    near = {number: record.pending.is_near_stop for number, record in records.items()}
    calm, forced = (
        next(each for each in submits if near[each.subcompaction.compaction_id] is wanted)
        for wanted in (False, True)
    )
    stage.ends(calm)
    assert stage.decide() == []
    stage.ends(forced)
    assert _commits(stage.decide()) == [2]


def test_readers_who_have_waited_too_long_do_not_wait_for_others() -> None:
    for bound_ms, committed in ((None, []), (2, [1])):
        stage = Stage(slots=2, commit_delay_ms=DELAY_MS)
        stage.add(buckets=2, max_freshness_lag_ms=bound_ms).readers_wait = True
        stage.cycle_ended(only(stage.decide()))
        first, _ = _begun(stage, 2)
        stage.ends(first)
        assert _commits(stage.decide(1)) == committed


def test_a_poll_that_is_due_does_not_publish_what_waits() -> None:
    stage = _stage(buckets=2)
    first, second = _begun(stage, 2)
    stage.ends(first)
    stage.poll()
    poll = only(stage.decide())
    assert _commits([poll]) == [0]
    stage.ends(second)
    stage.cycle_ended(poll)
    assert _commits(stage.decide()) == [2]


def test_a_failure_is_settled_at_once_and_what_waits_with_it() -> None:
    stage = _stage(buckets=3, slots=3)
    first, second, _ = _begun(stage, 3)
    stage.ends(first)
    assert stage.decide() == []
    stage.ends(second, FailureKind.POISON)
    assert _commits(stage.decide()) == [2]


def test_a_service_that_drains_does_not_wait() -> None:
    stage = _stage(buckets=2)
    first, _ = _begun(stage, 2)
    stage.ends(first)
    stage.scheduler.drain(stage.now)
    assert _commits(stage.decide()) == [1]


def test_what_waits_when_the_service_ends_is_discarded() -> None:
    stage = _stage(buckets=2)
    first, _ = _begun(stage, 2)
    stage.ends(first)
    stage.scheduler.drain(stage.now)
    stage.scheduler.end()
    assert isinstance(only(stage.decide()), DiscardJob)


def _committed_and_held(*, buckets: int) -> tuple[Stage, list[Submit]]:
    """One compaction is published and has to stand; the others are at the engine."""
    stage = Stage(slots=buckets)
    stage.add(buckets=buckets, settle_ms=SETTLE_MS)
    stage.cycle_ended(only(stage.decide()))
    first, *others = _begun(stage, buckets)
    stage.ends(first)
    stage.cycle_ended(only(stage.decide()))
    return stage, others


def test_while_a_snapshot_of_ours_has_to_stand_its_table_waits_and_takes_no_thread() -> None:
    stage, (other,) = _committed_and_held(buckets=2)
    stage.poll()
    assert stage.decide(SETTLE_MS - 1) == []
    stage.ends(other)
    assert stage.decide() == [], "it is published later"
    table = stage.scheduler.tables[NAME]
    assert table.job is None
    cycle = only(stage.decide(1))
    assert _commits([cycle]) == [1]
    # That has to stand, too; then the table is planned anew.
    stage.cycle_ended(cycle)
    assert stage.decide(SETTLE_MS - 1) == []
    assert _commits(stage.decide(1)) == [0]


def test_what_was_planned_before_a_snapshot_that_has_to_stand_is_not_begun_after_it() -> None:
    stage = Stage(slots=1)
    stage.add(buckets=3, settle_ms=SETTLE_MS)
    stage.cycle_ended(only(stage.decide()))
    (first,) = _begun(stage, 1)
    assert stage.scheduler.tables[NAME].offered
    stage.ends(first)
    for effect in stage.decide():
        match effect:
            case CycleJob():
                stage.cycle_ended(effect)
            case DispatchJob():
                stage.dispatched(effect)
    while stage.scheduler.tables[NAME].settling_until_ms <= stage.now:
        for effect in stage.decide(10):
            match effect:
                case DispatchJob():
                    stage.dispatched(effect)
                case Submit():
                    stage.ends(effect)
                case CycleJob():
                    stage.cycle_ended(effect)
    assert stage.scheduler.tables[NAME].offered == {}
    assert isinstance(only(stage.decide(SETTLE_MS)), CycleJob)


def test_a_stop_does_not_wait_for_a_snapshot_that_has_to_stand() -> None:
    stage, (other,) = _committed_and_held(buckets=2)
    stage.ends(other)
    stage.scheduler.drain(stage.now)
    assert stage.decide() == [], "there may be time to publish it"
    stage.scheduler.end()
    assert isinstance(only(stage.decide()), DiscardJob)
