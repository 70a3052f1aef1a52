"""Java Paimon and compactord on the same objects, Java through Hadoop's S3A."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.oracle.judge import Judge
from tests.oracle.judge_jar import JudgeJarError
from tests.oracle.on_s3 import contest_under_lock, judge_on, s3a
from tests.oracle.round_trip import go_round
from tests.store_servers import StoreServer


@pytest.fixture(scope="module")
def lake(started: Callable[[str], StoreServer]) -> StoreServer:
    return s3a(started("moto"))


@pytest.fixture(scope="module")
def java(lake: StoreServer) -> Iterator[Judge]:
    """The judge, whose tables lie in the store."""
    with contextlib.ExitStack() as running:
        try:
            yield running.enter_context(judge_on(lake))
        except JudgeJarError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("case", ["keyed-minor", "appended-minor"])
def test_java_reads_what_we_compact_writes_on_and_compacts_itself(
    java: Judge, lake: StoreServer, case: str
) -> None:
    go_round(java, lake, case)


def test_java_s_writers_and_compactord_commit_under_one_lock_and_lose_nothing(
    java: Judge, lake: StoreServer, tmp_path: Path
) -> None:
    """More commits: `make contest`."""
    contest_under_lock(java, lake, tmp_path, users=2, commits=10)
