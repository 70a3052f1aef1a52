"""Accounting of a table: counters, failures, halts.

Functions of the scheduler over one `ScheduledTable`; nothing here decides what is done next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from compactord.config.model import Retry
from compactord.errors import (
    CommitGaveUp,
    CompactordError,
    DataFileMissing,
    FormatError,
    ObjectNotFound,
)
from compactord.maintenance.expire import Expired
from compactord.model import Conflict, LossOutcome, MergeCompaction
from compactord.redaction import redact_text
from compactord.scheduler.observer import Observer, tell_halt
from compactord.scheduler.quarantine import (
    DROPS_MAX,
    damaged_in,
    failure_halt,
    forget_quarantined,
    in_vain,
    pause_ms,
    quarantine,
    quarantine_damaged,
)
from compactord.scheduler.record import CompactionRecord, Status
from compactord.scheduler.scheduled_table import (
    Lifted,
    ScheduledTable,
    advice,
    halt_for,
)
from compactord.scheduler.status import EndedCompaction, Halt, HaltReason, Outcome
from compactord.table.backlog import PendingCompaction
from compactord.table.cycle import Cycle, Settled
from compactord.table.in_flight import Failed, Finished


def settle(
    scheduled: ScheduledTable, cycle: Cycle, retry: Retry, now_ms: int, observer: Observer
) -> Iterator[EndedCompaction]:
    """Account for the outcomes of the compactions that a cycle settled."""
    records = {record.number: record for record in scheduled.with_status(Status.COMMITTING)}
    for number, record in records.items():
        del scheduled.compactions[number]
        if is_undecided(record.result):
            yield _inputs_gone(scheduled, record, record.result, cycle, retry, now_ms, observer)
    if cycle.in_commit and cycle.error is not None:
        gave_up = isinstance(cycle.error, CommitGaveUp)
        scheduled.counts.sums["commits_gave_up" if gave_up else "commits_error"] += 1
        observer.commit_failed(scheduled.name, cycle.error)
        for record in records.values():
            if isinstance(record.result, Finished):
                _waste(scheduled, record.result)
                why = str(cycle.error)
                yield _counted(scheduled, record, Outcome.FAILED, why, now_ms, record.result)
    settled = cycle.settled
    if settled is None:
        return
    if settled.committed is not None:
        observer.committed(scheduled.name, settled, cycle.commit_seconds)
        _count_commit(scheduled, settled, now_ms)
        for each in settled.published:
            yield _published(scheduled, records[each.number], each, now_ms, observer)
        # Last: a bucket that failed is told of as a halt, too.
        _lift(scheduled, Lifted.BY_COMMIT, observer)
    for each, drop in settled.dropped:
        _waste(scheduled, each)
        record = records[each.number]
        yield _counted(scheduled, record, Outcome.CONFLICT, drop.why, now_ms, each)
        if drop.conflict is Conflict.BUCKET_DAMAGED:
            scheduled.counts.conflicts[drop.conflict] += 1
            if record.pending.bucket not in damaged_in(cycle):
                kind = FormatError.__name__
                quarantine(scheduled, record.pending, drop.why, kind, retry, now_ms, observer)
            continue
        conflicted(scheduled, record, drop.conflict, drop.why, retry, now_ms, observer)
    for each in settled.replaced:
        _waste(scheduled, each)
        text = "another writer's snapshot took the place of ours"
        yield _counted(scheduled, records[each.number], Outcome.CONFLICT, text, now_ms, each)


def is_undecided(ended: Finished | Failed) -> TypeGuard[Failed]:
    """Whether the next cycle must find out the cause: other writers, or the table itself."""
    return isinstance(ended, Failed) and ended.failure.error == ObjectNotFound.__name__


def _inputs_gone(
    scheduled: ScheduledTable,
    record: CompactionRecord,
    failed: Failed,
    cycle: Cycle,
    retry: Retry,
    now_ms: int,
    observer: Observer,
) -> EndedCompaction:
    """Inputs could not be found: others replaced and expired them, or they are lost.

    If the cause is unknown, this does not count as a failure: the next attempt decides.
    """
    message, is_outrun = failed.failure.message, cycle.outrun.get(record.number)
    if is_outrun is None:
        return unpublished(scheduled, record, Outcome.CANCELLED, message, now_ms)
    if not is_outrun:
        kind, missing = failed.failure.error, cycle.missing.get(record.number)
        if missing is not None:
            message, kind = str(missing), type(missing).__name__
        blame(scheduled, record.pending, message, kind, retry, now_ms, observer)
        return unpublished(scheduled, record, Outcome.FAILED, message, now_ms)
    conflicted(scheduled, record, Conflict.FILE_REMOVED, message, retry, now_ms, observer)
    return unpublished(scheduled, record, Outcome.CONFLICT, message, now_ms)


def conflicted(
    scheduled: ScheduledTable,
    record: CompactionRecord,
    conflict: Conflict,
    why: str,
    retry: Retry,
    now_ms: int,
    observer: Observer,
) -> None:
    """Other writers made the compaction void."""
    scheduled.counts.conflicts[conflict] += 1
    text = f"{why}; writers came first {DROPS_MAX} times"
    in_vain(scheduled, record, text, retry, now_ms, observer)


def take_in(
    scheduled: ScheduledTable, cycle: Cycle, retry: Retry, now_ms: int, observer: Observer
) -> None:
    """Account for the table's status as a cycle has read it."""
    scheduled.info = cycle.info or scheduled.info
    if cycle.last_commit is not None and not scheduled.last_commit_ms:
        scheduled.last_commit_ms = cycle.last_commit.ended_ms
        scheduled.last_commit_snapshot_id = cycle.last_commit.snapshot_id
    for why in cycle.lost_snapshots:
        scheduled.counts.sums["lost_snapshots"] += 1
        observer.snapshot_lost(scheduled.name, why)
    scheduled.replaced_snapshots = max(scheduled.replaced_snapshots, cycle.replaced_snapshots)
    open_losses = scheduled.replaced_snapshots - scheduled.forgiven_snapshots
    if cycle.lost_snapshots and open_losses >= retry.halt_after_lost_snapshots:
        action = (
            "Another writer replaced a snapshot of ours: its storage cannot publish safely "
            "without a lock. Give all writers one, then reload or restart compactord."
        )
        why = cycle.lost_snapshots[-1]
        _halt(
            scheduled,
            HaltReason.UNSAFE_COMMIT,
            why,
            action,
            Lifted.BY_OPERATOR,
            now_ms,
            0,
            observer,
        )
    _take_in_losses(scheduled, cycle, now_ms, observer)
    if cycle.error is not None and cycle.in_commit:
        # Without a pause the dropped merge would be repeated at once.
        kind = type(cycle.error).__name__
        fail(scheduled, str(cycle.error), kind, retry, now_ms, observer)
        pause = pause_ms(retry.backoff, scheduled.failures)
        scheduled.next_try_ms = max(scheduled.next_try_ms, now_ms + pause)
        return
    if cycle.error is not None:
        _trouble(scheduled, cycle.error, retry, now_ms, observer)
        return
    scheduled.look_failures = scheduled.next_poll_ms = 0
    scheduled.last_poll_ms = now_ms
    if not (scheduled.first_poll_ms or cycle.wait_ms):
        scheduled.first_poll_ms = now_ms
    scheduled.error = ""
    if cycle.planned is not None:
        scheduled.counts.sums["ingested_bytes"] += cycle.planned.appended_bytes
        scheduled.planned = cycle.planned
        quarantine_damaged(scheduled, cycle, now_ms, observer)
        if scheduled.has_nothing_failing:
            # No commit of ours will end this halt.
            scheduled.failures = 0
            _lift(scheduled, Lifted.BY_COMMIT, observer)
        forget_quarantined(scheduled, now_ms, observer)
    _lift(scheduled, Lifted.BY_CYCLE, observer)


def _take_in_losses(
    scheduled: ScheduledTable, cycle: Cycle, now_ms: int, observer: Observer
) -> None:
    """Count what writers lost; what is not in the table again halts it."""
    for lost in cycle.lost_commits:
        scheduled.counts.sums[f"lost_commits_{lost.outcome.value}"] += 1
    missing = [each for each in cycle.lost_commits if each.outcome is LossOutcome.HALTED]
    if missing:
        action = (
            "Get the rows back as deploy/runbooks/CompactordWriterCommitLost.md says, give all "
            "writers a lock, then reload or restart compactord."
        )
        why = "; ".join(map(str, missing))
        _halt(
            scheduled,
            HaltReason.UNSAFE_COMMIT,
            why,
            action,
            Lifted.BY_OPERATOR,
            now_ms,
            0,
            observer,
        )


def fail(
    scheduled: ScheduledTable,
    message: str,
    kind: str,
    retry: Retry,
    now_ms: int,
    observer: Observer,
) -> None:
    """A compaction has failed for good; too many in a row halt the table.

    `kind` is the name of the error's class, as workers report it.
    """
    scheduled.failures += 1
    if scheduled.failures < retry.halt_after_consecutive_failures:
        return
    _halt(
        scheduled,
        failure_halt(kind),
        message,
        advice(kind),
        Lifted.BY_COMMIT,
        now_ms,
        now_ms + retry.backoff.max_ms,
        observer,
    )


def blame(
    scheduled: ScheduledTable,
    pending: PendingCompaction,
    message: str,
    kind: str,
    retry: Retry,
    now_ms: int,
    observer: Observer,
) -> None:
    """Quarantine the bucket and count a failure of the table; `kind` as for `fail`.

    A file that is gone, and a bucket that fails again and again, concern that bucket alone: the
    table has others that can be compacted. It is halted when many of them fail, in a row.
    """
    is_new = pending.bucket not in scheduled.quarantined or Lifted.BY_COMMIT in scheduled.halts
    if is_new and kind != DataFileMissing.__name__:
        fail(scheduled, message, kind, retry, now_ms, observer)
    quarantine(scheduled, pending, message, kind, retry, now_ms, observer)


def expired(scheduled: ScheduledTable, result: Expired | CompactordError, now_ms: int) -> None:
    """Account for a round of expiry."""
    sums = scheduled.counts.sums
    if isinstance(result, CompactordError):
        sums["expire_failures"] += 1
        return
    scheduled.last_expired_ms = now_ms
    planned = scheduled.planned
    if result.snapshots and planned is not None:
        # The next plan counts again; it may be far off, and by then others may have expired some.
        kept = min(planned.shape.snapshots, planned.snapshot_id - result.end + 1)
        shape = replace(planned.shape, snapshots=max(0, kept))
        scheduled.planned = replace(planned, shape=shape)
    sums["expired_snapshots"] += result.snapshots
    sums["expired_files"] += (
        result.data_files + result.changelog_files + result.manifests + result.index_files
    )


def release(scheduled: ScheduledTable, observer: Observer) -> None:
    """Resume a halted table at an operator's request; its failures are forgotten."""
    scheduled.forgiven_snapshots = scheduled.replaced_snapshots
    scheduled.halts.clear()
    scheduled.failures = scheduled.look_failures = 0
    scheduled.next_try_ms = scheduled.next_poll_ms = 0
    observer.resumed(scheduled.name)


def unpublished(
    scheduled: ScheduledTable, record: CompactionRecord, outcome: Outcome, message: str, now_ms: int
) -> EndedCompaction:
    """Account for a compaction that ended without results."""
    return _counted(scheduled, record, outcome, message, now_ms, None)


def is_unsafe(scheduled: ScheduledTable) -> bool:
    """Whether nothing may be committed to the table any more."""
    return Lifted.BY_OPERATOR in scheduled.halts


def _trouble(
    scheduled: ScheduledTable, error: CompactordError, retry: Retry, now_ms: int, observer: Observer
) -> None:
    scheduled.look_failures += 1
    pause = pause_ms(retry.backoff, scheduled.look_failures)
    scheduled.next_poll_ms = now_ms + pause
    # Stores and databases write into errors what they like.
    message = redact_text(str(error))
    permanent = halt_for(error)
    if permanent is not None:
        reason, action = permanent
        _halt(
            scheduled,
            reason,
            message,
            action,
            Lifted.BY_CYCLE,
            now_ms,
            scheduled.next_poll_ms,
            observer,
        )
    elif scheduled.look_failures >= retry.halt_after_consecutive_failures:
        _halt(
            scheduled,
            HaltReason.REPEATED_FAILURES,
            message,
            advice(type(error).__name__),
            Lifted.BY_CYCLE,
            now_ms,
            scheduled.next_poll_ms,
            observer,
        )
    else:
        scheduled.error = message
        observer.troubled(scheduled.name, message)


def _halt(
    scheduled: ScheduledTable,
    reason: HaltReason,
    message: str,
    action: str,
    lifted: Lifted,
    now_ms: int,
    next_try_ms: int,
    observer: Observer,
) -> None:
    shown, known = scheduled.shown_halt, scheduled.halts.get(lifted)
    scheduled.halts[lifted] = Halt(
        reason=reason,
        message=message,
        action=action,
        since_ms=known.since_ms if known is not None else now_ms,
        next_try_ms=next_try_ms,
    )
    scheduled.error = ""
    if lifted is not Lifted.BY_CYCLE:
        scheduled.next_try_ms = next_try_ms
    tell_halt(scheduled, shown, observer)


def _lift(scheduled: ScheduledTable, lifted: Lifted, observer: Observer) -> None:
    """End the halt of this kind, if there is one."""
    shown = scheduled.shown_halt
    if scheduled.halts.pop(lifted, None) is not None:
        if lifted is Lifted.BY_COMMIT:
            scheduled.next_try_ms = 0
        tell_halt(scheduled, shown, observer)


def _count_commit(scheduled: ScheduledTable, settled: Settled, now_ms: int) -> None:
    committed, sums = settled.committed, scheduled.counts.sums
    assert committed is not None, "it was committed"
    sums["commits_committed"] += 1
    sums["commit_attempts"] += committed.attempts
    scheduled.counts.conflicts[Conflict.SNAPSHOT_RACE] += committed.attempts - 1
    scheduled.last_commit_ms = now_ms
    scheduled.last_commit_snapshot_id = committed.snapshot_id
    scheduled.failures = 0


def _published(
    scheduled: ScheduledTable,
    record: CompactionRecord,
    finished: Finished,
    now_ms: int,
    observer: Observer,
) -> EndedCompaction:
    bucket, sums = finished.compaction.bucket, scheduled.counts.sums
    quarantined = scheduled.quarantined.get(bucket)
    # A compaction that began before another one of the bucket failed does not refute that failure.
    if quarantined is not None and quarantined.until_ms <= record.started_ms:
        shown = scheduled.shown_halt
        del scheduled.quarantined[bucket]
        tell_halt(scheduled, shown, observer)
    scheduled.drops.pop(bucket, None)
    scheduled.last_success_ms[record.pending.kind] = now_ms
    view = _counted(scheduled, record, Outcome.COMMITTED, "", now_ms, finished)
    sums["input_bytes"] += view.bytes_in
    sums["output_bytes"] += view.bytes_out
    sums["input_files"] += view.files_in
    sums["output_files"] += view.files_out
    sums["upgraded_files"] += view.upgraded_files
    sums["input_records"] += view.rows_in
    sums["output_records"] += view.rows_out
    return view


def _waste(scheduled: ScheduledTable, finished: Finished) -> None:
    scheduled.counts.sums["wasted_bytes"] += sum(stats.bytes_out for stats in finished.stats)


def _counted(
    scheduled: ScheduledTable,
    record: CompactionRecord,
    outcome: Outcome,
    message: str,
    now_ms: int,
    finished: Finished | None,
) -> EndedCompaction:
    record.outcome = outcome
    compaction, stats = record.dispatch.compaction, finished.stats if finished else ()
    upgraded = len(compaction.upgraded) if isinstance(compaction, MergeCompaction) else 0
    # Without the time for which it waited to be published with others.
    end_ms = record.finished_ms or now_ms
    seconds = max(0, end_ms - record.started_ms) / 1000 if record.started_ms else 0.0
    scheduled.counts.compactions[record.pending.kind, outcome] += 1
    scheduled.counts.compaction_seconds += seconds
    scheduled.counts.sums["compaction_seconds_count"] += 1
    return EndedCompaction(
        compaction_id=record.number,
        name=scheduled.name,
        partition=record.dispatch.partition,
        bucket=compaction.bucket.bucket,
        kind=record.pending.kind,
        reason=compaction.reason,
        outcome=outcome,
        message=message,
        snapshot_id=scheduled.last_commit_snapshot_id if outcome is Outcome.COMMITTED else 0,
        files_in=len(compaction.inputs) - upgraded,
        files_out=len(finished.change.after) - upgraded if finished else 0,
        upgraded_files=upgraded,
        bytes_in=sum(each.bytes_in for each in stats),
        bytes_out=sum(each.bytes_out for each in stats),
        rows_in=sum(each.rows_in for each in stats),
        rows_out=sum(each.rows_out for each in stats),
        seconds=seconds,
        finished_ms=now_ms,
    )
