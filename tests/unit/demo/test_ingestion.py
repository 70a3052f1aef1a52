from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from compactord.clock import SystemClock
from compactord.errors import CompactordError, StoreFull
from compactord.paimon.schema import TableRef
from compactord_demo.ingestion import Ingestion

TIMEOUT_S = 10


class CountingJob:
    """Ten rows a commit; `at` is called before each with its number."""

    period_s = 0.001
    sort_names: Sequence[str] = ()
    table = TableRef(database="db", name="t", location="/warehouse/db.db/t")

    def __init__(self, at: Callable[[int], None]) -> None:
        self._at = at
        self.commits = 0

    def commit(self) -> int:
        self._at(self.commits + 1)
        self.commits += 1
        return 10

    def expected(self) -> pa.Table:
        return pa.table({})


def test_what_is_tallied_is_what_was_committed_and_nothing_comes_after_the_end() -> None:
    reached = threading.Event()
    job = CountingJob(lambda number: reached.set() if number == 5 else None)
    with Ingestion([job], SystemClock()) as ingestion:
        assert reached.wait(TIMEOUT_S)
        ingestion.end()
        commits = job.commits
        assert commits >= 5
    assert (ingestion.commits, ingestion.rows) == (commits, 10 * commits)
    assert (job.commits, ingestion.tallies["db.t"].commits) == (commits, commits)


def test_what_ends_a_job_is_raised_by_the_next_check() -> None:
    failed = threading.Event()

    def fail(number: int) -> None:
        if number == 3:
            failed.set()
            raise StoreFull("/warehouse", "no space left")

    with Ingestion([CountingJob(fail)], SystemClock()) as ingestion:
        assert failed.wait(TIMEOUT_S)
        with pytest.raises(CompactordError, match="no space left"):
            ingestion.end()
    assert ingestion.commits == 2


def test_leaving_it_waits_for_the_commit_under_way() -> None:
    began, may_end = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        began.set()
        assert may_end.wait(TIMEOUT_S)

    job = CountingJob(wait)
    with Ingestion([job], SystemClock()):
        assert began.wait(TIMEOUT_S)
        threading.Timer(0.05, may_end.set).start()
    assert job.commits == 1
