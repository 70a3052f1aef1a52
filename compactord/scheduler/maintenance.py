"""Sweeps of orphans and snapshot expiry: when they are due. Pure but for what it marks as begun."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compactord.clock import WallTime
from compactord.config.model import SnapshotExpiry
from compactord.config.windows import may_start
from compactord.model import WorkKind
from compactord.scheduler.effects import StartExpire, StartSweep
from compactord.scheduler.scheduled_table import Job, Served
from compactord.table.session import UnderWay

# So many sweeps and expiries at once, over all tables.
_AT_ONCE = 2


def due_care(
    tables: Collection[Served], *, expire_interval_ms: int, now_ms: int, wall: WallTime
) -> Iterator[StartExpire | StartSweep]:
    """What begins now: a few at a time, beside all else, never before a first look at a table.

    Whoever was cared for longest ago goes first. An expiry keeps the snapshots that anything under
    way, or the plan that is held, was made on.
    """
    free = _AT_ONCE - sum(served.maintenance is not None for served in tables)
    for served in sorted(tables, key=lambda served: served.cared_ms):
        if free <= 0:
            return
        if served.maintenance is not None or served.planned is None or served.is_leaving:
            continue
        if not served.is_worked_on or served.halt is not None:
            continue
        if served.sweep_due_ms <= now_ms:
            served.maintenance, served.cared_ms = Job.SWEEP, now_ms
            free -= 1
            began_ms = served.under_way_since_ms(now_ms)
            under_way = UnderWay(since_ms=wall.lowest_since(began_ms), for_ms=now_ms - began_ms)
            yield StartSweep(name=served.name, under_way=under_way)
        elif _is_expiry_due(served, expire_interval_ms, now_ms, wall):
            served.maintenance, served.cared_ms = Job.EXPIRE, now_ms
            served.expire_due = False
            free -= 1
            yield StartExpire(name=served.name, keep_from=served.oldest_read_snapshot)


def _is_expiry_due(served: Served, expire_interval_ms: int, now_ms: int, wall: WallTime) -> bool:
    policy = served.policy
    return (
        served.expire_due
        and policy.expire_snapshots is SnapshotExpiry.FROM_TABLE
        and now_ms - served.last_expire_ms >= expire_interval_ms
        and may_start(policy.windows, WorkKind.EXPIRE, wall.at(now_ms), wall.zone)
    )
