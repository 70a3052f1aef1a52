"""Assigns free slots to tables. Pure except for its state.

A table registers with `want` and remains a candidate until it has no work. With a slot it runs a
subcompaction that is already cut, or dispatches its next decision, which needs a thread as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Set
from dataclasses import replace

from compactord.clock import WallTime
from compactord.config.model import Limits
from compactord.config.policy import TablePolicy
from compactord.config.windows import may_start
from compactord.model import TableName, WorkKind
from compactord.scheduler.compaction import CompactionRecord, PriorityClass
from compactord.scheduler.effects import DispatchJob, Submit
from compactord.scheduler.events import CompactionStarted
from compactord.scheduler.priority import (
    LARGE_BYTES,
    AtEngine,
    Contender,
    Submitted,
    choose,
    cost,
    lag_of,
    most_urgent,
    time_limit_ms,
)
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.table.backlog import DispatchFilter, PendingCompaction

# How long a choice among a table's pending compactions is valid: time makes them more urgent.
_BEST_CANDIDATE_MS = 5_000
# Threads that dispatches never use, so that cycles can run.
_CYCLE_JOBS = 2
# Threads that are guaranteed to each catalog, regardless of other catalogs and hung jobs.
_LEAST_SHARE = 2
# At most this many slots in a row go to tables that are first because of their readers.
_FRESH_MAX = 3

_COMPACTING = frozenset({WorkKind.MINOR, WorkKind.FULL, WorkKind.APPEND})


class Jobs:
    """The running jobs of one kind: one at a time for each table, `most` and a few more in all.

    Catalogs share the threads, so that hanging calls into one store leave some to the
    tables of others. Each catalog is guaranteed two, even if `most` are taken. Beyond its share
    a catalog gets a thread only while half of them are free.
    """

    def __init__(self, most: int, silent: Set[str]) -> None:
        """`silent`: catalogs whose store or server does not respond; the caller changes them."""
        self._most = most
        self.silent = silent
        # By catalog: its tables, the threads that it holds, and the threads of hung jobs.
        self._tables: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._hung: Counter[str] = Counter()
        self._hung_tables: set[TableName] = set()

    @property
    def free(self) -> int:
        return self._most - self._held.total()

    @property
    def catalogs(self) -> Set[str]:
        """The catalogs that have tables."""
        return self._tables.keys()

    @property
    def may_any_begin(self) -> bool:
        """Whether a thread is free, or a catalog has fewer than its guaranteed ones."""
        return self.free > 0 or any(self._held[each] < _LEAST_SHARE for each in self._tables)

    def added(self, name: TableName) -> None:
        """Counts a table that is served from now on."""
        self._tables[name.catalog] += 1

    def removed(self, name: TableName) -> None:
        """Removes a table that is no longer served."""
        self._tables[name.catalog] -= 1
        self._tables += Counter()

    def may_begin(self, catalog: str, *, spare: int = 0) -> bool:
        """Whether a table of the catalog may begin a job, with `spare` threads left to others."""
        if catalog in self.silent:
            return False
        held = self._held[catalog]
        if held < max(1, _LEAST_SHARE - spare):
            return True
        share = max(_LEAST_SHARE, self._most // max(1, len(self._tables)))
        is_below_share = held < max(1, share - spare)
        return self.free > (spare if is_below_share else max(spare, self._most // 2))

    def began(self, name: TableName) -> None:
        """Takes a thread for a job of the table."""
        self._held[name.catalog] += 1

    def hung(self, name: TableName) -> None:
        """Stops counting the table's overlong job; at most `most` of a catalog are spared."""
        catalog = name.catalog
        if name not in self._hung_tables and self._hung[catalog] < self._most:
            self._hung_tables.add(name)
            self._hung[catalog] += 1
            self._held[catalog] -= 1

    def ended(self, name: TableName) -> None:
        """Frees the thread of the table's job."""
        if name in self._hung_tables:
            self._hung_tables.discard(name)
            self._hung[name.catalog] -= 1
        else:
            self._held[name.catalog] -= 1


class Slots:
    """The slots in use, the tables that want one, and which of them gets the next."""

    def __init__(self, *, jobs: Jobs, wall: WallTime, limits: Limits) -> None:
        self.limits = limits
        self._jobs = jobs
        self._wall = wall
        self.engine = AtEngine()
        self._last_id = 0
        # The virtual time of the table that got the last slot.
        self._virtual_time = 0.0
        # How many slots in a row went to tables that are first because of their readers.
        self._fresh = 0
        # Tables that want a slot, in the order of their requests.
        self._wanted: dict[TableName, ScheduledTable] = {}

    def want(self, scheduled: ScheduledTable) -> None:
        """The table may have something to do."""
        self._wanted[scheduled.name] = scheduled

    def forget(self, scheduled: ScheduledTable) -> None:
        self._wanted.pop(scheduled.name, None)

    def forget_credit(self, scheduled: ScheduledTable) -> None:
        """Withdraws credit for time in which the table wanted no slot or was not allowed one."""
        scheduled.virtual_time = max(scheduled.virtual_time, self._virtual_time)

    def give(
        self, tables: Collection[ScheduledTable], *, slots: int, now_ms: int
    ) -> Iterator[Submit | DispatchJob]:
        """Starts work on the free ones of `slots` slots."""
        if not self._wanted:
            return
        preparing = sum(
            scheduled.is_dispatching and not scheduled.is_job_hung(now_ms) for scheduled in tables
        )
        slots -= self.engine.hung
        free = slots - self.engine.running - preparing
        large = self.engine.large_running
        if free <= 0:
            return
        contenders: dict[int, tuple[ScheduledTable, Contender]] = {}
        for scheduled in list(self._wanted.values()):
            self._contend(scheduled, contenders, now_ms)
        while free > 0:
            # Some threads are reserved for cycles: results must not wait for dispatches.
            able = [
                contender
                for table, contender in contenders.values()
                if (table.next_waiting and table.name.catalog not in self._jobs.silent)
                or self._jobs.may_begin(table.name.catalog, spare=_CYCLE_JOBS)
            ]
            chosen = choose(
                able,
                slots=slots,
                free=free,
                large_running=large,
                spares_others=self._fresh >= _FRESH_MAX,
            )
            if chosen is None:
                return
            is_current = chosen.priority_class is PriorityClass.FRESHNESS
            self._fresh = self._fresh + 1 if is_current else 0
            scheduled, _ = contenders.pop(chosen.index)
            # The virtual time at which the slot was given, without the slot's own cost.
            self._virtual_time = max(self._virtual_time, scheduled.virtual_time)
            record = scheduled.next_waiting
            if record is not None:
                large += chosen.is_large
                yield self._submit(scheduled, record, chosen, now_ms)
            else:
                yield self._begin_dispatch(scheduled, free, now_ms)
            free -= 1
            self._contend(scheduled, contenders, now_ms)

    def skip(self, scheduled: ScheduledTable, now_ms: int, *, may_begin: bool) -> DispatchFilter:
        """The work that the table need not offer, because it could not begin now."""
        policy = scheduled.policy
        closed = {kind for kind in WorkKind if not self._is_open(policy, kind, now_ms)}
        is_at_work = may_begin and scheduled.is_worked_on and scheduled.halt is None
        quarantined = (
            b for b, quarantined in scheduled.quarantined.items() if quarantined.until_ms > now_ms
        )
        return DispatchFilter(
            buckets=frozenset(quarantined).union(
                record.pending.bucket for record in scheduled.abandoned
            ),
            kinds=frozenset(closed),
            allow_forced=not policy.windows_strict,
            manifests=not is_at_work or closed >= _COMPACTING,
            may_commit=may_begin and scheduled.is_worked_on and not scheduled.is_unsafe,
        )

    def may_begin(self, scheduled: ScheduledTable, now_ms: int) -> bool:
        """Whether the table would dispatch another compaction if it had a slot."""
        return self._best_candidate(scheduled, now_ms) is not None

    def _contend(
        self,
        scheduled: ScheduledTable,
        contenders: dict[int, tuple[ScheduledTable, Contender]],
        now_ms: int,
    ) -> None:
        """Adds the table to the candidates for a slot, or removes it from them."""
        contender = self._contender(scheduled, now_ms)
        if contender is None:
            if not scheduled.offered:
                self.forget(scheduled)
        else:
            contenders[scheduled.index] = (scheduled, contender)

    def _contender(self, scheduled: ScheduledTable, now_ms: int) -> Contender | None:
        record = scheduled.next_waiting
        if record is not None:
            pending, size = record.pending, record.subcompaction_bytes
        else:
            best = self._best_candidate(scheduled, now_ms)
            if best is None:
                return None
            pending, size = best, best.size_bytes // max(1, best.tasks)
        return Contender(
            index=scheduled.index,
            # A cut compaction becomes as urgent as a pending one of the same age.
            priority_class=scheduled.urgency(pending, now_ms),
            benefit=pending.benefit,
            weight=scheduled.weight,
            slots=scheduled.slots,
            slots_max=scheduled.policy.max_concurrent_tasks,
            is_large=size >= LARGE_BYTES,
            virtual_time=scheduled.virtual_time,
            lag=lag_of(pending, scheduled.policy, now_ms),
        )

    def _best_candidate(self, scheduled: ScheduledTable, now_ms: int) -> PendingCompaction | None:
        """The table's next pending compaction, or None if it may do nothing."""
        if scheduled.job is not None or scheduled.is_leaving:
            return None
        if not scheduled.is_worked_on:
            return None
        if max(scheduled.next_try_ms, scheduled.next_poll_ms) > now_ms:
            return None
        # A halted table is retried with one compaction.
        if scheduled.halt is not None and (scheduled.in_flight or scheduled.is_unsafe):
            return None
        if scheduled.best_candidate_expires_ms <= now_ms:
            eligible = [
                pending
                for pending in scheduled.offered.values()
                if self._may(scheduled, pending, now_ms)
            ]
            # Buckets that always fail must not keep the table halted, nor take slots from others.
            least = min((scheduled.failures_of(each.bucket) for each in eligible), default=0)
            eligible = [each for each in eligible if scheduled.failures_of(each.bucket) == least]
            scheduled.best_candidate = most_urgent(eligible, scheduled.policy, now_ms)
            scheduled.best_candidate_expires_ms = now_ms + _BEST_CANDIDATE_MS
        return scheduled.best_candidate

    def _may(self, scheduled: ScheduledTable, pending: PendingCompaction, now_ms: int) -> bool:
        if scheduled.is_quarantined(pending.bucket, now_ms):
            return False
        if any(record.pending.bucket == pending.bucket for record in scheduled.abandoned):
            # A worker may still run: another attempt might hang as well, and cost a second slot.
            return False
        policy = scheduled.policy
        if pending.is_forced and not policy.windows_strict:
            return True
        return self._is_open(policy, pending.kind, now_ms)

    def _is_open(self, policy: TablePolicy, kind: WorkKind, now_ms: int) -> bool:
        return may_start(policy.windows, kind, self._wall.at(now_ms), self._wall.zone)

    def _submit(
        self, scheduled: ScheduledTable, record: CompactionRecord, chosen: Contender, now_ms: int
    ) -> Submit:
        scheduled.version += 1
        subcompaction = record.in_flight.waiting.popleft()
        if record.mark_submitted(now_ms):
            started = CompactionStarted(name=scheduled.name, record=record, now_ms=now_ms)
            scheduled.tell(started)
        size = record.subcompaction_bytes
        scheduled.virtual_time += cost(size) / scheduled.weight
        self.engine.add(
            Submitted(
                record=record,
                subcompaction=subcompaction,
                size_bytes=size,
                is_large=chosen.is_large,
                limit_ms=time_limit_ms(self.limits, size),
            )
        )
        return Submit(subcompaction=subcompaction)

    def _begin_dispatch(self, scheduled: ScheduledTable, free: int, now_ms: int) -> DispatchJob:
        pending = scheduled.best_candidate
        assert pending is not None, "chosen for it"
        scheduled.version += 1
        scheduled.best_candidate_expires_ms = 0
        one = _taken(scheduled, pending)
        self._last_id += 1
        scheduled.job = job = DispatchJob(
            name=scheduled.name,
            since_ms=now_ms,
            bucket=pending.bucket,
            compaction_id=self._last_id,
            free_slots=free,
        )
        self._jobs.began(scheduled.name)
        scheduled.compactions[self._last_id] = CompactionRecord(
            table=scheduled,
            compaction_id=self._last_id,
            pending=one,
            priority_class=scheduled.urgency(pending, now_ms),
            queued_ms=scheduled.queued_ms.pop(pending.bucket, now_ms),
            chosen_ms=now_ms,
        )
        return job


def _taken(scheduled: ScheduledTable, pending: PendingCompaction) -> PendingCompaction:
    """One of the compactions of a pending bucket; the rest remain on offer."""
    if pending.tasks == 1:
        del scheduled.offered[pending.bucket]
        return pending
    one = replace(
        pending,
        tasks=1,
        files=pending.files // pending.tasks,
        size_bytes=pending.size_bytes // pending.tasks,
    )
    scheduled.offered[pending.bucket] = replace(
        pending,
        tasks=pending.tasks - 1,
        files=pending.files - one.files,
        size_bytes=pending.size_bytes - one.size_bytes,
    )
    return one
