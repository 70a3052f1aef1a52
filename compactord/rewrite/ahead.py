"""Work beside the merge: one thread that decodes ahead, one that encodes behind.

Arrow releases the interpreter's lock in both. Neither thread is started for small tasks, where it
costs more than it brings, nor where there is one core.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Inputs below this many bytes are done before a thread has paid for itself.
MIN_BYTES = 8 << 20


def use_threads(size_bytes: int) -> bool:
    return size_bytes >= MIN_BYTES and usable_cores() > 1


def usable_cores() -> int:
    """Cores that this process may run on; not what Arrow's pools were told by the environment."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Decoding:
    """Makes iterators run one item ahead of their consumer, all in one thread.

    Beside the item in use, one item per iterator is alive.
    """

    def __init__(self, *, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(1, "decode") if threaded else None

    def __enter__(self) -> Decoding:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def ahead(self, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """The same items; what `items` raises is raised here."""
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
            # The iterator must not be running when it is closed.
            if not future.cancel():
                with contextlib.suppress(Exception):
                    future.result()
            items.close()


class Encoding:
    """Runs one job at a time behind the caller; without a thread, at once."""

    def __init__(self, *, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(1, "encode") if threaded else None
        self._running: Future[None] | None = None

    def __enter__(self) -> Encoding:
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread; an error of a job that nobody waited for is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, job: Callable[[], None]) -> None:
        """Start a job when the last one is done; raises what the last one raised."""
        self.wait()
        if self._pool is None:
            job()
        else:
            self._running = self._pool.submit(job)

    def wait(self) -> None:
        """Let the running job end; raises what it raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
