"""Tables with a primary key and deletion vectors are compacted as Java compacts them."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_same_files
from tests.oracle.judge import Judge
from tests.oracle.merging import assert_same_changes
from tests.oracle.vectors import (
    VECTORS,
    assert_same_vectors,
    assert_sound,
    compact_beside,
    kinds,
    marks,
    marks_by_level,
    shown_files,
)

Change = tuple[str, int, int]
LOOKUP = {"changelog-producer": "lookup"}
SUM = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
PARTIAL = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
WIDE = {"deletion-vectors.bitmap64": "true"}
# Of so many rows that a file of level 0 with a few does not merge with them. Of key k the position
# is k - 1.
MANY = {key: key for key in range(1, 1001)}
SOME = [("+I", key, -key) for key in range(301, 601)]


@dataclass(frozen=True, kw_only=True)
class Example:
    """A table of k and v; each of `writes` is a file of level 0.

    Java has compacted MANY to level 5, and then each of `lifted` by a minor compaction. `left`:
    level and rows of each file that the compaction leaves; `marks`: positions by level.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    lifted: Sequence[Sequence[Change]] = ()
    writes: Sequence[Sequence[Change]]
    strategy: Strategy = Strategy.MINOR
    left: Sequence[tuple[int, int]]
    marks: Mapping[int, Sequence[int]]
    rows: Mapping[int, int | None] = field(default_factory=dict)
    told: Sequence[Change] = ()


EXAMPLES = {
    "an upgrade marks what it replaces": Example(
        writes=[[("+I", 2, 20)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1]},
        rows={2: 20},
    ),
    "so does it where readers merge level 0": Example(
        options={"deletion-vectors.merge-on-read": "true"},
        lifted=[SOME],
        writes=[[("+I", 2, 20)], [("-D", 302, 0)]],
        left=[(3, 1), (4, 300), (5, 1000)],
        marks={4: [1], 5: [1, *range(300, 600)]},
        rows={2: 20, 302: None},
    ),
    "so does it in vectors of 64 bits": Example(
        options=WIDE,
        writes=[[("+I", 2, 20)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1]},
        rows={2: 20},
    ),
    "new keys mark nothing": Example(
        writes=[[("+I", 9999, 1)]],
        left=[(4, 1), (5, 1000)],
        marks={},
        rows={9999: 1},
    ),
    "a delete marks and leaves no file": Example(
        writes=[[("-D", 2, 0)]],
        left=[(5, 1000)],
        marks={5: [1]},
        rows={2: None},
    ),
    "of deletes and inserts the rows are left": Example(
        writes=[[("-D", 2, 0), ("+I", 3, 30)], [("+I", 2, 21), ("-D", 4, 0)]],
        left=[(4, 2), (5, 1000)],
        marks={5: [1, 2, 3]},
        rows={2: 21, 3: 30, 4: None},
    ),
    "a key is marked once": Example(
        lifted=[[("+I", 2, 20)]],
        writes=[[("+I", 2, 21)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1]},
        rows={2: 21},
    ),
    "the level that has a key is marked": Example(
        lifted=[SOME],
        writes=[[("+I", 2, 20), ("+I", 302, 21)]],
        left=[(3, 2), (4, 300), (5, 1000)],
        marks={4: [1], 5: [1, *range(300, 600)]},
        rows={2: 20, 302: 21},
    ),
    "a full compaction leaves no vector": Example(
        lifted=[SOME],
        writes=[[("+I", 2, 20), ("-D", 302, 0)]],
        strategy=Strategy.FULL,
        left=[(5, 999)],
        marks={},
        rows={2: 20, 302: None},
    ),
    "a full compaction of the top level rewrites what is marked": Example(
        lifted=[[("-D", 2, 0)]],
        writes=[],
        strategy=Strategy.FULL,
        left=[(5, 999)],
        marks={},
        rows={2: None},
    ),
    "a change is told by the row that counts": Example(
        options=LOOKUP,
        lifted=[SOME],
        writes=[[("+I", 2, 20), ("+I", 302, 21), ("-D", 303, 0), ("+I", 9999, 1)]],
        left=[(3, 3), (4, 300), (5, 1000)],
        marks={4: [1, 2], 5: [1, *range(300, 600)]},
        rows={2: 20, 302: 21, 303: None, 9999: 1},
        told=[
            *(("-U", 2, 2), ("+U", 2, 20), ("-U", 302, -302), ("+U", 302, 21)),
            *(("-D", 303, -303), ("+I", 9999, 1)),
        ],
    ),
    "a row that is marked is no row before": Example(
        options=LOOKUP,
        lifted=[[("-D", 2, 0)]],
        writes=[[("+I", 2, 22), ("-D", 3, 0)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1, 2]},
        rows={2: 22, 3: None},
        told=[("+I", 2, 22), ("-D", 3, 3)],
    ),
    "a sum has what it marks": Example(
        options=SUM,
        lifted=[[("+I", 2, 10)]],
        writes=[[("+I", 2, 1)], [("+I", 2, 1), ("+I", 3, 7), ("-D", 4, 1)]],
        left=[(4, 3), (5, 1000)],
        marks={5: [1, 2, 3]},
        rows={2: 14, 3: 10, 4: 3},
    ),
    "a sum is told": Example(
        options=SUM | LOOKUP | WIDE,
        writes=[[("+I", 2, 1)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1]},
        rows={2: 3},
        told=[("-U", 2, 2), ("+U", 2, 3)],
    ),
    "an older row keeps its state and moves": Example(
        options={"sequence.field": "v"},
        writes=[[("+I", 2, 1), ("+I", 3, 9)]],
        left=[(4, 2), (5, 1000)],
        marks={5: [1, 2]},
        rows={3: 9},
    ),
    "a partial update has the columns that it does not change": Example(
        options=PARTIAL,
        writes=[[("+I", 2, 9)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1]},
        rows={2: 9},
    ),
    "an ignored delete marks nothing": Example(
        options={"ignore-delete": "true"},
        writes=[[("+I", 2, 9)], [("-D", 2, 0)]],
        left=[(4, 1), (5, 1000)],
        marks={5: [1]},
        rows={2: 9},
    ),
    "of two levels the upper is marked": Example(
        options={"num-levels": "3"},
        writes=[[("+I", 2, 9)], [("+I", 3, 9)]],
        left=[(1, 2), (2, 1000)],
        marks={2: [1, 2]},
        rows={2: 9, 3: 9},
    ),
    "where all is merged nothing is marked": Example(
        options={"num-levels": "2"},
        writes=[[("+I", 2, 9)]],
        left=[(1, 1000)],
        marks={},
        rows={2: 9},
    ),
}


def keyed(judge: Judge, path: Path, options: Mapping[str, str], *, on: bool = True) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("k", "INT NOT NULL"), ("v", "INT")),
        primary_key=("k",),
        options={"bucket": "1", **(VECTORS if on else {}), **options},
    ).create()


def write(table: LiveTable, changes: Sequence[Change]) -> None:
    table.judge.write(table.path, [row for _, *row in changes], [kind for kind, *_ in changes])


def judge_reads(table: LiveTable) -> tuple[int, str]:
    return table.judge.read_checksum(table.path)


def compacted_alike(ours: LiveTable, strategy: Strategy, name: str) -> LiveTable:
    """We compact the table and Java a copy, which is returned: files, vectors and rows agree."""
    java = ours.copy(name)
    java.java_settle(full=strategy is Strategy.FULL)
    ours.settle(strategy)
    agree(ours, java)
    return java


def agree(ours: LiveTable, java: LiveTable) -> None:
    # What is merged next goes by sizes, which differ.
    if ours.levels() == java.levels():
        assert_same_files(ours, java)
    assert_same_vectors(ours, java)
    assert judge_reads(ours) == judge_reads(java)
    if "changelog-producer" in ours.options:
        assert_same_changes(ours, java, set())


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=list(EXAMPLES))
def test_rows_are_marked_as_by_java(judge: Judge, tmp_path: Path, example: Example) -> None:
    ours = keyed(judge, tmp_path / "db.db" / "t", example.options)
    judge.write(ours.path, list(MANY.items()))
    ours.java_settle(full=True)
    for changes in example.lifted:
        write(ours, changes)
        ours.java_settle(full=False)
    for changes in example.writes:
        write(ours, changes)
    first = 1 + max(judge.snapshots(ours.path))

    java = compacted_alike(ours, example.strategy, "java")

    expected = MANY | ({k: v for _, k, v in SOME} if SOME in example.lifted else {})
    expected |= {key: row for key, row in example.rows.items() if row is not None}
    for key, row in example.rows.items():
        if row is None:
            del expected[key]
    for table in (java, ours):
        assert sorted((f["level"], f["row_count"]) for f in table.files()) == example.left
        assert marks_by_level(table) == example.marks
        assert dict(judge.read(table.path)) == expected
        told = [(kind, *row) for kind, row in judge.changes(table.path, first)]
        assert told == list(example.told)
    assert len(shown_files(ours)) == len(example.left)
    assert shown_files(ours) == shown_files(java)
    bits = 64 if WIDE.items() <= example.options.items() else 32
    assert set(kinds(ours).values()) <= {bits}


@pytest.mark.parametrize(
    "options",
    [{}, WIDE | LOOKUP, SUM | LOOKUP, {"sequence.field": "v"}],
    ids=["last", "told", "sum", "ordered"],
)
def test_java_goes_on_after_us_and_we_after_java(
    judge: Judge, tmp_path: Path, options: Mapping[str, str]
) -> None:
    ours = keyed(judge, tmp_path / "db.db" / "t", options)
    judge.write(ours.path, list(MANY.items()))
    ours.java_settle(full=True)
    write(ours, SOME)
    java = compacted_alike(ours, Strategy.MINOR, "java")
    for table in (ours, java):
        write(table, [("+I", 2, 2000), ("-D", 5, 0), ("+U", 302, 2001), ("+I", 7000, 1)])
        table.java_settle(full=False)
    agree(ours, java)
    write(ours, [("+I", 302, 3000), ("+I", 7000, 3001), ("-D", 6, 0)])
    compacted_alike(ours, Strategy.MINOR, "minor")
    write(ours, [("+I", 303, 4000)])
    compacted_alike(ours, Strategy.FULL, "full")
    assert not marks(ours)
    assert not ours.settle(Strategy.FULL).snapshots


LAYOUTS: Mapping[str, Mapping[str, str]] = {
    "buckets": {"bucket": "2"},
    "dynamic": {"bucket": "-1", "dynamic-bucket.target-row-num": "500"},
    "wide": {"bucket": "2", **WIDE},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_bucket_of_each_partition_has_vectors(
    judge: Judge, tmp_path: Path, layout: str
) -> None:
    ours = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("p", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "INT")),
        primary_key=("p", "k"),
        partition_by=("p",),
        options=VECTORS | LAYOUTS[layout],
    ).create()
    chance = random.Random(layout)
    ours.write([(p, k, 0) for p in "ab" for k in range(1000)])
    ours.java_settle(full=True)
    for round_ in range(1, 4):
        keys = chance.sample(range(1000), 3 * round_)
        rows = [(p, k, round_) for p in "ab"[round_ % 2 :] for k in keys]
        ours.write(rows, chance.choices(["+I", "+U", "-D"], k=len(rows)))
        compacted_alike(ours, Strategy.MINOR, f"java-{round_}")
        ours.check()
    assert len(marks(ours)) >= 4
    compacted_alike(ours, Strategy.FULL, "java")
    ours.check()


# Enough for two files on level 5.
TWICE = {key: key for key in range(1, 2001)}


def in_files(judge: Judge, path: Path, options: Mapping[str, str]) -> tuple[LiveTable, str, str]:
    """A table of TWICE on level 5, and the names of its first and its last file."""
    table = keyed(judge, path, {"target-file-size": "4 kb", **options})
    judge.write(table.path, list(TWICE.items()))
    table.java_settle(full=True)
    low, *_, high = sorted((file["min_key"], file["file_name"]) for file in table.files())
    return table, low[1], high[1]


def test_vectors_keep_the_kind_that_they_have(judge: Judge, tmp_path: Path) -> None:
    options = {"deletion-vectors.modifiable": "true"}
    ours, low, high = in_files(judge, tmp_path / "db.db" / "t", options)
    write(ours, [("+I", 1, 0)])
    compacted_alike(ours, Strategy.MINOR, "first")
    judge.alter_options(ours.path, WIDE)
    for name, keys in {"second": (2, 2000), "third": (3, 1999)}.items():
        write(ours, [("+I", key, 0) for key in keys])
        compacted_alike(ours, Strategy.MINOR, name)
        assert kinds(ours) == {low: 32, high: 64}


def test_vectors_of_files_that_are_gone_go_and_two_index_files_become_one(
    judge: Judge, tmp_path: Path
) -> None:
    ours, low, high = in_files(judge, tmp_path / "db.db" / "t", {})
    write(ours, [("+I", 1, 0), ("-D", 2000, 0)])
    ours.java_settle(full=False)
    hidden = marks(ours)
    # The later vector of a file counts.
    judge.add_vectors(ours.path, {low: [0, 6], "gone.parquet": [3]})
    write(ours, [("+I", 3, 0)])

    ours.settle()

    assert_sound(ours)
    assert marks(ours) == {low: [0, 2, 6], high: hidden[high]}
    expected = TWICE | {1: 0, 3: 0}
    del expected[7], expected[2000]
    assert dict(judge.read(ours.path)) == expected
    compacted_alike(ours, Strategy.FULL, "java")


@pytest.mark.parametrize("engine", [{}, SUM, LOOKUP], ids=["last", "sum", "told"])
def test_rows_of_a_table_that_had_no_vectors_count_once(
    judge: Judge, tmp_path: Path, engine: Mapping[str, str]
) -> None:
    """Java reads a key once for each level that has it then, until a full compaction."""
    ours = keyed(
        judge, tmp_path / "db.db" / "t", engine | {"deletion-vectors.modifiable": "true"}, on=False
    )
    judge.write(ours.path, list(MANY.items()))
    ours.java_settle(full=True)
    write(ours, SOME)
    ours.java_settle(full=False, options={"compaction.force-up-level-0": "true"})
    assert len(ours.files()) == 2
    judge.alter_options(ours.path, VECTORS)
    write(ours, [("+I", 2, 20), ("+I", 302, 21)])

    ours.settle()

    assert_sound(ours)
    changed = {key: row for _, key, row in [*SOME, ("+I", 2, 20), ("+I", 302, 21)]}
    expected = MANY | changed
    if engine == SUM:
        expected = {key: row + changed.get(key, 0) for key, row in MANY.items()} | {302: 21}
    assert dict(judge.read(ours.path)) == expected
    write(ours, [("-D", 2, 20)])
    compacted_alike(ours, Strategy.MINOR, "java")


def test_an_expired_row_is_marked_by_us_and_read_beside_the_new_one_from_java(
    judge: Judge, tmp_path: Path
) -> None:
    """Java 2.0.0 looks up without expired rows, and marks what it finds."""
    now = int(time.time())
    ours = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("t", "INT"), ("v", "INT")),
        primary_key=("k",),
        options=VECTORS
        | {"bucket": "1", "record-level.expire-time": "1 h", "record-level.time-field": "t"},
    ).create()
    long = {"record-level.expire-time": "100 d"}
    judge.write(ours.path, [(k, now - (7200 if k == 5 else 0), 0) for k in range(1000)])
    judge.compact(ours.path, full=True, options=long)
    judge.write(ours.path, [(5, now, 1), (6, now, 1)])
    java = ours.copy("java")
    java.java_settle(full=False)
    assert sorted(row[2] for row in judge.read(java.path) if row[0] == 5) == [0, 1]

    ours.settle()

    assert_sound(ours)
    assert marks_by_level(ours) == {5: [5, 6]}
    assert [row for row in judge.read(ours.path) if row[0] in (5, 6)] == [(5, now, 1), (6, now, 1)]


@pytest.mark.parametrize("strategy", [Strategy.MINOR, Strategy.FULL])
def test_rows_that_java_marks_before_our_commit_stay_marked(
    judge: Judge, tmp_path: Path, strategy: Strategy
) -> None:
    """With a file that we merge, or of files that we rewrite for their vectors only."""
    ours, *_ = in_files(judge, tmp_path / "db.db" / "t", {})
    write(ours, [("-D", 2, 0)])
    ours.java_settle(full=False)
    expected = {key: value for key, value in TWICE.items() if key not in (2, 2000)} | {10: 100}
    if strategy is Strategy.MINOR:
        write(ours, [("+I", 3, 30)])
        expected[3] = 30

    def java() -> None:
        write(ours, [("+I", 10, 100), ("-D", 2000, 0)])
        assert judge.compact(ours.path, full=False)

    assert compact_beside(ours, java, strategy).dropped
    assert dict(judge.read(ours.path)) == expected
    assert_sound(ours)


@pytest.mark.parametrize("layout", [{}, {"bucket": "-1"}], ids=["fixed", "dynamic"])
def test_java_goes_on_with_vectors_that_came_file_by_file(
    judge: Judge, tmp_path: Path, layout: Mapping[str, str]
) -> None:
    """It keeps one index file of a bucket, whatever the number of its buckets."""
    ours, low, high = in_files(judge, tmp_path / "db.db" / "t", layout)
    for key in (1, 2000):
        write(ours, [("+I", key, 0)])
        compacted_alike(ours, Strategy.MINOR, f"java-{key}")
    assert marks(ours).keys() == {low, high}
    write(ours, [("+I", 2, 0)])
    ours.java_settle(full=False)
    assert dict(judge.read(ours.path)) == TWICE | {1: 0, 2: 0, 2000: 0}
    assert marks(ours).keys() == {low, high}
