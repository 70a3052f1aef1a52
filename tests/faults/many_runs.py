"""Run as a program: compactions, expiries and sweeps in which calls fail at random.

    python -m tests.faults.many_runs --runs 1000 --seed 0

All chance comes from the seed of a run, which is printed with what it lost.
"""

from __future__ import annotations

import errno
import random
import sys

from compactord.errors import AccessDenied, StorageError, StoreFull, TransientStorageError
from tests.retained import maintain, retained
from tests.storages import Fault, FaultyStorage, MemoryStorage
from tests.tools.seeds import run_seeds

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


if __name__ == "__main__":
    sys.exit(run_seeds("tests.faults.many_runs", run, AssertionError, StorageError))
