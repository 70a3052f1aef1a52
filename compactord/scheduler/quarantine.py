"""Quarantined buckets: a bucket that fails, or cannot be planned, is left alone for a while.

Functions of the scheduler over one `ScheduledTable`. The table's other buckets go on.
"""

from __future__ import annotations

from compactord.config.model import Backoff, Retry
from compactord.errors import DataFileDamaged, DataFileMissing, UnreadableColumn
from compactord.paimon.data_file import BucketId
from compactord.scheduler.events import BucketQuarantined
from compactord.scheduler.halts import Drops, Failure, Quarantined, failure_reason
from compactord.scheduler.record import CompactionRecord
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.status import HaltReason
from compactord.table.jobs import Planned

# Quarantine a bucket after so many fruitless compactions in a row: writers commit faster than
# compactions of it, or it makes the engine die.
DROPS_MAX = 5
# So many failures by a damaged file, each of which has read it twice, are told as a halt.
_DAMAGED_MAX = 2


def dropped(record: CompactionRecord, message: str, retry: Retry, now_ms: int) -> None:
    """Quarantine the bucket after DROPS_MAX fruitless compactions in a row.

    One commit of a writer may invalidate several compactions in flight: they count once.
    """
    drops = record.table.drops.setdefault(record.pending.bucket, Drops())
    if record.number <= drops.up_to:
        return
    drops.count, drops.up_to = drops.count + 1, record.table.last_number
    if drops.count >= DROPS_MAX:
        drops.count = 0
        quarantine(record, Failure(message=message), retry, now_ms)


def quarantine(record: CompactionRecord, failure: Failure, retry: Retry, now_ms: int) -> None:
    """Quarantine the bucket for a time that grows with its failures."""
    scheduled, pending = record.table, record.pending
    known = scheduled.quarantined.get(pending.bucket)
    failures = known.failures + 1 if known and not known.is_damaged else 1
    quarantined = Quarantined(
        failures=failures,
        message=failure.message,
        error=failure.error,
        since_ms=known.since_ms if known else now_ms,
        until_ms=now_ms + pause_ms(retry.backoff, failures),
        partition=pending.partition,
        halt=_halt_of(failure.error, failures, retry),
    )
    with scheduled.telling_halts():
        _put(scheduled, pending.bucket, quarantined, now_ms)


def _put(
    scheduled: ScheduledTable, bucket: BucketId, quarantined: Quarantined, now_ms: int
) -> None:
    scheduled.quarantined[bucket] = quarantined
    scheduled.tell(
        BucketQuarantined(
            name=scheduled.name, bucket=bucket, quarantined=quarantined, now_ms=now_ms
        )
    )


def _halt_of(error: str, failures: int, retry: Retry) -> HaltReason | None:
    """As which halt people are told of the bucket; None until it has failed often enough."""
    if error == DataFileMissing.__name__:
        return HaltReason.DATA_FILE_MISSING
    if error == DataFileDamaged.__name__ and failures >= _DAMAGED_MAX:
        return failure_reason(error)
    if not error or failures < retry.halt_after_consecutive_failures:
        return None
    return failure_reason(error)


def quarantine_damaged(scheduled: ScheduledTable, planned: Planned, now_ms: int) -> None:
    """Quarantine the buckets that could not be planned, and release those that now could.

    Each is told of once. It is no failure of the table: nothing else stops. Where other files of a
    table without buckets fail, too, their pauses and their halt come first.
    """
    damaged = {each.bucket for each in planned.damaged}
    for bucket in [b for b, known in scheduled.quarantined.items() if known.is_damaged]:
        if bucket not in damaged:
            del scheduled.quarantined[bucket]
    for each in planned.damaged:
        known = scheduled.quarantined.get(each.bucket)
        if known is not None and known.is_damaged and known.message == each.message:
            continue
        is_partly = each.error == UnreadableColumn.__name__
        if known is not None and not known.is_damaged and is_partly:
            continue
        quarantined = Quarantined(
            failures=1,
            message=each.message,
            error=each.error,
            since_ms=now_ms,
            until_ms=0,
            partition=each.partition,
        )
        _put(scheduled, each.bucket, quarantined, now_ms)


def forget_quarantined(scheduled: ScheduledTable, planned: Planned, now_ms: int) -> None:
    """Buckets that are gone, and those whose quarantine is over and that have nothing to do."""
    for bucket in planned.gone:
        scheduled.drops.pop(bucket, None)
    with scheduled.telling_halts():
        for bucket in [*planned.gone, *_without_work(scheduled, planned, now_ms)]:
            scheduled.quarantined.pop(bucket, None)


def _without_work(scheduled: ScheduledTable, planned: Planned, now_ms: int) -> list[BucketId]:
    if not planned.offers_all:
        return []
    pending = {each.bucket for each in planned.offered}
    # A bucket whose compaction is in flight is not counted as due.
    pending.update(record.pending.bucket for record in scheduled.in_flight)
    return [
        bucket
        for bucket, quarantined in scheduled.quarantined.items()
        if quarantined.until_ms <= now_ms and bucket not in pending and not quarantined.is_damaged
    ]


def pause_ms(backoff: Backoff, failures: int) -> int:
    """How long to wait after so many failures in a row."""
    return int(min(backoff.max_ms, backoff.min_ms * 2 ** min(failures - 1, 40)))
