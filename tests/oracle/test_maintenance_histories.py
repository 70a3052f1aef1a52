"""A few random tables that Java and we maintain alike; `make maintenance-histories`: thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.judge import Judge
from tests.oracle.maintenance_histories import run_history
from tests.sampling import seeds

SEEDS = seeds(0, 8, 16)


@pytest.mark.parametrize("seed", SEEDS)
def test_java_and_we_leave_the_same(judge: Judge, tmp_path: Path, seed: int) -> None:
    assert run_history(judge, tmp_path, seed)


def test_an_overwrite_that_readers_are_told_keeps_a_tags_files(
    judge: Judge, tmp_path: Path
) -> None:
    assert run_history(judge, tmp_path, 40231)["tags, where we leave more"] == 1
