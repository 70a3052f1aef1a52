"""A Java writer and compactord on one table of a JDBC catalog, under one lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.catalog.open import open_catalog
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.storage.local import LocalStorage
from tests import builders
from tests.databases import run_sql
from tests.oracle.judge import Judge
from tests.oracle.judge_jar import SQLITE, judge_jar
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm

_COMMITS, _KEYS = 50, 40


@pytest.fixture(scope="module")
def java() -> Iterator[JudgeJvm]:
    jvm = JudgeJvm(time_zone="UTC", java_options=JAVA_OPTIONS, jars=[judge_jar(SQLITE)])
    jvm.start()
    jvm.load(Path(__file__).with_name("JdbcWriter.java"))
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
    java.call("JdbcWriter", "createTable", {"catalog": everything})
    users = ["java-1", "java-2"][: 1 + has_partner]
    failures: list[BaseException] = []

    def write(user: str) -> None:
        arguments = {"catalog": everything, "user": user, "commits": _COMMITS, "keys": _KEYS}
        try:
            java.call("JdbcWriter", "write", arguments)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    catalog = open_catalog(warehouse, metastore="jdbc", options=options)
    catalog.check_access()
    assert [table.full_name for table in catalog.list_tables().tables] == ["db.t"]
    table = catalog.find_table("db.t")
    threads = [threading.Thread(target=write, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    published: list[int] = []
    while any(thread.is_alive() for thread in threads):
        totals = builders.compact(
            catalog.storage,
            table,
            publisher=catalog.publisher,
            overrides={"num-sorted-run.compaction-trigger": "2"},
        )
        assert totals.lost_snapshots == []
        published += totals.snapshots
    for thread in threads:
        thread.join()
    assert failures == []
    _check_snapshots(table.location, users, published)
    # Of each key the last commit that did not leave it out; each user has keys of its own.
    last = {key: max(n for n in range(_COMMITS) if (key + n) % 3) for key in range(_KEYS)}
    expected = {1000 * user + key: n for user in range(len(users)) for key, n in last.items()}
    assert dict(judge.read(table.location)) == expected
    assert run_sql(tmp_path / "catalog.db", "SELECT * FROM paimon_distributed_locks") == []


def _check_snapshots(location: str, users: list[str], published: list[int]) -> None:
    """Ids without gaps, every commit of every writer once, and all of ours still ours."""
    storage = LocalStorage()
    ids = sorted(snapshot_ids(storage, location))
    assert ids == list(range(1, len(ids) + 1))
    found = [read_snapshot(storage, location, one) for one in ids]
    for user in users:
        identifiers = [one.commit_identifier for one in found if one.commit_user == user]
        assert identifiers == list(range(_COMMITS))
    others = [one for one in found if one.commit_user not in users]
    assert [one.id for one in others] == published
    assert all(one.commit_kind is CommitKind.COMPACT for one in others)
    assert len(published) >= 5, "both committed at the same time"
