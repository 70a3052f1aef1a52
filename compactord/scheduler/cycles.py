"""Starts cycles of tables, with their requests. Pure except for its state.

A cycle polls its table and publishes the compactions that have finished, if they need not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compactord.scheduler.compaction import CompactionRecord, PriorityClass, Status
from compactord.scheduler.effects import CycleJob, DiscardJob
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.slots import Jobs, Slots


class Cycles:
    """The tables that want a cycle, in the order of their requests."""

    def __init__(self, jobs: Jobs, slots: Slots) -> None:
        # No new work begins, and no new commit.
        self.is_draining = False
        self.is_ending = False
        self._jobs = jobs
        self._slots = slots
        self._wanted: dict[int, ScheduledTable] = {}

    def want(self, scheduled: ScheduledTable) -> None:
        """The table may want a cycle. If it waits already, it keeps its place."""
        self._wanted[scheduled.index] = scheduled

    def forget(self, scheduled: ScheduledTable) -> None:
        self._wanted.pop(scheduled.index, None)

    def begin(self, now_ms: int) -> Iterator[CycleJob | DiscardJob]:
        """Starts the cycles that may begin now, and yields their jobs."""
        # Tables with results first: readers profit only once these are committed.
        for scheduled in sorted(self._wanted.values(), key=lambda each: not each.has_finished):
            if scheduled.job is None and not self._jobs.may_any_begin:
                return
            if scheduled.job is not None:
                # It wants a cycle again when its running job ends.
                self.forget(scheduled)
                continue
            if not self._jobs.may_begin(scheduled.name.catalog):
                continue
            if scheduled.settling_until_ms > now_ms and not self.is_ending:
                continue
            may_poll = not (self.is_draining or scheduled.is_leaving)
            is_polled = scheduled.poll_due_ms is not None
            is_polled = is_polled and may_poll and scheduled.next_poll_ms <= now_ms
            finished = scheduled.with_status(Status.FINISHED)
            if finished and self._may_wait(scheduled, finished, now_ms):
                if not is_polled:
                    continue
                finished = []
            self.forget(scheduled)
            scheduled.poll_due_ms = None
            if finished or is_polled:
                yield self._started(scheduled, finished, now_ms, may_poll=may_poll)

    def _started(
        self,
        scheduled: ScheduledTable,
        finished: Sequence[CompactionRecord],
        now_ms: int,
        *,
        may_poll: bool,
    ) -> CycleJob | DiscardJob:
        for record in finished:
            record.status = Status.COMMITTING
        name, ended = scheduled.name, tuple(record.in_flight for record in finished)
        job: CycleJob | DiscardJob
        if ended and (self.is_ending or scheduled.is_unsafe):
            job = DiscardJob(name=name, since_ms=now_ms, ended=ended)
        else:
            skip = self._slots.skip(scheduled, now_ms, may_begin=may_poll)
            job = CycleJob(name=name, since_ms=now_ms, ended=ended, skip=skip)
        scheduled.job = job
        self._jobs.began(name)
        return job

    def _may_wait(
        self, scheduled: ScheduledTable, finished: Sequence[CompactionRecord], now_ms: int
    ) -> bool:
        """Whether finished compactions wait for others, to be published in one snapshot with them.

        Only briefly, only for running ones, and not if writers are about to stall or readers have
        waited too long.
        """
        if self.is_draining or scheduled.is_leaving or scheduled.halt is not None:
            return False
        oldest_ms = min(record.finished_ms for record in finished)
        if now_ms - oldest_ms >= self._slots.limits.max_commit_delay_ms:
            return False
        if any(each.pending.is_near_stop or each.failure for each in finished):
            return False
        first = PriorityClass.FRESHNESS
        if any(scheduled.urgency(each.pending, now_ms) is first for each in finished):
            return False
        has_others = any(record.is_under_way for record in scheduled.compactions.values())
        return has_others or self._slots.may_begin(scheduled, now_ms)
