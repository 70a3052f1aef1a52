"""Polls the daemon's status while it runs, and records runs and files over time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactord.top.daemon import DaemonSource, look_of
from compactord.top.look import Look, NoAnswer, Rates, rates_between

_COMMITTED = "/committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the daemon has done to a table, and what it has still to do."""

    planned_snapshot_id: int = 0
    due: int = 0
    compactions: int = 0
    commits: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    status: str = ""
    trouble: str = ""


@dataclass(slots=True)
class History:
    """One number for each poll, the oldest first."""

    runs: list[int] = field(default_factory=list)
    level0_files: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


class Observer:
    """Polls a daemon once it has an address. Names of tables are those of the warehouse."""

    def __init__(self, catalog: str) -> None:
        self.look: Look | None = None
        self.rates: Rates | None = None
        self.work: dict[str, Work] = {}
        self.histories: dict[str, History] = {}
        self._catalog = catalog
        self._source: DaemonSource | None = None

    def observe(self, url: str | None) -> None:
        """Take a new status, if there is one: a daemon that does not answer yet has not failed."""
        if url is None:
            return
        self._source = self._source or DaemonSource(url)
        with contextlib.suppress(NoAnswer):
            # In this order: once no snapshot is added, a table that is idle by the first answer
            # cannot be due by the second.
            status, tables = self._source.get("/v1/status"), self._source.get("/v1/tables")
            self._take(look_of(url, status, tables), tables)

    def is_idle_at(self, newest: Mapping[str, int]) -> bool:
        """Whether nothing runs, waits or is due when each table stands at this snapshot."""
        look = self.look
        if look is None or look.service is None or look.service.queued or look.running:
            return False
        return all(
            (work := self.work.get(name)) is not None
            and work.planned_snapshot_id == snapshot_id
            and not work.due
            for name, snapshot_id in newest.items()
        )

    def troubles(self) -> list[str]:
        """Sentences about tables that are not served, and about the daemon itself."""
        found = [
            f"{name} is {work.status}: {work.trouble}"
            for name, work in self.work.items()
            if work.trouble or work.status != "active"
        ]
        if self.look is not None and self.look.service is not None:
            found += self.look.service.troubles
        return found

    def _take(self, look: Look, tables: Mapping[str, Any]) -> None:
        # The daemon makes one view a second: skip a view that was recorded already.
        is_new = self.look is None or self.look.now_ms != look.now_ms
        if is_new:
            self.rates = rates_between(self.look, look)
        self.look = look
        prefix = f"{self._catalog}."
        for told, table in zip(tables["tables"], look.tables, strict=True):
            name = table.name.removeprefix(prefix)
            self.work[name] = _work(told, table.note)
            if not is_new:
                continue
            history = self.histories.setdefault(name, History())
            history.runs.append(table.sorted_runs)
            history.level0_files.append(table.level0_files)
            history.files.append(table.files)


def _work(told: Mapping[str, Any], trouble: str) -> Work:
    """Demo and daemon have the same version, so no field can be absent."""
    counters = told["counters"]
    return Work(
        planned_snapshot_id=told["planned_snapshot_id"],
        due=told["backlog"]["tasks"],
        compactions=sum(
            count for key, count in counters["compactions"].items() if key.endswith(_COMMITTED)
        ),
        commits=counters["commits_committed"],
        input_bytes=counters["input_bytes"],
        output_bytes=counters["output_bytes"],
        status=told["status"],
        trouble=trouble,
    )
