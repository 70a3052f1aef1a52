"""Primary-key tables whose row groups or pages are copied: Java describes them as its own."""

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


# --- pages of one row group -----------------------------------------------------------------------

MANY = 160_000
FLAT = (*COLUMNS[:-1], ("p", "STRING"))


def flat_row(key: int, number: int) -> Row:
    """`p` is longer than bounds in page indexes are, and its pages begin at other rows."""
    long = f"{number * 7_919 % 1_000_003:07}" * (9 + number % 7)
    return [*row(key, number)[:-1], None if number % 11 == 0 else long]


@pytest.mark.parametrize("name", ["defaults", "without dictionaries"])
def test_pages_that_small_commits_do_not_touch_are_copied(
    judge: Judge, tmp_path: Path, name: str
) -> None:
    """Java's file of one row group beside neighbouring keys; Java finds all rows by filters."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=FLAT,
        primary_key=("k",),
        options={"bucket": "1", **OPTIONS[name]},
    ).create()
    table.write([flat_row(2 * number, number) for number in range(MANY)])
    table.java_settle(full=True)
    twin, (before,) = table.copy("java"), files_of(table)
    # Rows 10,000 and 130,000: of pages of 20,000 rows, the second to the sixth are copied.
    for first in (20_000, 260_000):
        keys = [first, first + 1, first + 2, first + 5]
        for each in (table, twin):
            rows_of_keys = [flat_row(key, MANY + first + key % 8) for key in keys]
            each.write(rows_of_keys, ["+I", "+U", "-D", "-D"])
    assert table.settle(Strategy.FULL).snapshots
    twin.java_settle(full=True)
    assert_same_outcome(table, twin)
    (after,) = files_of(table)
    # Pages of `p` begin at other rows, so two more are encoded.
    for column, share in (("k", 0.6), ("n", 0.6), ("t", 0.6), ("d", 0.6), ("p", 0.5)):
        found, kept = bodies(before, column), set(bodies(after, column))
        assert sum(body in kept for body in found) >= share * len(found), column

    names, rows_left = [name for name, _ in FLAT], list(table.model.values())
    for number in (0, 19_999, 20_000, 20_003, 119_999, 120_000, 130_001, MANY - 1):
        for column, value in zip(names, flat_row(2 * number, number), strict=True):
            place = names.index(column)
            if value in (None, "NaN"):
                continue
            found_keys = judge.read(table.path, columns=["k"], filter=[(column, "equal", value)])
            wanted = [(each[0],) for each in rows_left if each[place] == value]
            assert sorted(found_keys) == sorted(wanted), (column, value)
    nulls = judge.read(table.path, columns=["k"], filter=[("p", "is_null", None)])
    assert len(nulls) == sum(each[-1] is None for each in rows_left)
