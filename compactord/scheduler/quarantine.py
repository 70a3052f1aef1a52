"""Quarantined buckets: a bucket that fails, or cannot be planned, is left alone for a while.

Functions of the scheduler over one `ScheduledTable`. The table's other buckets go on.
"""

from __future__ import annotations

from compactord.config.model import Backoff, Retry
from compactord.errors import DataFileMissing, FormatError
from compactord.paimon.data_file import BucketId
from compactord.scheduler.observer import Observer, tell_halt
from compactord.scheduler.record import CompactionRecord
from compactord.scheduler.scheduled_table import Drops, Quarantined, ScheduledTable
from compactord.scheduler.status import HaltReason
from compactord.table.backlog import PendingCompaction
from compactord.table.cycle import Cycle

# Quarantine a bucket after so many fruitless compactions in a row: writers commit faster than
# compactions of it, or it makes the engine die.
DROPS_MAX = 5


def in_vain(
    scheduled: ScheduledTable,
    record: CompactionRecord,
    message: str,
    retry: Retry,
    now_ms: int,
    observer: Observer,
) -> None:
    """Quarantine the bucket after DROPS_MAX fruitless compactions in a row.

    One commit of a writer may invalidate several compactions in flight: they count once.
    """
    drops = scheduled.drops.setdefault(record.pending.bucket, Drops())
    if record.number <= drops.up_to:
        return
    drops.count, drops.up_to = drops.count + 1, scheduled.last_number
    if drops.count >= DROPS_MAX:
        drops.count = 0
        quarantine(scheduled, record.pending, message, "", retry, now_ms, observer)


def quarantine(
    scheduled: ScheduledTable,
    pending: PendingCompaction,
    message: str,
    kind: str,
    retry: Retry,
    now_ms: int,
    observer: Observer,
) -> None:
    """Quarantine a bucket for a time that grows with its failures.

    `kind` is the name of the error's class, empty for none.
    """
    shown, known = scheduled.shown_halt, scheduled.quarantined.get(pending.bucket)
    failures = known.failures + 1 if known else 1
    quarantined = Quarantined(
        failures=failures,
        message=message,
        error=kind,
        since_ms=known.since_ms if known else now_ms,
        until_ms=now_ms + pause_ms(retry.backoff, failures),
        partition=pending.partition,
        halt=_halt_of(kind, failures, retry),
    )
    scheduled.quarantined[pending.bucket] = quarantined
    observer.quarantined(scheduled.name, pending.bucket, quarantined, now_ms)
    tell_halt(scheduled, shown, observer)


def _halt_of(kind: str, failures: int, retry: Retry) -> HaltReason | None:
    """As which halt people are told of the bucket; None until it has failed often enough."""
    if kind == DataFileMissing.__name__:
        return HaltReason.DATA_FILE_MISSING
    if not kind or failures < retry.halt_after_consecutive_failures:
        return None
    return failure_halt(kind)


def failure_halt(kind: str) -> HaltReason:
    """The reason of a halt for failed compactions; `kind` is the name of the error's class."""
    is_damage = kind == FormatError.__name__
    return HaltReason.DATA_CHECK_FAILED if is_damage else HaltReason.REPEATED_FAILURES


def damaged_in(cycle: Cycle) -> set[BucketId]:
    """The buckets that the cycle could not plan."""
    return {each.bucket for each in cycle.planned.damaged} if cycle.planned is not None else set()


def quarantine_damaged(
    scheduled: ScheduledTable, cycle: Cycle, now_ms: int, observer: Observer
) -> None:
    """Quarantine the buckets that could not be planned, and release those that now could.

    Each is told of once. It is no failure of the table: nothing else stops.
    """
    planned, damaged = cycle.planned, damaged_in(cycle)
    assert planned is not None, "there is a plan"
    for bucket in [b for b, known in scheduled.quarantined.items() if known.is_damaged]:
        if bucket not in damaged:
            del scheduled.quarantined[bucket]
    for each in planned.damaged:
        known = scheduled.quarantined.get(each.bucket)
        if known is not None and known.is_damaged and known.message == each.message:
            continue
        quarantined = Quarantined(
            failures=1,
            message=each.message,
            error=FormatError.__name__,
            since_ms=now_ms,
            until_ms=0,
            partition=each.partition,
        )
        scheduled.quarantined[each.bucket] = quarantined
        observer.quarantined(scheduled.name, each.bucket, quarantined, now_ms)


def forget_quarantined(scheduled: ScheduledTable, now_ms: int, observer: Observer) -> None:
    """Buckets that are gone, and those whose quarantine is over and that have nothing to do."""
    shown = scheduled.shown_halt
    for bucket in _done_with(scheduled, now_ms):
        scheduled.quarantined.pop(bucket, None)
    tell_halt(scheduled, shown, observer)


def _done_with(scheduled: ScheduledTable, now_ms: int) -> list[BucketId]:
    planned = scheduled.planned
    assert planned is not None, "just taken in"
    done = list(planned.gone)
    for bucket in planned.gone:
        scheduled.drops.pop(bucket, None)
    if not planned.offers_all:
        return done
    pending = {each.bucket for each in planned.offered}
    # A bucket whose compaction is in flight is not counted as due.
    pending.update(record.pending.bucket for record in scheduled.in_flight)
    return done + [
        bucket
        for bucket, quarantined in scheduled.quarantined.items()
        if quarantined.until_ms <= now_ms and bucket not in pending and not quarantined.is_damaged
    ]


def pause_ms(backoff: Backoff, failures: int) -> int:
    """How long to wait after so many failures in a row."""
    return int(min(backoff.max_ms, backoff.min_ms * 2 ** min(failures - 1, 40)))
