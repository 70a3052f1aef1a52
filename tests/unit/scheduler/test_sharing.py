"""How catalogs share the threads of cycles and dispatches."""

from __future__ import annotations

from collections import Counter

import pytest

from compactord.model import TableName
from compactord.scheduler.effects import CycleJob, DispatchJob, Effect
from tests.unit.scheduler.test_scheduler import Stage

JOBS_MAX = 16


def _names(catalog: str, count: int) -> list[TableName]:
    return [TableName(catalog, "db", f"t{n}") for n in range(count)]


def _by_catalog(effects: list[Effect]) -> dict[str, int]:
    jobs = [each for each in effects if isinstance(each, CycleJob | DispatchJob)]
    return dict(Counter(each.name.catalog for each in jobs))


@pytest.mark.parametrize(
    ("others", "begun"),
    [
        # Alone a catalog has all threads; with others it leaves half, and what the others' share is
        # once they wait.
        ((), {"silent": 16}),
        ((1,), {"silent": 8, "c0": 1}),
        ((40,), {"silent": 8, "c0": 8}),
        ((40, 40), {"silent": 8, "c0": 5, "c1": 3}),
        # Each has two in any case, and more than there are if need be.
        ((1,) * 9, {"silent": 8, **{f"c{n}": 1 for n in range(9)}}),
        ((40,) * 9, {"silent": 8, **{f"c{n}": 2 for n in range(9)}}),
    ],
)
def test_a_silent_store_leaves_threads_to_the_tables_of_other_catalogs(
    others: tuple[int, ...], begun: dict[str, int]
) -> None:
    stage = Stage(jobs_max=JOBS_MAX)
    for name in _names("silent", 40):
        stage.add(name)
    for number, count in enumerate(others):
        for name in _names(f"c{number}", count):
            stage.add(name)
    assert _by_catalog(stage.decide()) == begun


def test_a_healthy_table_is_polled_again_and_again_beside_tables_that_never_answer() -> None:
    stage = Stage(jobs_max=JOBS_MAX, slots=0)
    healthy = TableName("healthy", "db", "t")
    for name in [*_names("silent", 2 * JOBS_MAX), healthy]:
        stage.add(name)
    polls = 0
    for _ in range(10):
        stage.poll(healthy)
        for effect in stage.decide(1_000):
            assert isinstance(effect, CycleJob)
            if effect.name == healthy:
                polls += 1
                stage.cycle_ended(effect)
    assert polls == 10
    now = stage.now
    assert stage.scheduler.last_progress_ms(now) == now, "the healthy one may be polled"


def test_where_calls_end_late_the_catalogs_take_turns() -> None:
    """Four catalogs with many tables: each holds its share once the first ones have ended."""
    stage = Stage(jobs_max=JOBS_MAX, slots=0)
    for catalog in ("a", "b", "c", "d"):
        for name in _names(catalog, 40):
            stage.add(name)
    running = stage.decide()
    assert _by_catalog(running) == {"a": 8, "b": 4, "c": 4, "d": 2}
    for effect in running[:8]:
        stage.cycle_ended(effect)
    assert _by_catalog([*running[8:], *stage.decide()]) == {"a": 4, "b": 4, "c": 4, "d": 4}


def test_dispatches_leave_threads_of_their_catalogs_share_to_cycles() -> None:
    stage = Stage(jobs_max=JOBS_MAX, slots=100)
    names = [*_names("a", 12), *_names("b", 12)]
    for name in names:
        stage.add(name)
    while cycles := [each for each in stage.decide() if isinstance(each, CycleJob)]:
        for effect in cycles:
            stage.cycle_ended(effect)
    held = Counter(
        each.name.catalog for each in stage.scheduler.tables.values() if each.job is not None
    )
    assert held == {"a": 6, "b": 6}
    for name in names[:12]:
        stage.poll(name)
    assert _by_catalog(stage.decide()) == {"a": 2}


def test_nothing_goes_on_once_each_catalogs_share_and_tables_are_hung() -> None:
    stage = Stage(jobs_max=JOBS_MAX, slots=0)
    for name in [*_names("silent", 40), *_names("other", 2)]:
        stage.add(name)
    began = stage.now
    assert _by_catalog(stage.decide()) == {"silent": 8, "other": 2}
    assert stage.scheduler.last_progress_ms(began + 5_000) == began


def test_a_catalog_without_tables_has_no_share() -> None:
    stage = Stage(jobs_max=JOBS_MAX)
    gone = TableName("gone", "db", "t")
    stage.add(gone)
    (effect,) = stage.decide()
    stage.scheduler.remove(gone)
    stage.cycle_ended(effect)
    stage.decide()
    for name in _names("left", 40):
        stage.add(name)
    assert _by_catalog(stage.decide()) == {"left": 16}
