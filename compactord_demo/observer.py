"""Polls the daemon's status while it runs, and records runs and files over time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from compactord.scheduler.compaction import TableCounters
from compactord.service.view import ServiceView, TableStatus, TableView
from compactord.top.daemon import DaemonSource, NoAnswer
from compactord.top.status import Rates, rates_between, service_troubles


@dataclass(slots=True)
class History:
    """One number for each poll, the oldest first."""

    runs: list[int] = field(default_factory=list)
    level0_files: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


class Observer:
    """Polls a daemon once it has an address. Names of tables are relative to the warehouse."""

    def __init__(self) -> None:
        self.view: ServiceView | None = None
        self.url = ""
        self.rates: Rates | None = None
        self.tables: dict[str, TableView] = {}
        self.histories: dict[str, History] = {}
        self._source: DaemonSource | None = None

    def observe(self, url: str | None) -> None:
        """Record a new status, if available: a daemon that does not answer yet has not failed."""
        if url is None:
            return
        self._source = self._source or DaemonSource(url)
        self.url = url
        with contextlib.suppress(NoAnswer):
            self._take(self._source.view())

    @property
    def is_started(self) -> bool:
        """Whether the daemon has answered that its engine is up."""
        return self.view is not None and self.view.is_started

    def is_idle_at(self, newest: Mapping[str, int]) -> bool:
        """Whether no job runs, waits or is due, with each table at its snapshot in `newest`."""
        view = self.view
        if view is None or any(view.queued.values()) or view.running:
            return False
        return all(
            (table := self.tables.get(name)) is not None
            and table.planned_snapshot_id == snapshot_id
            and not table.backlog.tasks
            for name, snapshot_id in newest.items()
        )

    def counters(self, name: str) -> TableCounters:
        table = self.tables.get(name)
        return TableCounters() if table is None else table.counters

    def troubles(self) -> list[str]:
        """Sentences about tables that are not served, and about the daemon itself."""
        found = [
            f"{name} is {table.status.value}: {table.why}"
            for name, table in self.tables.items()
            if table.status is not TableStatus.ACTIVE
        ]
        if self.view is not None:
            found += service_troubles(self.view)
        return found

    def _take(self, view: ServiceView) -> None:
        # The daemon makes one view a second: skip a view that was recorded already.
        is_new = self.view is None or self.view.now_ms != view.now_ms
        if is_new:
            self.rates = rates_between(self.view, view)
        self.view = view
        for table in view.tables:
            name = f"{table.name.database}.{table.name.table}"
            self.tables[name] = table
            if not is_new:
                continue
            history = self.histories.setdefault(name, History())
            history.runs.append(table.shape.sorted_runs_max)
            history.level0_files.append(table.shape.level0_files)
            history.files.append(table.shape.files)
