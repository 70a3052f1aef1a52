from __future__ import annotations

from pathlib import Path

from compactord.model import FailureKind, SubcompactionFailure, SubcompactionResult
from tests.inline_engine import InlineEngine
from tests.spark.subcompactions import append_subcompaction, outputs


def test_outcomes_come_in_the_order_of_submission(tmp_path: Path) -> None:
    with InlineEngine() as engine:
        for number in (3, 1, 2):
            engine.submit(append_subcompaction(tmp_path, number))
        outcomes = [engine.next_outcome(None) for _ in range(3)]
        assert [o.index for o in outcomes if isinstance(o, SubcompactionResult)] == [3, 1, 2]
        assert engine.next_outcome(None) is None


def test_one_that_waits_is_cancelled(tmp_path: Path) -> None:
    with InlineEngine() as engine:
        for number in (1, 2):
            engine.submit(append_subcompaction(tmp_path, number))
        engine.cancel_one(7, 2)
        engine.cancel_one(7, 3)
        lost, done = engine.next_outcome(None), engine.next_outcome(None)
        assert isinstance(lost, SubcompactionFailure)
        assert (lost.index, lost.kind) == (2, FailureKind.LOST)
        assert isinstance(done, SubcompactionResult)
        assert engine.next_outcome(None) is None


def test_cancelled_subcompactions_are_lost_and_never_run(tmp_path: Path) -> None:
    with InlineEngine() as engine:
        engine.submit(append_subcompaction(tmp_path))
        engine.cancel()
        outcome = engine.next_outcome(None)
        assert isinstance(outcome, SubcompactionFailure)
        assert outcome.kind is FailureKind.LOST
        assert engine.next_outcome(None) is None
    assert outputs(tmp_path) == []
