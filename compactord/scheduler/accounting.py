"""Applies job outcomes to tables: finished compactions, failures, quarantine.

Each change is reported as an event (`ScheduledTable.tell`), which counts it. This module does not
decide what happens next.

Functions of the scheduler over one `ScheduledTable`. The table's other buckets go on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TypeGuard

from compactord.commit.changes import BucketChange, Committed, LossOutcome, Replaced
from compactord.config.model import Backoff, Retry
from compactord.errors import (
    CompactordError,
    DataFileDamaged,
    DataFileMissing,
    ErrorKind,
)
from compactord.maintenance.kind import Round
from compactord.model import Conflict, RewriteStats, SubcompactionFailure
from compactord.paimon.data_file import BucketId
from compactord.scheduler import events
from compactord.scheduler.compaction import (
    CompactionRecord,
    EndedCompaction,
    Halt,
    HaltReason,
    Outcome,
    Status,
)
from compactord.scheduler.effects import MaintenanceJob
from compactord.scheduler.events import BucketQuarantined
from compactord.scheduler.halts import (
    Failure,
    FruitlessAttempts,
    HaltEnd,
    QuarantinedBucket,
    advice,
    failure_reason,
    halt_for,
)
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.table.jobs import CycleResult, InputsReplaced, Planned
from compactord.text import redact_text

# Quarantine a bucket after this many fruitless compactions in a row: writers commit faster than
# compactions of it, or it makes the engine die.
FRUITLESS_MAX = 5
# This many failures by a damaged file are shown as a halt; each has read the file twice.
_DAMAGED_MAX = 2


def dropped(record: CompactionRecord, message: str, retry: Retry, now_ms: int) -> None:
    """Quarantine the bucket after FRUITLESS_MAX fruitless compactions in a row.

    One commit of a writer may invalidate several compactions in flight: they count once.
    """
    drops = record.table.drops.setdefault(record.pending.bucket, FruitlessAttempts())
    if record.compaction_id <= drops.up_to:
        return
    drops.count, drops.up_to = drops.count + 1, record.table.last_compaction_id
    if drops.count >= FRUITLESS_MAX:
        drops.count = 0
        quarantine(record, Failure(message=message), retry, now_ms)


def quarantine(record: CompactionRecord, failure: Failure, retry: Retry, now_ms: int) -> None:
    """Quarantine the bucket for a time that grows with its failures."""
    scheduled, pending = record.table, record.pending
    known = scheduled.quarantined.get(pending.bucket)
    failures = known.failures + 1 if known and not known.is_damaged else 1
    quarantined = QuarantinedBucket(
        failures=failures,
        message=failure.message,
        error=failure.error,
        since_ms=known.since_ms if known else now_ms,
        until_ms=now_ms + pause_ms(retry.backoff, failures),
        partition=pending.partition,
        halt=_halt_of(failure.error, failures, retry),
    )
    with scheduled.emits_halt_changes():
        _put(scheduled, pending.bucket, quarantined, now_ms)


def _put(
    scheduled: ScheduledTable, bucket: BucketId, quarantined: QuarantinedBucket, now_ms: int
) -> None:
    scheduled.quarantined[bucket] = quarantined
    scheduled.tell(
        BucketQuarantined(
            name=scheduled.name, bucket=bucket, quarantined=quarantined, now_ms=now_ms
        )
    )


def _halt_of(error: ErrorKind, failures: int, retry: Retry) -> HaltReason | None:
    """The halt reason shown for the bucket, or None until it has failed often enough."""
    if error == ErrorKind.DATA_FILE_MISSING:
        return HaltReason.DATA_FILE_MISSING
    if error == ErrorKind.DATA_FILE_DAMAGED and failures >= _DAMAGED_MAX:
        return failure_reason(error)
    if not error or failures < retry.halt_after_consecutive_failures:
        return None
    return failure_reason(error)


def quarantine_damaged(scheduled: ScheduledTable, planned: Planned, now_ms: int) -> None:
    """Quarantines buckets that could not be planned, and releases buckets that now could.

    Each is reported once. It is no failure of the table: all other work goes on. If other files of
    a table without buckets fail as well, their pauses and their halt take precedence.
    """
    damaged = {each.bucket for each in planned.damaged}
    for bucket in [b for b, known in scheduled.quarantined.items() if known.is_damaged]:
        if bucket not in damaged:
            del scheduled.quarantined[bucket]
    for each in planned.damaged:
        known = scheduled.quarantined.get(each.bucket)
        if known is not None and known.is_damaged and known.message == each.message:
            continue
        is_partly = each.error == ErrorKind.UNREADABLE_COLUMN
        if known is not None and not known.is_damaged and is_partly:
            continue
        quarantined = QuarantinedBucket(
            failures=1,
            message=each.message,
            error=each.error,
            since_ms=now_ms,
            until_ms=0,
            partition=each.partition,
        )
        _put(scheduled, each.bucket, quarantined, now_ms)


def forget_quarantined(scheduled: ScheduledTable, planned: Planned, now_ms: int) -> None:
    """Forgets buckets without files, and idle buckets whose quarantine has ended."""
    for bucket in planned.emptied:
        scheduled.drops.pop(bucket, None)
    with scheduled.emits_halt_changes():
        for bucket in [*planned.emptied, *_without_work(scheduled, planned, now_ms)]:
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
    """The pause after this many failures in a row."""
    return int(min(backoff.max_ms, backoff.min_ms * 2 ** min(failures - 1, 40)))


_RECENT_MAX = 200


class Accounting:
    """Books outcomes. `recent` has the last ended compactions of all tables, newest first."""

    def __init__(self, retry: Retry) -> None:
        self.retry = retry
        self.recent: deque[EndedCompaction] = deque(maxlen=_RECENT_MAX)

    # -- compactions

    def settled(self, scheduled: ScheduledTable, cycle: CycleResult, now_ms: int) -> None:
        """Books a cycle that has dealt with the outcomes of the compactions passed to it."""
        records = {
            record.compaction_id: record for record in scheduled.with_status(Status.COMMITTING)
        }
        for compaction_id, record in records.items():
            del scheduled.compactions[compaction_id]
            failure = record.failure
            if failure is not None and failure.unreadable:
                # The plan skips these files, or quarantines their bucket.
                self.ended(record, Outcome.FAILED, failure.message, now_ms)
            elif is_undecided(failure):
                self._inputs_unreadable(record, failure, cycle, now_ms)
        if cycle.in_commit and cycle.error is not None:
            scheduled.tell(events.CommitFailed(name=scheduled.name, error=cycle.error))
            for record in records.values():
                if record.failure is None:
                    self.ended(record, Outcome.FAILED, str(cycle.error), now_ms)
        commit = cycle.commit
        if commit is None:
            return
        if isinstance(commit, Committed):
            self._committed(scheduled, records, commit, cycle.commit_seconds, now_ms)
        damaged = {each.bucket for each in cycle.planned.damaged} if cycle.planned else set()
        for drop in commit.dropped:
            record = records[drop.change.compaction_id]
            self.ended(record, Outcome.CONFLICT, drop.why, now_ms)
            if drop.conflict is not Conflict.BUCKET_DAMAGED:
                self.conflicted(record, drop.conflict, drop.why, now_ms)
                continue
            scheduled.tell(events.Conflicted(name=scheduled.name, conflict=drop.conflict))
            if record.pending.bucket not in damaged:
                cause = cycle.causes.get(record.compaction_id)
                damage = Failure(message=drop.why, error=ErrorKind.FORMAT_ERROR)
                if isinstance(cause, DataFileMissing | DataFileDamaged):
                    damage = Failure.of(cause)
                quarantine(record, damage, self.retry, now_ms)
        for change in commit.changes if isinstance(commit, Replaced) else ():
            why = "another writer's snapshot took the place of ours"
            self.ended(records[change.compaction_id], Outcome.CONFLICT, why, now_ms)

    def _committed(
        self,
        scheduled: ScheduledTable,
        records: dict[int, CompactionRecord],
        commit: Committed,
        seconds: float,
        now_ms: int,
    ) -> None:
        scheduled.tell(
            events.SnapshotCommitted(name=scheduled.name, commit=commit, seconds=seconds)
        )
        scheduled.last_commit_ms = now_ms
        scheduled.last_commit_snapshot_id = commit.snapshot_id
        scheduled.failures = 0
        for compaction_id in commit.compaction_ids:
            record = records[compaction_id]
            bucket = record.pending.bucket
            known = scheduled.quarantined.get(bucket)
            # A compaction that began before another one of its bucket failed does not refute that
            # failure. Only a plan refutes the finding of a plan.
            if known is not None and known.until_ms <= record.started_ms and not known.is_damaged:
                with scheduled.emits_halt_changes():
                    del scheduled.quarantined[bucket]
            scheduled.drops.pop(bucket, None)
            scheduled.last_success_ms[record.pending.kind] = now_ms
            self.ended(record, Outcome.COMMITTED, "", now_ms)
        # Last, because a failed bucket is shown as a halt as well.
        self._end_halt(scheduled, HaltEnd.COMMIT)

    def _inputs_unreadable(
        self,
        record: CompactionRecord,
        failed: SubcompactionFailure,
        cycle: CycleResult,
        now_ms: int,
    ) -> None:
        """Books unreadable inputs: another writer replaced and expired them, or they are damaged.

        If the cause is unknown, this does not count as a failure: the next attempt decides.
        """
        message, cause = failed.message, cycle.causes.get(record.compaction_id)
        if record.compaction_id not in cycle.causes:
            self.ended(record, Outcome.CANCELLED, message, now_ms)
        elif isinstance(cause, InputsReplaced):
            self.conflicted(record, Conflict.FILE_REMOVED, message, now_ms)
            self.ended(record, Outcome.CONFLICT, message, now_ms)
        else:
            failure = Failure.of(cause) if cause else Failure(message=message, error=failed.error)
            self.bucket_failed(record, failure, now_ms)
            self.ended(record, Outcome.FAILED, failure.message, now_ms)

    def conflicted(
        self, record: CompactionRecord, conflict: Conflict, why: str, now_ms: int
    ) -> None:
        """Other writers made the compaction void."""
        record.table.tell(events.Conflicted(name=record.table.name, conflict=conflict))
        text = f"{why}; writers came first {FRUITLESS_MAX} times"
        dropped(record, text, self.retry, now_ms)

    def engine_died(self, record: CompactionRecord, why: str, now_ms: int) -> None:
        """Books the death of the engine while the compaction was running."""
        text = f"the engine died {FRUITLESS_MAX} times while it was merged: {why}"
        dropped(record, text, self.retry, now_ms)

    def ended(self, record: CompactionRecord, outcome: Outcome, message: str, now_ms: int) -> None:
        """Books the end of a dispatched compaction."""
        record.outcome = outcome
        view = _ended_compaction(record, outcome, message, now_ms)
        self.recent.appendleft(view)
        record.table.tell(view)

    # -- failures and halts

    def bucket_failed(self, record: CompactionRecord, failure: Failure, now_ms: int) -> None:
        """Quarantine the bucket and count a failure of the table.

        A missing or damaged file, and a bucket that fails repeatedly, concern only that bucket:
        the table has other buckets that can be compacted. It is halted when many of them fail in a
        row.
        """
        scheduled, bucket = record.table, record.pending.bucket
        is_new = bucket not in scheduled.quarantined or HaltEnd.COMMIT in scheduled.halts
        if is_new and not failure.is_certain:
            self._failed(scheduled, failure, now_ms)
        quarantine(record, failure, self.retry, now_ms)

    def _failed(self, scheduled: ScheduledTable, failure: Failure, now_ms: int) -> None:
        """Books a final failure of a compaction or commit; too many in a row halt the table."""
        scheduled.failures += 1
        if scheduled.failures >= self.retry.halt_after_consecutive_failures:
            why = failure_reason(failure.error), advice(failure.error)
            self._halt(scheduled, HaltEnd.COMMIT, why, failure.message, now_ms)

    def _poll_failed(self, scheduled: ScheduledTable, error: CompactordError, now_ms: int) -> None:
        scheduled.poll_failures += 1
        scheduled.next_poll_ms = now_ms + pause_ms(self.retry.backoff, scheduled.poll_failures)
        # Stores and databases write arbitrary text into errors.
        message, why = redact_text(str(error)), halt_for(error)
        if why is None and scheduled.poll_failures >= self.retry.halt_after_consecutive_failures:
            why = HaltReason.REPEATED_FAILURES, advice(ErrorKind.of(error))
        if why is not None:
            self._halt(scheduled, HaltEnd.CYCLE, why, message, now_ms)
        else:
            scheduled.error = message
            scheduled.tell(events.PollFailed(name=scheduled.name, message=message))

    def _halt(
        self,
        scheduled: ScheduledTable,
        end: HaltEnd,
        why: tuple[HaltReason, str],
        message: str,
        now_ms: int,
    ) -> None:
        """Halts the table; `why` is the reason and what to do.

        Replaces a halt with the same end, and counts from then.
        """
        known, (reason, action) = scheduled.halts.get(end), why
        match end:
            case HaltEnd.OPERATOR:
                next_try_ms = scheduled.next_try_ms = 0
            case HaltEnd.CYCLE:
                next_try_ms = scheduled.next_poll_ms
            case HaltEnd.COMMIT:
                next_try_ms = scheduled.next_try_ms = now_ms + self.retry.backoff.max_ms
        with scheduled.emits_halt_changes():
            scheduled.halts[end] = Halt(
                reason=reason,
                message=message,
                action=action,
                since_ms=known.since_ms if known is not None else now_ms,
                next_try_ms=next_try_ms,
            )
            scheduled.error = ""

    def _end_halt(self, scheduled: ScheduledTable, end: HaltEnd) -> None:
        with scheduled.emits_halt_changes():
            if scheduled.halts.pop(end, None) is not None and end is HaltEnd.COMMIT:
                scheduled.next_try_ms = 0

    def acknowledge(self, scheduled: ScheduledTable) -> None:
        """Resumes a halted table at an operator's request; its failures are forgotten."""
        scheduled.acknowledged_snapshots = scheduled.replaced_snapshots
        scheduled.halts.clear()
        scheduled.failures = scheduled.poll_failures = 0
        scheduled.next_try_ms = scheduled.next_poll_ms = 0
        scheduled.tell(events.TableResumed(name=scheduled.name))

    # -- polls and maintenance

    def polled(self, scheduled: ScheduledTable, cycle: CycleResult, now_ms: int) -> None:
        """Books the table's status as a cycle has read it."""
        scheduled.info = cycle.info or scheduled.info
        if cycle.last_commit is not None and not scheduled.last_commit_ms:
            scheduled.last_commit_ms = cycle.last_commit.ended_ms
            scheduled.last_commit_snapshot_id = cycle.last_commit.snapshot_id
        self._take_in_losses(scheduled, cycle, now_ms)
        if cycle.error is None or cycle.hold is not None:
            with scheduled.emits_halt_changes():
                scheduled.take_hold(cycle.hold, now_ms)
        if cycle.error is not None and cycle.in_commit:
            # Without a pause the dropped merge would be repeated at once.
            self._failed(scheduled, Failure.of(cycle.error), now_ms)
            pause = pause_ms(self.retry.backoff, scheduled.failures)
            scheduled.next_try_ms = max(scheduled.next_try_ms, now_ms + pause)
            return
        if cycle.error is not None:
            self._poll_failed(scheduled, cycle.error, now_ms)
            return
        scheduled.poll_failures = scheduled.next_poll_ms = 0
        scheduled.last_poll_ms = now_ms
        if not (scheduled.first_poll_ms or cycle.wait_ms):
            scheduled.first_poll_ms = now_ms
        scheduled.error = ""
        if cycle.planned is not None:
            scheduled.planned = cycle.planned
            quarantine_damaged(scheduled, cycle.planned, now_ms)
            if scheduled.has_nothing_failing:
                # No commit of ours will end this halt.
                scheduled.failures = 0
                self._end_halt(scheduled, HaltEnd.COMMIT)
            forget_quarantined(scheduled, cycle.planned, now_ms)
        self._end_halt(scheduled, HaltEnd.CYCLE)

    def _take_in_losses(self, scheduled: ScheduledTable, cycle: CycleResult, now_ms: int) -> None:
        """Halts the table for lost snapshots of ours, and for commits that writers lost."""
        for why in cycle.lost_snapshots:
            scheduled.tell(events.SnapshotLost(name=scheduled.name, why=why))
        scheduled.replaced_snapshots = max(scheduled.replaced_snapshots, cycle.replaced_snapshots)
        unacknowledged = scheduled.replaced_snapshots - scheduled.acknowledged_snapshots
        if cycle.lost_snapshots and unacknowledged >= self.retry.halt_after_lost_snapshots:
            action = (
                "Another writer replaced a snapshot of ours: its storage cannot publish safely "
                "without a lock. Give all writers one, then reload or restart compactord."
            )
            why_halted = HaltReason.UNSAFE_COMMIT, action
            self._halt(scheduled, HaltEnd.OPERATOR, why_halted, cycle.lost_snapshots[-1], now_ms)
        for lost in cycle.lost_commits:
            scheduled.tell(events.WriterCommitLost(name=scheduled.name, outcome=lost.outcome))
        missing = [each for each in cycle.lost_commits if each.outcome is LossOutcome.HALTED]
        if missing:
            action = (
                "Get the rows back as in deploy/runbooks/CompactordWriterCommitLost.md, give all "
                "writers a lock, then reload or restart compactord."
            )
            why_halted, text = (HaltReason.UNSAFE_COMMIT, action), "; ".join(map(str, missing))
            self._halt(scheduled, HaltEnd.OPERATOR, why_halted, text, now_ms)

    def maintained(
        self, scheduled: ScheduledTable, job: MaintenanceJob, seconds: float, round_: Round
    ) -> None:
        """Books the end of a round of maintenance."""
        planned, first = scheduled.planned, round_.first_snapshot_id
        if first is not None and planned is not None:
            # The next plan counts again; it may be far off, and another process may have expired
            # some by then.
            kept = min(planned.shape.snapshots, planned.snapshot_id - first + 1)
            shape = replace(planned.shape, snapshots=max(0, kept))
            scheduled.planned = replace(planned, shape=shape)
        scheduled.tell(
            events.Maintained(name=scheduled.name, kind=job.kind, round=round_, seconds=seconds)
        )


def is_undecided(failure: SubcompactionFailure | None) -> TypeGuard[SubcompactionFailure]:
    """Whether the next cycle decides: about the cause, or about unreadable files."""
    if failure is None:
        return False
    kinds = (ErrorKind.OBJECT_NOT_FOUND, ErrorKind.DATA_FILE_DAMAGED)
    return failure.error in kinds or bool(failure.unreadable)


def _ended_compaction(
    record: CompactionRecord, outcome: Outcome, message: str, now_ms: int
) -> EndedCompaction:
    compaction, change = record.in_flight.compaction, record.in_flight.result
    upgraded, after = len(compaction.upgraded), 0
    stats: tuple[RewriteStats, ...] = ()
    if isinstance(change, BucketChange):
        stats, after = record.in_flight.stats, len(change.after) - upgraded
    # Excludes the time for which it waited to be published with others.
    end_ms = record.finished_ms or now_ms
    return EndedCompaction(
        compaction_id=record.compaction_id,
        name=record.table.name,
        partition=record.in_flight.partition,
        bucket=compaction.bucket.bucket,
        kind=record.pending.kind,
        reason=compaction.reason,
        outcome=outcome,
        message=message,
        snapshot_id=record.table.last_commit_snapshot_id if outcome is Outcome.COMMITTED else 0,
        files_in=len(compaction.inputs) - upgraded,
        files_out=after,
        upgraded_files=upgraded,
        bytes_in=sum(each.input_bytes for each in stats),
        bytes_out=sum(each.output_bytes for each in stats),
        rows_in=sum(each.input_records for each in stats),
        rows_out=sum(each.output_records for each in stats),
        seconds=max(0, end_ms - record.started_ms) / 1000 if record.started_ms else 0.0,
        cpu_seconds=sum(each.cpu_s for each in stats),
        finished_ms=now_ms,
    )
