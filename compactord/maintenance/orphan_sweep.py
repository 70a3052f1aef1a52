"""The sweep of orphan files as a kind of maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from compactord import ids
from compactord.clock import WallTime
from compactord.errors import CompactordError
from compactord.maintenance.kind import (
    DueTable,
    MaintenanceKind,
    MaintenanceRecord,
    OpenedTable,
    Round,
    UnderWay,
)
from compactord.maintenance.orphan_files import Orphan, OwnerRule, remove_orphans

_log = structlog.get_logger()
REMOVED = "removed_files"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrphans(MaintenanceKind[int]):
    """Due every `interval_ms`, whether or not the table has changed; see `orphan_files`."""

    name = "sweep"

    interval_ms: int
    grace_ms: int

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return now_ms - record.ended_ms >= self.interval_ms

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> int:
        """How many files were deleted that dead processes of ours left.

        With `under_way` also what killed workers of this process left: files from so long before
        all of that by both its measures. Without, nothing of this process.
        """
        now_ms = table.clock.now_ms()
        own_before_ms = 0
        if under_way is not None:
            began_ms = min(under_way.since_ms, now_ms - under_way.for_ms)
            own_before_ms = began_ms - self.grace_ms
        rule = OwnerRule(
            myself=table.owner,
            liveness=ids.liveness,
            now_ms=now_ms,
            grace_ms=self.grace_ms,
            own_before_ms=own_before_ms,
        )
        values = table.table
        depth = len(values.schema.partition_keys)
        location = values.ref.location

        def aged(found: Sequence[Orphan]) -> Sequence[Orphan]:
            if not values.storage.capabilities.copies_may_look_old:
                return found
            now_ms = table.clock.steady_ms()
            return table.memory.sightings.aged(found, now_ms=now_ms, grace_ms=self.grace_ms)

        removed = remove_orphans(
            values.storage, location, partition_depth=depth, rule=rule, among=aged
        )
        return len(removed)

    def ended(self, result: int | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("orphans_kept", error=str(result))
            return Round(has_failed=True)
        if result:
            _log.info("sweep_finished", removed_files=result)
        return Round(counts={REMOVED: result})
