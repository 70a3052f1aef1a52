"""Records that expire while they are compacted, beside Java's compaction of a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_same_files, canonical
from tests.oracle.expiring import EXPIRE_S, EXPIRING, OLD_S, TYPES, YOUNG_S, at
from tests.oracle.judge import Judge


def expiring(judge: Judge, path: Path, kind: str, **options: str) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("k", "INT NOT NULL"), ("t", TYPES[kind][0]), ("v", "INT")),
        primary_key=("k",),
        options={"bucket": "1", **EXPIRING, **options},
    ).create()


def compared(table: LiveTable, strategy: Strategy, name: str = "java") -> list[str]:
    """We compact the table, Java a copy: the same rows and files, which are returned."""
    java = table.copy(name)
    table.settle(strategy)
    java.java_settle(full=strategy is Strategy.FULL)
    rows = canonical(table.judge.read(table.path))
    assert rows == canonical(table.judge.read(java.path))
    assert_same_files(table, java)
    return rows


@pytest.mark.parametrize("kind", TYPES)
def test_records_expire_by_each_type_of_time(judge: Judge, tmp_path: Path, kind: str) -> None:
    table = expiring(judge, tmp_path / "db.db" / "t", kind)
    old, young = at(kind, OLD_S), at(kind, YOUNG_S)
    judge.write(table.path, [(1, young, 1), (2, old, 1), (3, None, 1), (4, young, 1), (5, old, 1)])
    judge.write(table.path, [(4, old, 2), (5, young, 2), (6, old, 2)])
    judge.write(table.path, [(1, young, 3)], ["-D"])
    # The expired newest record of key 4 uncovers the one before.
    assert compared(table, Strategy.FULL) == canonical([(3, None, 1), (4, young, 1), (5, young, 2)])
    assert not table.settle(Strategy.FULL).snapshots


@pytest.mark.parametrize("dense", ["true", "false"])
def test_only_files_with_expired_records_are_rewritten(
    judge: Judge, tmp_path: Path, dense: str
) -> None:
    table = expiring(judge, tmp_path / "db.db" / "t", "int")
    judge.alter_options(table.path, {"metadata.stats-dense-store": dense})
    young, soon = at("int", YOUNG_S), at("int", EXPIRE_S // 2)
    for first in (0, 100):
        for half in range(2):
            options = {"target-file-size": "1 kb"}
            rows = [(first + k, soon if first else young, half) for k in range(50)]
            judge.write(table.path, rows, options=options)
        judge.compact(table.path, full=True, options={"target-file-size": "1 b"})
    before = {file["file_name"] for file in table.files()}
    assert len(before) > 1
    assert not table.settle(Strategy.FULL).snapshots
    # By a shorter time the files of the second half have expired.
    judge.alter_options(table.path, {"record-level.expire-time": f"{EXPIRE_S // 4} s"})
    compared(table, Strategy.FULL)
    assert {row[0] for row in judge.read(table.path)} == set(range(50))
    after = {file["file_name"] for file in table.files()}
    assert after < before
    assert not table.settle(Strategy.FULL).snapshots


def test_times_of_files_of_older_schemas_are_cast(judge: Judge, tmp_path: Path) -> None:
    table = expiring(judge, tmp_path / "db.db" / "t", "int")
    old, young = at("int", OLD_S), at("int", YOUNG_S)
    judge.alter_options(table.path, {"record-level.expire-time": "100 d"})
    judge.write(table.path, [(1, young, 1), (2, old, 1)])
    judge.compact(table.path, full=True)
    judge.alter(
        table.path,
        {"change": "type", "column": ["t"], "type": "BIGINT"},
        {"change": "move_first", "column": ["v"]},
        {"change": "set_option", "key": "record-level.expire-time", "value": f"{EXPIRE_S} s"},
    )
    table.settle(Strategy.FULL)
    assert judge.read(table.path) == [(1, 1, young)]
