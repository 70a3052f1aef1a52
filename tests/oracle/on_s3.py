"""Java Paimon on a test server's S3, through Hadoop's S3A."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from compactord.catalog.open import open_catalog
from compactord.commit.publish import LockedPublisher
from tests.databases import run_sql
from tests.oracle.contest import PROGRAM, Contest
from tests.oracle.judge import Judge
from tests.oracle.judge_jar import SQLITE, judge_jar, s3a_jars
from tests.store_servers import StoreServer, s3


def s3a(server: StoreServer) -> StoreServer:
    """The bucket under the scheme by which Java reaches it through Hadoop."""
    return s3(server.port, "s3a")


@contextlib.contextmanager
def judge_on(lake: StoreServer) -> Iterator[Judge]:
    """A judge whose tables lie in the store; `JudgeJarError` where its jars cannot be had."""
    jars = [judge_jar(SQLITE), *s3a_jars()]
    with Judge(jars=jars, store=hadoop_options(lake)) as judge:
        judge.jvm.load(PROGRAM)
        yield judge


def hadoop_options(lake: StoreServer) -> dict[str, str]:
    """The options of a Java catalog that reaches the store through Hadoop."""
    return {
        "hadoop.fs.s3a.endpoint": lake.options["s3.endpoint"],
        "hadoop.fs.s3a.endpoint.region": "us-east-1",
        "hadoop.fs.s3a.access.key": lake.options["s3.access-key"],
        "hadoop.fs.s3a.secret.key": lake.options["s3.secret-key"],
        "hadoop.fs.s3a.path.style.access": "true",
        "hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


def contest_under_lock(
    judge: Judge, lake: StoreServer, folder: Path, *, users: int, commits: int
) -> list[int]:
    """Java's users and ours commit at once under a JDBC catalog's lock: nothing is lost.

    The catalog's database is made in `folder`, the table in a warehouse of its name. Returns the
    snapshots that we published.
    """
    catalog = {
        # Java's catalog leaves a statement open whose lock keeps others from writing without WAL.
        "uri": f"jdbc:sqlite:{folder}/catalog.db?journal_mode=WAL&busy_timeout=30000",
        "catalog-key": "lake",
        # Nothing turns the lock on: on object stores it is, for both.
        "lock-check-max-sleep": "100 ms",
    }
    warehouse = f"{lake.root}/{folder.name}"
    contest = Contest(
        java=judge.jvm,
        options={"metastore": "jdbc", "warehouse": warehouse, **catalog, **hadoop_options(lake)},
        users=["java-1", "java-2"][:users],
        commits=commits,
    )
    contest.create_table()
    ours = open_catalog(warehouse, metastore="jdbc", options={**catalog, **lake.options})
    assert isinstance(ours.open(ours.find_table("db.t")).publisher, LockedPublisher)
    published = contest.nothing_is_lost(ours, judge)
    assert run_sql(folder / "catalog.db", "SELECT * FROM paimon_distributed_locks") == []
    return published
