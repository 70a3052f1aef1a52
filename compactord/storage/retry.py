"""Bounded retries with exponential backoff: the one place where calls to stores are repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compactord.clock import Clock

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
