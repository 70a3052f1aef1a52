"""Thousands of random tables and histories: `python -m tests.oracle.merge_histories`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.oracle.append_histories import run_append_history
from tests.oracle.judge import Judge
from tests.oracle.many_histories import run_histories
from tests.oracle.merging import (
    expiring_options,
    lookup_options,
    producer_options,
    run_history,
    vector_options,
)

# Tables without, with a changelog of full compactions, those that look up, those with deletion
# vectors, those whose records expire take turns, and append tables with vectors.
OPTIONS = (lambda _: {}, producer_options, lookup_options, vector_options, expiring_options)


def run(judge: Judge, folder: Path, seed: int) -> None:
    turn, path = seed % (len(OPTIONS) + 1), folder / "db.db" / "t"
    if turn == len(OPTIONS):
        run_append_history(judge, path, seed)
    else:
        run_history(judge, path, seed, OPTIONS[turn](seed))


if __name__ == "__main__":
    sys.exit(run_histories("tests.oracle.merge_histories", run))
