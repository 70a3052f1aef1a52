"""Catalogs whose store does not answer: their tables take no threads until it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import structlog

from compactord.scheduler.scheduler import Scheduler
from compactord.storage.breaker import Breaker

_log = structlog.get_logger()


class SilentStores:
    """Used by the loop alone. `breakers` are those of the catalogs' stores."""

    def __init__(self, breakers: Mapping[str, Breaker | None], scheduler: Scheduler) -> None:
        # Since when the stores of catalogs have not answered.
        self.since_ms: dict[str, int] = {}
        self._breakers = {name: each for name, each in breakers.items() if each is not None}
        self._scheduler = scheduler

    def check(self, now_ms: int) -> Iterator[str]:
        """Tell the scheduler what has changed; the catalogs whose store has to be probed now."""
        for catalog, breaker in self._breakers.items():
            since_ms = breaker.open_since_ms
            if since_ms and catalog not in self.since_ms:
                why = breaker.why
                _log.error("store_silent", catalog=catalog, error=why)
                self._scheduler.store_silent(catalog, why)
            elif not since_ms and self.since_ms.pop(catalog, None) is not None:
                _log.info("store_answers", catalog=catalog)
                self._scheduler.store_answers(catalog, now_ms)
            if since_ms:
                self.since_ms[catalog] = since_ms
            if breaker.is_probe_due:
                yield catalog
