"""One served table as the loop knows it: its work under way, its troubles, its counters."""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from compactord.config.model import Mode
from compactord.config.policy import TablePolicy
from compactord.errors import (
    AccessDenied,
    CommitGaveUp,
    CompactordError,
    FormatError,
    StoreFull,
    TableNotFound,
    UnsupportedTable,
    UsageError,
)
from compactord.model import Conflict, Subcompaction, TableName, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.paimon.table import TableRef
from compactord.scheduler.status import Halt, HaltReason, Outcome, PriorityClass, TableCounters
from compactord.table.backlog import PendingCompaction
from compactord.table.compactor import Dispatch, Planned
from compactord.table.in_flight import Failed, Finished


class Job(enum.Enum):
    """What a thread of the daemon does for a table; the first two exclude each other."""

    CYCLE = "cycle"
    DISPATCH = "dispatch"
    EXPIRE = "expire"
    SWEEP = "sweep"


class Lifted(enum.Enum):
    """What ends a halt; the strongest comes first.

    By an operator: the table must not be touched. By a cycle: it cannot be looked at. By a commit:
    its compactions fail; a plan that finds nothing to do ends that, too.
    """

    BY_OPERATOR = "operator"
    BY_CYCLE = "cycle"
    BY_COMMIT = "commit"


@dataclass(slots=True, kw_only=True)
class CompactionRecord:
    """A compaction under way. `started_ms` 0 until its first part was handed to the engine."""

    dispatch: Dispatch
    pending: PendingCompaction
    priority_class: PriorityClass
    queued_ms: int
    started_ms: int = 0
    parts_done: int = 0


@dataclass(slots=True, kw_only=True)
class Quarantined:
    """A bucket left alone until `until_ms`."""

    failures: int
    message: str
    until_ms: int
    partition: str


@dataclass(slots=True, kw_only=True)
class Drops:
    """How often in a row compactions of a bucket came to nothing; `up_to` were dispatched then."""

    count: int = 0
    up_to: int = 0


@dataclass(slots=True, kw_only=True)
class Counts:
    """The growing numbers of a table; `frozen` is a copy of them."""

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
    """Mutable, owned by the loop. Times are steady ones (`Clock.steady_ms`), 0: there is none."""

    name: TableName
    ref: TableRef
    policy: TablePolicy
    index: int
    # Grows with everything that happens to it.
    version: int = 0
    first_poll_ms: int = 0
    last_poll_ms: int = 0
    # Whether there is reason to look at the table; since when.
    poll_due_ms: int | None = None
    job: Job | None = None
    job_since_ms: int = 0
    maintenance: Job | None = None
    planned: Planned | None = None
    # What the last plan offered and is not dispatched yet.
    offered: dict[BucketId, PendingCompaction] = field(default_factory=dict)
    # Compactions that were under way when it was made: it does not count them.
    in_flight_at_plan: frozenset[int] = frozenset()
    # The most urgent of them, and until when that holds.
    head: PendingCompaction | None = None
    head_until_ms: int = 0
    # The due that a take-off is being prepared for.
    dispatching: PendingCompaction | None = None
    dispatching_class: PriorityClass = PriorityClass.BENEFIT
    queued_ms: dict[BucketId, int] = field(default_factory=dict)
    parts: deque[tuple[int, Subcompaction]] = field(default_factory=deque)
    in_flight: dict[int, CompactionRecord] = field(default_factory=dict)
    ended: dict[int, Finished | Failed] = field(default_factory=dict)
    # Those that the running cycle settles.
    settling: dict[int, tuple[CompactionRecord, Finished | Failed]] = field(default_factory=dict)
    slots: int = 0
    virtual_time: float = 0.0
    quarantined: dict[BucketId, Quarantined] = field(default_factory=dict)
    drops: dict[BucketId, Drops] = field(default_factory=dict)
    # The number of the compaction that was dispatched last.
    last_number: int = 0
    # In a row: of compactions and commits, and of looks at the table.
    failures: int = 0
    look_failures: int = 0
    # Snapshots of ours that another writer replaced, and how many an operator knows of.
    replaced_snapshots: int = 0
    forgiven_snapshots: int = 0
    error: str = ""
    next_try_ms: int = 0
    # One that ends does not end the others.
    halts: dict[Lifted, Halt] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    last_success_ms: dict[WorkKind, int] = field(default_factory=dict)
    last_commit_ms: int = 0
    last_commit_snapshot_id: int = 0
    # Expiry: whether to look, when we looked, and up to where runs of this daemon read.
    expire_due: bool = True
    last_expire_ms: int = 0
    sweep_due_ms: int = 0
    # When a sweep or an expiry began last.
    maintained_ms: int = 0
    # Excluded or gone: nothing new is begun, and it is dropped once nothing is under way.
    is_leaving: bool = False
    # Its writers compact themselves.
    is_excluded: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is under way anywhere."""
        return not (self.job or self.maintenance or self.in_flight or self.ended or self.settling)

    @property
    def halt(self) -> Halt | None:
        """The strongest of its halts, None when it is not halted."""
        return next((self.halts[lifted] for lifted in Lifted if lifted in self.halts), None)

    def failures_of(self, bucket: BucketId) -> int:
        """How often in a row the bucket's compactions have failed."""
        quarantined = self.quarantined.get(bucket)
        return quarantined.failures if quarantined is not None else 0

    @property
    def is_worked_on(self) -> bool:
        """Whether anything may be done to it, by its policy."""
        return self.policy.mode is Mode.AUTO and not self.is_excluded

    @property
    def weight(self) -> float:
        """Share of slots beside others; 1 to 11."""
        return 1 + self.policy.priority / 10

    def under_way_since_ms(self, now_ms: int) -> int:
        """When the oldest thing began that may still write files of the table."""
        in_flight = [*self.in_flight.values(), *(record for record, _ in self.settling.values())]
        began = [record.queued_ms for record in in_flight]
        if self.job is not None:
            began.append(self.job_since_ms)
        return min(began, default=now_ms)

    @property
    def oldest_read_snapshot(self) -> int | None:
        """The oldest snapshot that something under way, or the plan, was made on."""
        under_way = [*self.in_flight.values(), *(record for record, _ in self.settling.values())]
        ids = [record.dispatch.snapshot_id for record in under_way]
        if self.planned is not None:
            ids.append(self.planned.snapshot_id)
        return min(ids, default=None)


def halt_for(error: CompactordError) -> tuple[HaltReason, str] | None:
    """Errors that do not pass by themselves: the reason for a halt, and what to do about it."""
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
    FormatError.__name__: (
        "Check the file that the message names: restore it, or roll the table back to a snapshot "
        "that does not need it."
    ),
    StoreFull.__name__: "Make room, or raise the quota, where the table lives.",
    TableNotFound.__name__: "Nothing, if it was dropped: it is forgotten with the next listing.",
    CommitGaveUp.__name__: (
        "Raise commit.max-retries or commit.timeout of the table; look for who commits so often."
    ),
}


def advice(kind: str) -> str:
    """What to do about trouble that may pass; `kind` is the name of the error's class."""
    return _ADVICE.get(
        kind, "Look for compaction_failed and commit events of this table in the log."
    )
