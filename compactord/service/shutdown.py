"""The end of the service: from the first request to stop until nothing is under way.

What runs may finish until the grace period is nearly over; then it is cancelled, which leaves the
rest of the time to commits. A second request cancels at once.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from compactord.clock import Clock
from compactord.config.model import Shutdown as Limits
from compactord.scheduler.scheduler import Scheduler

_log = structlog.get_logger()


class Shutdown:
    """Used by the loop alone. `cancel` begins to end all that the engine runs."""

    def __init__(self, scheduler: Scheduler, clock: Clock, cancel: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._cancel = cancel
        self._since_s: float | None = None
        self._asked = 0
        self._has_cancelled = False

    @property
    def is_asked(self) -> bool:
        return self._since_s is not None

    def ask(self) -> None:
        """Begin nothing new from now on."""
        self._asked += 1
        _log.info("service_draining", asked=self._asked)
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
        self._scheduler.drain(self._clock.steady_ms())

    def go_on(self, limits: Limits) -> None:
        """Cancel what still runs when its time is over."""
        patience_s = (limits.grace_ms - limits.commit_reserve_ms) / 1000
        if self._has_cancelled or not (self._asked > 1 or self._elapsed_s() > patience_s):
            return
        self._has_cancelled = True
        self._scheduler.end()
        if self._scheduler.engine.running:
            _log.info("tasks_cancelled", subcompactions=self._scheduler.engine.running)
        self._cancel()

    def is_over(self, limits: Limits) -> bool:
        """Whether nothing is under way any more, or the grace period has passed."""
        is_late = self._elapsed_s() > limits.grace_ms / 1000
        return self.is_asked and (self._scheduler.is_idle or is_late)

    def _elapsed_s(self) -> float:
        return 0.0 if self._since_s is None else self._clock.monotonic_s() - self._since_s
