"""Java Paimon and compactord on the same files in HDFS, where a rename replaces nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compactord.catalog.open import open_catalog
from tests.oracle.contest import PROGRAM, Contest
from tests.oracle.judge import Judge
from tests.oracle.round_trip import CASES, go_round
from tests.store_servers import StoreServer

pytestmark = pytest.mark.hdfs


@pytest.fixture(scope="module")
def lake(started: Callable[[str], StoreServer]) -> StoreServer:
    return started("hdfs")


@pytest.fixture(scope="module")
def java(lake: StoreServer) -> Iterator[Judge]:
    """The judge, whose tables lie in the store; its own class path has Hadoop's client."""
    with Judge(store={}) as judge:
        judge.jvm.load(PROGRAM)
        yield judge


@pytest.mark.parametrize("case", CASES)
def test_java_reads_what_we_compact_writes_on_and_compacts_itself(
    java: Judge, lake: StoreServer, case: str
) -> None:
    go_round(java, lake, case)


def test_java_s_writers_and_compactord_commit_without_a_lock_and_lose_nothing(
    java: Judge, lake: StoreServer
) -> None:
    warehouse = f"{lake.root}/contest"
    options = {"metastore": "filesystem", "warehouse": warehouse}
    # Without a lock Java's users lose many races.
    options["table-default.commit.max-retries"] = "1000"
    contest = Contest(java=java.jvm, options=options, users=["java-1", "java-2"], commits=10)
    contest.create_table()
    ours = open_catalog(warehouse)
    published = contest.run(ours)
    table = ours.open(ours.find_table("db.t"))
    assert table.publisher.excludes_writers
    contest.check_snapshots(table.storage, table.ref.location, published)
    assert dict(java.read(table.ref.location)) == contest.rows()
