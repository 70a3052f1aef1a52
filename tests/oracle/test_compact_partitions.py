"""Partitions: their folders are found whatever the value, and they are compacted in place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_same_outcome, compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import TypeName
from tests.oracle.samples import LAST_NANOSECOND, YEAR_1


@dataclass(frozen=True)
class Partitioned:
    columns: tuple[tuple[str, TypeName], ...]
    values: tuple[tuple[object, ...], ...]
    options: Mapping[str, str] = field(default_factory=dict)


PARTITIONS: dict[str, Partitioned] = {
    "text": Partitioned((("p", "STRING"),), (("a",), ("",), (None,), ("  ",), ("a b",), ("é北",))),
    "escaped": Partitioned(
        (("p", "STRING"),), (("a/b",), ("a=b",), ("%",), ("x:y?",), ("#*'\\{}[]^",), ("\x01\x7f",))
    ),
    "date": Partitioned((("p", "DATE"),), ((19000,), (0,), (-1,), (None,))),
    "date-as-text": Partitioned(
        (("p", "DATE"),), ((19000,), (-719162,), (None,)), {"partition.legacy-name": "false"}
    ),
    "numbers": Partitioned(
        (("p", "TINYINT"), ("q", "BIGINT")), ((1, 2**62), (-1, 0), (None, -5), (127, None))
    ),
    "flag-and-decimal": Partitioned(
        (("p", "BOOLEAN"), ("q", "DECIMAL(20, 2)")),
        ((True, "1.50"), (False, "-0.01"), (None, None)),
    ),
    "timestamp": Partitioned(
        (("p", "TIMESTAMP(3)"),), (("1700000000123:0",), ("0:0",), ("-1:0",), ("1000:0",))
    ),
    "timestamp-as-text": Partitioned(
        (("p", "TIMESTAMP(6)"),),
        (("1700000000123:456000",), ("0:0",), ("-1:999000",)),
        {"partition.legacy-name": "false"},
    ),
    "nanoseconds": Partitioned(
        (("p", "TIMESTAMP(9)"),), ((LAST_NANOSECOND,), (f"{YEAR_1}:0",), ("-1:999999",), ("0:0",))
    ),
    "nanoseconds-as-text": Partitioned(
        (("p", "TIMESTAMP(9)"),),
        ((LAST_NANOSECOND,), (f"{YEAR_1}:0",), ("0:1",)),
        {"partition.legacy-name": "false"},
    ),
    "double": Partitioned((("p", "DOUBLE"),), ((1.0,), (1e10,), (-0.001,), ("NaN",), (1e-5,))),
    "float": Partitioned((("p", "FLOAT"),), ((1.5,), (16777216.0,), ("-0.0",))),
    "time": Partitioned((("p", "TIME(3)"),), ((0,), (3_600_000,), (86_399_999,))),
    "renamed-default": Partitioned(
        (("p", "STRING"),), ((None,), ("",), ("x",)), {"partition.default-name": "NONE"}
    ),
}


def partitioned_table(
    judge: Judge, path: Path, case: Partitioned, *, key: bool, options: Mapping[str, str]
) -> LiveTable:
    names = tuple(name for name, _ in case.columns)
    columns = case.columns
    if key:
        columns = tuple((name, f"{type_} NOT NULL") for name, type_ in columns)
    return LiveTable(
        judge=judge,
        path=path,
        columns=(*columns, ("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=(*names, "k") if key else (),
        partition_by=names,
        options={**case.options, **options},
    ).create()


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("key", [True, False], ids=["primary-key", "append"])
def test_partitions_of_every_kind_are_found_and_compacted_in_place(
    judge: Judge, tmp_path: Path, name: str, key: bool
) -> None:
    case = PARTITIONS[name]
    # Values of a primary key are never null.
    values = [value for value in case.values if not (key and None in value)]
    options = {"bucket": "2" if key else "-1"}
    table = partitioned_table(judge, tmp_path / "db.db" / "t", case, key=key, options=options)
    for commit in range(6):
        table.write([[*value, k, f"v{commit}"] for value in values for k in range(3)])
    folders = {path.parent for path in table.path.rglob("*.parquet")}
    twin = table.copy("java")
    assert table.settle().snapshots
    twin.java_settle(full=False)
    assert_same_outcome(table, twin)
    assert {path.parent for path in table.path.rglob("*.parquet")} == folders
    table.write([[*value, k, "last"] for value in values for k in range(2)])
    table.java_settle(full=True)
    table.check()


def test_partitions_keep_their_bucket_number_after_a_rescale(judge: Judge, tmp_path: Path) -> None:
    case = Partitioned((("p", "INT"),), ())
    table = partitioned_table(
        judge, tmp_path / "db.db" / "t", case, key=True, options={"bucket": "1"}
    )
    for commit in range(6):
        table.write([[1, k, f"v{commit}"] for k in range(20)])
    judge.alter_options(table.path, {"bucket": "3"})
    for commit in range(6):
        table.write([[2, k, f"v{commit}"] for k in range(20)])
    table.settle()
    table.check()
    assert {(file["partition"][0], file["total_buckets"]) for file in table.files()} == {
        (1, 1),
        (2, 3),
    }
    assert {file["level"] for file in table.files()} == {5}
    table.write([[2, k, "last"] for k in range(20)])
    # Java itself cannot compact the partition that has another number of buckets.
    judge.compact(table.path, full=True, partition=[2])
    table.check()


def test_only_the_named_partitions_are_compacted(judge: Judge, tmp_path: Path) -> None:
    case = PARTITIONS["date"]
    table = partitioned_table(
        judge, tmp_path / "db.db" / "t", case, key=True, options={"bucket": "1"}
    )
    for _ in range(6):
        table.write([[day, k, "v"] for day in (0, 19000) for k in range(3)])
    totals = compact(table.path, Strategy.FULL, partitions=[{"p": "2022-01-08"}])
    assert totals.compactions == 1
    assert sorted((file["partition"][0], file["level"]) for file in table.files()) == [
        *([(0, 0)] * 6),
        (19000, 5),
    ]
    table.check()


def test_a_partition_of_bytes_that_are_no_text_fails_alone_and_is_shown_with_the_others(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Partitioned((("p", "BYTES"),), (), {"partition.legacy-name": "false"})
    options = {"bucket": "1"}
    table = partitioned_table(judge, tmp_path / "db.db" / "t", case, key=True, options=options)
    for commit in range(6):
        table.write([[p, 1, f"v{commit}"] for p in ("x:61", "x:294de2")])
    where = ["--warehouse", str(tmp_path), "--table", "db.t", "--json"]
    found = {}
    for command in ("plan", "inspect"):
        assert main([command, *where]) == 0
        found[command] = json.loads(capsys.readouterr().out)
    assert [each["partition"] for each in found["plan"]["compactions"]] == ["p=a"]
    [note] = found["plan"]["notes"]
    assert note.startswith(r"p=b')M\xe2' bucket 0: cannot be planned")
    shown = sorted(bucket["partition"] for bucket in found["inspect"]["buckets"])
    assert shown == ["p=a", r"p=b')M\xe2'"]
    [failure] = compact(table.path, Strategy.FULL).failures
    assert "the bytes 294de2 are not UTF-8" in failure
    assert {(*file["partition"], file["level"]) for file in table.files()} == {
        ("x:61", 5),
        ("x:294de2", 0),
    }
    table.check()
