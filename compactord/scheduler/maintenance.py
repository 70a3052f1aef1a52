"""When orphan sweeps and snapshot expiry are due. Pure, except that it marks them as begun."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compactord.clock import WallTime
from compactord.config.choices import SnapshotExpiry
from compactord.config.windows import may_start
from compactord.model import WorkKind
from compactord.scheduler.effects import StartExpire, StartSweep
from compactord.scheduler.scheduled_table import Job, ScheduledTable
from compactord.table.cycle import UnderWay

# Sweeps and expiries that run at once, over all tables.
_AT_ONCE = 2


def due_maintenance(
    tables: Collection[ScheduledTable],
    *,
    silent: Collection[str] = (),
    expire_interval_ms: int,
    now_ms: int,
    wall: WallTime,
) -> Iterator[StartExpire | StartSweep]:
    """The sweeps and expiries that begin now: a few at a time, never before a table's first poll.

    Least recently maintained tables first, none of `silent` catalogs. An expiry keeps the snapshots
    on which work under way and the current plan are based.
    """
    free = _AT_ONCE - sum(scheduled.maintenance is not None for scheduled in tables)
    for scheduled in sorted(tables, key=lambda scheduled: scheduled.maintained_ms):
        if free <= 0:
            return
        if scheduled.maintenance is not None or scheduled.planned is None or scheduled.is_leaving:
            continue
        if not scheduled.is_worked_on or scheduled.keeps_snapshots:
            continue
        if scheduled.name.catalog in silent:
            continue
        if scheduled.sweep_due_ms <= now_ms:
            scheduled.maintenance, scheduled.maintained_ms = Job.SWEEP, now_ms
            free -= 1
            began_ms = scheduled.under_way_since_ms(now_ms)
            under_way = UnderWay(since_ms=wall.lowest_since(began_ms), for_ms=now_ms - began_ms)
            yield StartSweep(name=scheduled.name, under_way=under_way)
        elif _is_expiry_due(scheduled, expire_interval_ms, now_ms, wall):
            scheduled.maintenance, scheduled.maintained_ms = Job.EXPIRE, now_ms
            scheduled.expire_due = False
            free -= 1
            yield StartExpire(name=scheduled.name, keep_from=scheduled.oldest_read_snapshot(now_ms))


def _is_expiry_due(
    scheduled: ScheduledTable, expire_interval_ms: int, now_ms: int, wall: WallTime
) -> bool:
    policy = scheduled.policy
    return (
        scheduled.expire_due
        and policy.expire_snapshots is SnapshotExpiry.FROM_TABLE
        and scheduled.held_until_ms <= now_ms
        and now_ms - scheduled.last_expire_ms >= expire_interval_ms
        and may_start(policy.windows, WorkKind.EXPIRE, wall.at(now_ms), wall.zone)
    )
