"""What the scheduler tells, for logs and metrics."""

from __future__ import annotations

from typing import Protocol

from compactord.errors import CompactordError
from compactord.model import TableName
from compactord.paimon.data_file import BucketId
from compactord.scheduler.at_engine import Submitted
from compactord.scheduler.record import CompactionRecord
from compactord.scheduler.scheduled_table import Quarantined, ScheduledTable
from compactord.scheduler.status import EndedCompaction, Halt
from compactord.table.cycle import Settled


class Observer(Protocol):
    """Receives events for logs and metrics; must not block."""

    def started(self, name: TableName, record: CompactionRecord, now_ms: int) -> None:
        """The first subcompaction of a compaction goes to the engine."""
        ...

    def ended(self, view: EndedCompaction) -> None:
        """A compaction has ended, one way or another."""
        ...

    def committed(self, name: TableName, settled: Settled, seconds: float) -> None: ...

    def commit_failed(self, name: TableName, error: CompactordError) -> None: ...

    def quarantined(
        self, name: TableName, bucket: BucketId, quarantined: Quarantined, now_ms: int
    ) -> None: ...

    def halted(self, name: TableName, halt: Halt) -> None: ...

    def resumed(self, name: TableName) -> None: ...

    def troubled(self, name: TableName, error: str) -> None:
        """A poll of the table failed; it is tried again."""
        ...

    def snapshot_lost(self, name: TableName, why: str) -> None: ...

    def hung(self, name: TableName, submitted: Submitted, now_ms: int) -> None:
        """A subcompaction did not answer within its time limit; it is cancelled."""
        ...


def tell_halt(scheduled: ScheduledTable, before: Halt | None, observer: Observer) -> None:
    """Tell the observer when the halt that people see is another one than before."""
    now = scheduled.shown_halt
    if now is None:
        if before is not None:
            observer.resumed(scheduled.name)
    elif before is None or (before.reason, before.message) != (now.reason, now.message):
        observer.halted(scheduled.name, now)
