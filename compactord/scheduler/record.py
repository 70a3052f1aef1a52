"""One compaction from the moment it is chosen: the one place that knows how far it is.

The page, the metrics, the log and the API read it from here. What has ended lives on as an
`EndedCompaction`, with its outcome and the reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compactord.model import FailureKind, SubcompactionFailure
from compactord.scheduler.status import Outcome, PriorityClass
from compactord.table.backlog import PendingCompaction
from compactord.table.jobs import Finished, InFlight

if TYPE_CHECKING:
    from compactord.scheduler.scheduled_table import ScheduledTable

# What `SubcompactionFailure.error` says of a subcompaction whose time limit has passed.
TIMED_OUT = "TimeLimitPassed"


class Status(enum.Enum):
    """How far a compaction is; each status follows the one before it."""

    PLANNED = "planned"  # chosen; a thread cuts it into subcompactions
    DISPATCHED = "dispatched"  # cut; no subcompaction has been submitted
    RUNNING = "running"
    FINISHED = "finished"  # succeeded or failed at the workers; waits for the table's next cycle
    COMMITTING = "committing"  # a cycle publishes it, or removes its files


IN_FLIGHT = frozenset({Status.DISPATCHED, Status.RUNNING, Status.FINISHED})


@dataclass(slots=True, kw_only=True, eq=False)
class CompactionRecord:
    """Mutable, owned by the loop. Times are steady (`Clock.steady_ms`); 0 means not yet."""

    table: ScheduledTable
    number: int
    pending: PendingCompaction
    priority_class: PriorityClass
    # Since when its bucket had waited, and when it was chosen.
    queued_ms: int
    chosen_ms: int
    status: Status = Status.PLANNED
    # When its first subcompaction was submitted to the engine.
    started_ms: int = 0
    finished_ms: int = 0
    # Whether the table's plan was made beside it, and so does not count it.
    is_beside_plan: bool = False
    # How it ended, as soon as that is known; its files may still have to be removed.
    outcome: Outcome | None = None
    # What its dispatch has made of it; None before.
    dispatched: InFlight | None = None

    def begun(self, now_ms: int) -> bool:
        """A subcompaction is submitted; whether it is the first."""
        self.status = Status.RUNNING
        is_first = not self.started_ms
        self.started_ms = self.started_ms or now_ms
        return is_first

    def finished(self, now_ms: int) -> None:
        """Nothing of it is at the engine any more."""
        self.status, self.finished_ms = Status.FINISHED, now_ms

    @property
    def in_flight(self) -> InFlight:
        assert self.dispatched is not None, "it has been dispatched"
        return self.dispatched

    @property
    def failure(self) -> SubcompactionFailure | None:
        """Why it failed for good."""
        result = self.in_flight.result
        return result if isinstance(result, SubcompactionFailure) else None

    @property
    def finished_result(self) -> Finished | None:
        """What its workers wrote; None before they have finished, and when they failed."""
        result = self.in_flight.result
        return result if isinstance(result, Finished) else None

    @property
    def has_result(self) -> bool:
        """Whether its workers have finished."""
        return self.dispatched is not None and self.finished_result is not None

    @property
    def is_under_way(self) -> bool:
        """Whether it waits for slots or has some."""
        return self.status in (Status.DISPATCHED, Status.RUNNING)

    @property
    def has_waiting(self) -> bool:
        """Whether a subcompaction waits for a slot."""
        return self.is_under_way and bool(self.in_flight.waiting)

    @property
    def subcompaction_bytes(self) -> int:
        """About how much each of its subcompactions reads, as planned or as chosen at last."""
        chosen = sum(file.file_size for file in self.in_flight.compaction.inputs)
        return max(self.pending.size_bytes, chosen) // len(self.in_flight.subcompactions)

    def timed_out(self, index: int, *, size_bytes: int, seconds: int) -> None:
        """End it, because a subcompaction had no outcome within its time limit."""
        partition = self.in_flight.partition
        where = f"bucket {self.pending.bucket.bucket}" + (f" of {partition}" if partition else "")
        part = f"subcompaction {index + 1} of {len(self.in_flight.subcompactions)}"
        self.in_flight.give_up(
            SubcompactionFailure(
                compaction=self.number,
                index=index,
                kind=FailureKind.POISON,
                error=TIMED_OUT,
                message=f"{where}: {part}, about {size_bytes:,} bytes, had no outcome within its"
                f" time limit of {seconds:,} s and was cancelled",
            )
        )
