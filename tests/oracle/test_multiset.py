"""MULTISET columns survive a compaction: Java reads what it wrote, whatever is nested in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactord.plan.table import Strategy
from tests.oracle.differential import compact
from tests.oracle.judge import Judge


def _row(key: int, commit: int) -> tuple[Any, ...]:
    texts = None if key % 7 == commit else [[f"e{key % 3}", commit + 1], ["x" * key, 2]]
    moments = [[["1700000000123:456000", key + 1]], None, []] if key % 2 else None
    return key, texts if key % 5 else [], moments, commit


def test_multisets_of_a_primary_key_table_are_merged(judge: Judge, tmp_path: Path) -> None:
    table = tmp_path / "db.db" / "t"
    judge.create_table(
        table,
        [
            ("k", "BIGINT NOT NULL"),
            ("texts", "STRING MULTISET"),
            ("moments", {"type": "ARRAY", "element": "TIMESTAMP(6) MULTISET"}),
            ("v", "INT"),
        ],
        primary_key=["k"],
        options={"bucket": "2", "write-only": "true"},
    )
    for commit in range(6):
        judge.write(table, [_row(key, commit) for key in range(commit * 5, 60)])
    before = sorted(judge.read(table), key=lambda row: row[0])
    assert [row[-1] for row in before[::12]] == [0, 2, 4, 5, 5]

    compact(table, Strategy.FULL)

    assert {file["file_source"] for file in judge.files(table)} == {"COMPACT"}
    assert sorted(judge.read(table), key=lambda row: row[0]) == before


def test_multisets_of_an_append_table_are_copied(judge: Judge, tmp_path: Path) -> None:
    table = tmp_path / "db.db" / "a"
    judge.create_table(
        table,
        [("numbers", "BIGINT MULTISET"), ("v", "INT")],
        options={"bucket": "-1", "write-only": "true"},
    )
    for commit in range(6):
        judge.write(table, [([[commit, 1], [2**40, 3]], commit), ([], 0), (None, 1)])
    before = judge.read(table)

    compact(table)

    [file] = judge.files(table)
    assert (file["file_source"], file["row_count"]) == ("COMPACT", 18)
    assert sorted(map(repr, judge.read(table))) == sorted(map(repr, before))
