"""`compact` beside a worker that does not answer: files, failures, the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compactord.engine.base import cancelled
from compactord.engine.worker import run_subcompaction
from compactord.errors import EngineUnavailable
from compactord.ids import owner_of
from compactord.model import Subcompaction, SubcompactionOutcome
from compactord.paimon.schema import TableRef
from tests import builders
from tests.builders import VirtualClock
from tests.inline_engine import InlineEngine
from tests.storages import MemoryStorage

LOCATION = "/w/db.db/t"


class HangingEngine(InlineEngine):
    """The first subcompaction has no outcome until it is cancelled, and then that of `answer`.

    Waiting for an outcome takes time by the clock.
    """

    def __init__(
        self, clock: VirtualClock, answer: Callable[[Subcompaction], SubcompactionOutcome] | None
    ) -> None:
        super().__init__()
        self.clock = clock
        self.answer = answer
        self.hung: Subcompaction | None = None
        self.cancelled_after_s: list[float] = []
        self._begun_s = 0.0

    def submit(self, subcompaction: Subcompaction) -> None:
        if self.hung is None:
            self.hung, self._begun_s = subcompaction, self.clock.monotonic_s()
        else:
            super().submit(subcompaction)

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        outcome = super().next_outcome(timeout_s)
        if outcome is None:
            self.clock.sleep(timeout_s or 0.01)
        return outcome

    def cancel_one(self, compaction: int, index: int) -> None:
        assert self.hung is not None
        assert (self.hung.compaction_id, self.hung.index) == (compaction, index)
        self.cancelled_after_s.append(self.clock.monotonic_s() - self._begun_s)
        if self.answer is not None:
            self._finished.append(self.answer(self.hung))


def _table(buckets: int) -> tuple[MemoryStorage, TableRef, dict[int, int]]:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, LOCATION, buckets=buckets)
    return storage, table, builders.fill_keyed(builders.writer(storage, table), commits=5)


def _files(storage: MemoryStorage, table: TableRef) -> int:
    """Files in the buckets' folders with a name of ours, which the test's writer gives as well."""
    folders = (f"{table.location}/bucket-{bucket}" for bucket in range(2))
    return sum(owner_of(each.name) is not None for f in folders for each in storage.list(f))


@pytest.mark.parametrize("answer", [cancelled, run_subcompaction], ids=["killed", "just finished"])
def test_its_bucket_fails_the_others_are_compacted_and_none_of_its_files_stays(
    answer: Callable[[Subcompaction], SubcompactionOutcome],
) -> None:
    storage, table, expected = _table(2)
    clock, before = VirtualClock(), _files(storage, table)
    engine = HangingEngine(clock, answer)
    totals = builders.compact(storage, table, start_engine=lambda: engine, clock=clock)
    assert totals.compactions == 1
    (failure,) = totals.failures
    assert "had no outcome within its time limit of 10 min and was cancelled" in failure
    assert [600 < seconds < 602 for seconds in engine.cancelled_after_s] == [True]
    assert builders.read_keyed(storage, table) == expected
    assert _files(storage, table) == before + 1, "the other bucket's"
    builders.check_chain(storage, table)


def test_a_run_that_has_nothing_else_to_do_waits_a_minute_for_a_worker_to_end() -> None:
    storage, table, expected = _table(1)
    clock = VirtualClock()
    engine = HangingEngine(clock, None)
    start_s = clock.monotonic_s()
    run = builders.one_shot(storage, table, start_engine=lambda: engine, clock=clock)
    totals = run.run()
    assert run.leaves_workers, "no other run may get the late outcome"
    assert 660 <= clock.monotonic_s() - start_s < 670
    assert (totals.snapshots, len(totals.failures)) == ([], 1)
    assert builders.read_keyed(storage, table) == expected


def test_a_run_whose_only_core_is_lost_says_so() -> None:
    class OneCore(HangingEngine):
        """What is submitted after the hung one waits behind it."""

        def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
            self.clock.sleep(timeout_s or 0.01)
            return None

    storage, table, expected = _table(4)
    clock = VirtualClock()
    engine = OneCore(clock, None)
    with pytest.raises(EngineUnavailable, match=r"the rest was not compacted: 1 of its workers"):
        builders.compact(storage, table, start_engine=lambda: engine, clock=clock)
    assert len(engine.cancelled_after_s) == 1, "those behind it are not blamed"
    assert builders.read_keyed(storage, table) == expected
