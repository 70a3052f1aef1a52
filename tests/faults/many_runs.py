"""Run as a program: compactions, expiries and sweeps in which calls fail at random.

    python -m tests.faults.many_runs --runs 1000 --seed 0

All chance comes from the seed of a run, which is printed with what it lost.
"""

from __future__ import annotations

import argparse
import errno
import logging
import random
import sys

import structlog

from compactord.errors import AccessDenied, StorageError, StoreFull, TransientStorageError
from tests.retained import maintain, retained
from tests.storages import Fault, FaultyStorage, MemoryStorage

ERRORS: tuple[type[StorageError] | int, ...] = (
    errno.EIO,
    errno.ESTALE,
    errno.ENOENT,
    TransientStorageError,
    AccessDenied,
    StoreFull,
)


def run(seed: int) -> None:
    """Three processes with faults of one kind, then one without. Raises what is wrong."""
    chance = random.Random(seed)
    given, storage = retained(), MemoryStorage()
    table = given.put(storage, "/t")
    for _ in range(3):
        error = chance.choice(ERRORS)
        odds = chance.choice((0.3, 0.1, 0.03, 0.01))
        is_gone = error == errno.ENOENT
        fault = Fault(
            at=1,
            error=error,
            recurs=True,
            after_effect=not is_gone and chance.random() < 0.3,
            # Of a folder nobody says that it is gone.
            concerns=lambda call, odds=odds, is_gone=is_gone: (  # type: ignore[misc]
                chance.random() < odds and not (is_gone and call.method == "list")
            ),
        )
        maintain(FaultyStorage(storage, fault), table)
        given.check(storage, table, f"{error}, {odds}")
    assert maintain(storage, table) == []
    given.check(storage, table, "at the end")
    given.check_tidy(storage, table, "at the end")


def main() -> int:
    """Print the seeds of runs that went wrong; 1 if any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.many_runs")
    parser.add_argument("--runs", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    wrong = 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            run(seed)
        except (AssertionError, StorageError) as error:
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(f"{wrong} of {arguments.runs} runs went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
