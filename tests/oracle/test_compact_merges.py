"""Tables of merge engines that make new rows are compacted as Java compacts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError, Row
from tests.oracle.merging import (
    expiring_options,
    lookup_options,
    producer_options,
    run_history,
    vector_options,
)
from tests.sampling import seeds

# `make merge-histories` tries thousands.
SEEDS = seeds(0, 20, 40)
CHANGELOG_SEEDS = seeds(1000, 12, 24)
LOOKUP_SEEDS = seeds(2000, 10, 20)
VECTOR_SEEDS = seeds(3000, 5, 10)
# Most of these rewrite keys of which an expired record lies above.
EXPIRING_SEEDS = seeds(4000, 3, 6)
LOOKUP = {"changelog-producer": "lookup"}
FIRST_ROW = {"merge-engine": "first-row"}
Change = tuple[str, int, int]
SUM = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables_are_merged_as_in_java(judge: Judge, tmp_path: Path, seed: int) -> None:
    run_history(judge, tmp_path / "db.db" / "t", seed)


@pytest.mark.parametrize(
    ("options_of", "seed"),
    [
        pytest.param(options_of, seed, id=f"{name}-{seed}")
        for name, options_of, its_seeds in (
            ("full-compaction", producer_options, CHANGELOG_SEEDS),
            ("lookup", lookup_options, LOOKUP_SEEDS),
            ("vectors", vector_options, VECTOR_SEEDS),
            # Expired rows of Java's may be missing in ours.
            ("record-expiry", expiring_options, EXPIRING_SEEDS),
        )
        for seed in its_seeds
    ],
)
def test_random_tables_have_the_rows_and_tell_the_changes_of_java(
    judge: Judge,
    tmp_path: Path,
    options_of: Callable[[int], dict[str, str]],
    seed: int,
) -> None:
    run_history(judge, tmp_path / "db.db" / "t", seed, options_of(seed))


@dataclass(frozen=True, kw_only=True)
class Example:
    """A table of k and v; each of `writes` is a file of level 0.

    Java has compacted what is `above` to level 5 and then what is `lifted` by a minor compaction.
    `files`: level, rows and source of each that the compaction leaves. `told`: the changes of its
    snapshots; `told_file`: level, rows, retracts and sequence numbers of their file.
    """

    options: Mapping[str, str]
    above: Mapping[int, int] = field(default_factory=dict)
    lifted: Sequence[Change] = ()
    writes: Sequence[Sequence[Change]] = ()
    strategy: Strategy = Strategy.MINOR
    files: Sequence[tuple[int, int, str]]
    told: Sequence[tuple[str, int, int]] = ()
    told_file: tuple[int, int, int, int, int] | None = None
    rows: Mapping[int, int] | None = None


# Of so many rows that a file of level 0 with a few does not merge with them.
MANY = {key: key for key in range(1, 2001)}
EXAMPLES = {
    "an upgrade tells its rows": Example(
        options=LOOKUP,
        writes=[[("+I", 1, 1), ("+I", 2, 2)]],
        files=[(5, 2, "APPEND")],
        told=[("+I", 1, 1), ("+I", 2, 2)],
        told_file=(5, 2, 0, 0, 1),
        rows={1: 1, 2: 2},
    ),
    "a merge tells what was on its level": Example(
        options=LOOKUP,
        above={1: 1, 2: 2},
        writes=[[("+I", 2, 22), ("+I", 3, 3)]],
        strategy=Strategy.FULL,
        files=[(5, 3, "COMPACT")],
        told=[("-U", 2, 2), ("+U", 2, 22), ("+I", 3, 3)],
        told_file=(5, 3, 1, 1, 3),
        rows={1: 1, 2: 22, 3: 3},
    ),
    "of first rows only new keys are told": Example(
        options=FIRST_ROW | LOOKUP,
        above={1: 1, 2: 2},
        writes=[[("+I", 2, 22), ("+I", 3, 3)]],
        strategy=Strategy.FULL,
        files=[(5, 3, "COMPACT")],
        told=[("+I", 3, 3)],
        told_file=(5, 1, 0, 3, 3),
        rows={1: 1, 2: 2, 3: 3},
    ),
    "a full compaction tells deletes": Example(
        options={"changelog-producer": "full-compaction"},
        above={1: 1, 2: 2},
        writes=[[("+I", 2, 22), ("+I", 3, 3)], [("-D", 1, 0)]],
        strategy=Strategy.FULL,
        files=[(5, 2, "COMPACT")],
        told=[("-D", 1, 1), ("-U", 2, 2), ("+U", 2, 22), ("+I", 3, 3)],
        told_file=(5, 4, 2, 0, 3),
        rows={2: 22, 3: 3},
    ),
    "an upgrade is told by what is above it": Example(
        options=LOOKUP,
        above=MANY,
        writes=[[("+I", 2, 22), ("+I", 9999, 3), ("-D", 1, 0)]],
        files=[(4, 3, "APPEND"), (5, 2000, "APPEND")],
        told=[("-D", 1, 1), ("-U", 2, 2), ("+U", 2, 22), ("+I", 9999, 3)],
        told_file=(4, 4, 2, 0, 2001),
        rows={key: row for key, row in MANY.items() if key > 1} | {2: 22, 9999: 3},
    ),
    "first rows are not written where the key is above": Example(
        options=FIRST_ROW,
        above=MANY,
        writes=[[("+I", 2, 22), ("+I", 9999, 3)]],
        files=[(4, 1, "COMPACT"), (5, 2000, "APPEND")],
        rows=MANY | {9999: 3},
    ),
    "nothing is left of known first rows": Example(
        options=FIRST_ROW | LOOKUP,
        above=MANY,
        writes=[[("+I", 2, 22), ("+I", 3, 33)]],
        files=[(5, 2000, "APPEND")],
        rows=MANY,
    ),
    "a sum has what is above it": Example(
        options=SUM | LOOKUP,
        above=MANY,
        writes=[[("+I", 2, 1)], [("+I", 2, 1), ("+I", 9999, 3)]],
        files=[(4, 2, "COMPACT"), (5, 2000, "APPEND")],
        told=[("-U", 2, 2), ("+U", 2, 4), ("+I", 9999, 3)],
        rows=MANY | {2: 4, 9999: 3},
    ),
    "a sum on a lower level holds what is above it": Example(
        options=SUM | LOOKUP,
        above=MANY,
        lifted=[("+I", 2, 1), ("+I", 9999, 3)],
        strategy=Strategy.FULL,
        files=[(5, 2001, "COMPACT")],
        rows=MANY | {2: 3, 9999: 3},
    ),
    "the lower of two levels is what a key had": Example(
        options=SUM | LOOKUP,
        above=MANY,
        lifted=[("+I", 2, 1)],
        writes=[[("+I", 2, 4), ("+I", 3, 4)]],
        strategy=Strategy.FULL,
        files=[(5, 2000, "COMPACT")],
        told=[("-U", 2, 3), ("+U", 2, 7), ("-U", 3, 3), ("+U", 3, 7)],
        rows=MANY | {2: 7, 3: 7},
    ),
    "a delete on a lower level is no row": Example(
        options=LOOKUP,
        above=MANY,
        lifted=[("-D", 2, 0), ("-D", 3, 0)],
        writes=[[("+I", 2, 4), ("-D", 3, 0)]],
        strategy=Strategy.FULL,
        files=[(5, 1999, "COMPACT")],
        told=[("+I", 2, 4)],
        rows={key: row for key, row in MANY.items() if key != 3} | {2: 4},
    ),
    "a lone retract is merged where rows are looked up": Example(
        options=SUM | LOOKUP,
        writes=[[("-D", 1, 5)]],
        strategy=Strategy.FULL,
        files=[(5, 1, "COMPACT")],
        told=[("+I", 1, -5)],
        rows={1: -5},
    ),
    "a lone retract is dropped elsewhere": Example(
        options=SUM,
        writes=[[("-D", 1, 5)]],
        strategy=Strategy.FULL,
        files=[],
        rows={},
    ),
    "two retracts are merged anywhere": Example(
        options=SUM,
        writes=[[("-D", 1, 5)], [("-D", 1, 7)]],
        strategy=Strategy.FULL,
        files=[(5, 1, "COMPACT")],
        rows={1: -12},
    ),
    "a delete of nothing is not told": Example(
        options=LOOKUP,
        writes=[[("-D", 1, 0)], [("+I", 2, 2)]],
        strategy=Strategy.FULL,
        files=[(5, 1, "COMPACT")],
        told=[("+I", 2, 2)],
        rows={2: 2},
    ),
    "an equal row is told twice": Example(
        options=LOOKUP,
        above={1: 1},
        writes=[[("+I", 1, 1)]],
        strategy=Strategy.FULL,
        files=[(5, 1, "COMPACT")],
        told=[("-U", 1, 1), ("+U", 1, 1)],
        rows={1: 1},
    ),
    "an equal row is not told": Example(
        options=LOOKUP | {"changelog-producer.row-deduplicate": "true"},
        above={1: 1},
        writes=[[("+I", 1, 1)]],
        strategy=Strategy.FULL,
        files=[(5, 1, "COMPACT")],
        rows={1: 1},
    ),
    "a forced lookup lifts level 0 and tells nothing": Example(
        options={"force-lookup": "true"},
        above=MANY,
        writes=[[("+I", 2, 22)]],
        files=[(4, 1, "APPEND"), (5, 2000, "APPEND")],
        rows=MANY | {2: 22},
    ),
    "a full compaction's changelog goes before a forced lookup": Example(
        options={"force-lookup": "true", "changelog-producer": "full-compaction"}
        | {"full-compaction.delta-commits": "1000"},
        above=MANY,
        writes=[[("+I", 2, 22)]],
        files=[(4, 1, "APPEND"), (5, 2000, "APPEND")],
        rows=MANY | {2: 22},
    ),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
def test_what_compactions_leave_and_tell(judge: Judge, tmp_path: Path, example: Example) -> None:
    ours = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "INT")),
        primary_key=("k",),
        options={"bucket": "1", **example.options},
    ).create()
    if example.above:
        judge.write(ours.path, list(example.above.items()))
        ours.java_settle(full=True)
    if example.lifted:
        _write(ours, example.lifted)
        ours.java_settle(full=False)
        assert len(ours.levels()) == 2
    for changes in example.writes:
        _write(ours, changes)
    java, first = ours.copy("java"), 1 + max(judge.snapshots(ours.path))
    java.java_settle(full=example.strategy is Strategy.FULL)

    ours.settle(example.strategy)

    for table in (java, ours):
        assert _left(table) == sorted(example.files)
        assert [(kind, *row) for kind, row in judge.changes(table.path, first)] == list(
            example.told
        )
        told = [_told(file) for file in judge.entries(table.path, "changelog")]
        assert example.told_file is None or told == [example.told_file]
        assert example.rows is None or dict(judge.read(table.path)) == example.rows


def _write(table: LiveTable, changes: Sequence[Change]) -> None:
    kinds = [kind for kind, *_ in changes]
    table.judge.write(table.path, [row for _, *row in changes], kinds)


def _left(table: LiveTable) -> list[tuple[int, int, str]]:
    return sorted((f["level"], f["row_count"], f["file_source"]) for f in table.files())


def _told(file: Row) -> tuple[int, ...]:
    names = ("level", "row_count", "delete_row_count", "min_sequence_number")
    return tuple(file[name] for name in (*names, "max_sequence_number"))


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
