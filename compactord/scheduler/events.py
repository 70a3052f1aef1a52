"""Events of the scheduler, and their counters.

The event of an ended compaction is its `EndedCompaction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from compactord.commit.changes import Committed, LossOutcome
from compactord.errors import CommitGaveUp, CompactordError
from compactord.maintenance.kind import AnyKind, Round
from compactord.model import Conflict, TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import (
    CompactionRecord,
    EndedCompaction,
    Halt,
    Outcome,
    TableCounters,
)
from compactord.scheduler.halts import QuarantinedBucket
from compactord.scheduler.priority import Submitted
from compactord.table.jobs import Planned

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvent:
    name: TableName


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled(TableEvent):
    """A cycle has ended, with or without a new plan; `before` is the plan that it replaces."""

    seconds: float
    planned: Planned | None
    before: Planned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollFailed(TableEvent):
    """A poll of the table failed; it will be retried."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted(TableEvent):
    """The first subcompaction of a compaction goes to the engine."""

    record: CompactionRecord
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDispatched(TableEvent):
    """A chosen bucket could not be cut into subcompactions, or had no work."""

    kind: WorkKind
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcompactionHung(TableEvent):
    """A subcompaction had no outcome within its time limit; it is cancelled."""

    submitted: Submitted
    ran_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicted(TableEvent):
    """Other writers, or damage, made a compaction void."""

    conflict: Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCommitted(TableEvent):
    commit: Committed
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed(TableEvent):
    error: CompactordError


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLost(TableEvent):
    """Another writer replaced a snapshot of ours."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCommitLost(TableEvent):
    """A writer's commit was lost by a late rename: it was restored, or not."""

    outcome: LossOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketQuarantined(TableEvent):
    bucket: BucketId
    quarantined: QuarantinedBucket
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHalted(TableEvent):
    """The halt shown to operators has changed."""

    halt: Halt


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResumed(TableEvent):
    """The halt shown to operators was cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained(TableEvent):
    """A round of maintenance has ended."""

    kind: AnyKind
    round: Round
    seconds: float


Event = TableEvent | EndedCompaction


class Observer(Protocol):
    """Receives events; their records are read only, and may have changed since."""

    def on_event(self, event: Event) -> None: ...


# Counters of rounds that a table's counters have as well.
_OF_ROUNDS = ("expired_snapshots", "expired_files", "expire_failures")


def count(counters: TableCounters, event: Event) -> None:
    """Add the event to the counters of its table."""
    match event:
        case EndedCompaction():
            _count_ended(counters, event)
        case NotDispatched(kind=kind, outcome=outcome):
            _add(counters.compactions, (kind, outcome))
        case Conflicted(conflict=conflict):
            _add(counters.conflicts, conflict)
        case SnapshotCommitted(commit=Committed(attempts=attempts)):
            counters.commits_committed += 1
            counters.commit_attempts += attempts
            _add(counters.conflicts, Conflict.SNAPSHOT_RACE, attempts - 1)
        case CommitFailed(error=CommitGaveUp()):
            counters.commits_gave_up += 1
        case CommitFailed():
            counters.commits_error += 1
        case SnapshotLost():
            counters.lost_snapshots += 1
        case WriterCommitLost(outcome=LossOutcome.HEALED):
            counters.lost_commits_healed += 1
        case WriterCommitLost():
            counters.lost_commits_halted += 1
        case Polled(planned=planned) if planned is not None:
            counters.ingested_bytes += planned.appended_bytes
        case Maintained(round=round_):
            for name in _OF_ROUNDS:
                setattr(counters, name, getattr(counters, name) + round_.counts.get(name, 0))
        case _:
            # Other events have no counters.
            pass


def _count_ended(counters: TableCounters, ended: EndedCompaction) -> None:
    _add(counters.compactions, (ended.kind, ended.outcome))
    counters.compaction_seconds_sum += ended.seconds
    counters.compaction_seconds_count += 1
    counters.worker_cpu_seconds += ended.cpu_seconds
    if ended.outcome is not Outcome.COMMITTED:
        counters.wasted_bytes += ended.bytes_out
        return
    counters.input_bytes += ended.bytes_in
    counters.output_bytes += ended.bytes_out
    counters.input_files += ended.files_in
    counters.output_files += ended.files_out
    counters.upgraded_files += ended.upgraded_files
    counters.input_records += ended.rows_in
    counters.output_records += ended.rows_out


def _add(counts: dict[_T, int], key: _T, number: int = 1) -> None:
    counts[key] = counts.get(key, 0) + number
