"""Several calls to a store at once: where each is a request over a network, and deletions."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from compactord.storage.base import Storage

T = TypeVar("T")
R = TypeVar("R")

# Requests of one caller under way at once; as many results may wait in memory.
AT_ONCE = 8


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


def results_of(
    storage: Storage, call: Callable[[T], R], items: Sequence[T], *, on_disks: bool = False
) -> Iterator[R]:
    """`call` of each item, in order; up to `AT_ONCE` of them ahead if it lies behind a network.

    `on_disks`: on others as well. What the calls log names the table, as in the caller's thread.

    Raises what the first call that failed raises, once those under way have ended.
    """
    if not (storage.capabilities.behind_network or on_disks) or len(items) < 2:
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


def done_with(
    storage: Storage,
    call: Callable[[T], object],
    items: Sequence[T],
    *,
    on_disks: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[T]:
    """The items for which `call` has succeeded, several at once as `results_of`.

    After an error, or once `is_stopped`, nothing more begins. Raises the first error once all that
    was done has been told.
    """
    errors: list[Exception] = []

    def done_of(some: Sequence[T]) -> Sequence[T]:
        for number, item in enumerate(some):
            if errors or is_stopped():
                return some[:number]
            try:
                call(item)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
                return some[:number]
        return some

    # Handing over an item takes as long as deleting a file on a disk: there a few go together.
    size = max(1, len(items) // (2 * AT_ONCE)) if on_disks else 1
    shares = [items[first : first + size] for first in range(0, len(items), size)]
    for done in results_of(storage, done_of, shares, on_disks=on_disks):
        yield from done
    if errors:
        raise errors[0]
