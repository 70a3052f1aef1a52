"""Counts the requests for tables by the kind of table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from compactord.catalog.access import TableAccess
from compactord.plan.table import TableKind
from compactord.storage.metered import ReportsItself
from compactord.storage.requests import StorageRequest


class TableRequests:
    """Those for one table, whose kind is known once it is open. Any thread may report.

    `count` gets a kind and how many requests were made.
    """

    def __init__(self, count: Callable[[TableKind, int], None]) -> None:
        self._count = count
        self._kind: TableKind | None = None
        self._before = 0
        self._lock = threading.Lock()

    def counted(self, access: TableAccess) -> TableAccess:
        """The table, in a store that reports. What publishes its snapshots does not."""
        storage = access.storage
        if not isinstance(storage, ReportsItself):
            return access
        return replace(access, storage=storage.reporting(self._report))

    def is_of(self, kind: TableKind) -> None:
        """The table is open; requests so far were of this kind."""
        with self._lock:
            self._kind, before, self._before = kind, self._before, 0
        if before:
            self._count(kind, before)

    def _report(self, request: StorageRequest) -> None:
        with self._lock:
            kind = self._kind
            self._before += kind is None
        if kind is not None:
            self._count(kind, 1)
