"""Events of the scheduler, and the counts they carry.

An ended compaction is told as its `EndedCompaction`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from compactord.commit.changes import Committed, Conflict, LossOutcome
from compactord.errors import CommitGaveUp, CompactordError
from compactord.maintenance.kind import AnyKind, Round
from compactord.model import TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import (
    CompactionRecord,
    EndedCompaction,
    Halt,
    Outcome,
    TableCounters,
)
from compactord.scheduler.halts import Quarantined
from compactord.scheduler.priority import Submitted
from compactord.table.jobs import Planned


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
    """A poll of the table failed; it is tried again."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted(TableEvent):
    """The first subcompaction of a compaction goes to the engine."""

    record: CompactionRecord
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDispatched(TableEvent):
    """A bucket that was chosen could not be cut into subcompactions, or had nothing to do."""

    kind: WorkKind
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcompactionHung(TableEvent):
    """A subcompaction did not answer within its time limit; it is cancelled."""

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
    """A writer's commit was lost by a late rename: it was committed again, or not."""

    outcome: LossOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketQuarantined(TableEvent):
    bucket: BucketId
    quarantined: Quarantined
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHalted(TableEvent):
    """The halt that people see is another one than before."""

    halt: Halt


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResumed(TableEvent):
    """People see no halt any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained(TableEvent):
    """A round of maintenance has ended."""

    kind: AnyKind
    round: Round
    seconds: float


Event = TableEvent | EndedCompaction


class Observer(Protocol):
    """Receives events for logs and metrics."""

    def told(self, event: Event) -> None:
        """Must not block."""
        ...


_SHOWN = {each.name for each in fields(TableCounters)}


@dataclass(slots=True, kw_only=True)
class Counts:
    """`sums` are named as in `TableCounters`, or as kinds of maintenance name them."""

    compactions: Counter[tuple[WorkKind, Outcome]] = field(default_factory=Counter)
    conflicts: Counter[Conflict] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    compaction_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0

    def count(self, event: Event) -> None:
        """Add what the event says."""
        sums = self.sums
        match event:
            case EndedCompaction():
                self._ended(event)
            case NotDispatched(kind=kind, outcome=outcome):
                self.compactions[kind, outcome] += 1
            case Conflicted(conflict=conflict):
                self.conflicts[conflict] += 1
            case SnapshotCommitted(commit=Committed(attempts=attempts)):
                sums["commits_committed"] += 1
                sums["commit_attempts"] += attempts
                self.conflicts[Conflict.SNAPSHOT_RACE] += attempts - 1
            case CommitFailed(error=CommitGaveUp()):
                sums["commits_gave_up"] += 1
            case CommitFailed():
                sums["commits_error"] += 1
            case SnapshotLost():
                sums["lost_snapshots"] += 1
            case WriterCommitLost(outcome=lost):
                sums[f"lost_commits_{lost.value}"] += 1
            case Polled(planned=planned) if planned is not None:
                sums["ingested_bytes"] += planned.appended_bytes
            case Maintained(round=round_):
                sums.update(round_.counts)
            case _:
                # The others count nothing.
                pass

    def _ended(self, view: EndedCompaction) -> None:
        self.compactions[view.kind, view.outcome] += 1
        self.compaction_seconds += view.seconds
        self.worker_cpu_seconds += view.cpu_seconds
        self.sums["compaction_seconds_count"] += 1
        if view.outcome is not Outcome.COMMITTED:
            self.sums["wasted_bytes"] += view.bytes_out
            return
        self.sums.update(
            input_bytes=view.bytes_in,
            output_bytes=view.bytes_out,
            input_files=view.files_in,
            output_files=view.files_out,
            upgraded_files=view.upgraded_files,
            input_records=view.rows_in,
            output_records=view.rows_out,
        )

    def frozen(self) -> TableCounters:
        """An immutable copy of what is shown of each table."""
        sums: dict[str, Any] = {name: n for name, n in self.sums.items() if name in _SHOWN}
        return TableCounters(
            compactions=dict(self.compactions),
            conflicts=dict(self.conflicts),
            compaction_seconds_sum=self.compaction_seconds,
            worker_cpu_seconds=self.worker_cpu_seconds,
            **sums,
        )
