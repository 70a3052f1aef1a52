"""Thousands of random tables and histories: `python -m tests.oracle.merge_histories`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.oracle.append_histories import run_append_history
from tests.oracle.judge import Judge
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


def run(judge: Judge, path: Path, seed: int) -> None:
    turn = seed % (len(OPTIONS) + 1)
    if turn == len(OPTIONS):
        run_append_history(judge, path, seed)
    else:
        run_history(judge, path, seed, OPTIONS[turn](seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    asked = parser.parse_args()
    failed = []
    with Judge() as judge:
        for seed in range(asked.seed, asked.seed + asked.histories):
            with tempfile.TemporaryDirectory(prefix="compactord-") as folder:
                try:
                    run(judge, Path(folder) / "db.db" / "t", seed)
                except Exception as error:  # noqa: BLE001 - the other seeds go on
                    failed.append(seed)
                    print(f"seed {seed}: {type(error).__name__}: {error}"[:4000], flush=True)
            done = seed - asked.seed + 1
            if done % 100 == 0:
                print(f"{done} of {asked.histories} histories, failed: {len(failed)}", flush=True)
    print(f"{asked.histories} histories, failed seeds: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
