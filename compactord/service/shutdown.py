"""The end of the service: from the first request to stop until nothing is under way.

Merges and commits may finish until the grace period is nearly over; then merges are cancelled,
which leaves the rest of the time to commits. A second request cancels at once. All else is waited
for only briefly: what reads changes nothing, and what deletes goes on after the next start.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from compactord.clock import Clock
from compactord.config.model import Shutdown as Limits
from compactord.scheduler.scheduler import Scheduler
from compactord.service.table_jobs import ServedTables
from compactord.table.jobs import Phase

_log = structlog.get_logger()
# How long jobs that only read or delete may take to return, once nothing else is under way.
_READS_S = 2.0


class Shutdown:
    """Used by the loop alone. `cancel` begins to end all that the engine runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        tables: ServedTables,
        clock: Clock,
        cancel: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._tables = tables
        self._clock = clock
        self._cancel = cancel
        self._since_s: float | None = None
        # When merges or commits were under way last.
        self._worked_s = 0.0
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
            self._since_s = self._worked_s = self._clock.monotonic_s()
        self._scheduler.drain(self._clock.steady_ms())

    def go_on(self, limits: Limits) -> None:
        """Cancel what still runs when its time is over."""
        patience_s = (limits.grace_ms - limits.commit_reserve_ms) / 1000
        if self._has_cancelled or not (self._asked > 1 or self.elapsed_s > patience_s):
            return
        self._has_cancelled = True
        self._scheduler.end()
        if self._scheduler.engine.running:
            _log.info("tasks_cancelled", subcompactions=self._scheduler.engine.running)
        self._cancel()

    def is_over(self, limits: Limits) -> bool:
        """Whether nothing worth waiting for is under way, or the grace period has passed."""
        if not self.is_asked:
            return False
        now_s = self._clock.monotonic_s()
        if self.has_work:
            self._worked_s = now_s
        is_late = self.elapsed_s > limits.grace_ms / 1000
        return self._scheduler.is_idle or is_late or now_s - self._worked_s > _READS_S

    @property
    def has_work(self) -> bool:
        """Whether merges or commits are under way."""
        return self._scheduler.has_results or any(
            self._tables.phase(name) is Phase.COMMIT
            for name, scheduled in self._scheduler.tables.items()
            if scheduled.job is not None or scheduled.maintenance is not None
        )

    @property
    def elapsed_s(self) -> float:
        """Since the first request to stop, 0 before."""
        return 0.0 if self._since_s is None else self._clock.monotonic_s() - self._since_s
