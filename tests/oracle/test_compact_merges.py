"""Tables of merge engines that make new rows are compacted as Java compacts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.judge import Judge
from tests.oracle.merging import run_history

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_tables_are_merged_as_in_java(judge: Judge, tmp_path: Path, seed: int) -> None:
    run_history(judge, tmp_path / "db.db" / "t", seed)
