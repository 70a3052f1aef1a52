"""Workers and threads that never answer hold nothing for ever: no slot, bucket or expiry."""

from __future__ import annotations

import pytest

from compactord.model import TableName
from compactord.scheduler.effects import CycleJob, DispatchJob, Job
from compactord.scheduler.priority import RESTART_AT_LAST_MS, RESTART_IDLE_MS, time_limit_ms
from compactord.scheduler.scheduled_table import HUNG_JOB_MS, PIN_MAX_MS
from compactord.scheduler.scheduler import ROUNDS_MAX
from tests.simulation.tables import MIB, TRIGGER, Bucket, SimTable
from tests.simulation.world import LIMITS, START_MS, Odds, Plan, World

# Until the limit of a small merge has passed, with the tick that notices it.
LIMIT_MS = time_limit_ms(LIMITS, 2 * TRIGGER * MIB) + 5_000


def _due(buckets: int = 1) -> SimTable:
    table = SimTable([Bucket() for _ in range(buckets)])
    for _ in range(TRIGGER):
        table.commit(dict.fromkeys(range(buckets), MIB), START_MS)
    return table


def _until_submitted(world: World) -> None:
    for _ in range(100):
        world.run(200)
        if world.running:
            return
    raise AssertionError("nothing was submitted")


def _with_one_hung(slots: int, *, deaf: float) -> tuple[World, TableName]:
    """A world in which the first worker has just hung; all later ones are well."""
    world = World(11, slots=slots, odds=Odds(hangs=1.0, deaf=deaf))
    name = world.add("t", _due())
    _until_submitted(world)
    world.odds = Odds()
    return world, name


def test_a_worker_that_can_be_ended_costs_its_bucket_a_pause_and_nothing_else() -> None:
    world, name = _with_one_hung(1, deaf=0.0)
    world.run(LIMIT_MS)
    assert not world.running, "it was cancelled"
    world.run(20_000)
    assert world.rules.published[name] == 1, "and its bucket was tried again"
    assert world.restarts == 0
    message = world.scheduler.recent[-1].message
    assert message == (
        "bucket 0: subcompaction 1 of 1, about 5,242,880 bytes, had no outcome within its time"
        " limit of 1 min 10 s and was cancelled"
    )


@pytest.mark.parametrize("slots", [1, 4])
def test_an_engine_at_which_all_is_hung_is_started_again_after_a_minute(slots: int) -> None:
    world, name = _with_one_hung(slots, deaf=1.0)
    world.run(LIMIT_MS)
    assert world.scheduler.engine.hung == 1
    since_ms = world.scheduler.engine.all_hung_since_ms(world.scheduler.slots, world.now_ms)
    assert (since_ms < world.now_ms) == (slots == 1), "all slots are lost"
    assert world.rules.published[name] == 0
    world.run(RESTART_IDLE_MS + 20_000)
    assert world.restarts == 1
    assert world.scheduler.engine.hung == 0
    assert world.rules.published[name] == 1


def test_a_deaf_worker_beside_busy_ones_costs_one_slot_for_an_hour_at_most() -> None:
    world, name = _with_one_hung(2, deaf=1.0)
    huge = SimTable([Bucket(run=1 << 40)])
    for _ in range(TRIGGER):
        huge.commit({0: 1 << 39}, START_MS)
    world.add("huge", huge)
    world.run(LIMIT_MS + RESTART_AT_LAST_MS // 2)
    assert world.restarts == 0, "the other slot is at work"
    assert world.rules.published[name] == 0, "its bucket is not tried: it might cost another slot"
    assert len(world.running) == 2
    world.run(RESTART_AT_LAST_MS // 2 + LIMIT_MS)
    assert world.restarts == 1
    assert world.scheduler.engine.hung == 0
    assert world.rules.published[name] > 0


def test_workers_that_hang_again_and_again_hold_nothing_for_hours() -> None:
    world = World(5, slots=3, odds=Odds(hangs=0.05, deaf=0.5))
    names = [
        world.add(
            f"t{n}", SimTable([Bucket() for _ in range(4)]), Plan(interval_ms=3_000, size=(1, MIB))
        )
        for n in range(4)
    ]
    submitted: dict[tuple[int, int], int] = {}
    for _ in range(4 * 60):
        world.run(60_000)
        submitted = {key: submitted.get(key, world.now_ms) for key in world.running}
        for since_ms in submitted.values():
            assert world.now_ms - since_ms <= LIMIT_MS + RESTART_AT_LAST_MS + 60_000
        for name in names:
            held_ms = world.scheduler.tables[name].expiry_held_since_ms
            assert not held_ms or world.now_ms - held_ms < LIMIT_MS + 60_000
    assert world.restarts > 3
    assert min(world.rules.published[name] for name in names) > 100


def _runs(world: World, name: TableName) -> type[Job] | None:
    running = world.scheduler.tables[name].job
    return None if running is None else type(running)


def test_a_dispatch_that_hangs_holds_its_slot_for_ten_minutes_and_expiry_for_six_hours() -> None:
    world = World(3, slots=1)
    stuck = world.add("stuck", _due())
    for _ in range(100):
        world.run(10)
        if _runs(world, stuck) is CycleJob:
            # It ends; what follows does not.
            world.stuck.add(stuck)
    assert _runs(world, stuck) is DispatchJob
    other = world.add("other", SimTable([Bucket()]), Plan(interval_ms=3_000, size=(MIB, 2 * MIB)))
    world.run(HUNG_JOB_MS // 2)
    assert world.rules.published[other] == 0, "the slot is kept for what is being cut"
    world.run(HUNG_JOB_MS // 2 + 60_000)
    assert world.rules.published[other] > 0
    assert world.scheduler.tables[stuck].is_job_hung(world.now_ms)
    progress_ms = world.scheduler.last_progress_ms(world.now_ms)
    assert world.now_ms - progress_ms < 1_000, "others make progress"
    scheduled = world.scheduler.tables[stuck]
    assert scheduled.oldest_read_snapshot(world.now_ms) is not None
    world.run(PIN_MAX_MS)
    assert scheduled.oldest_read_snapshot(world.now_ms) is None
    assert scheduled.expiry_held_since_ms < world.now_ms - PIN_MAX_MS, "it is still reported"


def test_a_cycle_that_hangs_keeps_the_number_of_the_snapshot_that_it_may_be_creating() -> None:
    world = World(3, slots=1)
    stuck = world.add("stuck", SimTable([Bucket()]))
    world.run(20_000)
    world.stuck.add(stuck)
    world.run(PIN_MAX_MS + HUNG_JOB_MS)
    scheduled = world.scheduler.tables[stuck]
    assert _runs(world, stuck) is CycleJob
    assert scheduled.oldest_read_snapshot(world.now_ms) == world.tables[stuck].planned_snapshot_id


def test_when_every_thread_hangs_nothing_makes_progress() -> None:
    world = World(3, slots=4)
    names = [world.add(f"t{n}", _due()) for n in range(12)]
    world.stuck.update(names)
    world.run(10_000)
    assert sum(world.scheduler.tables[name].job is not None for name in names) == 8
    assert world.now_ms - world.scheduler.last_progress_ms(world.now_ms) > 9_000


@pytest.mark.parametrize("sick", [1, 3, 20])
def test_where_rounds_of_maintenance_never_end_those_of_other_catalogs_go_on(sick: int) -> None:
    world = World(3, slots=4)
    plan = Plan(interval_ms=5_000, size=(MIB, 2 * MIB))

    def tables(catalog: str, count: int) -> list[TableName]:
        made = (SimTable([Bucket()]) for _ in range(count))
        return [
            world.add(f"{catalog}{n}", each, plan, catalog=catalog) for n, each in enumerate(made)
        ]

    names = [f"sick{n}" for n in range(sick)]
    for name in names:
        tables(name, 60 // sick)
    well = tables("well", 4)
    world.run(30_000)
    world.hung_rounds.update(names)
    for _ in range(60):
        world.run(5_000)
        for name in well:
            expired_ms = world.scheduler.tables[name].last_expired_ms
            assert world.now_ms - expired_ms < 10_000, f"{name} does not expire"
    hung = [each for each in world.scheduler.tables.values() if each.maintenance is not None]
    assert sum(each.name.catalog in names for each in hung) >= sick, "`Rules` bounds how many"


def test_tables_whose_rounds_never_end_hold_up_those_beside_them_for_ten_minutes() -> None:
    world = World(3, slots=4)
    plan = Plan(interval_ms=3_000, size=(MIB, 2 * MIB))
    names = [world.add(f"t{n}", SimTable([Bucket()]), plan) for n in range(3 * ROUNDS_MAX)]
    world.run(30_000)
    world.hung_rounds.add("c")
    world.run(30_000)
    world.hung_rounds.clear()
    stuck = [name for name in names if world.scheduler.tables[name].maintenance is not None]
    assert 0 < len(stuck) <= ROUNDS_MAX
    world.run(HUNG_JOB_MS + 10_000)
    for name in set(names) - set(stuck):
        assert world.now_ms - world.scheduler.tables[name].last_expired_ms < 10_000
