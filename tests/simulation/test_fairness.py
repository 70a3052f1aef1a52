"""Who waits how long, when all want something: bounds that follow from load and speed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from compactord.model import TableName
from compactord.paimon.data_file import BucketId
from tests.simulation.tables import MIB, TRIGGER, Bucket, SimTable
from tests.simulation.world import RETRY, START_MS, Odds, Plan, World, policy

GIB = 1024 * MIB


def _oldest_wait_ms(world: World, names: Sequence[TableName], duration_ms: int) -> int:
    """The longest that a bucket of these tables was due, looked at once a second."""
    longest = 0
    for _ in range(duration_ms // 1_000):
        world.run(1_000)
        for name in names:
            for bucket in world.tables[name].buckets.values():
                if len(bucket.level0) > TRIGGER - 1:
                    due_ms = bucket.level0[TRIGGER - 1].created_ms
                    longest = max(longest, world.now_ms - due_ms)
    return longest


def _huge(buckets: int = 4) -> SimTable:
    """Half a terabyte that has just got enough small files for a full compaction."""
    table = SimTable([Bucket(run=128 * GIB) for _ in range(buckets)])
    for _ in range(TRIGGER):
        table.commit(dict.fromkeys(range(buckets), 70 * GIB), START_MS)
    return table


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_small_tables_do_not_wait_for_a_huge_ones_full_compaction(slots: int) -> None:
    world = World(1, slots=slots)
    world.add("huge", _huge(), rules=policy(priority=100, max_concurrent_tasks=slots))
    world.run(60_000)
    busy = sum(size > 256 * MIB for size in world.running.values())
    assert busy == slots - 1, "the huge one uses all slots but one"
    plan = Plan(interval_ms=3_000, size=(MIB, 2 * MIB))
    small = [world.add(f"s{n}", SimTable([Bucket()]), plan) for n in range(20)]
    longest_ms = _oldest_wait_ms(world, small, 300_000)
    # Two polls until it is seen, one cycle of each of the others before it.
    assert longest_ms < 2 * 2_000 + 20 * 500
    assert min(world.rules.published[name] for name in small) > 10
    assert sum(size > 256 * MIB for size in world.running.values()) == slots - 1


def test_with_one_slot_a_small_table_waits_for_one_large_subcompaction_and_not_for_all() -> None:
    world = World(1, slots=1)
    world.add("huge", _huge(), rules=policy(priority=100))
    plan = Plan(interval_ms=3_000, size=(MIB, 2 * MIB))
    small = [world.add(f"s{n}", SimTable([Bucket()]), plan) for n in range(5)]
    longest_ms = _oldest_wait_ms(world, small, 900_000)
    subcompaction_ms = int(2 * GIB / world.odds.bytes_per_ms * 1.3) + 200
    assert longest_ms < 30_000 + 3 * subcompaction_ms, "its age, and then a subcompaction or two"


def test_below_capacity_nothing_waits_longer_than_it_may() -> None:
    world = World(5, slots=4)
    names = []
    for n in range(30):
        # 20 MiB of small files about every 7 s: about a third of what four slots can do.
        plan = Plan(interval_ms=1_500, size=(2 * MIB, 4 * MIB))
        table = SimTable([Bucket(run=n * MIB) for _ in range(2)])
        names.append(world.add(f"t{n}", table, plan, rules=policy(priority=10 * (n % 10))))
    assert _oldest_wait_ms(world, names, 300_000) < 30_000


def test_under_overload_every_table_gets_its_share() -> None:
    world = World(3, slots=4, odds=Odds(bytes_per_ms=5 * MIB // 1000))
    weights = {}
    for n in range(12):
        # Three times as much as the slots can do, in merges of about 6 s.
        plan = Plan(interval_ms=1_200, size=(4 * MIB, 8 * MIB))
        priority = [0, 50, 100][n % 3]
        table = SimTable([Bucket()], is_keyed=False)
        name = world.add(f"t{n}", table, plan, rules=policy(priority=priority))
        weights[name] = 1 + priority / 10
    world.run(1_200_000)
    given = world.rules.given
    total, weight = sum(given.values()), sum(weights.values())
    assert len(world.running) == 4, "the slots are busy"
    for name in weights:
        share = total * weights[name] / weight
        assert share / 2 < given[name] < 2 * share, f"{name} got {given[name]:.0f} of {share:.0f}"


def _longest_lag_ms(world: World, name: TableName, duration_ms: int) -> int:
    """The longest that a row of the table waited, looked at once a second."""
    longest = 0
    for _ in range(duration_ms // 1_000):
        world.run(1_000)
        for bucket in world.tables[name].buckets.values():
            for file in bucket.level0[:1]:
                longest = max(longest, world.now_ms - file.created_ms)
    return longest


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_table_whose_readers_wait_too_long_is_served_first_and_starves_nobody(slots: int) -> None:
    lags = {}
    for bound_ms in (None, 5_000):
        world = World(3, slots=slots, odds=Odds(bytes_per_ms=10 * MIB * slots // 4000))
        others = []
        for n in range(8):
            # More than the slots can do, and all of it forced before long.
            plan = Plan(interval_ms=1_200, size=(4 * MIB, 8 * MIB))
            table, urgent = SimTable([Bucket()], is_keyed=False), policy(max_backlog_age_ms=1)
            others.append(world.add(f"t{n}", table, plan, rules=urgent))
        plan = Plan(interval_ms=2_000, size=(MIB, 2 * MIB))
        rules = policy(max_freshness_lag_ms=bound_ms)
        fresh = world.add("fresh", SimTable([Bucket()], readers_wait=True), plan, rules=rules)
        world.run(120_000)
        lags[bound_ms] = _longest_lag_ms(world, fresh, 600_000)
        assert all(world.rules.published[name] > 2 for name in others)
    assert lags[5_000] < lags[None], lags


def test_work_that_can_never_be_fresh_enough_leaves_slots_to_others() -> None:
    world = World(3, slots=1, odds=Odds(bytes_per_ms=5 * MIB // 1000))
    for n in range(3):
        plan = Plan(interval_ms=4_000, size=(MIB, 2 * MIB), buckets=4)
        table = SimTable([Bucket() for _ in range(4)], readers_wait=True)
        world.add(f"fresh{n}", table, plan, rules=policy(max_freshness_lag_ms=1_000))
    plan = Plan(interval_ms=5_000, size=(MIB, 2 * MIB))
    other = world.add("other", SimTable([Bucket()]), plan)
    world.run(600_000)
    assert world.rules.published[other] > 5


def test_under_overload_nothing_piles_up() -> None:
    world = World(3, slots=2, odds=Odds(bytes_per_ms=MIB // 1000))
    for n in range(20):
        plan = Plan(interval_ms=500, size=(4 * MIB, 8 * MIB), buckets=10)
        world.add(f"t{n}", SimTable([Bucket() for _ in range(100)]), plan)
    for _ in range(300):
        world.run(1_000)
        for scheduled in world.scheduler.tables.values():
            assert len(scheduled.offered) <= 64
            assert len(scheduled.in_flight) <= 5
            waiting = (len(each.in_flight.waiting) for each in scheduled.in_flight)
            assert sum(waiting) <= 8
            assert len(scheduled.queued_ms) <= 64
    assert len(world.scheduler.recent) <= 200


def test_a_table_that_wakes_up_does_not_wait_for_all_the_slots_that_a_huge_one_got() -> None:
    world = World(2, slots=1, odds=Odds(bytes_per_ms=20 * MIB // 1000))
    urgent = policy(max_backlog_age_ms=1)
    world.add("huge", _huge(1), rules=urgent)
    world.run(300_000)
    plan = Plan(interval_ms=200, size=(MIB, 2 * MIB), buckets=3)
    world.add("busy", SimTable([Bucket() for _ in range(3)]), plan, rules=urgent)
    world.run(60_000)
    late = world.add("late", SimTable([Bucket()]), rules=urgent)
    for _ in range(TRIGGER):
        world.tables[late].commit({0: MIB}, world.now_ms)
    world.run(240_000)
    assert world.rules.published[late] == 1


def test_a_bucket_that_always_fails_is_tried_at_growing_pauses_up_to_the_longest() -> None:
    world = World(4, slots=2)
    table = SimTable([Bucket(is_poison=True), *(Bucket() for _ in range(4))])
    plan = Plan(interval_ms=1_000, size=(MIB, 2 * MIB), buckets=5)
    name = world.add("t", table, plan)
    world.run(300_000)
    tried = world.rules.attempts_at[name, BucketId(b"", 0)]
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert len(tried) > 8
    for n, pause in enumerate(pauses):
        least = min(20_000, 1_000 * 2**n)
        assert least <= pause < least + 10_000, f"pause {n} was {pause}"
    assert world.rules.published[name] > 50, "its neighbours go on"
    assert world.scheduler.tables[name].halt is None


def test_one_bad_bucket_does_not_keep_a_halted_table_halted() -> None:
    world = World(4, slots=2, odds=Odds(subcompaction_fails=1.0))
    table = SimTable([Bucket(is_poison=True, run=0), *(Bucket(run=500 * MIB) for _ in range(6))])
    plan = Plan(interval_ms=1_000, size=(MIB, 2 * MIB), buckets=7)
    name = world.add("t", table, plan)
    world.run(120_000)
    assert world.scheduler.tables[name].halt is not None
    world.odds = Odds()
    world.run(90_000)
    assert world.scheduler.tables[name].halt is None
    assert world.rules.published[name] > 4


def test_more_quarantined_buckets_than_are_offered_do_not_hide_the_others() -> None:
    world = World(4, slots=4)
    table = SimTable([Bucket(is_poison=n < 80) for n in range(100)])
    for _ in range(TRIGGER):
        table.commit({n: MIB if n < 80 else 40 * MIB for n in range(100)}, START_MS)
    name = world.add("t", table)
    world.scheduler.accounting.retry = RETRY.model_copy(
        update={"halt_after_consecutive_failures": 10_000}
    )
    world.run(300_000)
    assert world.rules.published[name] == 20


def test_a_committing_table_expires_and_is_swept_however_many_there_are() -> None:
    world = World(4, slots=4)
    plan = Plan(interval_ms=1_000, size=(MIB, 2 * MIB))
    names = [world.add(f"t{n}", SimTable([Bucket()]), plan) for n in range(60)]
    world.run(120_000)
    for name in names:
        scheduled = world.scheduler.tables[name]
        assert world.now_ms - scheduled.maintained_ms < 60_000, f"{name} waits for expiry"
