"""A Java writer and compactord on one table of a JDBC catalog, under one lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.catalog.open import open_catalog
from tests.databases import run_sql
from tests.oracle.contest import PROGRAM, Contest
from tests.oracle.judge import Judge
from tests.oracle.judge_jar import SQLITE, judge_jar
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm


@pytest.fixture(scope="module")
def java() -> Iterator[JudgeJvm]:
    jvm = JudgeJvm(time_zone="UTC", java_options=JAVA_OPTIONS, jars=[judge_jar(SQLITE)])
    jvm.start()
    jvm.load(PROGRAM)
    yield jvm
    jvm.stop()


@pytest.mark.parametrize("has_partner", [False, True], ids=["alone", "with a second Java writer"])
def test_java_and_compactord_commit_under_one_lock_and_lose_nothing(
    java: JudgeJvm, judge: Judge, tmp_path: Path, *, has_partner: bool
) -> None:
    options = {
        # Java's catalog leaves a statement open whose lock keeps others from writing without WAL.
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db?journal_mode=WAL&busy_timeout=30000",
        "catalog-key": "lake",
        "lock.enabled": "true",
        "lock-check-max-sleep": "100 ms",
    }
    warehouse = str(tmp_path / "wh")
    everything = {"metastore": "jdbc", "warehouse": warehouse, **options}
    users = ["java-1", "java-2"][: 1 + has_partner]
    contest = Contest(java=java, options=everything, users=users, commits=50)
    contest.create_table()
    catalog = open_catalog(warehouse, metastore="jdbc", options=options)
    catalog.check_access()
    assert [table.full_name for table in catalog.list_tables().tables] == ["db.t"]
    contest.nothing_is_lost(catalog, judge)
    assert run_sql(tmp_path / "catalog.db", "SELECT * FROM paimon_distributed_locks") == []


def test_java_finds_the_tables_that_were_registered_as_if_it_had_made_them(
    java: JudgeJvm, judge: Judge, tmp_path: Path
) -> None:
    rows = {}
    for name, by_java in (("java", True), ("ours", False)):
        warehouse, database = f"{tmp_path}/{name}", tmp_path / f"{name}.db"
        options = {
            "uri": f"jdbc:sqlite:{database}?journal_mode=WAL&busy_timeout=30000",
            "lock.enabled": "true",
            "lock-check-max-sleep": "100 ms",
        }
        everything = {"metastore": "jdbc", "warehouse": warehouse, **options}
        files = {"metastore": "filesystem", "warehouse": warehouse}
        contest = Contest(java=java, options=everything, users=["java-1"], commits=10)
        replace(contest, options=everything if by_java else files).create_table()
        if not by_java:
            database.touch()
            registration = open_catalog(warehouse, metastore="jdbc", options=options).registration()
            assert registration is not None
            added = registration.add(registration.files.list_tables().tables)
            assert (len(added.created), added.tables) == (3, ["db.t"])
        rows[name] = [
            sorted(run_sql(database, f"SELECT * FROM {table}"))  # type: ignore[type-var]
            for table in ("paimon_tables", "paimon_database_properties")
        ]
    assert str(rows["java"]).replace("/java/", "/ours/") == str(rows["ours"])
    catalog = open_catalog(warehouse, metastore="jdbc", options=options)
    contest.nothing_is_lost(catalog, judge)
