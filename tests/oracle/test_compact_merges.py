"""Tables of merge engines that make new rows are compacted as Java compacts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError
from tests.oracle.merging import producer_options, run_history

SEEDS = range(40)
CHANGELOG_SEEDS = range(1000, 1024)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables_are_merged_as_in_java(judge: Judge, tmp_path: Path, seed: int) -> None:
    run_history(judge, tmp_path / "db.db" / "t", seed)


@pytest.mark.parametrize("seed", CHANGELOG_SEEDS)
def test_full_compactions_of_random_tables_tell_the_changes_of_java(
    judge: Judge, tmp_path: Path, seed: int
) -> None:
    run_history(judge, tmp_path / "db.db" / "t", seed, producer_options(seed))


def test_a_value_that_java_refuses_fails_its_bucket_and_not_its_neighbours(
    judge: Judge, tmp_path: Path
) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("p", "INT NOT NULL"), ("k", "INT NOT NULL"), ("n", "INT")),
        primary_key=("p", "k"),
        partition_by=("p",),
        options={
            "bucket": "1",
            "merge-engine": "aggregation",
            "fields.n.aggregate-function": "sum",
        },
    ).create()
    judge.write(table.path, [[1, 7, 2**31 - 1], [2, 7, 3]])
    judge.write(table.path, [[1, 7, 1], [2, 7, 4]])
    with pytest.raises(JudgeError, match="int overflow: 2147483647"):
        table.copy("java").java_settle(full=True)

    totals = compact(table.path, Strategy.FULL)

    [failure] = totals.failures
    assert "key k=7, column n: int32 overflow: 2147483647 and 1" in failure
    assert "p=1" in failure
    assert sorted(file["level"] for file in table.files()) == [0, 0, 5]


@pytest.mark.parametrize("ignores", ["true", "false"])
def test_earlier_elements_of_a_group_are_collected_in_javas_order(
    judge: Judge, tmp_path: Path, ignores: str
) -> None:
    ours = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("g", "INT"), ("c", {"type": "ARRAY", "element": "INT"})),
        primary_key=("k",),
        options={
            "bucket": "1",
            "merge-engine": "partial-update",
            "fields.g.sequence-group": "c",
            "fields.c.aggregate-function": "collect",
            "fields.c.ignore-retract": ignores,
        },
    ).create()
    for order, element in ((5, 1), (7, 2), (6, 3)):
        judge.write(ours.path, [[1, order, [element]]])
    java = ours.copy("java")
    java.java_settle(full=True)

    compact(ours.path, Strategy.FULL)

    assert judge.read(ours.path) == judge.read(java.path)
