"""One served table as the scheduler knows it: work under way, failures, counters."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compactord.config.choices import Mode
from compactord.config.policy import TablePolicy
from compactord.errors import (
    AccessDenied,
    CommitGaveUp,
    CompactordError,
    DataFileMissing,
    FormatError,
    ReadOnlyFileSystem,
    StoreFull,
    TableNotFound,
    UnsupportedTable,
    UsageError,
)
from compactord.model import Conflict, TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.paimon.table import TableRef
from compactord.scheduler.record import IN_FLIGHT, TIMED_OUT, CompactionRecord, Status
from compactord.scheduler.status import Halt, HaltReason, Outcome, TableCounters
from compactord.table.backlog import PendingCompaction
from compactord.table.cycle import Planned
from compactord.table.report import bucket_text
from compactord.table.status import TableInfo

# Longer than a first poll of a huge table, or a commit that retries: a job that takes longer hangs
# in a call into a store.
HUNG_JOB_MS = 600_000
# Sweeps list every folder of a table.
HUNG_MAINTENANCE_MS = 3 * 3_600_000
# Work keeps the snapshots it reads from expiring for so long. Nothing is at risk after that: what
# is live never expires, and work that finds its inputs gone is planned again.
PIN_MAX_MS = 6 * 3_600_000


class Job(enum.Enum):
    """What a thread of the daemon does for a table; the first two exclude each other."""

    CYCLE = "cycle"
    DISPATCH = "dispatch"
    EXPIRE = "expire"
    SWEEP = "sweep"


class Lifted(enum.Enum):
    """What ends a halt; the strongest comes first.

    An operator, when the table must not be changed. A cycle, when polling the table failed.
    A commit, when its compactions fail; a plan in which what failed has nothing left to do ends
    that, too: the table is polled all the while.
    """

    BY_OPERATOR = "operator"
    BY_CYCLE = "cycle"
    BY_COMMIT = "commit"


@dataclass(slots=True, kw_only=True)
class Quarantined:
    """A bucket quarantined until `until_ms`; 0: until its files change, since they are damaged.

    Its first failure in a row was at `since_ms`. `error` is the class of the error, empty where
    none but fruitless attempts are the cause.
    """

    failures: int
    message: str
    error: str
    since_ms: int
    until_ms: int
    partition: str
    # As which halt people are told of it.
    halt: HaltReason | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether the bucket cannot even be planned."""
        return self.until_ms == 0


@dataclass(slots=True, kw_only=True)
class Drops:
    """Fruitless compactions of a bucket in a row; `up_to` is the last number dispatched by then."""

    count: int = 0
    up_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """A subcompaction at the engine whose compaction has ended; it may still write files."""

    bucket: BucketId
    # When its compaction was chosen.
    since_ms: int


@dataclass(slots=True, kw_only=True)
class Counts:
    """The counters of a table; `frozen` is an immutable copy."""

    compactions: Counter[tuple[WorkKind, Outcome]] = field(default_factory=Counter)
    conflicts: Counter[Conflict] = field(default_factory=Counter)
    # Named as in `TableCounters`.
    sums: Counter[str] = field(default_factory=Counter)
    compaction_seconds: float = 0.0

    def frozen(self) -> TableCounters:
        sums: dict[str, Any] = dict(self.sums)
        return TableCounters(
            compactions=dict(self.compactions),
            conflicts=dict(self.conflicts),
            compaction_seconds_sum=self.compaction_seconds,
            **sums,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class ScheduledTable:
    """Mutable, owned by the loop. Times are steady (`Clock.steady_ms`); 0 means none."""

    name: TableName
    ref: TableRef
    policy: TablePolicy
    index: int
    # Grows with every change of the table.
    version: int = 0
    first_poll_ms: int = 0
    last_poll_ms: int = 0
    # Whether the table wants a cycle; since when.
    poll_due_ms: int | None = None
    job: Job | None = None
    job_since_ms: int = 0
    maintenance: Job | None = None
    planned: Planned | None = None
    # Pending compactions that the last plan offered and that are not dispatched yet.
    offered: dict[BucketId, PendingCompaction] = field(default_factory=dict)
    # The most urgent of them, and until when that holds.
    head: PendingCompaction | None = None
    head_until_ms: int = 0
    queued_ms: dict[BucketId, int] = field(default_factory=dict)
    # All that have not ended, by number, in the order in which they were chosen.
    compactions: dict[int, CompactionRecord] = field(default_factory=dict)
    # Subcompactions at the engine, besides the abandoned ones.
    slots: int = 0
    abandoned: dict[tuple[int, int], Abandoned] = field(default_factory=dict)
    virtual_time: float = 0.0
    quarantined: dict[BucketId, Quarantined] = field(default_factory=dict)
    drops: dict[BucketId, Drops] = field(default_factory=dict)
    # The number of the compaction that was dispatched last.
    last_number: int = 0
    # Failures in a row: of compactions and commits, and of polls.
    failures: int = 0
    look_failures: int = 0
    # Snapshots of ours that another writer replaced, and how many an operator has acknowledged.
    replaced_snapshots: int = 0
    forgiven_snapshots: int = 0
    error: str = ""
    # Before these nothing is dispatched, after compactions or commits that failed; and the table is
    # not polled, after polls that failed.
    next_try_ms: int = 0
    next_poll_ms: int = 0
    # Until when nothing is planned, dispatched, committed or expired: our newest snapshot has to
    # stand first where writers may replace it (`SnapshotPublisher.settle_ms`).
    held_until_ms: int = 0
    # Several halts may hold at once; the end of one does not end the others.
    halts: dict[Lifted, Halt] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    last_success_ms: dict[WorkKind, int] = field(default_factory=dict)
    last_commit_ms: int = 0
    last_commit_snapshot_id: int = 0
    # Expiry: whether it is due, when a round ended last (0: another one is to follow at once), and
    # when one ended without an error.
    expire_due: bool = True
    last_expire_ms: int = 0
    last_expired_ms: int = 0
    sweep_due_ms: int = 0
    # When a sweep or an expiry began last.
    maintained_ms: int = 0
    # Excluded or gone: nothing new begins, and the table is dropped once nothing is under way.
    is_leaving: bool = False
    # Its writers compact themselves.
    is_excluded: bool = False
    # Why the configuration says to leave it alone, for people; empty: it does not.
    left_alone: str = ""
    # What it is, as read last; None: nothing has been read yet.
    info: TableInfo | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing of the table is under way."""
        return not (self.job or self.maintenance or self.compactions)

    def with_status(self, *statuses: Status) -> list[CompactionRecord]:
        """The compactions that have one of these statuses, in the order of their numbers."""
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
    def next_waiting(self) -> CompactionRecord | None:
        """The compaction whose subcompaction gets the table's next slot."""
        return next((each for each in self.compactions.values() if each.has_waiting), None)

    @property
    def halt(self) -> Halt | None:
        """The strongest halt, None when the table is not halted."""
        return next((self.halts[lifted] for lifted in Lifted if lifted in self.halts), None)

    @property
    def shown_halt(self) -> Halt | None:
        """What people are told: the halt of the table, else that of buckets that cannot go on.

        The latter stops these buckets alone, and expiry where data is missing or damaged: what one
        could roll back to stays.
        """
        if self.halt is not None:
            return self.halt
        for reason in _OF_BUCKETS:
            lacking = [
                (bucket, each) for bucket, each in self.quarantined.items() if each.halt is reason
            ]
            if lacking:
                return _of_buckets(reason, lacking)
        return None

    @property
    def keeps_snapshots(self) -> bool:
        """Whether nothing may expire, since somebody may have to roll back."""
        if self.halt is not None:
            return True
        shown = self.shown_halt
        return shown is not None and shown.reason is not HaltReason.REPEATED_FAILURES

    @property
    def has_nothing_failing(self) -> bool:
        """Whether the buckets that failed have nothing to do: others compacted or dropped them.

        Quarantined buckets are not offered: while any work is not, it may be theirs.
        """
        planned = self.planned
        if planned is None or self.in_flight or not planned.offers_all:
            return False
        offered = {pending.bucket for pending in planned.offered}
        failed = {bucket for bucket, known in self.quarantined.items() if not known.is_damaged}
        return not offered or (bool(failed) and offered.isdisjoint(failed))

    def end_pauses(self, now_ms: int) -> bool:
        """Let what failed be tried at once; whether anything had to wait. No halt ends by that."""
        waits = max(self.next_try_ms, self.next_poll_ms) > now_ms
        self.next_try_ms = self.next_poll_ms = 0
        for lifted, halt in self.halts.items():
            self.halts[lifted] = replace(halt, next_try_ms=min(halt.next_try_ms, now_ms))
        for quarantined in self.quarantined.values():
            waits = waits or quarantined.until_ms > now_ms
            quarantined.until_ms = min(quarantined.until_ms, now_ms)
        self.head_until_ms = 0
        return waits

    def is_waiting(self, bucket: BucketId, now_ms: int) -> bool:
        """Whether a pending compaction of the bucket only wants a slot.

        It does not while the table is halted or pauses after a failure, nor while the bucket is
        quarantined.
        """
        if self.halt is not None or max(self.next_try_ms, self.next_poll_ms) > now_ms:
            return False
        return not self.is_quarantined(bucket, now_ms)

    def is_quarantined(self, bucket: BucketId, now_ms: int) -> bool:
        """Whether the bucket is not tried again yet."""
        quarantined = self.quarantined.get(bucket)
        return quarantined is not None and quarantined.until_ms > now_ms

    def failures_of(self, bucket: BucketId) -> int:
        """How often in a row the bucket's compactions have failed, if others come before it.

        0 while neither it nor the table is told of as halted.
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

    def under_way_since_ms(self, now_ms: int) -> int:
        """When the oldest work began that may still write files of the table."""
        began = [record.chosen_ms for record in self.compactions.values()]
        began += [each.since_ms for each in self.abandoned.values()]
        if self.job is not None:
            began.append(self.job_since_ms)
        return min(began, default=now_ms)

    def abandoned_in(self, bucket: BucketId) -> bool:
        """Whether a worker that was given up may still work on the bucket."""
        return any(each.bucket == bucket for each in self.abandoned.values())

    def is_job_hung(self, now_ms: int) -> bool:
        """Whether the table's cycle or dispatch has taken too long to be at work."""
        return self.job is not None and now_ms - self.job_since_ms > HUNG_JOB_MS

    def is_maintenance_hung(self, now_ms: int) -> bool:
        """Whether its sweep or expiry has taken too long."""
        return self.maintenance is not None and now_ms - self.maintained_ms > HUNG_MAINTENANCE_MS

    def oldest_read_snapshot(self, now_ms: int) -> int | None:
        """The oldest snapshot on which work under way, or the plan, is based.

        What began more than `PIN_MAX_MS` ago does not count; None when nothing does. While a cycle
        runs, which may be about to create a snapshot, all counts: a call that hangs for hours must
        not find that the snapshot which took its number has expired, and put its own there.
        """
        is_in_cycle = self.job is Job.CYCLE
        fresh = (
            id_ for id_, since_ms in self._reads() if is_in_cycle or now_ms - since_ms <= PIN_MAX_MS
        )
        return min(fresh, default=None)

    @property
    def expiry_held_since_ms(self) -> int:
        """When the oldest work under way began that keeps snapshots from expiring; 0 for none."""
        began = [record.chosen_ms for record in self.compactions.values()]
        if self.job is not None:
            began.append(self.job_since_ms)
        return min(began, default=0)

    def _reads(self) -> Iterator[tuple[int, int]]:
        """The snapshots that are read, each with the steady time since when."""
        for record in self.with_status(*IN_FLIGHT, Status.COMMITTING):
            yield record.dispatch.snapshot_id, record.chosen_ms
        if self.planned is not None:
            yield self.planned.snapshot_id, self.last_poll_ms


# Of quarantined buckets, the gravest first.
_OF_BUCKETS = (
    HaltReason.DATA_FILE_MISSING,
    HaltReason.DATA_CHECK_FAILED,
    HaltReason.REPEATED_FAILURES,
)


def _of_buckets(reason: HaltReason, lacking: Sequence[tuple[BucketId, Quarantined]]) -> Halt:
    bucket, first = lacking[0]
    place = bucket_text(first.partition, bucket.bucket)
    others = f" (and {len(lacking) - 1:,} more)" if len(lacking) > 1 else ""
    return Halt(
        reason=reason,
        message=f"{place}{others}: {first.message}",
        action=f"{advice(first.error)} Other buckets are compacted.",
        since_ms=min(each.since_ms for _, each in lacking),
        next_try_ms=min(each.until_ms for _, each in lacking),
    )


def halt_for(error: CompactordError) -> tuple[HaltReason, str] | None:
    """Errors that need a person: the reason for the halt, and what to do about it."""
    match error:
        case UnsupportedTable():
            return HaltReason.UNSUPPORTED_FEATURE, (
                "Exclude the table (discovery.excluding_tables), or change the options named."
            )
        case FormatError(path=path) if "/schema/" in path:
            return HaltReason.SCHEMA_UNREADABLE, f"Restore {path} from a backup."
        case FormatError(path=path):
            return HaltReason.CORRUPT_METADATA, (
                f"Check {path}; roll the table back to a snapshot that does not need it."
            )
        case UsageError():
            return HaltReason.SCHEMA_UNREADABLE, (
                "Correct the option, in the table (ALTER TABLE … SET) or in the configuration."
            )
        case _:
            return None


_ADVICE = {
    AccessDenied.__name__: "Give compactord's user read and write permission on the folder.",
    ReadOnlyFileSystem.__name__: (
        "Mount the file system writable (the kernel's log says whether an error made it "
        "read-only), then send SIGHUP; or exclude the table (discovery.excluding_tables)."
    ),
    FormatError.__name__: (
        "Check the file that the message names: restore it, or roll the table back to a snapshot "
        "that does not need it."
    ),
    TIMED_OUT: (
        "Look at the store and at the machine of the worker: one of them hangs. If merges are only "
        "slow, raise limits.task_timeout (compact: --task-timeout)."
    ),
    DataFileMissing.__name__: (
        "Restore the file, or roll the table back to a version without it. `compactord verify` "
        "names all files that are gone. No snapshot expires meanwhile."
    ),
    StoreFull.__name__: ("Make room, or raise the quota, where the table lives; then send SIGHUP."),
    TableNotFound.__name__: "Nothing, if it was dropped: the next listing removes it.",
    CommitGaveUp.__name__: (
        "Raise commit.max-retries or commit.timeout of the table; find the job that commits often."
    ),
}


def advice(kind: str) -> str:
    """What to do about errors that may be transient; `kind` is the name of the error's class."""
    return _ADVICE.get(
        kind, "Look for compaction_failed and commit events of this table in the log."
    )
