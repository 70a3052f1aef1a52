"""Thousands of histories of altered tables: `python -m tests.oracle.many_evolutions`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.oracle.judge import Judge
from tests.oracle.many_histories import run_histories
from tests.oracle.test_compact_evolution import history


def run(judge: Judge, folder: Path, seed: int) -> None:
    history(judge, folder / "db.db" / "t", seed)


if __name__ == "__main__":
    sys.exit(run_histories("tests.oracle.many_evolutions", run))
