"""A kind of maintenance that counts snapshots: one module, as CONTRIBUTING.md says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from compactord.clock import WallTime
from compactord.errors import CompactordError
from compactord.maintenance.kind import (
    Done,
    DueTable,
    MaintenanceRecord,
    OfferedKind,
    OpenedTable,
    Report,
    Round,
    ShownTable,
    UnderWay,
)
from compactord.paimon.snapshot import snapshot_ids

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSnapshots(OfferedKind[int]):
    """Due after each plan."""

    name = choice = "toy"
    duration_metric = ("toy_duration_seconds", "Time to count snapshots.")
    counters = (("toy_snapshots", "Snapshots seen, each time."),)

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return record.has_news

    def preview(self, table: OpenedTable) -> Done[int]:
        return Done(rounds=[self.run(table, None)])

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> int:
        return len(snapshot_ids(table.table.storage, table.table.ref.location))

    def ended(self, result: int | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("toy_failed", error=str(result))
            return Round(has_failed=True)
        _log.info("toy_finished", snapshots=result)
        return Round(counts={"toy_snapshots": result})

    def report(self, shown: ShownTable, done: Done[int], *others: Done[Any]) -> Report:
        verb = "would count" if shown.is_dry else "counted"
        line = f"{shown.name}: {verb} {sum(done.rounds)} snapshots"
        return Report(lines=[line], found={"counted": sum(done.rounds)})
