from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.clock import SystemClock
from compactord.engine.base import Job, JobFailed, PooledEngine, cancelled
from compactord.engine.worker import run_subcompaction
from compactord.errors import EngineUnavailable, ErrorKind
from compactord.model import (
    SMALL_BYTES,
    ConcatSpec,
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
        # Groups of jobs in the order in which they began, and of those cancelled.
        self.began: list[str] = []
        self.groups: list[str] = []
        self.closed = 0

    def run(self, job: Job) -> None:
        self.began.append(job.group)
        subcompaction: Subcompaction | None = job.first
        while subcompaction is not None:
            job.deliver(self.run_one(subcompaction))
            subcompaction = job.following()

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
        error=ErrorKind("ExecutorLost"),
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
    assert carrier.groups == carrier.began
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


# -- several subcompactions in one job


class StandingClock(SystemClock):
    """No job becomes too old for the next subcompaction, however slow the machine is."""

    def monotonic_s(self) -> float:
        return 0.0


@pytest.fixture
def unhurried(carrier: ThreadCarrier) -> Iterator[PooledEngine]:
    carrier.capacity = 1
    with PooledEngine(carrier, clock=StandingClock()) as engine:
        yield engine


def _large(subcompaction: Subcompaction) -> Subcompaction:
    assert isinstance(subcompaction.source, ConcatSpec)
    files = tuple(replace(file, size_bytes=SMALL_BYTES) for file in subcompaction.source.files)
    return replace(subcompaction, source=replace(subcompaction.source, files=files))


class Gate:
    """Lets the first subcompaction run only when all were submitted."""

    def __init__(self, run: Run = run_subcompaction) -> None:
        self.opened = threading.Event()
        self._run = run

    def __call__(self, subcompaction: Subcompaction) -> SubcompactionOutcome:
        assert self.opened.wait(SECONDS)
        return self._run(subcompaction)


def _indexes(engine: PooledEngine, count: int) -> list[int]:
    outcomes = [engine.next_outcome(SECONDS) for _ in range(count)]
    assert engine.next_outcome(None) is None
    return [outcome.index for outcome in outcomes if isinstance(outcome, SubcompactionResult)]


@pytest.mark.parametrize(
    ("large", "jobs"),
    [
        pytest.param({}, 1, id="small ones share a job"),
        pytest.param({0}, 1, id="those after a large one as well"),
        pytest.param({2}, 2, id="a large one begins a job"),
        pytest.param({1, 2, 3}, 4, id="large ones have one each"),
    ],
)
def test_small_subcompactions_share_a_job(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path, large: set[int], jobs: int
) -> None:
    carrier.run_one = gate = Gate(lambda each: run_subcompaction(_as_written(each, tmp_path)))
    for number in range(4):
        subcompaction = append_subcompaction(tmp_path, number)
        unhurried.submit(_large(subcompaction) if number in large else subcompaction)
    gate.opened.set()
    assert sorted(_indexes(unhurried, 4)) == [0, 1, 2, 3]
    assert len(carrier.began) == jobs


def _as_written(subcompaction: Subcompaction, folder: Path) -> Subcompaction:
    """With the real sizes of its files."""
    return append_subcompaction(folder, subcompaction.index)


def test_a_job_waits_a_moment_for_the_next_small_one(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    for number in range(3):
        unhurried.submit(append_subcompaction(tmp_path, number))
        assert isinstance(unhurried.next_outcome(SECONDS), SubcompactionResult)
    assert len(carrier.began) == 1


def test_small_ones_wait_for_a_core_and_large_ones_do_not(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    carrier.run_one = gate = Gate(lambda each: run_subcompaction(_as_written(each, tmp_path)))
    carrier.capacity = 2
    for number in range(8):
        subcompaction = append_subcompaction(tmp_path, number)
        unhurried.submit(_large(subcompaction) if number < 3 else subcompaction)
    gate.opened.set()
    assert sorted(_indexes(unhurried, 8)) == list(range(8))
    assert len(carrier.began) >= 3, "the large ones began at once"


@pytest.mark.parametrize("kind", [FailureKind.LOST, FailureKind.TRANSIENT])
def test_one_that_loses_its_job_after_others_runs_again_by_itself(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path, kind: FailureKind
) -> None:
    """It did not fail, unless it loses its own job, too; those before and after it have results."""
    lost = 0

    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        nonlocal lost
        if subcompaction.index == 2:
            lost += 1
            raise JobFailed(kind, "WorkerLost", "the worker died")
        return run_subcompaction(subcompaction)

    carrier.run_one = gate = Gate(run)
    for number in range(5):
        unhurried.submit(append_subcompaction(tmp_path, number))
    gate.opened.set()
    outcomes = [unhurried.next_outcome(SECONDS) for _ in range(5)]
    assert [outcome.index for outcome in outcomes if outcome] == [0, 1, 2, 3, 4]
    failures = [each for each in outcomes if isinstance(each, SubcompactionFailure)]
    assert [(each.index, each.kind) for each in failures] == [(2, kind)]
    assert lost == 2
    assert len(carrier.began) == 3


def test_the_rest_of_a_cancelled_one_s_job_goes_on(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        if subcompaction.index == 1:
            assert carrier.cancelled.wait(SECONDS)
            raise JobFailed(FailureKind.LOST, "JobCancelled", "job 3 was cancelled")
        return run_subcompaction(subcompaction)

    carrier.run_one = run
    for number in range(4):
        unhurried.submit(append_subcompaction(tmp_path, number))
    first = unhurried.next_outcome(SECONDS)
    assert first is not None
    unhurried.cancel_one(7, 3)
    waited = unhurried.next_outcome(SECONDS)
    assert isinstance(waited, SubcompactionFailure), "it had not begun"
    assert (waited.index, waited.error) == (3, "Cancelled")
    unhurried.cancel_one(7, 1)
    lost, last = unhurried.next_outcome(SECONDS), unhurried.next_outcome(SECONDS)
    assert isinstance(lost, SubcompactionFailure)
    assert (first.index, lost.index, lost.error) == (0, 1, "Cancelled")
    assert isinstance(last, SubcompactionResult)
    assert last.index == 2
    assert unhurried.next_outcome(None) is None


def test_a_job_that_was_cancelled_takes_no_more(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    """Its first one was finished before the request arrived, and has its result."""
    carrier.run_one = gate = Gate()
    with carrier.hangs:
        for number in range(2):
            unhurried.submit(append_subcompaction(tmp_path, number))
        unhurried.cancel_one(7, 0)
        gate.opened.set()
        assert sorted(_indexes(unhurried, 2)) == [0, 1]
    assert len(carrier.began) == 2


def test_a_hung_one_that_was_cancelled_takes_no_slot_from_others(
    unhurried: PooledEngine, carrier: ThreadCarrier, tmp_path: Path
) -> None:
    ends = threading.Event()

    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        if subcompaction.index == 0:
            assert ends.wait(SECONDS)
        return run_subcompaction(subcompaction)

    carrier.run_one = run
    unhurried.submit(append_subcompaction(tmp_path, 0))
    unhurried.submit(append_subcompaction(tmp_path, 1))
    assert unhurried.next_outcome(0.1) is None
    unhurried.cancel_one(7, 0)
    waited = unhurried.next_outcome(SECONDS)
    assert waited is not None
    assert waited.index == 1
    ends.set()
    assert _indexes(unhurried, 1) == [0]


def test_an_engine_of_many_slots_uses_all_of_them(carrier: ThreadCarrier, tmp_path: Path) -> None:
    slots = 400
    carrier.capacity = slots
    all_run = threading.Barrier(slots)

    def run(subcompaction: Subcompaction) -> SubcompactionOutcome:
        all_run.wait(SECONDS)
        return cancelled(subcompaction)

    carrier.run_one = run
    subcompaction = _large(append_subcompaction(tmp_path))
    with PooledEngine(carrier) as engine:
        assert engine.capacity == slots
        for number in range(slots):
            engine.submit(replace(subcompaction, index=number))
        outcomes = [engine.next_outcome(SECONDS) for _ in range(slots)]
    assert {outcome.index for outcome in outcomes if outcome} == set(range(slots))
