"""Append tables with deletion vectors: what Java's DELETE and UPDATE hid stays hidden."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.append_histories import run_append_history
from tests.oracle.differential import LiveTable, assert_same_files
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row
from tests.oracle.vectors import (
    VECTORS,
    assert_same_vectors,
    assert_sound,
    compact_beside,
    delete,
    kinds,
    marks,
    update,
)

UNAWARE = {"bucket": "-1"}
BUCKETED = {"bucket": "1", "bucket-key": "n"}
WIDE = {"deletion-vectors.bitmap64": "true"}
# So that a file of a few hundred rows is large, and two of them are not packed.
LARGE = {
    "target-file-size": "2 kb",
    "source.split.open-file-cost": "1 b",
    "file.compression": "none",
    "parquet.enable.dictionary": "false",
}
# Rows of each commit; n counts up through all of them.
TENS = (10,) * 5


def at(*numbers: int) -> Callable[[Row], bool]:
    """Whether n is one of these."""
    return lambda row: row[0] in numbers


def every(step: int, first: int = 0, end: int = 10**6) -> Callable[[Row], bool]:
    return lambda row: first <= int(row[0]) < end and row[0] % step == 0


def a_third_of_the_first(row: Row) -> bool:
    """Of its file of 300 rows, and a tenth of the others."""
    return bool(row[0] % (3 if int(row[0]) < 300 else 10) == 0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table of n and v, written in `commits` of so many rows.

    `deletes` come one after the other, `updates` after them. The compaction leaves `rows` in files
    without deleted ones, and `marked` files, each with its rows and how many of them are deleted.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    commits: Sequence[int] = TENS
    deletes: Sequence[Callable[[Row], bool]] = ()
    updates: Callable[[Row], bool] | None = None
    strategy: Strategy = Strategy.MINOR
    rows: int = 0
    marked: Sequence[tuple[int, int]] = ()


BOTH = {
    "small files are packed without what is deleted": Case(deletes=[every(3)], rows=33),
    "so are they with vectors of 64 bits": Case(
        options=WIDE, deletes=[every(3), every(5)], rows=27
    ),
    "an updated row is there once": Case(updates=every(3), rows=50),
    "a table of which nothing is left has no file": Case(deletes=[every(2), every(1)], rows=0),
}
OF_UNAWARE = {
    "one small file with a vector is rewritten": Case(commits=[10], deletes=[at(4)], rows=9),
    "a file of which nothing is left goes": Case(
        commits=[10] * 6, deletes=[every(1, 0, 10)], rows=50
    ),
    "large files of which little is deleted stay": Case(
        options=LARGE,
        commits=[300, 300],
        deletes=[every(10)],
        marked=[(300, 30), (300, 30)],
    ),
    "a large file of which much is deleted is rewritten": Case(
        options=LARGE,
        commits=[300, 300],
        deletes=[every(3, 0, 300), every(10, 300)],
        rows=200,
        marked=[(300, 30)],
    ),
    "what shares its index file keeps its vector": Case(
        options=LARGE,
        commits=[300, 300, 300],
        deletes=[a_third_of_the_first],
        rows=200,
        marked=[(300, 30), (300, 30)],
    ),
    "a higher ratio lets a large file stay": Case(
        options=LARGE | {"compaction.delete-ratio-threshold": "0.4"},
        commits=[300],
        deletes=[every(3)],
        marked=[(300, 100)],
    ),
}
OF_BUCKETED = {
    "a file that is not picked keeps its vector": Case(
        options=LARGE,
        commits=[300, *TENS],
        deletes=[every(10)],
        rows=45,
        marked=[(300, 30)],
    ),
    "a file of which nothing is left goes": Case(deletes=[every(1, 0, 10)], rows=40),
    "all is rewritten from the first small or marked file on": Case(
        options=LARGE,
        commits=[300, 300, 10, 10],
        deletes=[at(301, 615)],
        strategy=Strategy.FULL,
        rows=618,
    ),
    "one file with a vector is rewritten fully": Case(
        commits=[10], deletes=[at(4)], strategy=Strategy.FULL, rows=9
    ),
    "and not otherwise": Case(commits=[10], deletes=[at(4)], marked=[(10, 1)]),
}
CASES = {
    f"{name}, {kind}": (options, case)
    for kind, options, cases in (
        ("unaware", UNAWARE, BOTH | OF_UNAWARE),
        ("bucketed", BUCKETED, BOTH | OF_BUCKETED),
    )
    for name, case in cases.items()
}


def append_table(judge: Judge, path: Path, options: Mapping[str, str]) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("n", "INT"), ("v", "STRING")),
        options=VECTORS | options,
    ).create()


def fill(table: LiveTable, commits: Sequence[int]) -> None:
    for rows in commits:
        first = len(table.appended)
        table.write([[n, f"{n:020}"] for n in range(first, first + rows)])


def java_compacts(table: LiveTable, strategy: Strategy) -> None:
    """Fully only once: Java rewrites a bucket with vectors each time that it is told to."""
    if strategy is Strategy.FULL:
        assert table.judge.compact(table.path, full=True)
    else:
        table.java_settle(full=False)


def compacted_alike(ours: LiveTable, strategy: Strategy, name: str) -> LiveTable:
    """We compact the table and Java a copy, which is returned: files, vectors and rows agree."""
    java = ours.copy(name)
    java_compacts(java, strategy)
    ours.settle(strategy)
    assert_same_files(ours, java)
    assert_same_vectors(ours, java)
    ours.check()
    java.check()
    return java


@pytest.mark.parametrize(("kind", "case"), CASES.values(), ids=list(CASES))
def test_deleted_rows_are_left_out_as_by_java_which_goes_on(
    judge: Judge, tmp_path: Path, kind: Mapping[str, str], case: Case
) -> None:
    ours = append_table(judge, tmp_path / "db.db" / "t", kind | case.options)
    fill(ours, case.commits)
    for is_wanted in case.deletes:
        assert delete(ours, is_wanted)
    if case.updates:
        assert update(ours, case.updates)

    java = compacted_alike(ours, case.strategy, "java")

    for table in (ours, java):
        hidden = marks(table)
        left = [(f["row_count"], len(hidden.get(f["file_name"], ()))) for f in table.files()]
        assert sum(rows for rows, deleted in left if not deleted) == case.rows
        assert sorted(file for file in left if file[1]) == list(case.marked)
    bits = 64 if "deletion-vectors.bitmap64" in case.options else 32
    assert set(kinds(ours).values()) <= {bits}
    fill(ours, [10] * 5)
    delete(ours, every(7))
    java_compacts(ours, Strategy.MINOR)
    ours.check()
    update(ours, every(4))
    compacted_alike(ours, Strategy.MINOR, "later")


@pytest.mark.parametrize("change", [delete, update])
@pytest.mark.parametrize(
    ("kind", "commits", "rewritten", "other"),
    [(UNAWARE, (300, 300, 300), 1, 301), (BUCKETED, (300, *TENS), 301, 1)],
    ids=["unaware", "bucketed"],
)
def test_rows_that_java_deletes_before_our_commit_stay_deleted(
    judge: Judge,
    tmp_path: Path,
    *,
    kind: Mapping[str, str],
    commits: Sequence[int],
    rewritten: int,
    other: int,
    change: Callable[[LiveTable, Callable[[Row], bool]], bool],
) -> None:
    """Those of a file that we rewrite cost its compaction, others do not."""
    for number in (rewritten, other):
        ours = append_table(judge, tmp_path / "db.db" / f"t{number}", kind | LARGE)
        fill(ours, commits)
        delete(ours, a_third_of_the_first)

        totals = compact_beside(ours, lambda table=ours, n=number: change(table, at(n)))

        assert bool(totals.dropped) == (number == rewritten)
        assert totals.snapshots
        ours.check()
        assert_sound(ours)
        ours.settle(Strategy.FULL)
        ours.check()
        # Java rewrites a bucket with vectors each time that it is told to.
        assert not ours.settle(Strategy.FULL).snapshots


@pytest.mark.parametrize("seed", range(6))
def test_random_tables_have_the_rows_that_were_not_deleted(
    judge: Judge, tmp_path: Path, seed: int
) -> None:
    run_append_history(judge, tmp_path / "db.db" / "t", seed)
