"""Which rounds of maintenance begin now, and what their ends change. One way for all kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from compactord.clock import WallTime
from compactord.maintenance.kind import AnyKind, MaintenanceRecord, Round, UnderWay
from compactord.scheduler.effects import MaintenanceJob
from compactord.scheduler.scheduled_table import ScheduledTable

# Rounds that run at once, over all tables.
_AT_ONCE = 2


def due_maintenance(
    tables: Collection[ScheduledTable],
    kinds: Sequence[AnyKind],
    *,
    silent: Collection[str] = (),
    now_ms: int,
    wall: WallTime,
) -> Iterator[MaintenanceJob]:
    """The rounds that begin now, marked as begun: a few at a time, never before a first plan.

    Least recently maintained tables first, none of `silent` catalogs; of a table's kinds the one
    that began longest ago. A round spares what work under way reads and writes. Of long ones there
    is one, alone in its folder: branches have their files in the table's.
    """
    # By folder, whether its round is a long one.
    running = {each.ref.location: job.kind.is_long for each in tables if (job := each.maintenance)}
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
        location = scheduled.ref.location
        if running.get(location):
            continue
        may_be_long = location not in running and not any(running.values())
        due = [
            kind
            for kind in kinds
            if kind.is_due(scheduled, scheduled.rounds_of(kind.name), now_ms, wall)
            and (may_be_long or not kind.is_long)
        ]
        if due:
            free -= 1
            kind = min(due, key=lambda k: scheduled.rounds_of(k.name).began_ms)
            running[location] = kind.is_long
            yield _begun(scheduled, kind, tables, now_ms=now_ms, wall=wall)


def _begun(
    scheduled: ScheduledTable,
    kind: AnyKind,
    tables: Collection[ScheduledTable],
    *,
    now_ms: int,
    wall: WallTime,
) -> MaintenanceJob:
    # Branches have their files in the same folders.
    sharing = [each for each in tables if each.ref.location == scheduled.ref.location]
    began_ms = min(each.under_way_since_ms(now_ms) for each in sharing)
    under_way = UnderWay(
        since_ms=wall.lowest_since(began_ms),
        for_ms=now_ms - began_ms,
        reads_from=scheduled.oldest_read_snapshot(now_ms),
    )
    scheduled.maintenance = job = MaintenanceJob(
        name=scheduled.name,
        since_ms=now_ms,
        kind=kind.for_table(scheduled.policy),
        under_way=under_way,
    )
    scheduled.maintained_ms = now_ms
    record = scheduled.rounds.setdefault(kind.name, MaintenanceRecord())
    record.began_ms, record.has_news = now_ms, False
    record.snapshot_id = scheduled.snapshot_id
    return job


def round_ended(scheduled: ScheduledTable, kind: AnyKind, round_: Round, now_ms: int) -> None:
    """The table may have another round, of this kind at once if there is more to do."""
    scheduled.maintenance = None
    record = scheduled.rounds.setdefault(kind.name, MaintenanceRecord())
    # A cycle may have found new snapshots meanwhile.
    record.has_news = record.has_news or round_.more
    record.ended_ms = 0 if round_.more else now_ms
    record.counts.update(round_.counts)
    if round_.has_failed:
        record.snapshot_id = 0
    else:
        record.succeeded_ms = now_ms
