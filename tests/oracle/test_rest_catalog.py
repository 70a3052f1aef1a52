"""Java's writers and compactord on tables of Paimon's own REST server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.contest import Contest
from tests.oracle.judge import Judge
from tests.oracle.judge_jar import JudgeJarError
from tests.oracle.judge_jvm import JudgeJvm
from tests.oracle.rest_server import RestServer, java_with_rest, rest_server


@pytest.fixture(scope="module")
def java() -> Iterator[JudgeJvm]:
    try:
        running = java_with_rest()
    except JudgeJarError as error:
        pytest.skip(str(error))
    with running as jvm:
        yield jvm


@pytest.fixture
def server(java: JudgeJvm, tmp_path: Path) -> Iterator[RestServer]:
    with rest_server(java, tmp_path / "lake") as running:
        yield running


@pytest.mark.parametrize("has_partner", [False, True], ids=["alone", "with a second Java writer"])
def test_java_and_compactord_commit_through_the_server_and_lose_nothing(
    server: RestServer, judge: Judge, *, has_partner: bool
) -> None:
    users = ["java-1", "java-2"][: 1 + has_partner]
    contest = Contest(java=server.java, options=server.java_options, users=users, commits=30)
    contest.create_table()
    catalog = server.catalog()
    catalog.check_access()
    assert [table.full_name for table in catalog.list_tables().tables] == ["db.t"]
    published = contest.run(catalog)
    table = catalog.open(catalog.find_table("db.t"))
    contest.check_snapshots(table.storage, table.ref.location, published)
    assert dict(judge.read(table.ref.location)) == contest.rows()
    state = table.newest_state().state
    newest = server.newest("t")
    assert [newest[key] for key in ("recordCount", "fileSizeInBytes", "fileCount")] == [
        state.files.row_count,
        state.files.size_bytes,
        state.files.file_count,
    ]
