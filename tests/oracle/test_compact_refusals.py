"""Features that we refuse: Java makes the table, compact names the feature and touches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactord.errors import UnsupportedTable
from compactord.plan.table import Strategy
from tests.oracle.differential import compact, folder_digest
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import TypeName


@dataclass(frozen=True)
class Refused:
    """A table of Java's; `named` must be in the reason."""

    named: str
    options: Mapping[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ("k",)
    partition_by: tuple[str, ...] = ()
    column: TypeName = "BIGINT"
    is_filled: bool = True


APPEND = {"bucket": "-1"}
CASES: dict[str, Refused] = {
    "postponed-buckets": Refused("bucket=-2", {"bucket": "-2"}, is_filled=False),
    "local-time-in-orc": Refused(
        "WITH LOCAL TIME ZONE",
        {**APPEND, "file.format": "orc"},
        key=(),
        column="TIMESTAMP(3) WITH LOCAL TIME ZONE",
        is_filled=False,
    ),
    "csv": Refused("file.format=csv", {"file.format": "csv"}, is_filled=False),
    "csv-per-level": Refused(
        "file.format.per.level", {"file.format.per.level": "0:csv,5:parquet"}, is_filled=False
    ),
    "bloom-filter": Refused("file-index.bloom-filter", {"file-index.bloom-filter.columns": "v"}),
    "row-tracking": Refused(
        "row-tracking.enabled", {**APPEND, "row-tracking.enabled": "true"}, key=()
    ),
    "data-evolution": Refused(
        "data-evolution.enabled",
        {**APPEND, "row-tracking.enabled": "true", "data-evolution.enabled": "true"},
        key=(),
    ),
    "incremental-clustering": Refused(
        "clustering.incremental",
        {**APPEND, "clustering.columns": "v", "clustering.incremental": "true"},
        key=(),
    ),
    "iceberg": Refused(
        "metadata.iceberg.storage", {"metadata.iceberg.storage": "table-location"}, is_filled=False
    ),
    "data-folder": Refused("data-file.path-directory", {"data-file.path-directory": "data"}),
    "variant": Refused("VARIANT", APPEND, key=(), column="VARIANT", is_filled=False),
    "binary-partition": Refused(
        "partition column v is binary",
        APPEND,
        key=(),
        partition_by=("v",),
        column="BYTES",
        is_filled=False,
    ),
    "shredded-map": Refused(
        "map.storage-layout",
        {**APPEND, "fields.v.map.storage-layout": "shared-shredding"},
        key=(),
        column={"type": "MAP", "key": "STRING NOT NULL", "value": "INT"},
        is_filled=False,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strategy", [Strategy.MINOR, Strategy.FULL])
def test_a_table_with_a_refused_feature_is_named_and_left_alone(
    judge: Judge, tmp_path: Path, name: str, strategy: Strategy
) -> None:
    case = CASES[name]
    path = tmp_path / "db.db" / "t"
    judge.create_table(
        path,
        [("k", "INT NOT NULL"), ("v", case.column)],
        primary_key=case.key,
        partition_by=case.partition_by,
        options={"bucket": "1", "write-only": "true", **case.options},
    )
    if case.is_filled:
        for commit in range(6):
            judge.write(path, [[k, commit] for k in range(3)])
    before = folder_digest(path)
    with pytest.raises(UnsupportedTable) as refused:
        compact(path, strategy)
    assert any(case.named in reason for reason in refused.value.reasons), refused.value.reasons
    assert refused.value.table == "db.t"
    assert folder_digest(path) == before


def test_files_whose_format_does_not_hold_a_column_are_left_alone(
    judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "t"
    options = {"bucket": "1", "write-only": "true", "file.format": "orc"}
    columns: list[tuple[str, TypeName]] = [("k", "INT NOT NULL"), ("t", "TIMESTAMP_LTZ(3)")]
    judge.create_table(path, columns, primary_key=["k"], options=options)
    for _ in range(6):
        judge.write(path, [[1, "0:0"]])
    judge.alter_options(path, {"file.format": "parquet"})
    before = folder_digest(path)
    with pytest.raises(UnsupportedTable, match="TIME ZONE"):
        compact(path, Strategy.FULL)
    assert folder_digest(path) == before


def test_deletion_vectors_that_were_switched_off_are_left_alone(
    judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "t"
    options = {"bucket": "-1", "deletion-vectors.enabled": "true"}
    judge.create_table(path, [("k", "INT")], options=options)
    for _ in range(6):
        judge.write(path, [[1], [2]])
    judge.delete_positions(path, {judge.files(path)[0]["file_name"]: [0]})
    judge.alter_options(path, {"deletion-vectors.modifiable": "true"})
    judge.alter_options(path, {"deletion-vectors.enabled": "false"})
    before = folder_digest(path)
    with pytest.raises(UnsupportedTable, match="DELETION_VECTORS"):
        compact(path, Strategy.FULL)
    assert folder_digest(path) == before
