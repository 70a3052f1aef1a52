"""Every key type and every column type, written by Java, compacted by us and by Java, and read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_filters,
    assert_same_outcome,
    compact,
    folder_digest,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import TypeName
from tests.oracle.samples import ATOMIC, EVERY_TYPE, not_null

COMPOSITE_KEYS: dict[str, tuple[str, ...]] = {
    "text-and-number": ("string", "int"),
    "number-and-text": ("bigint", "varchar"),
    "float-and-time": ("double", "timestamp-9"),
    "decimals": ("decimal-38", "decimal-9", "decimal-19"),
    "bytes-and-date": ("bytes", "date", "boolean"),
}


def key_table(
    judge: Judge, path: Path, keys: Sequence[str], options: Mapping[str, str]
) -> LiveTable:
    columns: list[tuple[str, TypeName]] = [
        (f"k{index}", not_null(ATOMIC[kind][0])) for index, kind in enumerate(keys)
    ]
    return LiveTable(
        judge=judge,
        path=path,
        columns=(*columns, ("v", "STRING"), ("d", "DOUBLE")),
        primary_key=tuple(name for name, _ in columns),
        options=options,
    ).create()


def write_keys(table: LiveTable, keys: Sequence[str], *, commits: int, seed: int) -> None:
    """Commits that overlap in their keys, a fifth of the records deletes."""
    chance = random.Random(seed)
    pools = [ATOMIC[kind][1] for kind in keys]
    for commit in range(commits):
        chosen = {}
        for _ in range(2 * max(map(len, pools))):
            key = [chance.choice(pool) for pool in pools]
            chosen[str(key)] = [*key, chance.choice(["", "v", f"v{commit}"]), chance.random()]
        kinds = [chance.choice(["+I", "+I", "+U", "+I", "-D"]) for _ in chosen]
        table.write(list(chosen.values()), kinds)


@pytest.mark.parametrize(
    "keys", [(kind,) for kind in ATOMIC] + list(COMPOSITE_KEYS.values()), ids="-and-".join
)
def test_tables_of_every_key_type_compact_as_in_java(
    judge: Judge, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    table = key_table(judge, tmp_path / "db.db" / "t", keys, {"bucket": "2"})
    write_keys(table, keys, commits=7, seed=1)
    twin = table.copy("java")

    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)

    write_keys(table, keys, commits=2, seed=2)
    twin = table.copy("java-full")
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)

    write_keys(table, keys, commits=3, seed=3)
    table.java_settle(full=False)
    table.check()
    write_keys(table, keys, commits=1, seed=4)
    table.java_settle(full=True)
    table.check()


@pytest.mark.parametrize("kind", ATOMIC)
def test_java_finds_keys_in_our_files_by_pushed_down_filters(
    judge: Judge, tmp_path: Path, kind: str
) -> None:
    table = key_table(judge, tmp_path / "db.db" / "t", [kind], {"bucket": "1"})
    write_keys(table, [kind], commits=6, seed=5)
    table.settle(Strategy.FULL)
    assert_filters(table, {"k0": ATOMIC[kind]})


def wide_rows(count: int, *, seed: int, first: int = 0) -> list[list[Any]]:
    chance = random.Random(seed)
    pools = [pool for _, pool in EVERY_TYPE.values()]
    return [
        [first + number, *(None if chance.random() < 0.15 else chance.choice(p) for p in pools)]
        for number in range(count)
    ]


def wide_table(judge: Judge, path: Path, *, key: bool, options: Mapping[str, str]) -> LiveTable:
    columns = [(f"c-{kind}", type_) for kind, (type_, _) in EVERY_TYPE.items()]
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("id", "INT NOT NULL"), *columns),
        primary_key=("id",) if key else (),
        options=options,
    ).create()


WIDE_LAYOUTS: dict[str, tuple[bool, dict[str, str]]] = {
    "primary-key": (True, {"bucket": "1"}),
    "thin": (True, {"bucket": "1", "data-file.thin-mode": "true"}),
    "full-statistics": (True, {"bucket": "1", "metadata.stats-mode": "full"}),
    "sparse-statistics": (True, {"bucket": "1", "metadata.stats-dense-store": "false"}),
    "append": (False, {"bucket": "-1"}),
    "bucketed-append": (False, {"bucket": "1", "bucket-key": "id"}),
}


# Statistics of one kind are enough to prove that filters find what they ask for.
FILTERED_LAYOUTS = ("full-statistics", "append")


@pytest.mark.parametrize("layout", WIDE_LAYOUTS)
def test_values_of_every_type_survive_with_javas_statistics(
    judge: Judge, tmp_path: Path, layout: str
) -> None:
    key, options = WIDE_LAYOUTS[layout]
    table = wide_table(judge, tmp_path / "db.db" / "t", key=key, options=options)
    for commit in range(6):
        first = commit * 20 if not key else commit * 5
        table.write(wide_rows(25, seed=commit, first=first))
    twin = table.copy("java")

    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)

    if layout in FILTERED_LAYOUTS:
        assert_filters(table, {f"c-{kind}": values for kind, values in EVERY_TYPE.items()})
    for commit in range(5):
        table.write(wide_rows(5, seed=10 + commit, first=1000))
    table.java_settle(full=True)
    table.check()


@pytest.mark.parametrize("layout", ["primary-key", "append"])
def test_columns_without_any_value_have_javas_statistics(
    judge: Judge, tmp_path: Path, layout: str
) -> None:
    key, options = WIDE_LAYOUTS[layout]
    table = wide_table(judge, tmp_path / "db.db" / "t", key=key, options=options)
    for commit in range(6):
        table.write([[10 * commit + i, *([None] * len(EVERY_TYPE))] for i in range(3)])
    twin = table.copy("java")
    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)


def test_bounds_of_repeated_texts_are_those_of_the_rows_that_are_left(
    judge: Judge, tmp_path: Path
) -> None:
    """Not of rows that were overwritten, whose words may stay in a dictionary."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("id", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("id",),
        options={"bucket": "1"},
    ).create()
    for commit in range(6):
        kept = [[i, "a" if i % 4 else None] for i in range(0, 90, 2)]
        replaced = [[i, "b" if commit else "z"] for i in range(1, 90, 2)]
        table.write([*kept, *replaced] if commit == 0 else replaced)
    twin = table.copy("java")
    table.settle()
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)


def test_a_bound_that_java_cuts_too_low_is_right_in_our_files(judge: Judge, tmp_path: Path) -> None:
    """Java's next code point of U+D7FF is a surrogate, which it writes as a question mark."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("id", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("id",),
        options={"bucket": "1"},
    ).create()
    text = "\ud7ff" * 20
    for commit in range(6):
        table.write([[commit, text]])
    table.settle()
    [file] = table.files()
    [(_, bound)] = judge.algorithms.decode_rows(["INT", "STRING"], [file["value_stats"]["max"]])
    assert bound == "\ud7ff" * 15 + "\ue000"
    assert len(judge.read(table.path, filter=[("v", "equal", text)])) == 6


@pytest.mark.parametrize("key", [True, False], ids=["primary-key", "append"])
@pytest.mark.parametrize("zone", ["", " WITH LOCAL TIME ZONE"], ids=["plain", "local"])
def test_a_nanosecond_time_beyond_64_bits_fails_its_bucket_and_changes_nothing(
    judge: Judge, tmp_path: Path, zone: str, key: bool
) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("id", "INT NOT NULL"), ("t", f"TIMESTAMP(9){zone}")),
        primary_key=("id",) if key else (),
        options={"bucket": "1", "bucket-key": "id"},
    ).create()
    for commit in range(6):
        table.write([[commit, "32503680000000:1" if commit == 3 else "0:1"]])
    before = folder_digest(table.path)

    totals = compact(table.path, Strategy.FULL)

    assert not totals.snapshots
    [failure] = totals.failures
    assert "bucket 0" in failure
    assert "TIMESTAMP(9)" in failure or "nanosecond" in failure
    assert folder_digest(table.path) == before
