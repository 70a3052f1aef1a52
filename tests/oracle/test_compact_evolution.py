"""Tables whose schema has changed: Java compacts one copy, we another, and Java reads both."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import assert_same_files, assert_same_rows, canonical
from tests.oracle.evolving import EvolvingTable
from tests.oracle.judge import Judge

SEEDS = range(24)
STEPS = 12


def history(judge: Judge, path: Path, seed: int) -> None:
    """A random history with our compactions in it; at its end Java compacts a copy."""
    table = EvolvingTable(judge, path, seed)
    table.write()
    for _ in range(STEPS):
        table.step()
        if table.chance.random() < 0.15:
            before = canonical(judge.read(path))
            table.table().settle(table.chance.choice([Strategy.MINOR, Strategy.FULL]))
            assert_same_rows(canonical(judge.read(path)), before)
    compared(table, table.chance.choice([Strategy.MINOR, Strategy.FULL]))
    table.write()
    compared(table, Strategy.FULL)


def compared(table: EvolvingTable, strategy: Strategy) -> None:
    """We compact the table, Java a copy of it: same rows, levels, keys and statistics."""
    ours = table.table()
    java = ours.copy(f"java-{len(table.steps)}-{strategy.name}")
    before = canonical(table.judge.read(ours.path))
    ours.settle(strategy)
    java.java_settle(full=strategy is Strategy.FULL)
    assert_same_rows(canonical(table.judge.read(ours.path)), before)
    assert_same_rows(canonical(table.judge.read(java.path)), before)
    # Java's coordinator of tables without buckets knows no full compaction.
    if table.has_key or strategy is Strategy.MINOR or ours.options["bucket"] != "-1":
        assert_same_files(ours, java)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_alterations_change_no_row(judge: Judge, tmp_path: Path, seed: int) -> None:
    history(judge, tmp_path / "db.db" / "t", seed)
