"""Several calls to a store at once: where each is a request over a network, and deletions."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from compactord.errors import StorageError
from compactord.storage.base import Storage

T = TypeVar("T")
R = TypeVar("R")

# Requests of one caller under way at once; as many results may wait in memory.
AT_ONCE = 8
# A deletion that takes so long waits; without that one takes a tenth, and threads cost as much.
_WAITING_S = 0.0001


@contextlib.contextmanager
def ahead(storage: Storage, call: Callable[[], R]) -> Iterator[Callable[[], R]]:
    """Begin a call that lies behind a network; its result, or what it raised, is for whoever asks.

    Any other store is called when it is asked for, and not at all if it is not. The context ends
    once the call has.
    """
    if not storage.capabilities.behind_network:
        yield call
        return
    with ThreadPoolExecutor(1, "request") as pool:
        # What the call logs names the table, too.
        yield pool.submit(contextvars.copy_context().run, call).result


def results_of(storage: Storage, call: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """`call` of each item, in order; up to `AT_ONCE` of them ahead if it lies behind a network.

    What the calls log names the table, as in the caller's thread.

    Raises what the first call that failed raises, once those under way have ended.
    """
    if not storage.capabilities.behind_network or len(items) < 2:
        yield from map(call, items)
        return
    pool = ThreadPoolExecutor(min(AT_ONCE, len(items)), "request")

    def begun(item: T) -> Future[R]:
        return pool.submit(contextvars.copy_context().run, call, item)

    try:
        left = iter(items)
        under_way: deque[Future[R]] = deque(map(begun, itertools.islice(left, AT_ONCE)))
        while under_way:
            result = under_way.popleft().result()
            under_way.extend(map(begun, itertools.islice(left, 1)))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def delete_all(storage: Storage, files: Sequence[str]) -> tuple[int, StorageError | None]:
    """Delete files, `AT_ONCE` at a time where a deletion waits: for a network, or a busy disk.

    Returns how many were deleted, and the error of one that was not. Others may have been after it.
    """

    def delete_some(some: Sequence[str]) -> tuple[int, StorageError | None]:
        for number, path in enumerate(some):
            try:
                storage.delete(path)
            except StorageError as error:
                return number, error
        return len(some), None

    begun_s, tried = time.monotonic(), files[:AT_ONCE]
    if storage.capabilities.behind_network:
        tried = ()
    count, error = delete_some(tried)
    rest = files[len(tried) :]
    if error is not None or not rest:
        return count, error
    if tried and time.monotonic() - begun_s < _WAITING_S * len(tried):
        # Threads would cost more time than the deletions.
        done = [delete_some(rest)]
    else:
        shares = [rest[first::AT_ONCE] for first in range(min(AT_ONCE, len(rest)))]
        with ThreadPoolExecutor(len(shares), "delete") as pool:
            done = list(pool.map(delete_some, shares))
    errors = (error for _, error in done if error is not None)
    return count + sum(each for each, _ in done), next(errors, None)
