"""Whatever becomes of a compaction, files of all kinds share it: with a kind of the tests' own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from compactord.commit.changes import BucketChange, NothingCommitted
from compactord.engine.leases import discard, file_paths
from compactord.engine.worker import run_subcompaction
from compactord.errors import CommitError, ErrorKind
from compactord.model import (
    DATA,
    Conflict,
    FailureKind,
    Output,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
)
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import InFlight
from tests.builders import fill_keyed, keyed_table, writer
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, NAME, compactor_of

AUDIT = "audit"


def _with_audit(subcompaction: Subcompaction) -> SubcompactionResult:
    """What a worker answers that has written a second file, of another kind, beside its data."""
    result = run_subcompaction(subcompaction)
    assert isinstance(result, SubcompactionResult)
    (output,) = result.outputs
    file = replace(output.file, file_name=f"audit-{subcompaction.owner.unique_name()}-0.parquet")
    subcompaction.storage.open().write_new(
        f"{subcompaction.write.folder}/{file.file_name}", bytes(file.file_size)
    )
    return replace(result, outputs=(output, Output(AUDIT, file)))


@dataclass
class Case:
    """A bucket that is due, and what the table's folder held before anything was written."""

    storage: MemoryStorage
    compactor: TableCompactor
    dispatch: InFlight
    before: dict[str, bytes]

    @property
    def subcompaction(self) -> Subcompaction:
        (only,) = self.dispatch.subcompactions
        return only

    def settled(self, *outcomes: SubcompactionOutcome) -> InFlight:
        """What comes of the compaction when its subcompactions have these outcomes."""
        in_flight = InFlight(
            self.dispatch.compaction_id,
            self.dispatch.compaction,
            [replace(self.subcompaction, index=number) for number in range(len(outcomes))],
            neighbours=self.dispatch.compaction.inputs,
        )
        in_flight.waiting.clear()  # they run elsewhere
        for outcome in outcomes:
            in_flight.record_outcome(outcome, NAME, attempts_max=1)
        assert in_flight.ended() is not None
        return in_flight

    def new_files(self) -> list[str]:
        """The beginnings of the names of files that were not there before."""
        names = (path.rpartition("/")[2] for path in self.storage.objects.keys() - self.before)
        return sorted(name.partition("-")[0] for name in names)


@pytest.fixture
def case() -> Case:
    storage = MemoryStorage()
    table = keyed_table(storage, "/warehouse/db.db/t", buckets=1)
    fill_keyed(writer(storage, table), commits=6)
    compactor = compactor_of(storage, table)
    planned = compactor.cycle([], ALL).planned
    assert planned is not None
    (pending,) = planned.offered
    dispatch = compactor.dispatch(pending.bucket, compaction_id=0, free_slots=1)
    assert isinstance(dispatch, InFlight)
    return Case(storage, compactor, dispatch, dict(storage.objects))


def test_a_subcompaction_that_succeeded_beside_one_that_failed_leaves_no_file_of_any_kind(
    case: Case,
):
    failure = SubcompactionFailure(
        compaction_id=0,
        index=1,
        kind=FailureKind.POISON,
        error=ErrorKind("E"),
        message="",
        traceback="",
    )
    failed = case.settled(_with_audit(case.subcompaction), failure)
    assert failed.result is failure
    assert case.new_files() == ["audit", "data"]
    case.compactor.discard([failed])
    assert case.storage.objects == case.before


def test_what_is_finished_and_not_to_be_published_leaves_no_file_of_any_kind(case: Case):
    finished = case.settled(_with_audit(case.subcompaction))
    assert isinstance(finished.result, BucketChange)
    assert [output.kind for output in finished.result.outputs] == [DATA, AUDIT]
    assert [file.file_name[:4] for file in finished.result.after] == ["data"]
    case.compactor.discard([finished])
    assert case.storage.objects == case.before


def test_a_commit_refuses_a_kind_that_it_cannot_list_and_no_file_is_left(case: Case):
    finished = case.settled(_with_audit(case.subcompaction))
    assert isinstance(finished.result, BucketChange)
    cycle = case.compactor.cycle([finished], ALL)
    assert isinstance(cycle.error, CommitError)
    assert "is of kind audit, which no manifest lists" in str(cycle.error)
    assert case.storage.objects == case.before


def test_a_file_of_any_kind_that_is_lost_before_its_commit_takes_the_others_along(case: Case):
    result = _with_audit(case.subcompaction)
    finished = case.settled(result)
    assert isinstance(finished.result, BucketChange)
    case.storage.delete(f"{case.subcompaction.write.folder}/{result.outputs[1].file.file_name}")
    settled = case.compactor.cycle([finished], ALL).commit
    assert isinstance(settled, NothingCommitted)
    assert [drop.conflict for drop in settled.dropped] == [Conflict.OUTPUT_LOST]
    assert case.storage.objects == case.before


def test_a_worker_whose_answer_nobody_reads_removes_files_of_all_kinds(case: Case):
    result = _with_audit(case.subcompaction)
    discard(case.subcompaction, file_paths(case.subcompaction, result))
    assert case.storage.objects == case.before
