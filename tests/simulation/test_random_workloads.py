"""Hundreds of random workloads, none of which may break a rule; thousands: `make workloads`.

A failure names the seed of its workload; `workload_of(seed).run()` repeats it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from compactord.config.choices import Mode
from compactord.config.model import Limits
from compactord.config.policy import TablePolicy
from compactord.config.windows import Window
from compactord.model import TableName
from compactord.scheduler.scheduler import Scheduler
from tests.sampling import CutPoints
from tests.simulation.faults import FAULTS, SILENCE_MS, Ill, Size
from tests.simulation.tables import MIB, Bucket, SimTable
from tests.simulation.world import Odds, Plan, World, policy

WORKLOADS = 400
CHUNK = 100
LOAD_MS = 30_000
# Below the 50 MiB a second at which the workers merge.
LIMITS = Limits.model_validate({"task_timeout": "5 s", "task_min_rate": "20 mb"})
# The run begins at 22:13:20: the one stays closed, the other opens on the way.
NIGHTLY = Window(**{"from": "02:00", "to": "05:00", "allow": ("full",)})
SOON = Window(**{"from": "22:14", "to": "23:00", "allow": ("minor", "append")})


class RandomWorkload:
    """One workload: load and faults for a while, then none, then a stop."""

    def __init__(self, seed: int, scheduler: Callable[..., Scheduler] = Scheduler) -> None:
        self.random = random.Random(-seed)
        self.world = World(
            seed,
            slots=self.random.choice([1, 2, 3, 4, 8]),
            odds=self._odds(),
            scheduler=scheduler,
            limits=LIMITS,
        )
        self._names = 0
        for _ in range(self.random.randint(1, 6)):
            self._add()
        for _ in range(self.random.randint(0, 6)):
            self.world.at(self.random.randrange(LOAD_MS), self._happening())

    def run(self) -> World:
        world = self.world
        world.run(LOAD_MS)
        self._calm_down()
        # Until calls have ended that nobody answered.
        world.run(SILENCE_MS)
        end_ms = world.now_ms + self._patience_ms()
        while waiting := self._waiting():
            assert world.now_ms < end_ms, f"{waiting} wait for ever"
            world.run(5_000)
        self._stop()
        world.rules.at_the_end()
        return world

    def _waiting(self) -> list[str]:
        """Tables that ought to have been compacted."""
        scheduled = self.world.scheduler.tables
        return [
            name.table
            for name, table in self.world.tables.items()
            if scheduled[name].policy.mode is Mode.AUTO
            and not scheduled[name].is_excluded
            and table.has_work
        ]

    def _odds(self) -> Odds:
        draw = self.random
        if draw.random() < 0.3:
            return Odds()
        names = ("look_fails", "commit_fails", "conflict", "dispatch_fails", "subcompaction_fails")
        odds = {name: draw.choice([0.0, 0.0, 0.05, 0.3]) for name in (*names, "subcompaction_lost")}
        odds["snapshot_lost"] = draw.choice([0.0, 0.0, 0.02])
        odds["late_rename"] = draw.choice([0.0, 0.0, 0.02])
        odds["slow_store"] = draw.choice([0.0, 0.0, 0.02])
        odds["hangs"] = draw.choice([0.0, 0.0, 0.02, 0.1])
        odds["deaf"] = draw.choice([0.0, 0.5])
        return Odds(**odds)  # type: ignore[arg-type]

    def _add(self) -> None:
        draw = self.random
        self._names += 1
        is_keyed = draw.random() < 0.75
        largest = draw.choice([1, 8, 64, 4_000]) if is_keyed else 2
        buckets = [
            Bucket(
                run=draw.randint(0, largest) * MIB if is_keyed else 0,
                is_poison=draw.random() < 0.05,
            )
            for _ in range(draw.choice([1, 2, 5, 20]))
        ]
        size = draw.choice([1, 4, 16]) * MIB if is_keyed else MIB
        plan = Plan(
            interval_ms=draw.choice([500, 2_000, 10_000]),
            size=(size // 2, size),
            buckets=draw.choice([1, 2, 20]),
            until_ms=self.world.now_ms + LOAD_MS,
        )
        table = SimTable(
            buckets,
            is_keyed=is_keyed,
            settle_ms=draw.choice([0, 0, 3_000]),
            readers_wait=is_keyed and draw.random() < 0.2,
        )
        self.world.add(f"t{self._names}", table, plan, rules=self._policy())

    def _policy(self) -> TablePolicy:
        draw = self.random
        return policy(
            mode=draw.choice([Mode.AUTO] * 9 + [Mode.PAUSED]),
            priority=draw.choice([0, 50, 100]),
            max_backlog_age_ms=draw.choice([2_000, 30_000]),
            max_freshness_lag_ms=draw.choice([None, None, 1_000, 10_000]),
            max_concurrent_tasks=draw.choice([1, 2, 4]),
            windows=draw.choice([(), (), (), (NIGHTLY,), (SOON,)]),
            windows_strict=draw.random() < 0.5,
        )

    def _happening(self) -> Callable[[], None]:
        draw, world = self.random, self.world
        what = draw.randrange(7)
        duration_ms = draw.randint(100, 8_000)

        def name() -> TableName | None:
            return draw.choice(sorted(world.tables)) if world.tables else None

        def leave() -> None:
            if (chosen := name()) is not None:
                world.scheduler.remove(chosen)
                if draw.random() < 0.5:
                    world.at(duration_ms, lambda: self._come_back(chosen))

        def change() -> None:
            if (chosen := name()) is not None:
                world.scheduler.set_policy(chosen, self._policy())

        def exclude() -> None:
            if (chosen := name()) is not None:
                world.scheduler.tables[chosen].is_excluded ^= True

        def fall_ill() -> None:
            if (chosen := name()) is not None:
                fault = draw.choice(FAULTS)
                # A catalog's and a store's are all tables here.
                is_small = fault.size in (Size.BUCKET, Size.TABLE)
                ill = Ill(
                    fault,
                    frozenset([chosen] if is_small else world.tables),
                    0 if fault.size is Size.BUCKET else None,
                )
                world.faults.now.append(ill)
                world.at(duration_ms, lambda: world.faults.get_well(ill))

        return [
            fall_ill,
            lambda: world.lose_engine(duration_ms),
            lambda: world.resize(draw.choice([1, 2, 5])),
            leave,
            change,
            exclude,
            self._add,
        ][what]

    def _come_back(self, name: TableName) -> None:
        """Listed again, before or after it was forgotten."""
        world = self.world
        if name in world.tables:
            scheduled = world.scheduler.tables[name]
            world.scheduler.add(name, scheduled.ref, scheduled.policy, world.now_ms)
        else:
            world.add(name.table, SimTable([Bucket()]), rules=self._policy())

    def _calm_down(self) -> None:
        """Faults stop, the operator lifts what waits for one, windows open."""
        world = self.world
        world.odds = Odds()
        world.faults.now.clear()
        world.lift_halts()
        for name, scheduled in world.scheduler.tables.items():
            if scheduled.policy.windows:
                world.scheduler.set_policy(name, policy())

    def _patience_ms(self) -> int:
        """To merge twice what has piled up, in one slot, with every pause."""
        world = self.world
        buckets = [bucket for table in world.tables.values() for bucket in table.buckets.values()]
        size = sum(bucket.run + sum(file.size for file in bucket.level0) for bucket in buckets)
        count = sum(1 + len(bucket.level0) // 4 for bucket in buckets)
        # Buckets that can never be merged are tried again and again, at the largest pause.
        again = 1 + sum(bucket.is_poison for bucket in buckets)
        # The engine is started again once nothing but hung workers is at it.
        return again * (200_000 + 2 * (2 * size // world.odds.bytes_per_ms + 800 * count))

    def _stop(self) -> None:
        world = self.world
        is_hasty = self.random.random() < 0.5
        if is_hasty:
            # There is something to stop.
            for table in world.tables.values():
                for _ in range(8):
                    table.commit(dict.fromkeys(table.buckets, 40 * MIB), world.now_ms)
            world.run(self.random.randint(1_000, 6_000))
        world.scheduler.drain(world.now_ms)
        if is_hasty:
            world.run(self.random.randint(0, 1_000))
            world.cancel()
            world.run(15_000)
        else:
            world.run(60_000)


def workload_of(seed: int, scheduler: Callable[..., Scheduler] = Scheduler) -> RandomWorkload:
    return RandomWorkload(seed, scheduler)


@pytest.mark.parametrize("chunk", range(WORKLOADS // CHUNK))
def test_random_workloads_break_no_rule(chunk: int, cut_points: CutPoints) -> None:
    """Every second of them."""
    for seed in cut_points.of(range(chunk * CHUNK, (chunk + 1) * CHUNK), 2):
        try:
            workload_of(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_same_seed_is_the_same_run() -> None:
    assert workload_of(7).run().trace == workload_of(7).run().trace
    assert workload_of(7).run().trace != workload_of(8).run().trace
