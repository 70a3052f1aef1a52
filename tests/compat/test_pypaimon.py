"""pypaimon, Paimon's own Python reader, reads what compactord has compacted as Java does."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.compat.asking import PyPaimon
from tests.oracle.differential import LiveTable, assert_same_rows, canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Value

COLUMNS = (
    ("k", "INT NOT NULL"),
    ("name", "STRING NOT NULL"),
    ("flag", "BOOLEAN"),
    ("tiny", "TINYINT"),
    ("small", "SMALLINT"),
    ("big", "BIGINT"),
    ("real", "FLOAT"),
    ("double", "DOUBLE"),
    ("price", "DECIMAL(18, 3)"),
    ("wide", "DECIMAL(38, 10)"),
    ("text", "VARCHAR(20)"),
    ("raw", "BYTES"),
    ("day", "DATE"),
    ("at3", "TIMESTAMP(3)"),
    ("at6", "TIMESTAMP(6)"),
    ("zoned", "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
    ("tags", {"type": "ARRAY", "element": "STRING"}),
    (
        "nested",
        {
            "type": "ROW",
            "fields": [{"name": "a", "type": "INT"}, {"name": "b", "type": "STRING"}],
        },
    ),
)


def _row(number: int, commit: int) -> list[Value]:
    if number % 11 == 3:
        return [number, f"n{number}", *[None] * (len(COLUMNS) - 2)]
    return [
        number,
        f"n{number}",
        number % 2 == 0,
        number % 128,
        -number,
        number * 2**40 + commit,
        number / 4,
        ["NaN", "-0.0", 0.1 * number][number % 3],
        f"{number}.{commit:03}",
        f"-{number + 1}{'9' * 20}.{commit:010}",
        f"é {commit}",
        f"x:{number:04x}",
        number - 20,
        f"{1_700_000_000_000 + number}:0",
        f"{-1_000 - number}:{number * 1000}",
        f"{1_700_000_000_000 + commit}:999000",
        [None, "", f"t{number}"][: number % 4],
        None if number % 5 == 0 else [number, None],
    ]


@pytest.mark.parametrize("strategy", [Strategy.MINOR, Strategy.FULL])
@pytest.mark.parametrize("is_keyed", [True, False], ids=["primary-key", "append"])
def test_pypaimon_reads_a_compacted_table_as_java_does(
    judge: Judge, pypaimon: PyPaimon, warehouse: Path, *, is_keyed: bool, strategy: Strategy
) -> None:
    table = LiveTable(
        judge=judge,
        path=warehouse / f"{strategy.value}.db" / ("keyed" if is_keyed else "appended"),
        columns=COLUMNS,
        primary_key=("k", "name") if is_keyed else (),
        options={"bucket": "2" if is_keyed else "-1"},
    ).create()
    for commit in range(7):
        numbers = range(commit, 40, 1 + commit % 3)
        kinds = ["-D" if is_keyed and n % 9 == commit else "+I" for n in numbers]
        table.write([_row(number, commit) for number in numbers], kinds)
    assert table.settle(strategy).compactions > 0
    _assert_same_reads(table, pypaimon)
    # Level-0 files above compacted ones are read together with them.
    table.write([_row(1, 99), _row(100, 99)])
    _assert_same_reads(table, pypaimon)


def _assert_same_reads(table: LiveTable, pypaimon: PyPaimon) -> None:
    table.check()
    name = f"{table.path.parent.name.removesuffix('.db')}.{table.path.name}"
    found = pypaimon.ask("read", table=name)
    assert_same_rows(canonical(found), canonical(table.judge.read(table.path)))
