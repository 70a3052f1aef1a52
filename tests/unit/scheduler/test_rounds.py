"""Which rounds of maintenance begin: how catalogs share the threads, and which kind goes first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest

from compactord.clock import WallTime
from compactord.errors import CompactordError
from compactord.maintenance.kind import (
    DueTable,
    MaintenanceKind,
    MaintenanceRecord,
    OpenedTable,
    Round,
    UnderWay,
)
from compactord.model import TableName
from compactord.scheduler.effects import CycleJob, MaintenanceJob
from compactord.scheduler.scheduled_table import HUNG_JOB_MS
from compactord.scheduler.scheduler import ROUNDS_MAX
from tests.unit.scheduler.test_scheduler import Stage

_INTERVAL_MS = 10_000


@dataclass(frozen=True)
class _Kind(MaintenanceKind[None]):
    """Due again `_INTERVAL_MS` after a round."""

    name: ClassVar[str] = "other"

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return now_ms - record.ended_ms >= _INTERVAL_MS

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> None:
        """Nothing."""

    def ended(self, result: CompactordError | None, seconds: float) -> Round:
        return Round()


class _Short(_Kind):
    name = "short"
    is_short = True


_OTHER, _SHORT = _Kind(), _Short()


def _stage(*tables: TableName) -> Stage:
    """All of them are planned."""
    stage = Stage(kinds=(_OTHER, _SHORT), jobs_max=200)
    for name in tables:
        stage.add(name)
    for effect in stage.scheduler.decide(stage.now):
        assert isinstance(effect, CycleJob)
        stage.cycle_ended(effect)
    return stage


def _begun(stage: Stage, after_ms: int = 0) -> list[MaintenanceJob]:
    stage.now += after_ms
    return [e for e in stage.scheduler.tick(stage.now) if isinstance(e, MaintenanceJob)]


def _names(catalog: str, count: int) -> list[TableName]:
    return [TableName(catalog, "db", f"t{n}") for n in range(count)]


def _by_catalog(jobs: list[MaintenanceJob]) -> dict[str, int]:
    return dict(Counter(job.name.catalog for job in jobs))


@pytest.mark.parametrize(
    ("others", "begun"),
    [
        # Alone a catalog has all threads; with others it leaves half of them free.
        ((), {"sick": ROUNDS_MAX}),
        ((1,), {"sick": 4, "c0": 1}),
        ((40,), {"sick": 4, "c0": 4}),
        ((40,) * 3, {"sick": 4, "c0": 2, "c1": 2, "c2": 2}),
        # Each has two in any case.
        ((40,) * 9, {"sick": 4, **{f"c{n}": 2 for n in range(9)}}),
    ],
)
def test_rounds_of_one_catalog_leave_threads_to_those_of_others(
    others: tuple[int, ...], begun: dict[str, int]
) -> None:
    tables = [_names("sick", 40), *(_names(f"c{n}", each) for n, each in enumerate(others))]
    stage = _stage(*(name for names in tables for name in names))
    assert _by_catalog(_begun(stage)) == begun


def test_rounds_that_hang_count_no_more_after_ten_minutes_and_do_not_pile_up() -> None:
    stage = _stage(*_names("c", 10 * ROUNDS_MAX))
    found = [len(_begun(stage)), *(len(_begun(stage, HUNG_JOB_MS + 1)) for _ in range(4))]
    assert found == [ROUNDS_MAX, ROUNDS_MAX, 0, 0, 0]
    scheduled = [each for each in stage.scheduler.tables.values() if each.maintenance is not None]
    for each in scheduled:
        assert each.maintenance is not None
        stage.maintained(each.maintenance)
    assert len(_begun(stage)) == ROUNDS_MAX


def test_no_round_begins_in_a_store_that_is_silent() -> None:
    stage = _stage(*_names("silent", 5), *_names("well", 1))
    stage.scheduler.store_unresponsive("silent", "it does not answer")
    assert _by_catalog(_begun(stage)) == {"well": 1}
    stage.scheduler.store_answers("silent", stage.now)
    assert _by_catalog(_begun(stage)) == {"silent": 4}


def test_a_short_round_goes_first_and_others_have_their_turn() -> None:
    stage = _stage(*_names("c", 1))
    kinds = []
    for _ in range(6):
        (job,) = _begun(stage, after_ms=_INTERVAL_MS)
        stage.maintained(job)
        kinds.append(job.kind.name)
        # It takes so long that all are due again.
    assert kinds == ["short", "other"] * 3


def test_other_rounds_leave_threads_to_short_ones() -> None:
    stage = _stage(*_names("c", 3 * ROUNDS_MAX))
    for job in _begun(stage):
        assert job.kind.name == "short"
        stage.maintained(job)
    others: list[MaintenanceJob] = []
    for _ in range(20):
        begun = _begun(stage, after_ms=1_000)
        for job in begun:
            if job.kind.is_short:
                stage.maintained(job)
            else:
                others.append(job)
    assert len(others) == ROUNDS_MAX - 2
    assert [job.kind.name for job in _begun(stage, _INTERVAL_MS)] == ["short"] * 2
