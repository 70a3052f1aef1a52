"""A fault never stops more than its size says: in random histories, all beside it is on time."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.sampling import CutPoints
from tests.simulation.faults import FAULTS, Fault, Ill, Size
from tests.simulation.tables import MIB, TRIGGER, Bucket, SimTable
from tests.simulation.world import Odds, World

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
HISTORIES, CHUNK = 600, 200
INTERVAL_MS = 2_000
# A finished compaction waits for those beside it before it is published, at most so long.
COMMIT_DELAY_MS = 5_000
ON_TIME_MS = 3 * INTERVAL_MS + COMMIT_DELAY_MS
# A while, and until a bucket that fails has failed more often in a row than halts a table.
LASTING_MS = (10_000, 300_000)
STORES = {"lake": "s3://a", "river": "s3://a", "sea": "s3://b", "pond": "/data"}
TABLES_MAX = 2
BUCKETS = 3


def test_the_design_names_every_fault_with_its_size() -> None:
    section = DESIGN.read_text().split("## Scope of failures")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert rows[1:] == [(fault.what, fault.size.value) for fault in FAULTS]
    assert {fault.size for fault in FAULTS} == {*Size}


class History:
    """Some tables in four catalogs on three stores; faults come, and then writers."""

    def __init__(self, seed: int, given: Fault | None = None) -> None:
        self.random = random.Random(seed)
        self.world = World(seed, slots=8, odds=Odds())
        self.names = [
            self.world.add(
                f"t{number}",
                SimTable([Bucket() for _ in range(BUCKETS)]),
                interval_ms=INTERVAL_MS,
                catalog=catalog,
            )
            for catalog in STORES
            for number in range(self.random.randint(1, TABLES_MAX))
        ]
        self.faults = [given] if given else self.random.sample(FAULTS, self.random.randint(1, 2))

    def run(self, lasting_ms: int = LASTING_MS[0]) -> None:
        world = self.world
        world.run(5_000)
        for fault in self.faults:
            world.faults.now.append(self._falls_ill(fault))
        for _ in range(3):
            self._write()
            world.run(ON_TIME_MS)
            self._check_healthy()
        world.run(lasting_ms)
        self._write()
        world.run(ON_TIME_MS)
        self._check_healthy()

    def _falls_ill(self, fault: Fault) -> Ill:
        first = self.random.choice(self.names)
        within = {
            Size.BUCKET: lambda name: name == first,
            Size.TABLE: lambda name: name == first,
            Size.CATALOG: lambda name: name.catalog == first.catalog,
            Size.STORE: lambda name: STORES[name.catalog] == STORES[first.catalog],
        }[fault.size]
        bucket = self.random.randrange(BUCKETS) if fault.size is Size.BUCKET else None
        return Ill(fault, frozenset(filter(within, self.names)), bucket)

    def _write(self) -> None:
        """Each bucket gets enough for a compaction at once."""
        for table in self.world.tables.values():
            for _ in range(TRIGGER):
                table.commit(dict.fromkeys(table.buckets, MIB), self.world.now_ms)

    def _check_healthy(self) -> None:
        """What no fault may stop has been looked at and compacted."""
        for name, table in self.world.tables.items():
            late = [
                number
                for number, bucket in table.buckets.items()
                if not self.world.faults.stops(name, number) and len(bucket.level0) >= TRIGGER
            ]
            ails = [(ill.fault.what, sorted(map(str, ill.tables))) for ill in self.world.faults.now]
            assert not late, f"buckets {late} of {name} wait beside {ails}"


@pytest.mark.parametrize("lasting_ms", LASTING_MS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_stops_nothing_beside_it(
    fault: Fault, lasting_ms: int, cut_points: CutPoints
) -> None:
    """Every fifth history."""
    for seed in cut_points.of(range(10), 5):
        History(seed, fault).run(lasting_ms)


@pytest.mark.parametrize("chunk", range(HISTORIES // CHUNK))
def test_faults_together_stop_nothing_beside_them(chunk: int, cut_points: CutPoints) -> None:
    """Every fourth history."""
    for seed in cut_points.of(range(chunk * CHUNK, (chunk + 1) * CHUNK), 4):
        try:
            History(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
