"""What becomes of compactions between their dispatch and the cycle that publishes them.

Subcompactions end, hang, or are lost with the engine. Pure except for its state.
"""

from __future__ import annotations

from collections.abc import Iterable

from compactord.model import (
    FailureKind,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
)
from compactord.scheduler.accounting import Accounting, is_undecided
from compactord.scheduler.cycles import Cycles
from compactord.scheduler.effects import Cancel, RemoveOutputs, RestartEngine
from compactord.scheduler.events import SubcompactionHung
from compactord.scheduler.halts import Failure
from compactord.scheduler.record import CompactionRecord, Status
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.slots import Slots
from compactord.scheduler.status import Outcome


class Compactions:
    """See the module."""

    def __init__(self, accounting: Accounting, slots: Slots, cycles: Cycles) -> None:
        self._accounting = accounting
        self._slots = slots
        self._cycles = cycles
        # Results that came too late, whose files have to go.
        self._late: list[RemoveOutputs] = []

    def take_late(self) -> list[RemoveOutputs]:
        """These, for the last time."""
        late, self._late = self._late, []
        return late

    def subcompaction_ended(self, outcome: SubcompactionOutcome, now_ms: int) -> None:
        """It has succeeded or failed; of a compaction that has ended only files are removed."""
        submitted = self._slots.engine.ended((outcome.compaction, outcome.index))
        if submitted is None:
            return
        record = submitted.record
        if submitted.is_abandoned:
            if isinstance(outcome, SubcompactionResult) and outcome.outputs:
                work = submitted.subcompaction
                self._late.append(RemoveOutputs(subcompaction=work, result=outcome))
            return
        record.table.version += 1
        self._slots.want(record.table)
        attempts_max = 1 if self._cycles.is_draining else self._accounting.retry.task_attempts
        record.in_flight.arrived(outcome, record.table.name, attempts_max=attempts_max)
        self.arrived(record, now_ms)

    def engine_lost(self, tables: Iterable[ScheduledTable], why: str, now_ms: int) -> None:
        """All subcompactions are lost: their compactions are planned again, no table has failed."""
        self._slots.engine.clear()
        for scheduled in tables:
            for record in [r for r in scheduled.compactions.values() if r.is_under_way]:
                self.give_up(record, why, now_ms)
                if record.started_ms and not self._cycles.is_draining:
                    self._accounting.engine_died(record, why, now_ms)

    def give_up_hung(self, at_once: int, now_ms: int) -> list[Cancel | RestartEngine]:
        """End compactions whose subcompactions have run for longer than they may.

        Their buckets are quarantined, and their workers cancelled. Where that is of no use, the
        engine is started again. `at_once` is how many the engine runs at a time.
        """
        effects: list[Cancel | RestartEngine] = []
        for each in list(self._slots.engine.overdue(at_once, now_ms)):
            record = each.record
            ran_ms = now_ms - each.began_ms
            record.table.tell(
                SubcompactionHung(name=record.table.name, submitted=each, ran_ms=ran_ms)
            )
            if each.is_abandoned:
                # Its compaction has ended before, and it was cancelled then.
                continue
            record.table.version += 1
            index, seconds = each.subcompaction.index, each.limit_ms // 1000
            record.timed_out(index, size_bytes=each.size_bytes, seconds=seconds)
            self.arrived(record, now_ms)
            left = self._slots.engine.of_compaction(record.number)
            effects += [Cancel(subcompaction=other.subcompaction) for other in left]
            self._slots.want(record.table)
        why = None if self._cycles.is_draining else self._slots.engine.why_restart(now_ms)
        if why is not None:
            effects.append(RestartEngine(why=why))
        return effects

    def arrived(self, record: CompactionRecord, now_ms: int) -> None:
        """The table's next cycle deals with a compaction once it has ended at the workers."""
        if record.in_flight.result is None:
            return
        failure = record.failure
        if failure is not None:
            # The table's next choice may be of this bucket.
            record.table.head = None
            if not is_undecided(failure):
                self._failed(record, failure, now_ms)
        record.finished(now_ms)
        self._cycles.want(record.table)

    def drop_unbegun(self, scheduled: ScheduledTable, why: str, now_ms: int) -> None:
        for record in scheduled.with_status(Status.DISPATCHED):
            self.give_up(record, why, now_ms)

    def give_up(self, record: CompactionRecord, why: str, now_ms: int) -> None:
        """End a compaction whose outcomes will not come; it is no failure of the table."""
        self._accounting.ended(record, Outcome.CANCELLED, why, now_ms)
        record.in_flight.give_up(_lost(why))
        record.finished(now_ms)
        self._cycles.want(record.table)

    def _failed(self, record: CompactionRecord, failure: SubcompactionFailure, now_ms: int) -> None:
        is_stopped = self._cycles.is_draining and failure.kind is FailureKind.LOST
        outcome = Outcome.CANCELLED if is_stopped else Outcome.FAILED
        self._accounting.ended(record, outcome, failure.message, now_ms)
        if not is_stopped:
            failed = Failure(message=failure.message, error=failure.error)
            self._accounting.bucket_failed(record, failed, now_ms)


def _lost(why: str) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction=0, index=0, kind=FailureKind.LOST, error="Cancelled", message=why
    )
