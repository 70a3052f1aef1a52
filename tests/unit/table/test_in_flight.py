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
from compactord.table.in_flight import Crashed, Flights, Landed
from tests.lineage import bucket_id
from tests.simulation.tables import part_of
from tests.unit.paimon.table_builder import data_file

A, B, C = (data_file(name, level=level) for name, level in (("a", 0), ("b", 0), ("c", 5)))
STATS = RewriteStats(
    rows_in=1, rows_out=1, bytes_in=1, bytes_out=1, wall_s=0, cpu_s=0, peak_rss_bytes=0
)
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
    return SubcompactionResult(compaction=1, part=part, after=after, stats=STATS)


def _failure(part: int, kind: FailureKind = FailureKind.TRANSIENT, text: str = "") -> TaskFailure:
    return TaskFailure(compaction=1, part=part, kind=kind, error="E", message=text, traceback="")


def _flights(parts: int, *, attempts: int = 3) -> tuple[Flights, list[Subcompaction]]:
    flights = Flights(part_attempts=attempts)
    flown = [part_of(1, number) for number in range(parts)]
    assert flights.take_off(1, APPEND, flown, neighbours=[A, B], index_entries=(b"i",)) is None
    return flights, flown


def test_a_compaction_of_upgrades_alone_lands_at_once() -> None:
    flights = Flights(part_attempts=3)
    landed = flights.take_off(1, MERGE, [], neighbours=[A, B, C], index_entries=())
    assert isinstance(landed, Landed)
    assert len(flights) == 0
    assert landed.change.before == (A, B)
    assert landed.change.after == (replace(A, level=5), replace(B, level=5))
    assert landed.change.output_level == 5
    assert landed.change.files_above == {"c"}
    assert landed.stats == ()


def test_outputs_come_in_the_order_of_parts_whatever_finished_first() -> None:
    flights, _ = _flights(3)
    x, y, z = (data_file(name) for name in "xyz")
    assert flights.arrived(_result(2, z)) is None
    assert flights.arrived(_result(0, x)) is None
    landed = flights.arrived(_result(1, y))
    assert isinstance(landed, Landed)
    assert landed.change.after == (x, y, z)
    assert landed.change.index_entries == (b"i",)
    assert (landed.change.bucket, landed.change.total_buckets) == (bucket_id(0), -1)
    assert landed.stats == (STATS,) * 3
    assert len(flights) == 0


@pytest.mark.parametrize("kind", [FailureKind.TRANSIENT, FailureKind.LOST])
def test_a_part_that_may_succeed_is_tried_again_so_often(kind: FailureKind) -> None:
    flights, (part,) = _flights(1, attempts=3)
    assert flights.arrived(_failure(0, kind)) is part
    assert flights.arrived(_failure(0, kind)) is part
    crashed = flights.arrived(_failure(0, kind, "third"))
    assert isinstance(crashed, Crashed)
    assert crashed.failure.message == "third"


def test_attempts_are_counted_for_each_part() -> None:
    flights, parts = _flights(2, attempts=2)
    assert flights.arrived(_failure(0)) is parts[0]
    assert flights.arrived(_failure(1)) is parts[1]
    assert flights.arrived(_result(0)) is None
    assert isinstance(flights.arrived(_result(1)), Landed)


@pytest.mark.parametrize(("paths", "rows"), [(("a", "b"), 2), (("a",), 1), (("a", "b", "c"), 3)])
def test_parts_must_have_read_each_row_once(paths: tuple[str, ...], rows: int) -> None:
    flights = Flights(part_attempts=3)
    # They read ranges of the same files.
    parts = [part_of(1, number, *paths) for number in range(2)]
    assert flights.take_off(1, APPEND, parts, neighbours=[], index_entries=()) is None
    x, y = data_file("x"), data_file("y")
    assert flights.arrived(_result(0, x)) is None
    found = flights.arrived(_result(1, y))
    if rows == 2:
        assert isinstance(found, Landed)
        return
    assert isinstance(found, Crashed)
    assert found.failure.kind is FailureKind.POISON
    assert f"read 2 rows, its files have {rows}" in found.failure.message
    assert found.finished == (x, y)


def test_poison_is_not_tried_again() -> None:
    flights, _ = _flights(1)
    assert isinstance(flights.arrived(_failure(0, FailureKind.POISON)), Crashed)


def test_a_crash_waits_for_the_other_parts_and_names_what_they_finished() -> None:
    flights, _ = _flights(3)
    x = data_file("x")
    assert flights.arrived(_failure(0, FailureKind.POISON, "first")) is None
    assert flights.arrived(_result(1, x)) is None
    # After the first failure nothing is tried again.
    crashed = flights.arrived(_failure(2, FailureKind.TRANSIENT, "second"))
    assert isinstance(crashed, Crashed)
    assert (crashed.failure.message, crashed.finished) == ("first", (x,))
    assert len(flights) == 0


def test_nothing_is_tried_again_once_stopped() -> None:
    flights, _ = _flights(1)
    flights.stop_retrying()
    assert isinstance(flights.arrived(_failure(0)), Crashed)


def test_giving_up_names_what_failed_first_and_what_was_finished() -> None:
    flights, _ = _flights(3)
    assert flights.arrived(_result(0, C)) is None
    assert flights.arrived(_failure(1, FailureKind.POISON, "damaged")) is None
    crashed = flights.give_up(1, _failure(2, FailureKind.LOST, "the engine is gone"))
    assert (crashed.failure.message, crashed.finished) == ("damaged", (C,))
    assert 1 not in flights
    flights, _ = _flights(1)
    assert flights.give_up(1, _failure(0, text="gone")).failure.message == "gone"
