"""Tables whose schema has changed: Java compacts one copy, we another, and Java reads both."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.errors import UnsupportedTable
from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_same_files,
    assert_same_rows,
    canonical,
    compact,
)
from tests.oracle.evolving import EvolvingTable
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError, TypeName
from tests.sampling import seeds

# `make evolutions` tries thousands.
SEEDS = seeds(0, 12, 24)
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
    assert_same_rows(canonical(table.judge.read(ours.path)), before)
    try:
        java.java_settle(full=strategy is Strategy.FULL)
    except JudgeError as error:
        # Its full compaction of a bucketed append table may add a file that it deletes as well.
        if "already in the the map" not in str(error):
            raise
        return
    assert_same_rows(canonical(table.judge.read(java.path)), before)
    # Java's coordinator of tables without buckets knows no full compaction.
    if table.has_key or strategy is Strategy.MINOR or ours.options["bucket"] != "-1":
        assert_same_files(ours, java)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_alterations_change_no_row(judge: Judge, tmp_path: Path, seed: int) -> None:
    history(judge, tmp_path / "db.db" / "t", seed)


CHANGES: dict[str, dict[str, object]] = {
    "added-column": {"change": "add", "column": ["w"], "type": "INT"},
    "dropped-column": {"change": "drop", "column": ["v"]},
    "renamed-column": {"change": "rename", "column": ["v"], "to": "w"},
    "renamed-key": {"change": "rename", "column": ["k"], "to": "key"},
    "widened-column": {"change": "type", "column": ["v"], "type": "BIGINT"},
    "moved-column": {"change": "move_first", "column": ["v"]},
    "nullability": {"change": "nullability", "column": ["v"], "nullable": True},
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_alteration_alone_costs_no_row(judge: Judge, tmp_path: Path, name: str) -> None:
    path = tmp_path / "db.db" / "t"
    columns = [("k", "INT NOT NULL"), ("v", "INT NOT NULL"), ("x", "INT")]
    options = {"bucket": "1", "write-only": "true"}
    judge.create_table(path, columns, primary_key=["k"], options=options)
    for commit in range(6):
        judge.write(path, [[key, commit, None] for key in range(commit, 9)])
    judge.alter(path, CHANGES[name])
    before = judge.read(path)
    totals = compact(path, Strategy.FULL)
    assert not totals.failures
    assert judge.read(path) == before
    [file] = judge.files(path)
    assert (file["schema_id"], file["level"]) == (1, 5)


def two_buckets(judge: Judge, path: Path, type_: TypeName) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("k", "INT NOT NULL"), ("v", type_)),
        primary_key=("k",),
        options={"bucket": "2"},
    ).create()


def test_a_value_that_cannot_be_cast_stops_its_bucket_alone(judge: Judge, tmp_path: Path) -> None:
    table = two_buckets(judge, tmp_path / "db.db" / "t", "STRING")
    for value in range(6):
        judge.write(table.path, [(k, str(value)) for k in range(20)])
    judge.write(table.path, [(3, "many")])
    judge.change_column_type(table.path, "v", "INT")
    totals = compact(table.path, Strategy.FULL)
    [failure] = totals.failures
    assert "column v cannot be cast from STRING to INT: 'many' is not a whole number" in failure
    assert len({bucket for bucket, level in table.levels() if level == 5}) == 1
    with pytest.raises(JudgeError, match="Failed to cast value for field 'v'"):
        judge.compact(table.path, full=True)


def test_a_column_without_a_cast_is_refused_as_java_cannot_read_it(
    judge: Judge, tmp_path: Path
) -> None:
    table = two_buckets(judge, tmp_path / "db.db" / "t", "INT")
    judge.write(table.path, [(1, 1)])
    judge.change_column_type(table.path, "v", "STRING")
    judge.change_column_type(table.path, "v", "DATE")
    with pytest.raises(UnsupportedTable, match="column v: there is no cast from INT to DATE"):
        compact(table.path, Strategy.FULL)
    with pytest.raises(JudgeError, match="Cannot cast from type INT to type DATE"):
        judge.read(table.path)


def test_times_before_1970_become_the_day_that_they_are_on(judge: Judge, tmp_path: Path) -> None:
    table = two_buckets(judge, tmp_path / "db.db" / "t", "TIMESTAMP(3)")
    moments = ["-1:0", "-86400000:0", "-86400001:0", "86399999:0"]
    judge.write(table.path, [(k, moment) for k, moment in enumerate(moments)])
    judge.write(table.path, [(k, "0:0") for k in range(4, 20)])
    judge.change_column_type(table.path, "v", "DATE")
    table.settle(Strategy.FULL)
    # Release 2.0.0 itself reads 0, -1, -1 and 0 from the file before.
    assert [day for _, day in sorted(judge.read(table.path))[:4]] == [-1, -1, -2, 0]
