"""Thousands of histories of altered tables: `make evolutions`. Prints the seeds that fail."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tests.oracle.judge import Judge
from tests.oracle.test_compact_evolution import history


def main() -> int:
    """0 if all histories agree with Java, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--count", type=int, default=2000, help="how many seeds")
    arguments = parser.parse_args()
    failed = []
    with Judge() as judge, tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.first, arguments.first + arguments.count):
            path = Path(folder) / f"{seed}.db"
            try:
                history(judge, path / "t", seed)
            except Exception as error:  # noqa: BLE001 - the next seed may fail in another way
                failed.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:500]}", flush=True)
            shutil.rmtree(path)
    print(f"{arguments.count - len(failed)} of {arguments.count} histories agree; failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
