"""Every key type and every column type, written by Java, compacted by us and by Java, and read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.formats.parquet.footer import read_footer
from compactord.formats.parquet.thrift import Chunk, Kind, Meta, Type, required
from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_filters,
    assert_same_outcome,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import TypeName
from tests.oracle.samples import (
    ATOMIC,
    EVERY_TYPE,
    LAST_NANOSECOND,
    YEAR_1,
    YEAR_9999,
    not_null,
)

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


# Of the first and the last day that Java reads from INT96.
FARTHEST = ("-185542587187200000:100", "185331720383999999:999900")
SENTINELS = (LAST_NANOSECOND, f"{YEAR_1}:0", f"{YEAR_1 - 1}:999999", *FARTHEST)


@pytest.mark.parametrize("type_", ["TIMESTAMP(9)", "TIMESTAMP(7) WITH LOCAL TIME ZONE"])
def test_times_that_64_bits_of_nanoseconds_cannot_hold_order_the_records_of_a_key(
    judge: Judge, tmp_path: Path, type_: str
) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("t", f"{type_} NOT NULL"), ("k", "INT NOT NULL"), ("s", type_), ("v", "INT")),
        primary_key=("t", "k"),
        options={"bucket": "1", "sequence.field": "s"},
    ).create()
    order = [
        None,
        FARTHEST[0],
        f"{YEAR_1}:0",
        "-1:999900",
        "0:0",
        "0:100",
        f"{YEAR_9999}:999900",
        FARTHEST[1],
    ]
    chance = random.Random(6)
    newest: dict[str, int] = {}
    for commit in range(6):
        for key in SENTINELS:
            rows = []
            for k in range(4):
                place = chance.randrange(len(order))
                row = [key, k, order[place], commit]
                rows.append(row)
                if place >= newest.get(table.key(row), 0):
                    newest[table.key(row)] = place
                    table.apply([row])
            judge.write(table.path, rows)
    twin = table.copy("java")
    table.check()
    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    assert_filters(table, {"t": (type_, list(SENTINELS)), "s": (type_, order[1:])})


@pytest.mark.parametrize("type_", ["TIMESTAMP(9)", "TIMESTAMP(9) WITH LOCAL TIME ZONE"])
def test_int96_has_the_bytes_and_the_statistics_of_java(
    judge: Judge, tmp_path: Path, type_: str
) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("id", "INT NOT NULL"), ("t", type_)),
        primary_key=("id",),
        options={"bucket": "1"},
    ).create()
    times = [*ATOMIC["timestamp-9"][1], *SENTINELS, None]
    for commit in range(6):
        table.write([[n + commit, time] for n, time in enumerate(times)])
    twin = table.copy("java")
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    ours, javas = (_stored_times(each) for each in (table, twin))
    assert ours == javas
    assert len(ours[0]) == len(times) + 5


def _stored_times(table: LiveTable) -> tuple[list[bytes | None], Any]:
    """The values of column t of the only live file as they are stored, and its statistics."""
    [file] = table.files()
    content = (table.path / "bucket-0" / file["file_name"]).read_bytes()
    footer = read_footer(lambda at, size: content[at : at + size], len(content), file["file_name"])
    parquet = pq.ParquetFile(pa.BufferReader(content), metadata=footer.arrow)
    leaf = footer.arrow.schema.names.index("t")
    chunk = footer.chunk(0, leaf)
    statistics = required(required(chunk, Chunk.META, Kind.STRUCT), Meta.STATISTICS, Kind.STRUCT)
    assert required(chunk[Chunk.META].value, Meta.TYPE, Kind.I32) == Type.INT96
    assert Chunk.COLUMN_INDEX_AT not in chunk
    return parquet.read(["t"]).column("t").to_pylist(), statistics
