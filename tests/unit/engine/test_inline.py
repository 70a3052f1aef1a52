from __future__ import annotations

from pathlib import Path

from compactord.engine.inline import InlineEngine
from compactord.model import FailureKind, SubcompactionResult, TaskFailure
from tests.spark.subcompactions import append_subcompaction, outputs


def test_outcomes_come_in_the_order_of_submission(tmp_path: Path) -> None:
    with InlineEngine() as engine:
        for number in (3, 1, 2):
            engine.submit(append_subcompaction(tmp_path, number))
        outcomes = [engine.next_outcome(None) for _ in range(3)]
        assert [o.index for o in outcomes if isinstance(o, SubcompactionResult)] == [3, 1, 2]
        assert engine.next_outcome(None) is None


def test_cancelled_subcompactions_are_lost_and_never_run(tmp_path: Path) -> None:
    with InlineEngine() as engine:
        engine.submit(append_subcompaction(tmp_path))
        engine.cancel()
        outcome = engine.next_outcome(None)
        assert isinstance(outcome, TaskFailure)
        assert outcome.kind is FailureKind.LOST
        assert engine.next_outcome(None) is None
    assert outputs(tmp_path) == []
