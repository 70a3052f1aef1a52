"""Compactions of one table that finish close together are published in one snapshot."""

from __future__ import annotations

from compactord.model import FailureKind
from compactord.scheduler.effects import Discard, Effect, StartCycle, StartDispatch, Submit
from tests.simulation.tables import MIB
from tests.unit.scheduler.test_scheduler import NAME, Stage, only

DELAY_MS = 5_000


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
            if isinstance(effect, StartDispatch):
                stage.dispatched(effect)
            else:
                assert isinstance(effect, Submit)
                submits.append(effect)
    return submits


def _commits(effects: list[Effect]) -> list[int]:
    """How many compactions each of the cycles among the effects publishes."""
    return [len(each.ended) for each in effects if isinstance(each, StartCycle)]


def test_all_that_a_plan_holds_is_published_at_once_however_few_slots_there_are() -> None:
    for slots in (1, 2, 4):
        stage, published = _stage(buckets=32, slots=slots), []
        while effects := stage.decide(10):
            for effect in effects:
                match effect:
                    case StartDispatch():
                        stage.dispatched(effect)
                    case Submit():
                        stage.ends(effect)
                    case StartCycle(ended=ended):
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
    calm, forced = (
        next(s for s in submits if records[s.subcompaction.compaction].pending.is_forced is wanted)
        for wanted in (False, True)
    )
    stage.ends(calm)
    assert stage.decide() == []
    stage.ends(forced)
    assert _commits(stage.decide()) == [2]


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
    assert isinstance(only(stage.decide()), Discard)
