"""Which tables have series of their own: at most `metrics.max_tables`; the others are counted."""

from __future__ import annotations

import threading

from compactord.model import TableName
from compactord.service.page.need import Need, need_of
from compactord.service.view import ServiceView, TableStatus, TableView

_OWN_BONUS = 2


class OwnSeries:
    """Chooses the tables: those that need attention first, then those with the largest backlogs.

    One that has series keeps them until another's backlog is twice as large, so that series do not
    come and go with every compaction. Any thread may call.
    """

    def __init__(self, max_tables: int) -> None:
        self.max_tables = max_tables
        self._lock = threading.Lock()
        self._own: frozenset[TableName] = frozenset()

    def choose(self, view: ServiceView) -> tuple[tuple[TableView, ...], int]:
        """The tables with series, and how many have none.

        Excluded tables take the room that is left, and are not counted.
        """
        excluded = [table for table in view.tables if table.status is TableStatus.EXCLUDED]
        tables = [table for table in view.tables if table.status is not TableStatus.EXCLUDED]
        with self._lock:
            own = tables
            if len(tables) > self.max_tables:
                own = sorted(tables, key=lambda table: self._rank(table, view.now_ms))
                own = own[: self.max_tables]
            self._own = frozenset(table.name for table in own)
        return (*own, *excluded[: self.max_tables - len(own)]), len(tables) - len(own)

    def _rank(self, table: TableView, now_ms: int) -> tuple[int, int, bool, TableName]:
        is_own = table.name in self._own
        weight = table.backlog.size_bytes * (_OWN_BONUS if is_own else 1)
        # Alerts speak of tables that need attention, also of halted ones, which have no backlog.
        return min(need_of(table, now_ms), Need.DUE), -weight, not is_own, table.name
