"""The tables of a store that does not answer wait without a thread, and go on once it does."""

from __future__ import annotations

from structlog.testing import capture_logs

from compactord.model import TableName
from compactord.scheduler.compaction import Outcome
from compactord.scheduler.effects import CycleJob, DiscardJob, Submit
from compactord.service.daemon import UnresponsiveStores
from compactord.storage.calls import FAILURES_MAX, PATIENCE_MS, PROBE_MS, Breaker
from tests.unit.scheduler.test_scheduler import Stage, is_sweep

GOOD, SILENT = TableName("good", "db", "t"), TableName("silent", "db", "t")


class _Both:
    """Two catalogs with a table each; of one the store falls silent."""

    def __init__(self) -> None:
        self.stage = Stage(slots=4)
        for name in (GOOD, SILENT):
            self.stage.add(name)
        self.breaker = Breaker("store silent", lambda: self.stage.now)
        other = Breaker("server silent", lambda: self.stage.now)
        breakers = {"good": (), "silent": (other, self.breaker)}
        self.stores = UnresponsiveStores(breakers, self.stage.scheduler)

    def look(self) -> list[str]:
        return list(self.stores.check(self.stage.now))

    def fall_silent(self) -> None:
        for _ in range(FAILURES_MAX):
            self.breaker.failed(PATIENCE_MS / 1000)
        assert self.look() == []


def test_nothing_begins_for_the_tables_of_a_silent_store_and_all_for_the_others() -> None:
    both = _Both()
    stage = both.stage
    with capture_logs() as events:
        both.fall_silent()
        (cycle,) = stage.decide()
        assert isinstance(cycle, CycleJob)
        assert cycle.name == GOOD
        stage.cycle_ended(cycle)
        scheduled = stage.scheduler.tables[SILENT]
        assert "store silent has not answered for 10 s: next attempt in 30 s" in scheduled.error
        assert (scheduled.poll_failures, scheduled.halt) == (0, None)
        assert stage.scheduler.tables[GOOD].error == ""
        stage.now += PROBE_MS
        assert both.look() == ["silent"]
        both.breaker.answered()
        assert both.look() == []
    assert [event["event"] for event in events] == ["store_unresponsive", "store_answers"]
    effects = [each for each in stage.decide() if isinstance(each, CycleJob)]
    assert [each.name for each in effects] == [SILENT], "at once"
    stage.cycle_ended(effects[0])
    assert stage.scheduler.tables[SILENT].error == ""
    assert both.stores.since_ms == {}


def test_what_is_cut_finished_or_due_for_care_waits_with_them() -> None:
    both = _Both()
    stage = both.stage
    dispatches = stage.planned()
    for effect in dispatches:
        stage.dispatched(effect)
    both.fall_silent()
    submits = [each for each in stage.decide() if isinstance(each, Submit)]
    assert len(submits) == 1, "the good one's"
    stage.scheduler.tables[SILENT].rounds["sweep"].ended_ms = 0
    swept = [e for e in stage.scheduler.tick(stage.now) if is_sweep(e)]
    assert SILENT not in [each.name for each in swept]
    both.breaker.answered()
    both.look()
    effects = stage.decide()
    submits = [each for each in effects if isinstance(each, Submit)]
    assert len(submits) == 1
    both.fall_silent()
    for effect in effects:
        if isinstance(effect, CycleJob):
            stage.cycle_ended(effect)
    stage.ends(submits[0])
    assert stage.decide(60_000) == []
    both.breaker.answered()
    both.look()
    (commit,) = (e for e in stage.decide() if isinstance(e, CycleJob) and e.name == SILENT)
    assert len(commit.ended) == 1
    stage.cycle_ended(commit)
    assert stage.outcomes(SILENT) == {Outcome.COMMITTED: 1}


def test_an_end_of_the_service_waits_for_no_store() -> None:
    both = _Both()
    stage = both.stage
    for effect in stage.planned():
        stage.dispatched(effect)
    submits = [each for each in stage.decide() if isinstance(each, Submit)]
    both.fall_silent()
    for submit in submits:
        stage.ends(submit)
    stage.scheduler.drain(stage.now)
    stage.scheduler.end()
    both.look()
    ended = [each.name for each in stage.decide() if isinstance(each, DiscardJob)]
    assert sorted(ended) == [GOOD, SILENT]
