"""Catalogs whose store or server does not answer: their tables take no threads until it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import structlog

from compactord.scheduler.scheduler import Scheduler
from compactord.storage.calls import Breaker

_log = structlog.get_logger()


class SilentStores:
    """Used by the loop alone. `breakers` are those that tables wait for, by catalog."""

    def __init__(self, breakers: Mapping[str, Sequence[Breaker]], scheduler: Scheduler) -> None:
        # Since when the stores or servers of catalogs have not answered.
        self.since_ms: dict[str, int] = {}
        self._breakers = breakers
        self._scheduler = scheduler

    def check(self, now_ms: int) -> Iterator[str]:
        """Tell the scheduler what has changed; the catalogs of which something has to be probed."""
        for catalog, breakers in self._breakers.items():
            since_ms = min(filter(None, (each.open_since_ms for each in breakers)), default=0)
            if since_ms and catalog not in self.since_ms:
                why = "; ".join(filter(None, (each.why for each in breakers)))
                _log.error("store_silent", catalog=catalog, error=why)
                self._scheduler.store_silent(catalog, why)
            elif not since_ms and self.since_ms.pop(catalog, None) is not None:
                _log.info("store_answers", catalog=catalog)
                self._scheduler.store_answers(catalog, now_ms)
            if since_ms:
                self.since_ms[catalog] = since_ms
            if any(each.is_probe_due for each in breakers):
                yield catalog
