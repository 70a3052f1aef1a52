"""Java's writers and compactord on tables of Paimon's own REST server."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.catalog.access import TableAccess
from compactord.catalog.rest.access import InternalTable
from compactord.errors import AccessDenied, CatalogUnavailable
from compactord.paimon.snapshot import CommitKind
from tests import builders
from tests.oracle.judge import Judge
from tests.oracle.judge_jar import JudgeJarError
from tests.oracle.judge_jvm import JudgeJvm
from tests.oracle.rest_server import RestServer, java_with_rest, rest_server


@pytest.fixture(scope="module")
def java() -> Iterator[JudgeJvm]:
    with contextlib.ExitStack() as running:
        try:
            yield running.enter_context(java_with_rest())
        except JudgeJarError as error:
            pytest.skip(str(error))


@pytest.fixture
def server(java: JudgeJvm, tmp_path: Path) -> Iterator[RestServer]:
    with rest_server(java, tmp_path / "lake") as running:
        yield running


def test_two_java_writers_and_compactord_commit_through_the_server_and_lose_nothing(
    server: RestServer, judge: Judge
) -> None:
    catalog, contest = server.catalog(), server.contest(commits=20)
    contest.create_table()
    catalog.check_access()
    assert [table.full_name for table in catalog.list_tables().tables] == ["db.t"]
    contest.nothing_is_lost(catalog, judge)
    table = catalog.open(catalog.find_table("db.t"))
    state = table.newest_state().state
    newest = server.newest("t")
    assert [newest[key] for key in ("recordCount", "fileSizeInBytes", "fileCount")] == [
        state.files.row_count,
        state.files.size_bytes,
        state.files.file_count,
    ]


_ROWS = [(n, n, p) for n in range(7) for p in ("a b", "x/y", None)]


def _compact(server: RestServer, name: str, **overrides: str) -> TableAccess:
    catalog = server.catalog()
    access = catalog.open(catalog.find_table(name))
    totals = builders.compact(access.storage, access.ref, access=access, overrides=overrides)
    assert totals.lost_snapshots == []
    return access


def _check_partitions(server: RestServer, name: str, access: TableAccess) -> None:
    """The server's sums of partitions are those of the live files, and its totals, too."""
    live: Counter[str] = Counter()
    state = access.newest_state().state
    for bucket in state.files.bucket_ids():
        for file in state.files.files_in(bucket):
            live["recordCount"] += file.row_count
            live["fileSizeInBytes"] += file.file_size
            live["fileCount"] += 1
    found = json.loads(server.tell("partitions", table=f"db.{name}"))
    assert {one["spec"]["p"] for one in found} == {"a b", "x/y", "__DEFAULT_PARTITION__"}
    newest = server.newest(name)
    for key, total in live.items():
        assert sum(one[key] for one in found) == newest[key] == total
    now_ms = time.time() * 1000
    assert all(now_ms - 600_000 < one["lastFileCreationTime"] <= now_ms + 1000 for one in found)


def test_java_sees_our_commits_in_its_numbers_and_writes_on(
    server: RestServer, judge: Judge
) -> None:
    server.create_table("t")
    server.write("t", _ROWS)
    access = _compact(server, "db.t")
    newest = access.newest_state().state.snapshot
    assert newest is not None
    assert newest.commit_kind is CommitKind.COMPACT
    _check_partitions(server, "t", access)
    server.write("t", _ROWS[:8])
    assert Counter(judge.read(access.ref.location)) == Counter((*_ROWS, *_ROWS[:8]))
    _compact(server, "db.t")
    _check_partitions(server, "t", access)


def test_the_server_takes_marks_of_partitions_where_tables_ask_for_it(server: RestServer) -> None:
    server.create_table("asks", **{"metastore.partitioned-table": "true"})
    server.create_table("does_not")
    catalog = server.catalog()
    asks, does_not = (catalog.open(catalog.find_table(f"db.{t}")) for t in ("asks", "does_not"))
    assert asks.events is not None
    assert does_not.events is not None
    server.write("asks", _ROWS[:2])
    asks.events.mark_done({"p": "a b"})
    # Java's server for tests forgets them.
    assert asks.events.are_done([{"p": "a b"}, {"p": "never"}]) == [False, False]
    with pytest.raises(CatalogUnavailable, match="the server answered 501"):
        does_not.events.mark_done({"p": "a b"})


def test_a_commit_that_took_effect_and_was_answered_with_an_error_counts_once(
    server: RestServer, judge: Judge
) -> None:
    server.create_table("t")
    server.write("t", _ROWS)
    server.tell("failAfterCommit")
    access = _compact(server, "db.t")
    _check_partitions(server, "t", access)
    newest = access.newest_state().state.snapshot
    assert newest is not None
    assert newest.id == len(_ROWS) + 1
    assert Counter(judge.read(access.ref.location)) == Counter(_ROWS)


def test_a_compaction_that_was_rolled_back_is_done_again(server: RestServer, judge: Judge) -> None:
    server.create_table("t")
    server.write("t", _ROWS)
    access = _compact(server, "db.t")
    known = access.newest_state().state
    server.tell("rollBack", catalog=server.java_options, name="t", id=len(_ROWS))
    server.write("t", _ROWS[:1])
    refreshed = access.refreshed_state(known)
    assert refreshed.lost == known.snapshot
    assert refreshed.state.files.file_count == len(_ROWS) + 1
    _compact(server, "db.t")
    assert Counter(judge.read(access.ref.location)) == Counter((*_ROWS, *_ROWS[:1]))


def test_an_external_table_and_others_beside_it(
    server: RestServer, judge: Judge, tmp_path: Path
) -> None:
    server.create_table("e", path=str(tmp_path / "elsewhere"))
    server.create_table("forbidden")
    server.create_table("format", type="format-table")
    server.write("e", _ROWS)
    server.tell("forbid", table="db.forbidden")
    catalog = server.catalog()
    names = [table.full_name for table in catalog.list_tables().tables]
    assert names == ["db.e", "db.forbidden"]
    with pytest.raises(AccessDenied, match="403"):
        catalog.open(catalog.list_tables().tables[1])
    access = _compact(server, "db.e")
    assert not isinstance(access, InternalTable)
    assert access.ref.location == str(tmp_path / "elsewhere")
    assert access.newest_state().state.files.file_count == 3
    server.write("e", _ROWS[:4])
    assert Counter(judge.read(access.ref.location)) == Counter((*_ROWS, *_ROWS[:4]))
