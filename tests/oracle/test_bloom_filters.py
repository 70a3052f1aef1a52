"""Bloom filters of new Parquet files: Java's reader skips row groups by them, and loses no row."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import Chunk, File, Group, Meta
from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName, Value

ROWS = 3_000
COLUMNS: tuple[tuple[str, TypeName], ...] = (
    ("k", "BIGINT NOT NULL"),
    ("i", "INT"),
    ("s", "STRING"),
    ("d", "DECIMAL(10, 2)"),
    ("w", "DECIMAL(30, 2)"),
    ("y", "BYTES"),
    ("t", "TIMESTAMP(3)"),
    ("e", "DATE"),
)
ENABLED = {"parquet.bloom.filter.enabled": "true"}


def row(number: int) -> Row:
    """Distinct even values, so that the odd ones lie within the bounds."""
    even = 2 * (number * 7 % ROWS)
    return [
        even,
        even,
        f"{even:06}",
        f"{even}.00",
        f"{even}.00",
        f"x:{even:08x}",
        f"{even}:0",
        even,
    ]


def table_of(judge: Judge, folder: Path, options: dict[str, str]) -> LiveTable:
    table = LiveTable(
        judge=judge,
        path=folder / "db.db" / "t",
        columns=COLUMNS,
        primary_key=("k",),
        options={"bucket": "1", **options},
    ).create()
    for first in range(0, ROWS, ROWS // 3):
        table.write([row(number) for number in range(first, first + ROWS // 3)])
    assert table.settle(Strategy.FULL).snapshots
    return table


def filters(path: Path) -> dict[str, tuple[int, int]]:
    """Offset and size of each column's filter, of a file of one row group."""
    (group,) = footer_of(path.read_bytes())[File.GROUPS].value.values
    metas = [chunk[Chunk.META].value for chunk in group[Group.COLUMNS].value.values]
    return {
        meta[Meta.PATH].value.values[0].decode(): (
            meta[Meta.BLOOM_FILTER_AT].value,
            meta[Meta.BLOOM_FILTER_LENGTH].value,
        )
        for meta in metas
        if Meta.BLOOM_FILTER_AT in meta
    }


def found(judge: Judge, table: LiveTable, name: str, value: Value) -> int:
    return len(judge.read(table.path, filter=[[name, "equal", value]]))


def test_java_skips_by_them_and_finds_every_value(judge: Judge, tmp_path: Path) -> None:
    table = table_of(judge, tmp_path, ENABLED)
    (file,) = [table.path / "bucket-0" / each["file_name"] for each in table.files()]
    names = [name for name, _ in COLUMNS]
    assert filters(file).keys() >= set(names)
    for number in (0, 1, ROWS // 2, ROWS - 1):
        for name, value in zip(names, row(number), strict=True):
            assert found(judge, table, name, value) == 1, (name, value)

    # Filters without a bit hide everything, which proves that Java reads ours.
    content = bytearray(file.read_bytes())
    for start, size in filters(file).values():
        content[start + 16 : start + size] = bytes(size - 16)
    file.write_bytes(content)
    hidden = [n for n, v in zip(names, row(5), strict=True) if not found(judge, table, n, v)]
    assert {"i", "s"} <= set(hidden)
    assert len(judge.read(table.path)) == ROWS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, set()),
        ({"parquet.bloom.filter.enabled#s": "true"}, {"s"}),
        ({"parquet.bloom.filter.expected.ndv#i": "100"}, {"i"}),
        (ENABLED | {"parquet.bloom.filter.enabled#k": "false"}, {n for n, _ in COLUMNS[1:]}),
    ],
)
def test_columns_have_the_filters_that_java_gives_them(
    judge: Judge, tmp_path: Path, options: dict[str, str], expected: set[str]
) -> None:
    table = table_of(judge, tmp_path, {"parquet.enable.dictionary": "false", **options})
    twin = table.copy("java")
    twin.write([row(0)])
    twin.java_settle(full=True)
    system = {"_KEY_k", "_SEQUENCE_NUMBER", "_VALUE_KIND"}
    for each in (table, twin):
        (file,) = [each.path / "bucket-0" / f["file_name"] for f in each.files()]
        assert filters(file).keys() - system == expected
