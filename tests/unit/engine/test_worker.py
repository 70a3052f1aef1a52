from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.engine import inspection
from compactord.engine.leases import LeaseOffice, take
from compactord.engine.worker import (
    Assignment,
    StopWatch,
    run_assignment,
    run_payloads,
    run_subcompaction,
)
from compactord.model import SubcompactionOutcome, SubcompactionResult
from tests.spark.subcompactions import InterruptedStorage, append_subcompaction, outputs
from tests.unit.engine.jobs import ScriptedJob

SECONDS = 180.0


@pytest.fixture
def office(tmp_path: Path) -> Iterator[LeaseOffice]:
    office = LeaseOffice(tmp_path)
    yield office
    office.close()


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A watch that was asked to stop leaves its handlers, as its process is about to end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _wait_for_interrupt() -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.01)
    pytest.fail("no interrupt came")


def test_a_payload_is_answered_with_the_outcome(tmp_path: Path) -> None:
    subcompaction = append_subcompaction(tmp_path, 4)
    payload = pickle.dumps(Assignment(subcompaction=subcompaction, lease=None))
    (answer,) = run_payloads(iter([payload]))
    outcome = pickle.loads(answer)
    assert isinstance(outcome, SubcompactionResult)
    assert (outcome.compaction_id, outcome.index) == (7, 4)


def test_the_end_of_the_lease_interrupts(office: LeaseOffice, tmp_path: Path) -> None:
    lease = office.grant(ScriptedJob([append_subcompaction(tmp_path)]))
    watch = StopWatch(lease)

    def work() -> None:
        with watch:
            office.end(lease)
            _wait_for_interrupt()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert watch.was_stopped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_interrupts_once(number: signal.Signals) -> None:
    cleaned_up = False

    def work() -> None:
        nonlocal cleaned_up
        with StopWatch(None):
            try:
                os.kill(os.getpid(), number)
                _wait_for_interrupt()
            finally:
                os.kill(os.getpid(), number)
                time.sleep(0.02)
                cleaned_up = True

    with pytest.raises(KeyboardInterrupt):
        work()
    assert cleaned_up


def test_a_task_that_ends_in_time_leaves_no_handler_behind(
    office: LeaseOffice, tmp_path: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopWatch(office.grant(ScriptedJob([append_subcompaction(tmp_path)]))) as watch:
        assert signal.getsignal(signal.SIGTERM) != before
    assert not watch.was_stopped
    assert signal.getsignal(signal.SIGTERM) == before


def _run(job: ScriptedJob, office: LeaseOffice) -> bytes:
    assignment = Assignment(subcompaction=job.first, lease=office.grant(job))
    return run_assignment(pickle.dumps(assignment))


def test_a_worker_runs_what_the_driver_sends_and_spark_returns_nothing(
    office: LeaseOffice, tmp_path: Path
) -> None:
    job = ScriptedJob(append_subcompaction(tmp_path, number) for number in range(3))
    assert _run(job, office) == b""
    assert [outcome.index for outcome in job.taken] == [0, 1, 2]
    assert len(outputs(tmp_path)) == 3


def test_a_stop_after_some_were_reported_removes_only_the_files_of_the_last(
    office: LeaseOffice, tmp_path: Path
) -> None:
    storage = InterruptedStorage(folder="bucket-2")
    job = ScriptedJob(append_subcompaction(tmp_path, number, storage) for number in range(3))
    with pytest.raises(KeyboardInterrupt):
        _run(job, office)
    assert [outcome.index for outcome in job.taken] == [0, 1]
    assert len(outputs(tmp_path)) == 2


def test_a_driver_that_does_not_answer_gets_the_outcome_through_spark(
    office: LeaseOffice, tmp_path: Path
) -> None:
    class SlowJob(ScriptedJob):
        def deliver(self, outcome: SubcompactionOutcome) -> bool:
            time.sleep(3)
            return super().deliver(outcome)

    job = SlowJob([append_subcompaction(tmp_path)])
    outcome = pickle.loads(_run(job, office))
    deadline = time.monotonic() + SECONDS
    while not job.taken and time.monotonic() < deadline:
        time.sleep(0.01)
    assert job.taken == [outcome]
    assert not take(job, outcome)
    assert len(outputs(tmp_path)) == 1


def test_files_are_known_before_the_rewrite_returns(tmp_path: Path) -> None:
    subcompaction, created = append_subcompaction(tmp_path), list[str]()
    run_subcompaction(subcompaction, created)
    (name,) = outputs(tmp_path)
    assert created == [f"{subcompaction.write.folder}/{name}"]


def test_a_result_that_nobody_waits_for_is_removed(office: LeaseOffice, tmp_path: Path) -> None:
    job = ScriptedJob([append_subcompaction(tmp_path)])
    lease = office.grant(job)
    office.end(lease)
    with pytest.raises(KeyboardInterrupt):
        run_assignment(pickle.dumps(Assignment(subcompaction=job.first, lease=lease)))
    assert outputs(tmp_path) == []


def test_the_inspection_needs_no_package_that_it_asks_for() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['numpy'] = None\n"
        f"from {inspection.__name__} import worker_facts\n"
        "print(worker_facts().problem)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert "ModuleNotFoundError" in run.stdout


def test_a_worker_that_has_all_reports_no_problem() -> None:
    facts = inspection.worker_facts()
    assert facts.problem is None
    assert dict(facts.packages).keys() == {"pyarrow", "numpy"}
    assert gc.get_freeze_count(), "collections do not look at what was imported"


def test_a_worker_gives_back_what_the_allocator_keeps() -> None:
    code = """
import resource
from pathlib import Path
from compactord.engine.worker import give_back

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before = rss()
held = [b"x" * (1 << 16) for _ in range(8192)]
del held
kept = rss()
give_back(kept)
assert rss() == kept, "within the limit nothing is done"
give_back(before + (64 << 20))
print(kept - before >> 20, rss() - before >> 20)
"""
    large = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=os.environ | large,
    )
    kept_mib, left_mib = map(int, run.stdout.split())
    assert kept_mib > 400
    assert left_mib < 100
