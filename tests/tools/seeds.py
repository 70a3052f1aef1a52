"""The program of a random run that is repeated with many seeds. A module of its own: several such
runs share it.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

import structlog


def run_seeds(module: str, run: Callable[[int], object], *errors: type[Exception]) -> int:
    """Run it with the seeds of the command line. Returns 1 if any run raised one of these errors.

    Prints these seeds; `module` is the argument of `python -m`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--runs", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    wrong = 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            run(seed)
        except errors as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{wrong} of {arguments.runs} runs went wrong")
    return 1 if wrong else 0
