"""Indexes of columns of primary-key tables, which we drop and Java builds: its queries are right.

Java 2.0.0 reads files without an index as a whole. It must not take an index for one of files that
a compaction of ours has made.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from compactord.table import report
from compactord.table.opening import describe_table
from tests.oracle.differential import LiveTable, assert_same_rows, canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row
from tests.oracle.test_expire import NOW, expire, twins

SORTED = {"pk-btree.index.columns": "s", "pk-bitmap.index.columns": "n"}
Term = tuple[str, str, Any]
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": lambda found, value: found is not None and found == value,
    "not_equal": lambda found, value: found is not None and found != value,
    "lt": lambda found, value: found is not None and found < value,
    "ge": lambda found, value: found is not None and found >= value,
    "in": lambda found, value: found is not None and found in value,
    "is_null": lambda found, value: found is None,
    "is_not_null": lambda found, value: found is not None,
}
FILTERS: tuple[tuple[Term, ...], ...] = (
    (("s", "equal", "s3"),),
    (("s", "equal", "absent"),),
    (("s", "not_equal", "s1"),),
    (("s", "ge", "s2"), ("s", "lt", "s5")),
    (("s", "in", ["s1", "s4", "absent"]),),
    (("s", "is_null", None),),
    (("s", "is_not_null", None),),
    (("n", "equal", 2),),
    (("n", "in", [1, 4]),),
    (("n", "is_null", None),),
    (("n", "ge", 3),),
    (("s", "equal", "s1"), ("n", "equal", 2)),
    (("k", "lt", 40), ("s", "equal", "s2")),
    (("", "any", [("s", "equal", "s1"), ("n", "equal", 3)]),),
    (("", "any", [("k", "lt", 9), ("s", "is_null", None)]),),
)


def holds(term: Term, row: Row) -> bool:
    name, op, value = term
    if op == "any":
        return any(holds(each, row) for each in value)
    return TESTS[op](row["ksn".index(name)], value)


def check_queries(table: LiveTable) -> None:
    """Each filter finds the rows that a full scan has, by indexes and without."""
    rows = table.judge.read(table.path, options={"global-index.enabled": "false"})
    for terms in FILTERS:
        wanted = canonical(row for row in rows if all(holds(term, row) for term in terms))
        for by_index in ("true", "false"):
            options = {"global-index.enabled": by_index}
            found = table.judge.read(table.path, options=options, filter=terms)
            assert_same_rows(canonical(found), wanted)


def indexes(table: LiveTable) -> dict[str, str]:
    """The type of each sorted index by its file."""
    found = table.judge.index_files(table.path)
    return {f["file_name"]: f["index_type"] for f in found if f["index_type"] != "DELETION_VECTORS"}


def lacking(table: LiveTable) -> int:
    """How many levels `inspect` says to lack an index."""
    storage = LocalStorage()
    catalog = FilesystemCatalog(storage, str(table.path.parent.parent))
    access = catalog.open(catalog.find_table(f"db.{table.path.name}"))
    opened, state = describe_table(access, access.newest_schema(), {}), access.newest_state().state
    shapes = report.bucket_shapes(opened, state)
    buckets = report.inspect_json(opened, state, shapes, ())["buckets"]
    found = sum(bucket["levels_without_index"] for bucket in buckets)
    text = "\n".join(report.inspect_text(opened, state, shapes, ()))
    assert ("note: without a sorted index: 1 level in 1 bucket; queries" in text) == (found == 1)
    return found


def new_table(judge: Judge, path: Path, **options: str) -> LiveTable:
    table = LiveTable(
        judge=judge,
        path=path,
        columns=(("k", "INT NOT NULL"), ("s", "STRING"), ("n", "BIGINT")),
        primary_key=("k",),
        options={"bucket": "1", "deletion-vectors.enabled": "true", **SORTED, **options},
    )
    return table.create()


def write(table: LiveTable, chance: random.Random, rows: int, *, keys: int = 120) -> None:
    chosen = {
        key: [key, chance.choice(["s0", "s1", "s2", "s3", "s4", "s5", None]), chance.randrange(5)]
        for key in (chance.randrange(keys) for _ in range(rows))
    }
    for row in chosen.values():
        if chance.random() < 0.1:
            row[2] = None
    kinds = [chance.choice(["+I", "+U", "+U", "-D"]) for _ in chosen]
    table.write(list(chosen.values()), kinds)


def java_compacts(table: LiveTable, *, full: bool) -> None:
    table.java_settle(full=full)
    assert set(indexes(table).values()) == {"btree", "bitmap"}
    check_queries(table)


def test_only_the_indexes_of_levels_that_change_are_dropped(judge: Judge, tmp_path: Path) -> None:
    chance = random.Random(1)
    table = new_table(judge, tmp_path / "db.db" / "t")
    write(table, chance, 9000, keys=9000)
    java_compacts(table, full=True)
    assert lacking(table) == 0
    (top,) = {file["file_name"] for file in table.files()}
    of_top = indexes(table)
    for _ in range(2):
        write(table, chance, 40)
    assert indexes(table) == of_top
    table.settle()
    table.check()
    # Rows are marked in the file that the index covers.
    assert top in judge.deletion_vectors(table.path)
    assert len({file["level"] for file in table.files()}) == 2
    assert indexes(table) == of_top
    assert lacking(table) == 1
    check_queries(table)
    table.settle(Strategy.FULL)
    table.check()
    assert indexes(table) == {}
    assert lacking(table) == 1
    check_queries(table)
    # A writer of Java's builds them, though it compacts nothing.
    write(table, chance, 6)
    assert sorted(indexes(table).values()) == ["bitmap", "btree"]
    assert lacking(table) == 0
    check_queries(table)
    judge.expire_snapshots(table.path, 1)
    assert judge.orphan_files(table.path) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "bucket": "2",
            "num-sorted-run.compaction-trigger": "2",
            "deletion-vectors.bitmap64": "true",
        },
        {
            "target-file-size": "1 kb",
            "merge-engine": "partial-update",
            "partial-update.remove-record-on-delete": "true",
        },
    ],
    ids=["plain", "buckets", "small-files"],
)
def test_java_and_we_in_turns(
    judge: Judge, tmp_path: Path, options: dict[str, str], seed: int
) -> None:
    chance = random.Random(seed)
    table = new_table(judge, tmp_path / "db.db" / "t", **options)
    dropped = 0
    for _ in range(10):
        for _ in range(chance.randrange(1, 4)):
            write(table, chance, chance.choice([3, 20, 100]))
        known = indexes(table)
        if chance.random() < 0.7:
            table.settle(chance.choice([Strategy.MINOR, Strategy.FULL]))
            dropped += len(known) - len(indexes(table))
            check_queries(table)
        else:
            java_compacts(table, full=chance.random() < 0.5)
        if "merge-engine" not in options:
            table.check()
    assert dropped


def test_indexes_that_name_files_which_are_gone_are_none(judge: Judge, tmp_path: Path) -> None:
    """A writer that built one beside our compaction commits it after us."""
    chance = random.Random(3)
    table = new_table(judge, tmp_path / "db.db" / "t")
    write(table, chance, 300)
    java_compacts(table, full=True)
    write(table, chance, 60)
    before, of_before = judge.snapshot(table.path), indexes(table)
    table.settle(Strategy.FULL)
    after = judge.snapshot(table.path)
    assert before is not None
    assert after is not None
    folder = table.path / "manifest"
    (folder / after["indexManifest"]).write_bytes((folder / before["indexManifest"]).read_bytes())
    assert indexes(table) == of_before
    check_queries(table)
    write(table, chance, 60)
    check_queries(table)
    table.settle(Strategy.FULL)
    assert not indexes(table).keys() & of_before.keys()
    check_queries(table)
    java_compacts(table, full=True)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_index_files_expire_as_by_java(judge: Judge, tmp_path: Path, *, elsewhere: bool) -> None:
    """Those that the newest snapshot or a tag has stay; copies share what is elsewhere."""
    chance = random.Random(5)
    folder = tmp_path / "elsewhere"
    options = {"global-index.external-path": f"file:{folder}"} if elsewhere else {}
    table = new_table(judge, tmp_path / "db.db" / "t", **options)
    for _ in range(3):
        write(table, chance, 60)
        java_compacts(table, full=True)
        write(table, chance, 20)
        table.settle()
    tagged = indexes(table)
    judge.create_tag(table.path, "v", judge.snapshots(table.path)[-1])
    for _ in range(2):
        write(table, chance, 60)
        java_compacts(table, full=True)
    twin = twins(judge, table.path, tmp_path / "twins")
    done = expire(twin.ours, **NOW)
    assert done.index_files > 4
    kept = indexes(table).keys() | tagged.keys()
    if elsewhere:
        vectors = {f["file_name"] for f in judge.index_files(table.path)}
        assert kept <= {file.name for file in folder.iterdir()} <= kept | vectors
    judge.expire_snapshots(twin.java, 2**31 - 1, retain_min=1)
    twin.check()
    ours = LiveTable(
        judge=judge, path=twin.ours, columns=table.columns, primary_key=table.primary_key
    )
    check_queries(ours)
    write(ours, chance, 30)
    java_compacts(ours, full=True)
