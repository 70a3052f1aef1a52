"""`inspect` of a large table shows what needs compaction most, or the partitions asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.plan.table import Strategy
from compactord_demo.writer import create_table
from tests import builders
from tests.unit.cli.warehouses import LOCAL, answered, keyed, said

_FIELDS = (
    DataField(id=0, name="p", type=AtomicType(root=TypeRoot.INT, nullable=False)),
    DataField(id=1, name="k", type=AtomicType(root=TypeRoot.BIGINT, nullable=False)),
)


@pytest.fixture(params=["1", "-1"], ids=["keyed", "append"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """`d.t` with partitions 1, 2, 3 of one bucket, with 2, 6 and 4 files."""
    ref = TableRef(database="d", name="t", location=f"{tmp_path}/d.db/t")
    keys = ["p", "k"] if request.param == "1" else []
    options = {"bucket": request.param, "write-only": "true"}
    create_table(LOCAL, ref, _FIELDS, partition_keys=["p"], primary_keys=keys, options=options)
    writer = builders.writer(LOCAL, ref)
    schema = pa.schema(
        [pa.field("p", pa.int32(), nullable=False), pa.field("k", pa.int64(), nullable=False)]
    )
    for partition, count in ((1, 2), (2, 6), (3, 4)):
        for commit in range(count):
            writer.write(pa.table({"p": [partition], "k": [commit]}, schema))
    return ("inspect", "--warehouse", str(tmp_path), "--table", "d.t")


@pytest.mark.parametrize(
    ("arguments", "partitions"),
    [
        ([], ["p=1", "p=2", "p=3"]),
        (["--worst", "2"], ["p=2", "p=3"]),
        (["--worst", "99"], ["p=2", "p=3", "p=1"]),
        (["--partition", "p=3"], ["p=3"]),
        (["--partition", "p=3", "--partition", "p=1"], ["p=1", "p=3"]),
        (["--partition", "p=3", "--partition", "p=1", "--worst", "1"], ["p=3"]),
        (["--partition", "p=9"], []),
    ],
    ids=lambda value: " ".join(value),
)
def test_only_the_buckets_asked_for_are_shown(
    arguments: list[str],
    partitions: list[str],
    table: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answered(capsys, *table, *arguments)
    assert [bucket["partition"] for bucket in found["buckets"]] == partitions
    assert found["absent_partitions"] == (["p=9"] if "p=9" in arguments else [])


def test_people_are_told_that_there_are_more(
    table: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, *table, "--worst", "1")
    assert "(1 of 3 buckets, most work first)" in text
    assert "no live files in partition p=9" in said(capsys, *table, "--partition", "p=9")
    assert "of 3 buckets" not in said(capsys, *table)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (["--worst", "0"], "expected 1 or more"),
        (["--partition", "q=1"], "not a partition key"),
        (["--partition", "p"], "key=value"),
    ],
)
def test_what_cannot_be_shown_is_said(
    wrong: list[str],
    expected: str,
    table: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert expected in said(capsys, *table, *wrong, code=2)


def test_the_merge_engine_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keyed(tmp_path, "d.sums", commits=6, merge__engine="aggregation")
    at = ("--warehouse", str(tmp_path), "--table", "d.sums")
    assert answered(capsys, "inspect", *at)["merge_engine"] == "aggregation"
    assert "primary-key table, aggregation, schema 0" in said(capsys, "inspect", *at)
    [planned] = answered(capsys, "plan", *at)["compactions"]
    assert planned["merge_engine"] == "aggregation"
    assert "to level 5, aggregation" in said(capsys, "plan", *at)


@pytest.mark.parametrize(
    ("option", "does"),
    [
        ({"changelog-producer": "lookup"}, "looks up what keys have above"),
        ({"deletion-vectors.enabled": "true"}, "marks rows that others replace"),
    ],
)
def test_levels_of_before_a_table_looked_up_or_marked_are_named_until_they_are_merged(
    option: dict[str, str], does: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = {"merge__engine": "aggregation", "fields_v_aggregate__function": "sum"}
    ref = keyed(tmp_path, "d.t", commits=1, **sums)
    builders.compact(LOCAL, ref, strategy=Strategy.FULL)
    # So few rows that they stay on a level of their own.
    builders.writer(LOCAL, ref).write(builders.rows_of([(1, 1)]))
    builders.compact(LOCAL, ref, overrides={"compaction.force-up-level-0": "true"})
    at = ("inspect", "--warehouse", str(tmp_path), "--table", "d.t")

    def told() -> tuple[list[bool], bool]:
        found = answered(capsys, *at)["buckets"]
        text = f"note: 1 bucket: the table {does}"
        return [bucket["lookup_begins"] for bucket in found], text in said(capsys, *at)

    assert told() == ([False], False)
    path = Path(paths.schema_path(ref.root, 0))
    older = json.loads(path.read_text())
    newer = {**older, "id": 1, "options": older["options"] | option}
    path.with_name("schema-1").write_text(json.dumps(newer))
    assert told() == ([True], True)
    builders.compact(LOCAL, ref)
    assert told() == ([False], False)
