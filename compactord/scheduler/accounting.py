"""What happened to a table, written down: counters, troubles, halts, parked buckets.

Functions of the fleet over one `Served`; nothing here decides what is done next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from compactord.config.model import Backoff, Retry
from compactord.errors import CommitGaveUp, CompactordError, FormatError
from compactord.maintenance.expire import Expired
from compactord.model import Conflict, MergeCompaction, TableName
from compactord.paimon.data_file import BucketId
from compactord.scheduler.scheduled_table import Flight, Lifted, Parked, Served, advice, halt_for
from compactord.scheduler.status import CompactionView, Halt, HaltReason, Outcome
from compactord.table.compactor import Turn
from compactord.table.in_flight import Landed
from compactord.table.session import Settled

# A bucket whose compactions came to nothing so often in a row rests: writers outrun us there, or
# it is what kills the engine.
DROPS_MAX = 5


class Witness(Protocol):
    """Is told what a person or a metric may want to know; must not block."""

    def started(self, name: TableName, flight: Flight, now_ms: int) -> None:
        """The first part of a compaction goes to the engine."""
        ...

    def ended(self, view: CompactionView) -> None:
        """A compaction has ended, one way or another."""
        ...

    def committed(self, name: TableName, settled: Settled, seconds: float) -> None: ...

    def commit_failed(self, name: TableName, error: CompactordError) -> None: ...

    def parked(self, name: TableName, bucket: BucketId, parked: Parked, now_ms: int) -> None: ...

    def halted(self, name: TableName, halt: Halt) -> None: ...

    def resumed(self, name: TableName) -> None: ...

    def troubled(self, name: TableName, error: str) -> None:
        """A look at the table failed; it is tried again."""
        ...

    def snapshot_lost(self, name: TableName, why: str) -> None: ...


def settle(
    served: Served, turn: Turn, retry: Retry, now_ms: int, witness: Witness
) -> Iterator[CompactionView]:
    """Book what a turn did with the compactions handed in."""
    settling, served.settling = served.settling, {}
    flights = {id(ended): flight for flight, ended in settling.values()}
    landed = [ended for _, ended in settling.values() if isinstance(ended, Landed)]
    if turn.in_commit and turn.error is not None:
        gave_up = isinstance(turn.error, CommitGaveUp)
        served.counts.sums["commits_gave_up" if gave_up else "commits_error"] += 1
        witness.commit_failed(served.name, turn.error)
        for each in landed:
            _waste(served, each)
            yield _counted(served, flights[id(each)], Outcome.FAILED, str(turn.error), now_ms, each)
    settled = turn.settled
    if settled is None:
        return
    if settled.committed is not None:
        witness.committed(served.name, settled, turn.commit_seconds)
        _count_commit(served, settled, now_ms, witness)
        for each in settled.published:
            yield _published(served, flights[id(each)], each, now_ms)
    for each, drop in settled.dropped:
        served.counts.conflicts[drop.conflict] += 1
        _waste(served, each)
        flight = flights[id(each)]
        yield _counted(served, flight, Outcome.CONFLICT, drop.why, now_ms, each)
        text = f"{drop.why}; writers came first {DROPS_MAX} times"
        in_vain(served, flight, text, retry.backoff, now_ms, witness)
    for each in settled.replaced:
        _waste(served, each)
        text = "another writer's snapshot took the place of ours"
        yield _counted(served, flights[id(each)], Outcome.CONFLICT, text, now_ms, each)


def take_in(served: Served, turn: Turn, retry: Retry, now_ms: int, witness: Witness) -> None:
    """Book what a turn saw of the table."""
    for why in turn.lost_snapshots:
        served.counts.sums["lost_snapshots"] += 1
        witness.snapshot_lost(served.name, why)
    served.replaced_snapshots = max(served.replaced_snapshots, turn.replaced_snapshots)
    open_losses = served.replaced_snapshots - served.forgiven_snapshots
    if turn.lost_snapshots and open_losses >= retry.halt_after_lost_snapshots:
        action = (
            "Another writer replaced a snapshot of ours: its storage cannot publish safely "
            "without a lock. Give all writers one, then reload or restart compactord."
        )
        why = turn.lost_snapshots[-1]
        _halt(served, HaltReason.UNSAFE_COMMIT, why, action, Lifted.BY_OPERATOR, now_ms, 0, witness)
    if turn.error is not None and turn.in_commit:
        # Else what was merged for nothing would be merged again at once.
        kind = type(turn.error).__name__
        fail(served, str(turn.error), kind, retry, now_ms, witness)
        pause = pause_ms(retry.backoff, served.failures)
        served.next_try_ms = max(served.next_try_ms, now_ms + pause)
        return
    if turn.error is not None:
        _trouble(served, turn.error, retry, now_ms, witness)
        return
    served.look_failures = 0
    served.last_poll_ms = now_ms
    if not served.first_poll_ms:
        served.first_poll_ms = now_ms
    served.error = ""
    if turn.planned is not None:
        served.counts.sums["ingested_bytes"] += turn.planned.appended_bytes
        served.planned = turn.planned
        _forget_parked(served, now_ms)
        if not turn.planned.backlog.tasks and not served.flights:
            # What failed is not there any more, and no commit will come to prove it.
            served.failures = 0
            _lift(served, Lifted.BY_COMMIT, witness)
    _lift(served, Lifted.BY_TURN, witness)
    if served.halt is None and not served.parked:
        served.next_try_ms = 0


def fail(
    served: Served, message: str, kind: str, retry: Retry, now_ms: int, witness: Witness
) -> None:
    """A compaction has failed for good; too many in a row halt the table.

    `kind` is the name of the error's class, as workers report it.
    """
    served.failures += 1
    if served.failures < retry.halt_after_consecutive_failures:
        return
    is_damage = kind == FormatError.__name__
    _halt(
        served,
        HaltReason.DATA_CHECK_FAILED if is_damage else HaltReason.REPEATED_FAILURES,
        message,
        advice(kind),
        Lifted.BY_COMMIT,
        now_ms,
        now_ms + retry.backoff.max_ms,
        witness,
    )


def park(
    served: Served, flight: Flight, message: str, backoff: Backoff, now_ms: int, witness: Witness
) -> None:
    """Leave a bucket alone for a time that grows with its failures."""
    bucket, partition = flight.due.bucket, flight.take_off.partition
    park_bucket(served, bucket, partition, message, backoff, now_ms, witness)


def in_vain(
    served: Served, flight: Flight, message: str, backoff: Backoff, now_ms: int, witness: Witness
) -> None:
    """A compaction came to nothing and its bucket is hardly to blame; too often, and it rests."""
    bucket = flight.due.bucket
    served.drops[bucket] += 1
    if served.drops[bucket] >= DROPS_MAX:
        del served.drops[bucket]
        park(served, flight, message, backoff, now_ms, witness)


def park_bucket(
    served: Served,
    bucket: BucketId,
    partition: str,
    message: str,
    backoff: Backoff,
    now_ms: int,
    witness: Witness,
) -> None:
    known = served.parked.get(bucket)
    failures = known.failures + 1 if known else 1
    parked = Parked(
        failures=failures,
        message=message,
        until_ms=now_ms + pause_ms(backoff, failures),
        partition=partition,
    )
    served.parked[bucket] = parked
    witness.parked(served.name, bucket, parked, now_ms)


def expired(served: Served, result: Expired | CompactordError) -> None:
    """Book a round of expiry."""
    sums = served.counts.sums
    if isinstance(result, CompactordError):
        sums["expire_failures"] += 1
        return
    sums["expired_snapshots"] += result.snapshots
    sums["expired_files"] += (
        result.data_files + result.changelog_files + result.manifests + result.index_files
    )


def _forget_parked(served: Served, now_ms: int) -> None:
    """Buckets that are gone, and those whose pause is over and that have nothing to do any more."""
    planned = served.planned
    assert planned is not None, "just taken in"
    for bucket in planned.gone:
        served.parked.pop(bucket, None)
        served.drops.pop(bucket, None)
    if planned.backlog.tasks > sum(due.tasks for due in planned.dues):
        # Not all that is due was offered.
        return
    due = {each.bucket for each in planned.dues}
    # What is tried again right now is not due.
    due.update(flight.due.bucket for flight in served.flights.values())
    for bucket in [b for b, parked in served.parked.items() if parked.until_ms <= now_ms]:
        if bucket not in due:
            del served.parked[bucket]


def pause_ms(backoff: Backoff, failures: int) -> int:
    """How long to wait after so many failures in a row."""
    return int(min(backoff.max_ms, backoff.min_ms * 2 ** min(failures - 1, 40)))


def release(served: Served, witness: Witness) -> None:
    """An operator says that a halted table may go on: as if nothing had happened."""
    served.forgiven_snapshots = served.replaced_snapshots
    served.halts.clear()
    served.failures = served.look_failures = 0
    served.next_try_ms = 0
    witness.resumed(served.name)


def unpublished(
    served: Served, flight: Flight, outcome: Outcome, message: str, now_ms: int
) -> CompactionView:
    """Book a compaction that ended without results."""
    return _counted(served, flight, outcome, message, now_ms, None)


def is_unsafe(served: Served) -> bool:
    """Whether nothing may be committed to the table any more."""
    return Lifted.BY_OPERATOR in served.halts


def _trouble(
    served: Served, error: CompactordError, retry: Retry, now_ms: int, witness: Witness
) -> None:
    served.look_failures += 1
    pause = pause_ms(retry.backoff, served.look_failures)
    # A halt may ask for a longer pause than this failure does.
    served.next_try_ms = max(served.next_try_ms, now_ms + pause)
    permanent = halt_for(error)
    if permanent is not None:
        reason, action = permanent
        _halt(
            served, reason, str(error), action, Lifted.BY_TURN, now_ms, served.next_try_ms, witness
        )
    elif served.look_failures >= retry.halt_after_consecutive_failures:
        _halt(
            served,
            HaltReason.REPEATED_FAILURES,
            str(error),
            advice(type(error).__name__),
            Lifted.BY_TURN,
            now_ms,
            served.next_try_ms,
            witness,
        )
    else:
        served.error = str(error)
        witness.troubled(served.name, str(error))


def _halt(
    served: Served,
    reason: HaltReason,
    message: str,
    action: str,
    lifted: Lifted,
    now_ms: int,
    next_try_ms: int,
    witness: Witness,
) -> None:
    shown, known = served.halt, served.halts.get(lifted)
    served.halts[lifted] = Halt(
        reason=reason,
        message=message,
        action=action,
        since_ms=known.since_ms if known is not None else now_ms,
        next_try_ms=next_try_ms,
    )
    served.next_try_ms, served.error = next_try_ms, ""
    _tell(served, shown, witness)


def _lift(served: Served, lifted: Lifted, witness: Witness) -> None:
    """End the halt of this kind, if there is one."""
    shown = served.halt
    if served.halts.pop(lifted, None) is not None:
        remaining = served.halt
        served.next_try_ms = remaining.next_try_ms if remaining is not None else 0
        _tell(served, shown, witness)


def _tell(served: Served, before: Halt | None, witness: Witness) -> None:
    """Say what people see of the table's halts now, if that is something else than before."""
    now = served.halt
    if now is None:
        witness.resumed(served.name)
    elif before is None or (before.reason, before.message) != (now.reason, now.message):
        witness.halted(served.name, now)


def _count_commit(served: Served, settled: Settled, now_ms: int, witness: Witness) -> None:
    committed, sums = settled.committed, served.counts.sums
    assert committed is not None, "asked for a commit"
    sums["commits_committed"] += 1
    sums["commit_attempts"] += committed.attempts
    served.counts.conflicts[Conflict.SNAPSHOT_RACE] += committed.attempts - 1
    served.last_commit_ms = now_ms
    served.last_commit_snapshot_id = committed.snapshot_id
    served.failures = 0
    _lift(served, Lifted.BY_COMMIT, witness)


def _published(served: Served, flight: Flight, landed: Landed, now_ms: int) -> CompactionView:
    bucket, sums = landed.compaction.bucket, served.counts.sums
    parked = served.parked.get(bucket)
    # What had begun before another compaction of the bucket failed says nothing about that one.
    if parked is not None and parked.until_ms <= flight.started_ms:
        del served.parked[bucket]
    served.drops.pop(bucket, None)
    served.last_success_ms[flight.due.kind] = now_ms
    view = _counted(served, flight, Outcome.COMMITTED, "", now_ms, landed)
    sums["input_bytes"] += view.bytes_in
    sums["output_bytes"] += view.bytes_out
    sums["input_files"] += view.files_in
    sums["output_files"] += view.files_out
    sums["upgraded_files"] += view.upgraded_files
    sums["input_records"] += view.rows_in
    sums["output_records"] += view.rows_out
    return view


def _waste(served: Served, landed: Landed) -> None:
    served.counts.sums["wasted_bytes"] += sum(stats.bytes_out for stats in landed.stats)


def _counted(
    served: Served,
    flight: Flight,
    outcome: Outcome,
    message: str,
    now_ms: int,
    landed: Landed | None,
) -> CompactionView:
    compaction, stats = flight.take_off.compaction, landed.stats if landed else ()
    upgraded = len(compaction.upgraded) if isinstance(compaction, MergeCompaction) else 0
    seconds = max(0, now_ms - flight.started_ms) / 1000 if flight.started_ms else 0.0
    served.counts.compactions[flight.due.kind, outcome] += 1
    served.counts.compaction_seconds += seconds
    served.counts.sums["compaction_seconds_count"] += 1
    return CompactionView(
        name=served.name,
        partition=flight.take_off.partition,
        bucket=compaction.bucket.bucket,
        kind=flight.due.kind,
        reason=compaction.reason,
        outcome=outcome,
        message=message,
        snapshot_id=served.last_commit_snapshot_id if outcome is Outcome.COMMITTED else 0,
        files_in=len(compaction.inputs) - upgraded,
        files_out=len(landed.change.after) - upgraded if landed else 0,
        upgraded_files=upgraded,
        bytes_in=sum(each.bytes_in for each in stats),
        bytes_out=sum(each.bytes_out for each in stats),
        rows_in=sum(each.rows_in for each in stats),
        rows_out=sum(each.rows_out for each in stats),
        seconds=seconds,
        finished_ms=now_ms,
    )
