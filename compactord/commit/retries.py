"""How often a commit is tried, and the pauses between, as the options `commit.*` say."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from compactord.clock import Clock
from compactord.paimon.options.table_options import CommitOptions

# How long a catalog that is down is waited for where the table has no `commit.timeout`: the restart
# of a database, and less than after what a job counts as hung.
_OUTAGE_MS_MAX = 5 * 60_000


class Retries:
    """Yields the numbers of attempts: 1, 2, …; pauses double and have jitter.

    `commit.max-retries` counts lost races and failures of the store. Attempts for which the catalog
    was down do not count: they come and go within milliseconds, so that ten of them would not
    outlast the restart of a database. `commit.timeout` ends them, or five minutes without it.
    """

    def __init__(self, options: CommitOptions, clock: Clock, jitter: random.Random) -> None:
        self._options = options
        self._clock = clock
        self._jitter = jitter
        # Whether the attempt under way came to nothing because the catalog is down.
        self.is_down = False

    def __iter__(self) -> Iterator[int]:
        options = self._options
        start_ms = down_since_ms = self._monotonic_ms()
        lost, outages = 0, 0
        for attempt in itertools.count(1):
            self.is_down = False
            yield attempt
            now_ms = self._monotonic_ms()
            if options.timeout_ms is not None and now_ms - start_ms > options.timeout_ms:
                return
            if self.is_down:
                down_since_ms = down_since_ms if outages else now_ms
                if options.timeout_ms is None and now_ms - down_since_ms > _OUTAGE_MS_MAX:
                    return
                self._pause(outages)
                outages += 1
            # A negative number means no retry, as in Java: the first attempt is always made.
            elif lost >= options.max_retries:
                return
            else:
                self._pause(lost)
                lost, outages = lost + 1, 0

    def _pause(self, number: int) -> None:
        options = self._options
        wait_ms = min(options.min_retry_wait_ms << min(number, 40), options.max_retry_wait_ms)
        wait_ms += self._jitter.randrange(max(1, wait_ms // 5))
        self._clock.sleep(wait_ms / 1000)

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic_s() * 1000
