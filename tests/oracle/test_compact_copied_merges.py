"""Primary-key tables whose row groups are copied: Java reads and describes them as its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_same_outcome
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName
from tests.unit.formats.parquet.stored_pages import assert_healthy, bodies

ROWS = 70_000
COLUMNS: tuple[tuple[str, TypeName], ...] = (
    ("k", "BIGINT NOT NULL"),
    ("n", "BIGINT"),
    ("s", "STRING"),
    ("t", "TIMESTAMP(3)"),
    ("d", "DOUBLE"),
    ("w", "TIMESTAMP(9)"),
    ("a", {"type": "ARRAY", "element": "INT"}),
)
OPTIONS: dict[str, dict[str, str]] = {
    "defaults": {},
    "thin": {"data-file.thin-mode": "true"},
    "without dictionaries": {"parquet.enable.dictionary": "false", "file.compression": "snappy"},
    "partial-update": {"merge-engine": "partial-update", "ignore-delete": "true"},
}


def row(key: int, number: int) -> Row:
    return [
        key,
        number * 7_919 % 1_000_003,
        None if number % 5 == 0 else f"{number % 900:03}",
        f"{1_600_000_000_000 + 977 * number}:0",
        "NaN" if number % 1_009 == 0 else number / 8,
        f"{1_600_000_000_000 + number}:{number % 1_000_000}",
        [number % 3, None],
    ]


def rows(keys: Sequence[int], first: int) -> list[Row]:
    return [row(key, first + place) for place, key in enumerate(keys)]


def files_of(table: LiveTable) -> list[Path]:
    return [table.path / "bucket-0" / file["file_name"] for file in table.files()]


def pages(files: Sequence[Path], name: str) -> set[bytes]:
    return {body for path in files for body in bodies(path, name)}


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_and_records_are_javas(judge: Judge, tmp_path: Path, name: str) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=COLUMNS,
        primary_key=("k",),
        options={"bucket": "1", **OPTIONS[name]},
    ).create()
    table.write(rows(range(0, 2 * ROWS, 2), 0))
    table.write(rows(range(4 * ROWS, 6 * ROWS, 2), ROWS))
    twin, before = table.copy("java"), files_of(table)
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    copied = ["k", "n", "t", "d", "s", "_SEQUENCE_NUMBER"]
    after = files_of(table)
    assert [each for each in copied if not pages(before, each) <= pages(after, each)] == []
    assert_healthy(after[0])

    # Newer records and deletes of keys in one row group, and of keys between both.
    keys = [2 * ROWS, 4 * ROWS, 4 * ROWS + 1, 5 * ROWS]
    kinds = ["+I", "+I", "+I", "+I"] if name == "partial-update" else ["+I", "-D", "+U", "-D"]
    for each in (table, twin):
        each.write(rows(keys, 2 * ROWS), kinds)
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    again = files_of(table)
    kept = {body for path in after for body in bodies(path, "n")[: len(bodies(path, "n")) // 2]}
    assert kept <= pages(again, "n")
