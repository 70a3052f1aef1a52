from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactord.engine.base import JobFailed, PooledEngine
from compactord.engine.worker import run_subcompaction
from compactord.errors import EngineUnavailable
from compactord.model import (
    FailureKind,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
)
from tests.spark.subcompactions import append_subcompaction

Run = Callable[[Subcompaction], SubcompactionOutcome]
SECONDS = 180.0


class ThreadCarrier:
    """Runs `run` in the pool's own threads; cancelling makes waiting jobs fail."""

    capacity = 2

    def __init__(self) -> None:
        self.run_one: Run = run_subcompaction
        self.gone: str | None = None
        self.cancelled = threading.Event()
        self.watched = threading.Event()
        # While it is held, cancelling does not return.
        self.hangs = threading.Lock()
        self.groups: list[str] = []
        self.closed = 0

    def run(self, subcompaction: Subcompaction, group: str) -> SubcompactionOutcome:
        return self.run_one(subcompaction)

    def cancel(self, group: str) -> None:
        with self.hangs:
            self.groups.append(group)
        self.cancelled.set()

    def watch(self) -> None:
        self.watched.set()

    def why_failed(self) -> str | None:
        return self.gone

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def carrier() -> ThreadCarrier:
    return ThreadCarrier()


@pytest.fixture
def engine(carrier: ThreadCarrier) -> Iterator[PooledEngine]:
    with PooledEngine(carrier) as engine:
        yield engine


def _fail_when_cancelled(carrier: ThreadCarrier) -> Run:
    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        assert carrier.cancelled.wait(SECONDS)
        raise JobFailed(FailureKind.LOST, "JobCancelled", "job 3 was cancelled")

    return run


def test_each_subcompaction_has_one_outcome(engine: PooledEngine, tmp_path: Path) -> None:
    for number in range(5):
        engine.submit(append_subcompaction(tmp_path, number))
    outcomes = [engine.next_outcome(SECONDS) for _ in range(5)]
    assert sorted(o.index for o in outcomes if isinstance(o, SubcompactionResult)) == list(range(5))
    assert engine.next_outcome(None) is None


def test_the_subcompaction_that_finished_first_comes_first(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    release = threading.Event()

    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        if subcompaction.index == 0:
            release.wait(SECONDS)
        return run_subcompaction(subcompaction)

    carrier.run_one = run
    for number in range(2):
        engine.submit(append_subcompaction(tmp_path, number))
    first = engine.next_outcome(SECONDS)
    release.set()
    second = engine.next_outcome(SECONDS)
    assert [outcome.index for outcome in (first, second) if outcome] == [1, 0]


def test_a_failed_job_is_its_subcompaction_s_outcome(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        raise JobFailed(FailureKind.LOST, "ExecutorLost", "executor 4 is gone", "a long text")

    carrier.run_one = run
    engine.submit(append_subcompaction(tmp_path, 3))
    assert engine.next_outcome(SECONDS) == SubcompactionFailure(
        compaction_id=7,
        index=3,
        kind=FailureKind.LOST,
        error="ExecutorLost",
        message="executor 4 is gone",
        traceback="a long text",
    )


def test_an_unforeseen_error_is_a_transient_failure(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        raise pickle.UnpicklingError("not a pickle")

    carrier.run_one = run
    engine.submit(append_subcompaction(tmp_path))
    outcome = engine.next_outcome(SECONDS)
    assert isinstance(outcome, SubcompactionFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.TRANSIENT, "UnpicklingError")


def test_waiting_for_an_outcome_ends_in_time_and_watches_over_the_jobs(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.run_one = _fail_when_cancelled(carrier)
    engine.submit(append_subcompaction(tmp_path))
    assert engine.next_outcome(0.01) is None
    assert not carrier.watched.is_set()
    assert engine.next_outcome(1.1) is None
    assert carrier.watched.is_set()


def test_cancelled_subcompactions_are_lost_whether_they_had_begun_or_not(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.run_one = _fail_when_cancelled(carrier)
    for number in range(3):
        engine.submit(append_subcompaction(tmp_path, number))
    engine.cancel()
    outcomes = [engine.next_outcome(SECONDS) for _ in range(3)]
    assert {(o.kind, o.error) for o in outcomes if isinstance(o, SubcompactionFailure)} == {
        (FailureKind.LOST, "Cancelled")
    }
    carrier.run_one = run_subcompaction
    engine.submit(append_subcompaction(tmp_path, 9))
    assert isinstance(engine.next_outcome(SECONDS), SubcompactionResult)


def test_one_is_cancelled_and_the_others_go_on(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.run_one = _fail_when_cancelled(carrier)
    engine.submit(append_subcompaction(tmp_path, 1))
    engine.cancel_one(7, 2)
    assert engine.next_outcome(0.01) is None
    engine.cancel_one(7, 1)
    lost = engine.next_outcome(SECONDS)
    assert isinstance(lost, SubcompactionFailure)
    assert (lost.index, lost.kind, lost.error) == (1, FailureKind.LOST, "Cancelled")
    assert carrier.groups == ["compactord-7-1"]
    carrier.run_one = run_subcompaction
    engine.submit(append_subcompaction(tmp_path, 1))
    assert isinstance(engine.next_outcome(SECONDS), SubcompactionResult), "its name is free again"


def test_cancelling_one_does_not_wait_for_an_engine_that_hangs(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.run_one = _fail_when_cancelled(carrier)
    engine.submit(append_subcompaction(tmp_path, 1))
    with carrier.hangs:
        engine.cancel_one(7, 1)
        assert engine.next_outcome(0.1) is None
    assert isinstance(engine.next_outcome(SECONDS), SubcompactionFailure)


def test_a_result_that_was_there_before_the_cancel_is_kept(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    finished = threading.Event()

    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        finished.set()
        return run_subcompaction(subcompaction)

    carrier.run_one = run
    engine.submit(append_subcompaction(tmp_path))
    assert finished.wait(SECONDS)
    engine.cancel()
    assert isinstance(engine.next_outcome(SECONDS), SubcompactionResult)


def test_an_engine_that_is_gone_takes_no_subcompaction(
    engine: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.gone = "the driver has ended"
    with pytest.raises(EngineUnavailable, match="the driver has ended"):
        engine.submit(append_subcompaction(tmp_path))
    assert engine.next_outcome(None) is None


def test_closing_cancels_and_closes_the_carrier_once(
    carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.run_one = _fail_when_cancelled(carrier)
    engine = PooledEngine(carrier)
    engine.submit(append_subcompaction(tmp_path))
    engine.close()
    engine.close()
    assert carrier.cancelled.is_set()
    assert carrier.closed == 1
