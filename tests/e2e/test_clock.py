"""A clock that jumps may spoil what is written about time, and nothing else."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.ids import Owner
from compactord.maintenance.orphans import REMOVED, SweepOrphans
from compactord.paimon.snapshot import read_snapshot, snapshot_ids
from compactord.plan.table import Strategy
from compactord.service.one_shot import OneShot
from compactord.table.jobs import CompactTotals
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from tests import builders
from tests.builders import DAY_MS, FIRST, NOW_MS, WRITER
from tests.e2e import tables
from tests.e2e.tables import LOCAL
from tests.inline_engine import InlineEngine
from tests.storages import Call, HookedStorage

YEAR_MS = 365 * DAY_MS


class JumpingClock:
    """Each look at the wall clock shows the next of `readings`; the monotonic one stands still."""

    def __init__(self, readings: Iterator[int]) -> None:
        self._readings = readings
        self.time_zone: datetime.tzinfo = datetime.timezone.utc

    def now_ms(self) -> int:
        return next(self._readings)

    def steady_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None: ...


def _stepping(start_ms: int, step_ms: int) -> Iterator[int]:
    while True:
        yield start_ms
        start_ms += step_ms


def _swinging() -> Iterator[int]:
    while True:
        yield from (NOW_MS, NOW_MS - 40 * YEAR_MS, NOW_MS + 90 * YEAR_MS)


def _one_shot(warehouse: Path, clock: JumpingClock, *, owner: Owner = FIRST) -> OneShot:
    class Silent:
        planned = finished = committed = staticmethod(lambda *_: None)

    return OneShot(
        table_in_folder(LOCAL, tables.ref(warehouse)),
        CompactRequest(
            strategy=Strategy.MINOR,
            overrides={"compaction.optimization-interval": "1 h"},
        ),
        start_engine=InlineEngine,
        clock=clock,
        worker=WorkerSpec(owner=owner, memory_bytes=64 << 20, zone=clock.time_zone),
        progress=Silent(),
        stop=threading.Event(),
    )


@pytest.mark.parametrize(
    "readings",
    [
        lambda: _stepping(NOW_MS, -7 * DAY_MS),
        lambda: _stepping(NOW_MS, 30 * DAY_MS),
        lambda: _stepping(0, -1),
        _swinging,
    ],
    ids=["backwards", "forwards", "before-1970", "to-and-fro"],
)
def test_a_jumping_clock_changes_no_row_and_the_run_comes_to_an_end(
    readings: Callable[[], Iterator[int]], tmp_path: Path
) -> None:
    expected = tables.small_keyed(tmp_path)
    run = _one_shot(tmp_path, JumpingClock(readings()))
    run.maintain(SweepOrphans(interval_ms=0, grace_ms=DAY_MS))
    totals: CompactTotals = run.run()
    assert totals.failures == []
    assert totals.compactions == 2
    assert totals.seconds == 0
    table = tables.ref(tmp_path)
    assert builders.read_keyed(LOCAL, table) == expected
    builders.check_chain(LOCAL, table)
    assert tables.leftovers(tmp_path) == set()
    ids_ = snapshot_ids(LOCAL, table.location)
    times = [read_snapshot(LOCAL, table.location, id_).time_ms for id_ in ids_[6:]]
    assert set(times) <= set(_first(readings(), 100))


def _first(readings: Iterator[int], count: int) -> list[int]:
    return [next(readings) for _ in range(count)]


def test_the_grace_never_takes_the_files_of_a_process_that_runs(tmp_path: Path) -> None:
    """The clock jumps ten years ahead while a merge is under way; another run cleans up then."""
    expected = tables.small_keyed(tmp_path)
    far_ahead = JumpingClock(_stepping(NOW_MS + 20 * YEAR_MS, 0))
    rivals = iter([True])
    removed: list[int] = []

    def rival(call: Call) -> None:
        if call.method == "create_if_absent" and next(rivals, False):
            run = _one_shot(tmp_path, far_ahead, owner=FIRST)
            found = run.maintain(SweepOrphans(interval_ms=0, grace_ms=DAY_MS))
            removed.append(found.get(REMOVED, 0))

    alive = ids.this_process()
    assert alive not in (FIRST, WRITER)
    run = builders.one_shot(HookedStorage(LOCAL, before=rival), tables.ref(tmp_path), owner=alive)
    totals = run.run()
    assert totals.failures == []
    builders.check_chain(LOCAL, tables.ref(tmp_path))
    assert builders.read_keyed(LOCAL, tables.ref(tmp_path)) == expected
    assert removed == [0]
