"""Attempts at calls of stores: each ends in time, whatever is called, and may be repeated.

This is the one place where they are repeated: bounded, with exponential backoff.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from compactord.clock import Clock
from compactord.errors import StorageError, TransientStorageError
from compactord.storage.breaker import Breaker, attempted

T = TypeVar("T")
# Of one store and process.
CALLS_AT_ONCE = 64
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long a call is repeated.

    The n-th pause lasts between half and all of `0.1 * 2**n` seconds, at most 5. An attempt that
    begins `give_up_after_s` seconds or more after the first one is the last. `jitter` returns
    numbers from 0 to 1.
    """

    clock: Clock
    attempts_max: int = 7
    give_up_after_s: float = 90.0
    jitter: Callable[[], float] = random.random

    def attempts(self) -> Iterator[bool]:
        """One item for each attempt, after its pause: whether it is the last one."""
        started = self.clock.monotonic_s()
        for number in range(self.attempts_max):
            delay_s = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2**number)
            spent_s = self.clock.monotonic_s() - started
            is_last = number == self.attempts_max - 1 or spent_s + delay_s > self.give_up_after_s
            yield is_last
            if is_last:
                return
            self.clock.sleep(delay_s * (0.5 + self.jitter() / 2))


class TimedCalls:
    """At most `at_once` calls at a time; one that does not return keeps its place and its thread.

    The threads keep no process from ending.
    """

    def __init__(self, at_once: int) -> None:
        self._free = threading.BoundedSemaphore(at_once)

    def within(self, seconds: float, call: Callable[[], T]) -> T:
        """What `call` returns or raises; `TimeoutError` when it has done neither in time."""
        if not self._free.acquire(timeout=seconds):
            raise TimeoutError(f"no answer to earlier calls for {seconds:.0f} s")
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the border of the thread
                future.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="timed-call", daemon=True).start()
        if wait([future], seconds).not_done:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return future.result()


class TimedAttempts:
    """Attempts at calls of one store; the breaker, if there is one, may refuse each.

    `named` is entered with path and action, and raises the library's errors as ours.
    """

    def __init__(
        self,
        breaker: Breaker | None,
        named: Callable[[str, str], AbstractContextManager[None]],
    ) -> None:
        self.breaker = breaker
        self._named = named
        self._calls = TimedCalls(CALLS_AT_ONCE)

    def one(self, path: str, action: str, call: Callable[[], T], seconds: float) -> T:
        """One attempt, for so long. Raises what `named` does, and `StoreSilent`."""

        def attempt() -> T:
            with self._named(path, action):
                return self._calls.within(seconds, call)

        return attempted(
            self.breaker, path, attempt, silent=TransientStorageError, answers=StorageError
        )
