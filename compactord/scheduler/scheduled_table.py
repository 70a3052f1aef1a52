"""The scheduler's state of one served table: running work, failures, counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compactord.config.choices import Mode
from compactord.config.policy import TablePolicy
from compactord.maintenance.kind import MaintenanceRecord
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.paimon.schema import TableRef
from compactord.scheduler.compaction import (
    IN_FLIGHT,
    CompactionRecord,
    Halt,
    PriorityClass,
    Status,
    TableCounters,
)
from compactord.scheduler.effects import CycleJob, DispatchJob, Job, MaintenanceJob
from compactord.scheduler.events import Event, Observer, TableHalted, TableResumed, count
from compactord.scheduler.halts import (
    FruitlessAttempts,
    HaltEnd,
    QuarantinedBucket,
    halt_of_buckets,
    halt_of_hold,
)
from compactord.scheduler.priority import Key, Submitted, priority_class
from compactord.table.backlog import PendingCompaction
from compactord.table.jobs import Planned
from compactord.table.status import TableInfo
from compactord.verify.holds import Hold

# Longer than the first poll of a huge table, or a commit that retries: a longer job hangs
# in a call into a store.
HUNG_JOB_MS = 600_000
# Sweeps list every folder of a table.
HUNG_MAINTENANCE_MS = 3 * 3_600_000
# Work keeps the snapshots it reads from expiring for this long. Later there is no risk: live files
# never expire, and work that misses its inputs is planned again.
PIN_MAX_MS = 6 * 3_600_000


@dataclass(slots=True, kw_only=True, eq=False)
class ScheduledTable:
    """Mutable, owned by the loop. Times are steady (`Clock.steady_ms`); 0 means none."""

    name: TableName
    ref: TableRef
    policy: TablePolicy
    index: int
    observers: Sequence[Observer]
    # Grows with every change of the table.
    version: int = 0
    # The poll interval, 0 if not known yet.
    interval_ms: int = 0
    # The last polled snapshot, and how many polls in a row before found the same.
    polled_snapshot_id: int = -1
    quiet_polls: int = 0
    first_poll_ms: int = 0
    last_poll_ms: int = 0
    # Whether the table wants a cycle; since when.
    poll_due_ms: int | None = None
    # The running job of its own lane, and its maintenance job.
    job: Job | None = None
    maintenance: MaintenanceJob | None = None
    planned: Planned | None = None
    # Pending compactions that the last plan offered and that are not dispatched yet.
    offered: dict[BucketId, PendingCompaction] = field(default_factory=dict)
    # The most urgent of them, and until when that is valid.
    best_candidate: PendingCompaction | None = None
    best_candidate_expires_ms: int = 0
    queued_ms: dict[BucketId, int] = field(default_factory=dict)
    # All unfinished compactions by id, in the order in which they were chosen.
    compactions: dict[int, CompactionRecord] = field(default_factory=dict)
    # Subcompactions at the engine, abandoned ones included.
    at_engine: dict[Key, Submitted] = field(default_factory=dict)
    virtual_time: float = 0.0
    quarantined: dict[BucketId, QuarantinedBucket] = field(default_factory=dict)
    drops: dict[BucketId, FruitlessAttempts] = field(default_factory=dict)
    # The last dispatched compaction.
    last_compaction_id: int = 0
    # Failures in a row: of compactions and commits, and of polls.
    failures: int = 0
    poll_failures: int = 0
    # Snapshots of ours that another writer replaced, and how many an operator has acknowledged.
    replaced_snapshots: int = 0
    acknowledged_snapshots: int = 0
    error: str = ""
    # No dispatch before the first time, after failed compactions or commits; no poll before the
    # second, after failed polls.
    next_try_ms: int = 0
    next_poll_ms: int = 0
    # Until then no plan, dispatch, commit or expiry: our newest snapshot must
    # settle first if writers may replace it (`SnapshotPublisher.settle_ms`).
    settling_until_ms: int = 0
    # Several halts may exist at once; the end of one does not end the rest.
    halts: dict[HaltEnd, Halt] = field(default_factory=dict)
    # The halt shown while deletions are stopped because of damaged files.
    hold: Halt | None = None
    counters: TableCounters = field(default_factory=TableCounters)
    last_success_ms: dict[WorkKind, int] = field(default_factory=dict)
    last_commit_ms: int = 0
    last_commit_snapshot_id: int = 0
    # Kinds of maintenance, by name, that had a round, and when the last of them began.
    rounds: dict[str, MaintenanceRecord] = field(default_factory=dict)
    maintained_ms: int = 0
    # Excluded or dropped: no new work begins, and the table is removed once its work has ended.
    is_leaving: bool = False
    # Its writers compact themselves.
    is_excluded: bool = False
    # Why the configuration excludes it, for operators, or empty.
    unmanaged_reason: str = ""
    # Facts about it, as last read, or None before.
    info: TableInfo | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no work of the table is running."""
        return not (self.job or self.maintenance or self.compactions)

    def count_quiet_poll(self) -> None:
        """Counts a poll that found the last snapshot again and no work."""
        snapshot_id = self.snapshot_id
        is_quiet = snapshot_id == self.polled_snapshot_id
        is_quiet = is_quiet and not self.compactions and not self.offered
        self.polled_snapshot_id = snapshot_id
        self.quiet_polls = self.quiet_polls + 1 if is_quiet else 0

    def tell(self, event: Event) -> None:
        """Counts the event and passes it to the observers."""
        count(self.counters, event)
        for observer in self.observers:
            observer.on_event(event)

    @contextlib.contextmanager
    def emits_halt_changes(self) -> Iterator[None]:
        """Emits an event if the halt shown to operators has changed afterwards."""
        before = self.shown_halt
        yield
        now = self.shown_halt
        if now is None:
            if before is not None:
                self.tell(TableResumed(name=self.name))
        elif before is None or (before.reason, before.message) != (now.reason, now.message):
            self.tell(TableHalted(name=self.name, halt=now))

    @property
    def snapshot_id(self) -> int:
        """The newest snapshot of the last plan, 0 before the first plan."""
        return self.planned.snapshot_id if self.planned else 0

    @property
    def requested_maintenance(self) -> Mapping[str, int]:
        """See `MaintenanceOptions.requested`."""
        return self.info.maintenance if self.info else {}

    @property
    def last_expired_ms(self) -> int:
        """When a round of snapshot expiry last succeeded."""
        return self.rounds_of(ExpireSnapshots.name).succeeded_ms

    @property
    def last_expiry_failed(self) -> bool:
        """Whether the last round of snapshot expiry failed."""
        return self.rounds_of(ExpireSnapshots.name).has_failed

    def rounds_of(self, kind: str) -> MaintenanceRecord:
        """The rounds of a kind, by its name; kept after its first, since most kinds have none."""
        return self.rounds.get(kind) or MaintenanceRecord()

    def with_status(self, *statuses: Status) -> list[CompactionRecord]:
        """The compactions that have one of these statuses, in the order of their ids."""
        return [record for record in self.compactions.values() if record.status in statuses]

    @property
    def in_flight(self) -> list[CompactionRecord]:
        """The compactions between their dispatch and the cycle that settles them."""
        return self.with_status(*IN_FLIGHT)

    @property
    def has_finished(self) -> bool:
        """Whether compactions wait for a cycle."""
        return any(each.status is Status.FINISHED for each in self.compactions.values())

    @property
    def slots(self) -> int:
        """How many subcompactions it has at the engine, besides the abandoned ones."""
        return sum(not each.is_abandoned for each in self.at_engine.values())

    @property
    def abandoned(self) -> list[CompactionRecord]:
        """Ended compactions whose workers may still write files."""
        return [each.record for each in self.at_engine.values() if each.is_abandoned]

    @property
    def next_waiting(self) -> CompactionRecord | None:
        """The compaction whose subcompaction gets the table's next slot."""
        return next((each for each in self.compactions.values() if each.has_waiting), None)

    @property
    def halt(self) -> Halt | None:
        """The strongest halt, None when the table is not halted."""
        return next((self.halts[end] for end in HaltEnd if end in self.halts), None)

    @property
    def shown_halt(self) -> Halt | None:
        """The halt shown to operators: the table's own, else its quarantined buckets'.

        The latter stops only these buckets, and expiry if data is missing or damaged, to keep
        rollback targets. So does a hold, whose bucket may still have its second try.
        """
        found = self.halt or halt_of_buckets(self.quarantined)
        if found is None and not any(each.keeps_snapshots for each in self.quarantined.values()):
            return self.hold
        return found

    @property
    def is_unsafe(self) -> bool:
        """Whether the table must not be changed."""
        return HaltEnd.OPERATOR in self.halts

    @property
    def keeps_snapshots(self) -> bool:
        """Whether snapshots must be kept because an operator may have to roll back."""
        return self.halt is not None or any(
            each.keeps_snapshots for each in self.quarantined.values()
        )

    def take_hold(self, hold: Hold | None, now_ms: int) -> None:
        """Stops deletions while there is a hold; rounds of expiry find out when it ends."""
        since_ms = self.hold.since_ms if self.hold is not None else now_ms
        self.hold = None if hold is None else halt_of_hold(hold, since_ms)
        if hold is not None and (expiry := self.rounds.get(ExpireSnapshots.name)) is not None:
            # Necessary for a table that does not change.
            expiry.has_news = True

    @property
    def has_nothing_failing(self) -> bool:
        """Whether the failed buckets have no work: another writer compacted or dropped them.

        Quarantined buckets are not offered: any work that is not offered may belong to them.
        """
        planned = self.planned
        if planned is None or self.in_flight or not planned.offers_all:
            return False
        offered = {pending.bucket for pending in planned.offered}
        failed = {bucket for bucket, known in self.quarantined.items() if not known.is_damaged}
        return not offered or (bool(failed) and offered.isdisjoint(failed))

    def end_pauses(self, now_ms: int) -> bool:
        """Ends pauses after failures; returns whether there were any. Halts stay."""
        waits = max(self.next_try_ms, self.next_poll_ms) > now_ms
        self.next_try_ms = self.next_poll_ms = 0
        for end, halt in self.halts.items():
            self.halts[end] = replace(halt, next_try_ms=min(halt.next_try_ms, now_ms))
        for quarantined in self.quarantined.values():
            waits = waits or quarantined.until_ms > now_ms
            quarantined.until_ms = min(quarantined.until_ms, now_ms)
        self.best_candidate_expires_ms = 0
        return waits

    def is_waiting(self, bucket: BucketId, now_ms: int) -> bool:
        """Whether a pending compaction of the bucket only waits for a slot.

        It does not while the table is halted or pauses after a failure, nor while the bucket is
        quarantined.
        """
        if self.halt is not None or max(self.next_try_ms, self.next_poll_ms) > now_ms:
            return False
        return not self.is_quarantined(bucket, now_ms)

    def is_quarantined(self, bucket: BucketId, now_ms: int) -> bool:
        """Whether the bucket's next try is still blocked."""
        quarantined = self.quarantined.get(bucket)
        return quarantined is not None and quarantined.until_ms > now_ms

    def failures_of(self, bucket: BucketId) -> int:
        """The bucket's failed compactions in a row, if others must come before it.

        0 while neither it nor the table is shown as halted.
        """
        quarantined = self.quarantined.get(bucket)
        if quarantined is None or (self.halt is None and quarantined.halt is None):
            return 0
        return quarantined.failures

    @property
    def is_worked_on(self) -> bool:
        """Whether the table's policy lets work start now."""
        return self.policy.mode is Mode.AUTO and not self.is_excluded

    @property
    def weight(self) -> float:
        """The table's weight when slots are shared; 1 to 11."""
        return 1 + self.policy.priority / 10

    def urgency(self, pending: PendingCompaction, now_ms: int) -> PriorityClass:
        """How urgent a pending compaction of the table is."""
        return priority_class(pending, self.policy, now_ms)

    def under_way_since_ms(self, now_ms: int) -> int:
        """The start of the oldest work that may still write files of the table."""
        abandoned = (record.chosen_ms for record in self.abandoned)
        return min([*self._began_ms, *abandoned], default=now_ms)

    @property
    def is_dispatching(self) -> bool:
        return isinstance(self.job, DispatchJob)

    def is_job_hung(self, now_ms: int) -> bool:
        """Whether the table's cycle or dispatch has exceeded its usual time."""
        return self.job is not None and now_ms - self.job.since_ms > HUNG_JOB_MS

    def is_maintenance_hung(self, now_ms: int) -> bool:
        """Whether its round of maintenance has exceeded its usual time."""
        running = self.maintenance
        return running is not None and now_ms - running.since_ms > HUNG_MAINTENANCE_MS

    def oldest_read_snapshot(self, now_ms: int) -> int | None:
        """The oldest snapshot that running work, or the plan, is based on, or None.

        Work that began more than `PIN_MAX_MS` ago does not count. While a cycle
        runs, which may be about to create a snapshot, all work counts: a call that hangs for hours
        must not find its number expired, and put its own snapshot there.
        """
        is_in_cycle = isinstance(self.job, CycleJob)
        fresh = (
            id_ for id_, since_ms in self._reads() if is_in_cycle or now_ms - since_ms <= PIN_MAX_MS
        )
        return min(fresh, default=None)

    @property
    def expiry_held_since_ms(self) -> int:
        """The start of the oldest work that keeps snapshots from expiring; 0 for none."""
        return min(self._began_ms, default=0)

    @property
    def _began_ms(self) -> list[int]:
        """The start times of the running compactions and job."""
        jobs = [] if self.job is None else [self.job.since_ms]
        return [*(record.chosen_ms for record in self.compactions.values()), *jobs]

    def _reads(self) -> Iterator[tuple[int, int]]:
        """The snapshots being read, each with its steady start time."""
        for record in self.with_status(*IN_FLIGHT, Status.COMMITTING):
            yield record.in_flight.snapshot_id, record.chosen_ms
        if self.planned is not None:
            yield self.planned.snapshot_id, self.last_poll_ms
