from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.model import (
    AppendCompaction,
    CompactReason,
    FailureKind,
    MergeCompaction,
    RewriteStats,
    Subcompaction,
    SubcompactionResult,
    TaskFailure,
    Upgrade,
)
from compactord.paimon.data_file import DataFile
from compactord.table.in_flight import Failed, Finished, InFlight
from tests.builders import data_outputs
from tests.lineage import bucket_id
from tests.simulation.tables import part_of
from tests.unit.paimon.table_builder import data_file

A, B, C = (data_file(name, level=level) for name, level in (("a", 0), ("b", 0), ("c", 5)))
STATS = RewriteStats(rows_in=1, rows_out=1, bytes_in=1, bytes_out=1, cpu_s=0, peak_rss_bytes=0)
MERGE = MergeCompaction(
    bucket=bucket_id(1),
    total_buckets=4,
    reason=CompactReason.FULL,
    output_level=5,
    drop_deletes=True,
    actions=(Upgrade(file=A), Upgrade(file=B)),
)
APPEND = AppendCompaction(
    bucket=bucket_id(0),
    total_buckets=-1,
    reason=CompactReason.APPEND_SMALL_FILES,
    files=(A, B),
    ordered=False,
)


def _result(part: int, *after: DataFile) -> SubcompactionResult:
    return SubcompactionResult(compaction=1, part=part, outputs=data_outputs(*after), stats=STATS)


def _failure(part: int, kind: FailureKind = FailureKind.TRANSIENT, text: str = "") -> TaskFailure:
    return TaskFailure(compaction=1, part=part, kind=kind, error="E", message=text, traceback="")


def _in_flight(parts: int, *, attempts: int = 3) -> tuple[InFlight, list[Subcompaction]]:
    in_flight = InFlight(part_attempts=attempts)
    flown = [part_of(1, number) for number in range(parts)]
    assert in_flight.dispatch(1, APPEND, flown, neighbours=[A, B], index_entries=(b"i",)) is None
    return in_flight, flown


def test_a_compaction_of_upgrades_alone_lands_at_once() -> None:
    in_flight = InFlight(part_attempts=3)
    finished = in_flight.dispatch(1, MERGE, [], neighbours=[A, B, C], index_entries=())
    assert isinstance(finished, Finished)
    assert len(in_flight) == 0
    assert finished.change.before == (A, B)
    assert finished.change.after == (replace(A, level=5), replace(B, level=5))
    assert finished.change.output_level == 5
    assert finished.change.files_above == {"c"}
    assert finished.stats == ()


def test_outputs_come_in_the_order_of_parts_whatever_finished_first() -> None:
    in_flight, _ = _in_flight(3)
    x, y, z = (data_file(name) for name in "xyz")
    assert in_flight.arrived(_result(2, z)) is None
    assert in_flight.arrived(_result(0, x)) is None
    finished = in_flight.arrived(_result(1, y))
    assert isinstance(finished, Finished)
    assert finished.change.after == (x, y, z)
    assert finished.change.index_entries == (b"i",)
    assert (finished.change.bucket, finished.change.total_buckets) == (bucket_id(0), -1)
    assert finished.stats == (STATS,) * 3
    assert len(in_flight) == 0


@pytest.mark.parametrize("kind", [FailureKind.TRANSIENT, FailureKind.LOST])
def test_a_part_that_may_succeed_is_tried_again_so_often(kind: FailureKind) -> None:
    in_flight, (part,) = _in_flight(1, attempts=3)
    assert in_flight.arrived(_failure(0, kind)) is part
    assert in_flight.arrived(_failure(0, kind)) is part
    failed = in_flight.arrived(_failure(0, kind, "third"))
    assert isinstance(failed, Failed)
    assert failed.failure.message == "third"


def test_attempts_are_counted_for_each_part() -> None:
    in_flight, parts = _in_flight(2, attempts=2)
    assert in_flight.arrived(_failure(0)) is parts[0]
    assert in_flight.arrived(_failure(1)) is parts[1]
    assert in_flight.arrived(_result(0)) is None
    assert isinstance(in_flight.arrived(_result(1)), Finished)


@pytest.mark.parametrize(("paths", "rows"), [(("a", "b"), 2), (("a",), 1), (("a", "b", "c"), 3)])
def test_parts_must_have_read_each_row_once(paths: tuple[str, ...], rows: int) -> None:
    in_flight = InFlight(part_attempts=3)
    # They read ranges of the same files.
    parts = [part_of(1, number, *paths) for number in range(2)]
    assert in_flight.dispatch(1, APPEND, parts, neighbours=[], index_entries=()) is None
    x, y = data_file("x"), data_file("y")
    assert in_flight.arrived(_result(0, x)) is None
    found = in_flight.arrived(_result(1, y))
    if rows == 2:
        assert isinstance(found, Finished)
        return
    assert isinstance(found, Failed)
    assert found.failure.kind is FailureKind.POISON
    assert f"read 2 rows, its files have {rows}" in found.failure.message
    assert found.outputs == data_outputs(x, y)


def test_poison_is_not_tried_again() -> None:
    in_flight, _ = _in_flight(1)
    assert isinstance(in_flight.arrived(_failure(0, FailureKind.POISON)), Failed)


def test_a_crash_waits_for_the_other_parts_and_names_what_they_finished() -> None:
    in_flight, _ = _in_flight(3)
    x = data_file("x")
    assert in_flight.arrived(_failure(0, FailureKind.POISON, "first")) is None
    assert in_flight.arrived(_result(1, x)) is None
    # After the first failure nothing is tried again.
    failed = in_flight.arrived(_failure(2, FailureKind.TRANSIENT, "second"))
    assert isinstance(failed, Failed)
    assert (failed.failure.message, failed.outputs) == ("first", data_outputs(x))
    assert len(in_flight) == 0


def test_nothing_is_tried_again_once_stopped() -> None:
    in_flight, _ = _in_flight(1)
    in_flight.stop_retrying()
    assert isinstance(in_flight.arrived(_failure(0)), Failed)


def test_giving_up_names_what_failed_first_and_what_was_finished() -> None:
    in_flight, _ = _in_flight(3)
    assert in_flight.arrived(_result(0, C)) is None
    assert in_flight.arrived(_failure(1, FailureKind.POISON, "damaged")) is None
    failed = in_flight.give_up(1, _failure(2, FailureKind.LOST, "the engine is gone"))
    assert (failed.failure.message, failed.outputs) == ("damaged", data_outputs(C))
    assert 1 not in in_flight
    in_flight, _ = _in_flight(1)
    assert in_flight.give_up(1, _failure(0, text="gone")).failure.message == "gone"
