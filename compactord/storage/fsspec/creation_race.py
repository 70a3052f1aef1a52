"""Whether a store creates a name only once, found out by trying."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from compactord import ids
from compactord.errors import CompactordError, UnsafeStore
from compactord.storage.base import Creation

RACERS, NAMES = 8, 20
_START_SECONDS = 60
# Creates an object with this content unless there is one.
Create = Callable[[str, bytes], Creation]


def prove_create_if_absent(
    connect: Callable[[], Create], delete: Callable[[str], None], folder: str
) -> None:
    """Let eight connections create 20 names in `folder` at the same time, and remove them.

    Raises `UnsafeStore` when one of the names had not exactly one winner; what `connect` and the
    creations raise.
    """
    own = f"{folder}/.compactord-race-{ids.random_uuid()}"
    start = threading.Barrier(RACERS)

    def race(number: int, create: Create) -> list[Creation]:
        outcomes = []
        for name in range(NAMES):
            start.wait(_START_SECONDS)
            # All different, as an outcome may be found out by reading back.
            outcomes.append(create(f"{own}-{name}", f"{number} of {RACERS}".encode()))
        return outcomes

    try:
        racers = [connect() for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            runs = [pool.submit(_or_abort, race, n, racers[n], start) for n in range(RACERS)]
        errors = [error for run in runs if (error := run.exception()) is not None]
        # Those that waited for one that failed only say that they waited.
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        outcomes = [run.result() for run in runs]
    finally:
        for name in range(NAMES):
            with contextlib.suppress(CompactordError):
                delete(f"{own}-{name}")
    for name in range(NAMES):
        winners = sum(each[name] is Creation.CREATED for each in outcomes)
        if winners != 1:
            raise UnsafeStore(
                own,
                f"of {RACERS} that created one name at the same time {winners} succeeded, so two "
                "writers could replace each other's snapshots; put the warehouse into another "
                "store",
            )


def _or_abort(
    race: Callable[[int, Create], list[Creation]],
    number: int,
    create: Create,
    start: threading.Barrier,
) -> list[Creation]:
    """One that fails does not let the others wait."""
    try:
        return race(number, create)
    except BaseException:
        start.abort()
        raise
