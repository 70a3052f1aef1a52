"""What happens to tables, as values: counted by `counts`, and told to one observer.

An ended compaction is told as its `EndedCompaction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from compactord.commit.changes import Conflict, LossOutcome
from compactord.errors import CompactordError
from compactord.maintenance.kind import AnyKind, Round
from compactord.model import TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.at_engine import Submitted
from compactord.scheduler.halts import Quarantined
from compactord.scheduler.record import CompactionRecord
from compactord.scheduler.status import EndedCompaction, Halt, Outcome
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
class Committed(TableEvent):
    """A snapshot of ours was made, with these compactions of so many buckets."""

    snapshot_id: int
    attempts: int
    compactions: tuple[int, ...]
    buckets: int
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
