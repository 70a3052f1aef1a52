"""When a subcompaction's time begins and ends, and when the engine has to be started again."""

from __future__ import annotations

import pytest

from compactord.config.model import Limits
from compactord.model import SubcompactionFailure, SubcompactionResult, TableName
from compactord.scheduler.compaction import Outcome
from compactord.scheduler.effects import Cancel, CycleJob, RemoveOutputs, Submit
from compactord.scheduler.priority import (
    PAUSE_MS,
    RESTART_AT_LAST_MS,
    RESTART_IDLE_MS,
    AtEngine,
    Submitted,
    time_limit_ms,
)
from tests.simulation.tables import MIB, subcompaction_of
from tests.simulation.world import LATE_OUTPUTS
from tests.unit.scheduler.test_scheduler import NAME, STATS, Stage, is_sweep, only

NOW, GIB = 1_700_000_000_000, 1024 * MIB
MINUTE = 60_000


@pytest.mark.parametrize(
    ("size_bytes", "seconds"), [(0, 600), (1, 600), (MIB, 601), (2 * GIB, 600 + 2048)]
)
def test_the_limit_grows_with_the_size(size_bytes: int, seconds: int) -> None:
    assert time_limit_ms(Limits(), size_bytes) // 1000 == seconds


def test_the_limit_is_as_configured() -> None:
    limits = Limits.model_validate({"task_timeout": "2 min", "task_min_rate": "4 mb"})
    assert time_limit_ms(limits, 8 * MIB) == 122_000


def _submitted(*numbers: int, limit_ms: int = 1000) -> AtEngine:
    engine, stage = AtEngine(), Stage()
    stage.add()
    stage.submitted()
    (record,) = stage.scheduler.tables[NAME].compactions.values()
    for number in numbers:
        engine.add(
            Submitted(
                record=record,
                subcompaction=subcompaction_of(number, 0),
                size_bytes=1,
                is_large=False,
                limit_ms=limit_ms,
            )
        )
    return engine


def _overdue(engine: AtEngine, now_ms: int, at_once: int = 2) -> list[int]:
    return [each.key[0] for each in engine.overdue(at_once, now_ms)]


def test_time_counts_from_when_there_is_a_core_and_once() -> None:
    engine = _submitted(1, 2, 3)
    assert _overdue(engine, NOW) == []
    engine.ended((1, 0))
    assert _overdue(engine, NOW + 900) == [], "the third begins only now"
    assert _overdue(engine, NOW + 1000) == [], "no longer than it may"
    assert _overdue(engine, NOW + 1001) == [2]
    assert (engine.running, engine.hung) == (1, 1)
    assert _overdue(engine, NOW + 1900) == []
    assert _overdue(engine, NOW + 1901) == [3]
    assert _overdue(engine, NOW + 20_000) == []
    assert (engine.running, engine.hung) == (0, 2)


def test_what_waits_behind_a_hung_one_for_its_core_is_not_hung() -> None:
    engine = _submitted(1, 2)
    assert _overdue(engine, NOW, at_once=1) == []
    assert _overdue(engine, NOW + 2_000, at_once=1) == [1]
    assert _overdue(engine, NOW + 20_000, at_once=1) == []


def test_time_in_which_nobody_looked_does_not_count() -> None:
    engine = _submitted(1, limit_ms=40_000)
    assert _overdue(engine, NOW) == []
    assert _overdue(engine, NOW + PAUSE_MS) == []
    frozen_ms = 3_600_000
    now_ms = NOW + PAUSE_MS + frozen_ms
    assert _overdue(engine, now_ms) == []
    assert _overdue(engine, now_ms + 10_000) == []
    assert _overdue(engine, now_ms + 10_001) == [1]


def test_one_that_may_have_lost_its_core_gets_its_time_again() -> None:
    engine = _submitted(1, 2)
    assert _overdue(engine, NOW) == []
    assert _overdue(engine, NOW + 900, at_once=1) == [], "an executor is gone"
    engine.ended((1, 0))
    assert _overdue(engine, NOW + 2000, at_once=1) == [], "it begins anew"
    assert _overdue(engine, NOW + 3001, at_once=1) == [2]


def test_all_slots_are_lost_from_when_the_last_one_was() -> None:
    engine = _submitted(1, 2)
    assert engine.all_hung_since_ms(0, NOW) == NOW, "there is no engine"
    _overdue(engine, NOW)
    _overdue(engine, NOW + 5_000)
    assert engine.all_hung_since_ms(3, NOW + 9_000) == NOW + 9_000, "a third slot is free"
    assert engine.all_hung_since_ms(2, NOW + 9_000) == NOW + 5_000
    engine.ended((1, 0))
    assert engine.all_hung_since_ms(2, NOW + 9_000) == NOW + 9_000


@pytest.mark.parametrize(
    ("others", "after_ms", "restarts"),
    [
        (False, RESTART_IDLE_MS - 1, False),
        (False, RESTART_IDLE_MS, True),
        (True, RESTART_IDLE_MS, False),
        (True, RESTART_AT_LAST_MS - 1, False),
        (True, RESTART_AT_LAST_MS, True),
    ],
)
def test_the_engine_is_started_again(others: bool, after_ms: int, restarts: bool) -> None:
    engine = _submitted(1)
    _overdue(engine, NOW)
    assert _overdue(engine, NOW + 2000) == [1]
    if others:
        engine.add(next(iter(_submitted(2, limit_ms=10**9)._submitted.values())))
        assert _overdue(engine, NOW + 2000) == []
    why = engine.why_restart(NOW + 2000 + after_ms)
    assert (why is not None) == restarts
    if restarts:
        assert engine.why_restart(NOW + 2001 + after_ms) is None, "asked for once a minute"
        assert engine.why_restart(NOW + 2000 + after_ms + MINUTE) is not None


def _hung_stage() -> tuple[Stage, Submit, list[object]]:
    """A stage with one slot whose subcompaction has just been found hung."""
    stage = Stage(slots=1)
    stage.add()
    (submit,) = stage.submitted()
    assert stage.decide() == []
    return stage, submit, _after(stage, 610_000)


def _after(stage: Stage, time_ms: int) -> list[object]:
    """What is to be done when so much time has passed."""
    effects: list[object] = []
    for _ in range(time_ms // 10_000):
        effects += stage.decide(after_ms=10_000)
    return effects


def test_a_hung_subcompaction_ends_its_compaction_at_once() -> None:
    stage, submit, (cancel, cycle) = _hung_stage()
    scheduled = stage.scheduler.tables[NAME]
    assert cancel == Cancel(subcompaction=submit.subcompaction)
    assert isinstance(cycle, CycleJob)
    assert [type(each.result) for each in cycle.ended] == [SubcompactionFailure]
    assert stage.outcomes() == {Outcome.FAILED: 1}
    assert scheduled.failures == 1
    assert list(scheduled.quarantined) == [cycle.ended[0].compaction.bucket]
    assert scheduled.slots == 0, "it no longer counts against the table"
    assert (stage.scheduler.engine.running, stage.scheduler.engine.hung) == (0, 1)
    assert {"SubcompactionHung", "BucketQuarantined", "EndedCompaction"} <= set(
        stage.observer.events
    )
    stage.cycle_ended(cycle)
    assert stage.scheduler.is_idle, "a stop does not wait for it"


def test_its_slot_and_its_bucket_wait_for_the_engine_and_its_late_files_are_removed() -> None:
    stage, submit, (_, cycle) = _hung_stage()
    stage.cycle_ended(cycle)  # type: ignore[arg-type]
    other = TableName("c", "db", "u")
    stage.add(other)
    stage.poll()
    for effect in stage.decide(after_ms=5_000):
        stage.cycle_ended(effect)
    assert stage.decide() == [], "one slot, and it is lost"
    key = submit.subcompaction.compaction_id, submit.subcompaction.index
    result = SubcompactionResult(
        compaction_id=key[0], index=key[1], outputs=LATE_OUTPUTS, stats=STATS
    )
    stage.scheduler.subcompaction_ended(result, stage.now)
    removed, *begun = stage.decide()
    assert removed == RemoveOutputs(subcompaction=submit.subcompaction, result=result)
    assert len(begun) == 1, "the slot is free"
    assert stage.scheduler.engine.hung == 0
    stage.scheduler.subcompaction_ended(result, stage.now)
    assert not any(isinstance(each, RemoveOutputs) for each in stage.decide())


def test_a_sweep_spares_what_a_hung_worker_may_still_write() -> None:
    stage, _, (_, cycle) = _hung_stage()
    stage.cycle_ended(cycle)  # type: ignore[arg-type]
    scheduled = stage.scheduler.tables[NAME]
    assert scheduled.under_way_since_ms(stage.now) <= stage.now - 610_000
    scheduled.rounds.pop("sweep", None)
    sweep = next(e for e in stage.scheduler.tick(stage.now + 1) if is_sweep(e))
    assert sweep.under_way.for_ms >= 610_000
    stage.scheduler.engine_lost("it was started again", stage.now)
    assert scheduled.under_way_since_ms(stage.now) == stage.now


@pytest.mark.parametrize(("location", "is_spared"), [("/t", True), ("/u", False)])
def test_a_sweep_spares_what_workers_write_for_another_branch(
    location: str, *, is_spared: bool
) -> None:
    stage, _, (_, cycle) = _hung_stage()
    stage.cycle_ended(cycle)  # type: ignore[arg-type]
    branch = TableName("c", "db", "t$branch_b")
    stage.add(branch, location=location)
    stage.poll()
    for effect in stage.decide(after_ms=5_000):
        stage.cycle_ended(effect)
    stage.scheduler.tables[branch].rounds.pop("sweep", None)
    effects = stage.scheduler.tick(stage.now + 1)
    sweep = next(each for each in effects if is_sweep(each) and each.name == branch)
    assert (sweep.under_way.for_ms >= 610_000) == is_spared


def test_all_subcompactions_of_its_compaction_are_cancelled() -> None:
    stage = Stage(slots=3)
    stage.add(size=40 * MIB)
    submits = stage.submitted(subcompactions=3)
    assert len(submits) == 3
    stage.decide()
    stage.ends(submits[0])
    effects = _after(stage, 820_000)
    cancelled = [e.subcompaction.index for e in effects if isinstance(e, Cancel)]
    assert cancelled == [1, 2], "the first has finished"
    assert stage.outcomes() == {Outcome.FAILED: 1}
    only([e for e in effects if isinstance(e, CycleJob)])
