from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.commit.changes import BucketChange
from compactord.errors import ErrorKind
from compactord.model import (
    Compaction,
    CompactReason,
    Concat,
    FailureKind,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
    Upgrade,
)
from compactord.paimon.data_file import DataFile
from compactord.paimon.deletion_vectors import VectorRef
from compactord.table.jobs import InFlight
from tests.builders import data_outputs
from tests.lineage import bucket_id
from tests.simulation.tables import subcompaction_of
from tests.unit.paimon.table_builder import data_file
from tests.unit.table.compacting import NAME

A, B, C = (data_file(name, level=level) for name, level in (("a", 0), ("b", 0), ("c", 5)))
VECTORS = {
    name: VectorRef(path="i", offset=1, length=22, cardinality=1) for name in ("a", "elsewhere")
}
STATS = RewriteStats(
    input_records=1, output_records=1, input_bytes=1, output_bytes=1, cpu_s=0, peak_rss_bytes=0
)
MERGE = Compaction(
    bucket=bucket_id(1),
    total_buckets=4,
    reason=CompactReason.FULL,
    output_level=5,
    actions=(Upgrade(file=A), Upgrade(file=B)),
)
APPEND = Compaction(
    bucket=bucket_id(0),
    total_buckets=-1,
    reason=CompactReason.APPEND_SMALL_FILES,
    actions=(Concat(files=(A, B), ordered=False),),
)


def _result(index: int, *after: DataFile) -> SubcompactionResult:
    return SubcompactionResult(
        compaction_id=1, index=index, outputs=data_outputs(*after), stats=STATS
    )


def _failure(
    index: int, kind: FailureKind = FailureKind.TRANSIENT, text: str = ""
) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=1, index=index, kind=kind, error=ErrorKind("E"), message=text, traceback=""
    )


def _in_flight(count: int) -> tuple[InFlight, list[Subcompaction]]:
    """A compaction, and its subcompactions: all are at the engine."""
    flown = [subcompaction_of(1, number) for number in range(count)]
    in_flight = InFlight(1, APPEND, flown, neighbours=[A, B], vectors=VECTORS)
    assert list(in_flight.waiting) == flown
    in_flight.waiting.clear()
    return in_flight, flown


def _arrived(
    in_flight: InFlight, outcome: SubcompactionOutcome
) -> BucketChange | SubcompactionFailure | None:
    return in_flight.record_outcome(outcome, NAME, attempts_max=3)


def test_a_compaction_of_upgrades_alone_has_finished_at_once() -> None:
    in_flight = InFlight(1, MERGE, [], neighbours=[A, B, C])
    finished = in_flight.ended()
    assert isinstance(finished, BucketChange)
    assert finished.before == (A, B)
    assert finished.after == (replace(A, level=5), replace(B, level=5))
    assert finished.output_level == 5
    assert finished.files_above == {"c"}
    assert in_flight.stats == ()


def test_outputs_come_in_the_order_of_subcompactions_whatever_finished_first() -> None:
    in_flight, _ = _in_flight(3)
    x, y, z = (data_file(name) for name in "xyz")
    assert _arrived(in_flight, _result(2, z)) is None
    assert _arrived(in_flight, _result(0, x)) is None
    assert in_flight.done == 2
    finished = _arrived(in_flight, _result(1, y))
    assert isinstance(finished, BucketChange)
    assert finished.after == (x, y, z)
    assert finished.vectors == {"a": VECTORS["a"]}
    assert (finished.bucket, finished.total_buckets) == (bucket_id(0), -1)
    assert in_flight.stats == (STATS,) * 3


@pytest.mark.parametrize("kind", [FailureKind.TRANSIENT, FailureKind.LOST])
def test_what_may_succeed_is_tried_again_so_often(kind: FailureKind) -> None:
    in_flight, (flown,) = _in_flight(1)
    for _ in range(2):
        assert _arrived(in_flight, _failure(0, kind)) is None
        assert in_flight.waiting.popleft() is flown
    failed = _arrived(in_flight, _failure(0, kind, "third"))
    assert isinstance(failed, SubcompactionFailure)
    assert failed.message == "third"


def test_attempts_are_counted_for_each_subcompaction() -> None:
    in_flight, flown = _in_flight(2)
    for index in (0, 1, 0, 1):
        assert _arrived(in_flight, _failure(index)) is None
        assert in_flight.waiting.popleft() is flown[index]
    assert _arrived(in_flight, _result(0)) is None
    assert isinstance(_arrived(in_flight, _result(1)), BucketChange)


@pytest.mark.parametrize(("paths", "rows"), [(("a", "b"), 2), (("a",), 1), (("a", "b", "c"), 3)])
def test_subcompactions_must_have_read_each_row_once(paths: tuple[str, ...], rows: int) -> None:
    # They read ranges of the same files.
    flown = [subcompaction_of(1, number, *paths) for number in range(2)]
    in_flight = InFlight(1, APPEND, flown, neighbours=[])
    in_flight.waiting.clear()
    x, y = data_file("x"), data_file("y")
    assert _arrived(in_flight, _result(0, x)) is None
    found = _arrived(in_flight, _result(1, y))
    if rows == 2:
        assert isinstance(found, BucketChange)
        return
    assert isinstance(found, SubcompactionFailure)
    assert found.kind is FailureKind.POISON
    assert f"read 2 rows, its files have {rows}" in found.message
    assert in_flight.outputs == data_outputs(x, y)


def test_poison_is_not_tried_again() -> None:
    in_flight, _ = _in_flight(1)
    assert isinstance(_arrived(in_flight, _failure(0, FailureKind.POISON)), SubcompactionFailure)


def test_a_failure_waits_for_the_others_and_names_what_they_finished() -> None:
    in_flight, _ = _in_flight(3)
    x = data_file("x")
    assert _arrived(in_flight, _failure(0, FailureKind.POISON, "first")) is None
    assert _arrived(in_flight, _result(1, x)) is None
    # After the first failure nothing is tried again.
    failed = _arrived(in_flight, _failure(2, FailureKind.TRANSIENT, "second"))
    assert isinstance(failed, SubcompactionFailure)
    assert (failed.message, in_flight.outputs) == ("first", data_outputs(x))


def test_after_a_failure_those_that_wait_are_not_begun() -> None:
    flown = [subcompaction_of(1, number) for number in range(3)]
    in_flight = InFlight(1, APPEND, flown, neighbours=[])
    in_flight.waiting.popleft()
    assert isinstance(_arrived(in_flight, _failure(0, FailureKind.POISON)), SubcompactionFailure)
    assert not in_flight.waiting


def test_giving_up_names_what_was_finished() -> None:
    in_flight, _ = _in_flight(3)
    assert _arrived(in_flight, _result(0, C)) is None
    assert _arrived(in_flight, _failure(1)) is None
    failure = _failure(2, FailureKind.LOST, "the engine is gone")
    in_flight.abandon(failure)
    assert (in_flight.result, in_flight.outputs) == (failure, data_outputs(C))
    assert not in_flight.waiting
