"""The program of a random history beside Java that is repeated with many seeds."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog

from tests.oracle.judge import Judge


def run_histories(module: str, run: Callable[[Judge, Path, int], object]) -> int:
    """Run it with the seeds of the command line, each in a folder of its own; 1 if any has raised.

    Prints these seeds; `module` is what `python -m` is told. One JVM serves all.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--histories", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first one")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    failed = []
    with Judge() as judge:
        for done, seed in enumerate(range(asked.seed, asked.seed + asked.histories), 1):
            with tempfile.TemporaryDirectory(prefix="compactord-") as folder:
                try:
                    run(judge, Path(folder), seed)
                except Exception as error:  # noqa: BLE001 - the other seeds go on
                    failed.append(seed)
                    print(f"seed {seed}: {type(error).__name__}: {error}"[:4000], flush=True)
            if done % 100 == 0:
                print(f"{done} of {asked.histories} histories, failed: {len(failed)}", flush=True)
    print(f"{asked.histories} histories, failed seeds: {failed}")
    return 1 if failed else 0
