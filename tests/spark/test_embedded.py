from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compactord.engine.base import PooledEngine
from compactord.engine.spark import start_spark
from compactord.errors import UsageError
from compactord.model import (
    ConcatSpec,
    FailureKind,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
)
from tests.inline_engine import InlineEngine
from tests.spark.subcompactions import (
    PATIENCE_SECONDS,
    ROWS,
    BrokenStorage,
    DyingStorage,
    GatedStorage,
    HungStorage,
    append_subcompaction,
    eventually,
    outputs,
    waiting,
)


def _outcome(engine: PooledEngine, subcompaction: Subcompaction) -> SubcompactionOutcome:
    engine.submit(subcompaction)
    outcome = engine.next_outcome(PATIENCE_SECONDS)
    assert outcome is not None
    return outcome


def _failure(engine: PooledEngine, subcompaction: Subcompaction) -> SubcompactionFailure:
    outcome = _outcome(engine, subcompaction)
    assert isinstance(outcome, SubcompactionFailure), outcome
    return outcome


def test_a_result_is_the_one_of_the_inline_engine(
    spark_engine: PooledEngine, tmp_path: Path
) -> None:
    result = _outcome(spark_engine, append_subcompaction(tmp_path, 1))
    with InlineEngine() as inline:
        inline.submit(append_subcompaction(tmp_path, 2))
        expected = inline.next_outcome(None)
    assert isinstance(result, SubcompactionResult)
    assert isinstance(expected, SubcompactionResult)
    (file,), (other,) = result.after, expected.after
    assert file.row_count == 2 * ROWS
    names = {"file_name", "creation_time_ms"}
    assert {k: v for k, v in _fields(file).items() if k not in names} == {
        k: v for k, v in _fields(other).items() if k not in names
    }
    written = pq.read_table(tmp_path / "bucket-1" / file.file_name, partitioning=None)
    assert written.column("a").to_pylist() == list(range(2 * ROWS))


def _fields(value: object) -> dict[str, object]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]


def test_every_subcompaction_has_one_outcome(spark_engine: PooledEngine, tmp_path: Path) -> None:
    subcompactions = [append_subcompaction(tmp_path, n) for n in range(6)]
    for subcompaction in subcompactions:
        spark_engine.submit(subcompaction)
    outcomes = [spark_engine.next_outcome(PATIENCE_SECONDS) for _ in subcompactions]
    assert sorted(o.index for o in outcomes if isinstance(o, SubcompactionResult)) == list(range(6))
    assert spark_engine.next_outcome(None) is None


def test_a_failure_inside_a_subcompaction_comes_back_as_its_kind(
    spark_engine: PooledEngine, tmp_path: Path
) -> None:
    subcompaction = append_subcompaction(tmp_path)
    assert isinstance(subcompaction.source, ConcatSpec)
    Path(subcompaction.source.files[1].path).unlink()
    failure = _failure(spark_engine, subcompaction)
    assert failure.kind is FailureKind.TRANSIENT
    assert (failure.error, failure.compaction_id, failure.index) == ("ObjectNotFound", 7, 0)
    assert outputs(tmp_path) == []


def test_a_failure_outside_of_the_worker_border_is_transient_and_short(
    spark_engine: PooledEngine, tmp_path: Path
) -> None:
    failure = _failure(spark_engine, append_subcompaction(tmp_path, storage=BrokenStorage()))
    assert failure.kind is FailureKind.TRANSIENT
    assert "RuntimeError: this store cannot be opened" in failure.message
    assert "at org.apache" not in failure.message
    assert "Traceback" not in failure.message


def test_a_killed_worker_is_a_lost_subcompaction_and_the_next_one_runs(
    spark_engine: PooledEngine, tmp_path: Path
) -> None:
    failure = _failure(spark_engine, append_subcompaction(tmp_path, 1, DyingStorage()))
    assert failure.kind is FailureKind.LOST
    assert "Python worker exited unexpectedly" in failure.message
    assert isinstance(
        _outcome(spark_engine, append_subcompaction(tmp_path, 2)), SubcompactionResult
    )


def test_cancelled_subcompactions_are_lost_and_leave_no_file(
    spark_engine: PooledEngine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    subcompactions = [
        append_subcompaction(tmp_path, n, GatedStorage(gate=str(gate))) for n in range(4)
    ]
    for subcompaction in subcompactions:
        spark_engine.submit(subcompaction)
    with waiting(gate, 2):
        assert len(outputs(tmp_path)) == 2
        assert spark_engine.next_outcome(0.1) is None
        spark_engine.cancel()
        outcomes = [spark_engine.next_outcome(PATIENCE_SECONDS) for _ in subcompactions]
        eventually(lambda: not outputs(tmp_path), "the workers remove their files")
    assert {o.kind for o in outcomes if isinstance(o, SubcompactionFailure)} == {FailureKind.LOST}
    assert len(outcomes) == 4
    assert isinstance(
        _outcome(spark_engine, append_subcompaction(tmp_path, 9)), SubcompactionResult
    )


def test_a_worker_that_never_answers_is_killed_alone_and_its_slot_is_free_again(
    spark_engine: PooledEngine, tmp_path: Path
) -> None:
    gate, pid = tmp_path / "gate", tmp_path / "pid"
    hung = append_subcompaction(tmp_path, 1, HungStorage(pid=str(pid)))
    spark_engine.submit(hung)
    spark_engine.submit(append_subcompaction(tmp_path, 2, GatedStorage(gate=str(gate))))
    with waiting(gate, 1):
        eventually(pid.exists, "the worker hangs")
        spark_engine.cancel_one(hung.compaction_id, hung.index)
        lost = spark_engine.next_outcome(PATIENCE_SECONDS)
        assert isinstance(lost, SubcompactionFailure)
        assert (lost.index, lost.kind, lost.error) == (1, FailureKind.LOST, "Cancelled")
        worker = Path("/proc", pid.read_text())
        eventually(lambda: not worker.exists(), "Spark kills the worker")
        # One of two slots is taken by the one at the gate: this needs the other.
        done = _outcome(spark_engine, append_subcompaction(tmp_path, 3))
        assert isinstance(done, SubcompactionResult)
        assert done.index == 3
    other = spark_engine.next_outcome(PATIENCE_SECONDS)
    assert isinstance(other, SubcompactionResult)
    assert other.index == 2


def test_capacity_is_the_number_of_task_slots(spark_engine: PooledEngine) -> None:
    assert spark_engine.capacity == 2


def test_a_second_spark_in_the_process_is_refused(spark_engine: PooledEngine) -> None:
    with pytest.raises(UsageError, match="only one"):
        start_spark("local[1]")
