"""Every job ends with one outcome, whatever happens in it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from structlog.typing import EventDict

from compactord.catalog.access import table_in_folder
from compactord.commit.changes import Committed
from compactord.engine.worker import run_subcompaction
from compactord.errors import CompactordError, StorageError, UnsupportedTable
from compactord.ids import Owner
from compactord.maintenance.kind import OpenedTable, Round, UnderWay
from compactord.maintenance.orphan_search import Sweep
from compactord.maintenance.orphans import REMOVED, RemovedFiles, SweepForeign, SweepOrphans
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import Subcompaction, SubcompactionResult, TableName
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_snapshot, snapshot_ids
from compactord.scheduler.effects import (
    Cancel,
    CycleJob,
    DiscardJob,
    DispatchJob,
    Forget,
    Job,
    JobOutcome,
    MaintenanceJob,
    RemoveOutputs,
    RestartEngine,
    Submit,
)
from compactord.service.jobs import THREADS_MAX, JobRunner, ServedTables, TableSpec
from compactord.table.backlog import DispatchFilter
from compactord.table.jobs import CycleResult, InFlight, OwnCommit, Phase
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from tests.builders import FIRST, SECOND, VirtualClock, compact, fill_keyed, keyed_table, writer
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.service.test_engine_host import subcompaction
from tests.unit.table.compacting import outcome_of

NAME = TableName("c", "db", "t")
SWEEP = MaintenanceJob(
    name=NAME,
    kind=SweepOrphans(interval_ms=1, grace_ms=1),
    under_way=UnderWay(since_ms=0, for_ms=0, reads_from=1),
)
WAIT_S = 180.0
# Rounds that hang, and how long what is quick may take on a crowded machine.
_HANGING, _QUICK_S = 8, 30.0
ERRORS = [StorageError("/t", "no"), OSError("too many open files"), MemoryError(), KeyError("x")]


class Harness:
    """A runner with the daemon's tables, one table, and outcomes in the order of their coming."""

    def __init__(self) -> None:
        self.inner = MemoryStorage()
        self.table: TableRef = keyed_table(self.inner, "/wh/db.db/t")
        fill_keyed(writer(self.inner, self.table), commits=6)
        self.error: Exception | None = None
        self.watch: Callable[[Call], None] = lambda call: None
        self.outcomes: queue.SimpleQueue[JobOutcome] = queue.SimpleQueue()
        self.submitted: list[Subcompaction] = []
        self.cancelled: list[tuple[int, int]] = []
        self.restarts: list[str] = []
        self.logs: list[EventDict] = []
        self.clock = clock = VirtualClock()
        worker = WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=clock.time_zone)
        self.tables = ServedTables(clock=clock, worker=worker, requested=lambda kind, count: None)
        self.runner = JobRunner(
            tables=self.tables,
            jobs=ThreadPoolExecutor(THREADS_MAX),
            maintenance=ThreadPoolExecutor(THREADS_MAX),
            engine=lambda: self,
            restart=self.restarts.append,
            ended=lambda job, outcome, seconds: self.outcomes.put(outcome),
        )
        storage = HookedStorage(self.inner, before=self._before)
        self.tables.specs[NAME] = TableSpec(
            ref=self.table,
            request=CompactRequest(),
            open=partial(table_in_folder, storage),
        )

    def submit(self, subcompaction: Subcompaction) -> None:
        self.submitted.append(subcompaction)

    def cancel_one(self, compaction: int, index: int) -> None:
        self.cancelled.append((compaction, index))

    def _before(self, call: Call) -> None:
        self.watch(call)
        if self.error is not None:
            raise self.error

    def outcome(self, job: Job) -> JobOutcome:
        """Run the job, and wait for its end."""
        self.runner.run(job)
        return self.outcomes.get(timeout=WAIT_S)

    def cycle(self) -> CycleResult:
        cycle = self.outcome(CycleJob(name=NAME, ended=(), skip=DispatchFilter()))
        assert isinstance(cycle, CycleResult)
        return cycle

    def dispatch(self, bucket: int) -> object:
        number = _bucket(self, bucket)
        return self.outcome(DispatchJob(name=NAME, bucket=number, compaction_id=1, free_slots=1))


def _bucket(harness: Harness, bucket: int) -> BucketId:
    compactor = harness.tables.compactors[NAME]
    assert compactor.last_plan is not None
    found = [b for b in compactor.last_plan.state.files.bucket_ids() if b.bucket == bucket]
    return found[0]


@pytest.fixture
def harness() -> Iterator[Harness]:
    made = Harness()
    # Stacks are written for people, which takes its time.
    with capture_logs(processors=[merge_contextvars]) as made.logs:
        yield made
    made.runner.close(seconds_max=10.0)


def test_a_cycle_opens_the_table_and_a_dispatch_decides(harness: Harness) -> None:
    cycle = harness.cycle()
    assert cycle.error is None
    assert cycle.planned is not None
    assert len(cycle.planned.offered) == 2
    assert isinstance(harness.dispatch(0), InFlight)


def test_the_first_plan_after_a_start_knows_the_last_commit_of_an_earlier_process(
    harness: Harness,
) -> None:
    cycle = harness.cycle()
    assert cycle.last_commit is None, "nobody has compacted yet"
    compact(harness.inner, harness.table, owner=SECOND)
    newest = max(snapshot_ids(harness.inner, harness.table.location))
    fill_keyed(writer(harness.inner, harness.table), commits=3)
    spec = harness.tables.specs[NAME]
    harness.runner.run(Forget(name=NAME))
    harness.tables.specs[NAME] = spec
    found = harness.cycle().last_commit
    assert found is not None
    made_ms = read_snapshot(harness.inner, harness.table.location, newest).time_ms
    # Steady time is the wall clock's here.
    assert found == OwnCommit(snapshot_id=newest, ended_ms=made_ms)
    assert harness.cycle().last_commit is None, "it is looked for once"


def test_a_table_that_is_refused_is_described_all_the_same(harness: Harness) -> None:
    location = "/wh/db.db/refused"
    options = {"row-tracking.enabled": "true", "num-sorted-run.compaction-trigger": "7"}
    table = keyed_table(harness.inner, location, options=options)
    harness.tables.specs[NAME] = replace(harness.tables.specs[NAME], ref=table)
    cycle = harness.cycle()
    assert isinstance(cycle.error, UnsupportedTable)
    assert cycle.info is not None
    found = (cycle.info.kind, cycle.info.write_only, cycle.info.compaction_trigger)
    assert found == ("primary-key", True, 7)


def test_a_table_that_cannot_be_read_for_a_while_keeps_what_was_known(harness: Harness) -> None:
    assert harness.cycle().info is not None
    harness.error = StorageError("/t", "no")
    assert harness.cycle().info is None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_cycle_that_fails_is_an_answer_and_the_next_one_works(
    harness: Harness, error: Exception
) -> None:
    harness.error = error
    cycle = harness.cycle()
    assert isinstance(cycle.error, CompactordError)
    assert not cycle.in_commit
    harness.error = None
    assert harness.cycle().planned is not None


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_commit_that_fails_is_an_answer_and_leaves_no_bucket_busy(
    harness: Harness, error: Exception
) -> None:
    harness.cycle()
    dispatched = harness.dispatch(0)
    assert isinstance(dispatched, InFlight)
    finished = outcome_of(dispatched)
    harness.error = error
    cycle = harness.outcome(CycleJob(name=NAME, ended=(finished,), skip=DispatchFilter()))
    assert isinstance(cycle, CycleResult)
    assert cycle.error is not None
    assert cycle.in_commit
    harness.error = None
    planned = harness.cycle().planned
    assert planned is not None
    assert {pending.bucket.bucket for pending in planned.offered} == {0, 1}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_care_and_discarding_that_fail_are_answered(harness: Harness, error: Exception) -> None:
    harness.cycle()
    dispatched = harness.dispatch(0)
    assert isinstance(dispatched, InFlight)
    finished = outcome_of(dispatched)
    harness.error = error
    expiry = harness.outcome(replace(SWEEP, kind=ExpireSnapshots(interval_ms=1)))
    assert isinstance(expiry, Round)
    assert (expiry.counts, expiry.has_failed) == ({"expire_failures": 1}, True)
    assert str(error) in (expiry.why_not or "")
    swept = harness.outcome(SWEEP)
    assert isinstance(swept, Round)
    assert not any(swept.counts.values())
    harness.outcome(DiscardJob(name=NAME, ended=(finished,)))


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (StorageError("/t", "no"), "sweep_failed"),
        (OSError("no files"), "job_failed"),
        (KeyError("x"), "defect"),
    ],
    ids=lambda value: str(value),
)
def test_what_a_job_logs_names_the_table(harness: Harness, error: Exception, event: str) -> None:
    harness.cycle()
    harness.error = error
    harness.outcome(SWEEP)
    assert event in [log["event"] for log in harness.logs]
    for log in harness.logs:
        assert {**log, **NAME.log_fields} == log


def test_what_concerns_a_table_that_was_never_opened_is_answered(harness: Harness) -> None:
    effect = DispatchJob(name=NAME, bucket=BucketId(b"", 0), compaction_id=1, free_slots=1)
    assert isinstance(harness.outcome(effect), CompactordError)


def test_subcompactions_go_to_the_engine_at_once(harness: Harness) -> None:
    made = subcompaction(3)
    harness.runner.run(Submit(subcompaction=made))
    assert harness.submitted == [made]


def test_hung_workers_are_the_engines_business(harness: Harness) -> None:
    made = subcompaction(3)
    harness.runner.run(Cancel(subcompaction=made))
    harness.runner.run(RestartEngine(why="it hangs"))
    assert harness.cancelled == [(made.compaction_id, made.index)]
    assert harness.restarts == ["it hangs"]


def _late_result(harness: Harness) -> tuple[RemoveOutputs, str]:
    """The effect for a result that nobody waits for any more, and the path of its output."""
    harness.cycle()
    dispatch = harness.dispatch(0)
    assert isinstance(dispatch, InFlight)
    (made,) = dispatch.subcompactions
    result = run_subcompaction(made)
    assert isinstance(result, SubcompactionResult)
    (file,) = result.after
    path = f"{made.write.folder}/{file.file_name}"
    assert harness.inner.status(path) is not None
    return RemoveOutputs(subcompaction=made, result=result), path


def test_files_of_a_late_result_are_removed(harness: Harness) -> None:
    effect, path = _late_result(harness)
    harness.runner.run(effect)
    assert harness.runner.close(WAIT_S)
    assert harness.inner.status(path) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _HangingSweep(SweepOrphans):
    """Its store does not answer until the test `ends`."""

    began: threading.Semaphore
    ends: threading.Event

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Sweep:
        self.began.release()
        assert self.ends.wait(WAIT_S)
        return Sweep()


def test_rounds_that_hang_keep_no_file_of_a_late_result(harness: Harness) -> None:
    """Their threads are not those of short work."""
    effect, path = _late_result(harness)
    began, ends = threading.Semaphore(0), threading.Event()
    sweep = _HangingSweep(interval_ms=1, grace_ms=1, began=began, ends=ends)
    deleted: queue.SimpleQueue[str] = queue.SimpleQueue()
    harness.watch = lambda call: deleted.put(call.path) if call.method == "delete" else None
    try:
        for _ in range(_HANGING):
            harness.runner.run(replace(SWEEP, kind=sweep))
        harness.runner.run(effect)
        assert deleted.get(timeout=_QUICK_S) == path
        assert all(began.acquire(timeout=_QUICK_S) for _ in range(_HANGING))
        assert harness.outcomes.empty()
    finally:
        ends.set()
    assert harness.runner.close(WAIT_S)
    assert harness.inner.status(path) is None


def test_a_new_specification_takes_effect_with_the_next_turn(harness: Harness) -> None:
    harness.cycle()
    known = harness.tables.compactors[NAME]
    spec = harness.tables.specs[NAME]
    options = {"num-sorted-run.compaction-trigger": "50"}
    harness.tables.specs[NAME] = replace(spec, request=CompactRequest(overrides=options))
    planned = harness.cycle().planned
    assert planned is not None
    assert planned.offered == ()
    assert harness.tables.compactors[NAME] is known


def test_a_table_that_its_catalog_tells_from_the_one_before_is_opened_anew(
    harness: Harness,
) -> None:
    harness.cycle()
    known, spec = harness.tables.compactors[NAME], harness.tables.specs[NAME]
    harness.tables.specs[NAME] = replace(spec, ref=replace(spec.ref, identity="another"))
    assert harness.cycle().error is None
    assert harness.tables.compactors[NAME] is not known


def test_a_forgotten_table_is_opened_anew(harness: Harness) -> None:
    harness.cycle()
    known, spec = harness.tables.compactors[NAME], harness.tables.specs[NAME]
    harness.runner.run(Forget(name=NAME))
    harness.tables.specs[NAME] = spec
    harness.cycle()
    assert harness.tables.compactors[NAME] is not known


def test_maintenance_deletes_no_faster_than_its_limit() -> None:
    harness = Harness()
    harness.cycle()
    elsewhere = Owner(host=0x555555, start_ticks=1, pid=1)
    for number in range(4):
        name = f"data-{elsewhere.unique_name()}-{number}.parquet"
        harness.inner.write_new(f"{harness.table.location}/bucket-0/{name}", b"left")
    harness.tables.pace.per_second = 2
    began_s = harness.clock.monotonic_s()
    outcome = harness.outcome(SWEEP)
    assert isinstance(outcome, Round)
    assert outcome.counts == {REMOVED: 4}
    assert harness.clock.monotonic_s() - began_s == pytest.approx(1.5)


def test_a_stop_ends_long_rounds(harness: Harness) -> None:
    harness.cycle()
    left = f"{harness.table.location}/bucket-0/left"
    harness.inner.write_new(left, b"left")
    kind = SweepForeign(grace_ms=1, older_than_ms=1)
    sweep = MaintenanceJob(name=NAME, kind=kind, under_way=None)
    harness.tables.stop()
    assert harness.outcome(sweep) == kind.ended(RemovedFiles(more=True), 0.0)
    assert left in harness.inner.objects
    harness.tables.compactors[NAME].is_stopping = False
    harness.outcome(sweep)
    assert left not in harness.inner.objects


def test_a_cycle_at_the_end_publishes_and_plans_nothing(harness: Harness) -> None:
    harness.cycle()
    dispatched = harness.dispatch(0)
    assert isinstance(dispatched, InFlight)
    finished = outcome_of(dispatched)
    phases: list[Phase] = []
    harness.watch = lambda call: phases.append(harness.tables.phase(NAME))
    harness.tables.stop()
    cycle = harness.outcome(CycleJob(name=NAME, ended=(finished,), skip=DispatchFilter()))
    assert isinstance(cycle, CycleResult)
    assert isinstance(cycle.commit, Committed)
    assert cycle.commit.compaction_ids == (dispatched.compaction_id,)
    assert (cycle.planned, cycle.error) == (None, None)
    assert Phase.COMMIT in phases
    assert harness.tables.phase(NAME) is Phase.PLAN, "an end does not wait for what follows"
