"""Whichever release's picks are made, and in turns: Java reads the same rows.

The engine is `deduplicate`: what other engines make of records depends, in Java too, on which of
them were merged together before. That a unit's rows are those of Java's compaction of the same unit
is shown in `test_compact_merges`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compactord.model import PickRule
from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, compact
from tests.oracle.judge import Judge
from tests.sampling import seeds

TURNS = 5
# By 2.0 the large run of level 0 takes the highest level along.
FIRST_COMMITS = (400, 2, 2)
# Sizes decide: otherwise amplification merges such tables as a whole.
OPTIONS = {
    "bucket": "1",
    "num-levels": "6",
    "num-sorted-run.compaction-trigger": "4",
    "compaction.max-size-amplification-percent": "1000000",
}


def write(table: LiveTable, chance: random.Random, count: int) -> None:
    keys = chance.sample(range(5000), count)
    kinds = chance.choices(["+I", "+U", "-D"], [5, 2, 3], k=count)
    table.write([[key, f"{chance.random()}"] for key in keys], kinds)


@pytest.mark.parametrize("seed", seeds(0, 2, 4))
def test_java_reads_the_same_rows_after_picks_of_either_release(
    judge: Judge, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("k",),
        options=OPTIONS,
    ).create()
    write(table, chance, 4000)
    table.settle(Strategy.FULL)
    different = 0
    for turn in range(TURNS):
        counts = chance.choices([2, 400], [3, 1], k=chance.randint(2, 5))
        for count in counts if turn else FIRST_COMMITS:
            write(table, chance, count)
        twins = [table.copy(f"turn-{turn}-of-{rule.value}") for rule in PickRule]
        for rule, twin in zip(PickRule, twins, strict=True):
            totals = compact(twin.path, pick=rule)
            assert not totals.failures
            assert not totals.dropped
            twin.check()
        old, new = twins
        different += old.levels() != new.levels()
        # Java goes on from either, by its own picks.
        table = chance.choice(twins)
        if chance.random() < 0.3:
            judge.compact(table.path, full=False)
            table.check()
    assert different, "the rules were made to differ"
    judge.compact(table.path, full=True)
    table.check()
