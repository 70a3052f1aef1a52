"""Parallel work during a merge: one thread decodes the next batches, one encodes finished rows.

Arrow releases the interpreter's lock in both. The threads are not started for small
subcompactions, where they cost more than they save, nor if there is only one core.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S", bound="_OneThread")

# For inputs below this many bytes, threads cost more than they save.
MIN_BYTES = 8 << 20


def use_threads(size_bytes: int) -> bool:
    """Whether two more threads save time for inputs of this many bytes."""
    return size_bytes >= MIN_BYTES and usable_cores() > 1


def usable_cores() -> int:
    """The number of cores that this process may run on; Arrow's thread pools may differ."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _OneThread:
    """A thread that ends with the context; without `threaded` there is none."""

    def __init__(self, *, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(1, type(self).__name__.lower()) if threaded else None

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancels jobs that no caller waits for, and ignores their errors."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


class Decoding(_OneThread):
    """Computes the next item of iterators before it is needed, all in one thread.

    In addition to the item in use, one item per iterator is in memory.
    """

    def ahead(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yield the same items. Errors of `items` are raised to the consumer."""
        return items if self._pool is None else self._ahead(self._pool, items)

    def _ahead(
        self, pool: ThreadPoolExecutor, items: Generator[T, None, None]
    ) -> Generator[T, None, None]:
        future = pool.submit(next, items, None)
        try:
            while (item := future.result()) is not None:
                future = pool.submit(next, items, None)
                yield item
        finally:
            # The thread must not run the iterator while it is closed.
            if not future.cancel():
                with contextlib.suppress(Exception):
                    future.result()
            items.close()


class Encoding(_OneThread):
    """Runs one job at a time in a second thread; if not `threaded`, in the caller's."""

    _running: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job after the previous one. Raises the previous job's error."""
        self.wait()
        if self._pool is None:
            job()
        else:
            self._running = self._pool.submit(job)

    def wait(self) -> None:
        """Wait for the running job. Raises its error."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
