"""Snapshot expiry as a kind of maintenance."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from compactord.errors import CompactordError
from compactord.maintenance.expire import Expired, expire_snapshots
from compactord.maintenance.kind import (
    OpenedTable,
    Round,
    RuledKind,
    UnderWay,
)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSnapshots(RuledKind[Expired]):
    """Due after each plan, `interval_ms` after the last round, in the table's windows."""

    name = "expire"
    rule = "expire_snapshots"
    runs_unasked = True
    after_plans = True
    duration_metric = ("expire_duration_seconds", "Time of an expiry of a table's snapshots.")

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Expired:
        why_keep, values = table.why_keep(), table.table
        if why_keep is not None:
            return Expired(why_not=why_keep)
        keep_from = under_way.reads_from if under_way is not None else None
        options, now_ms = values.options.expire, table.clock.now_ms()
        return expire_snapshots(values, options, now_ms=now_ms, keep_from=keep_from)

    def ended(self, result: Expired | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("expire_failed", error=str(result))
            return Round(counts={"expire_failures": 1}, has_failed=True)
        if result.why_not is not None:
            _log.warning("expire_stopped", message=result.why_not)
        elif result.snapshots:
            _log.info(
                "expire_finished",
                expired_snapshots=result.snapshots,
                first_snapshot_id=result.first,
                earliest_snapshot_id=result.end,
                data_files=result.data_files,
                manifests=result.manifests,
                size_bytes=result.size_bytes,
                duration_s=round(seconds, 3),
            )
        files = result.data_files + result.changelog_files + result.manifests + result.index_files
        return Round(
            counts={"expired_snapshots": result.snapshots, "expired_files": files},
            more=result.more,
            first_snapshot_id=result.end if result.snapshots else None,
        )
