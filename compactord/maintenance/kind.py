"""What a kind of maintenance is: when it is due for a table, what it runs, what that came to.

A kind is one class in a module of this package and one line in `registry`. The scheduler keeps a
record of each kind for each table, lets one run at a time for a table, and few over all tables. The
commands run those that are offered to people, and tell them what came of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from compactord.clock import Clock, WallTime
from compactord.commit.changes import CommitOutcome
from compactord.config.choices import MaintenanceRule
from compactord.config.policy import TablePolicy
from compactord.config.windows import may_start
from compactord.errors import CompactordError
from compactord.ids import Owner
from compactord.maintenance.holds import Hold
from compactord.model import WorkKind
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents, PartitionSpec
from compactord.paimon.data_file import BucketId
from compactord.paimon.options.table_options import TableOptions
from compactord.paimon.schema import TableRef, TableSchema
from compactord.state.table_state import TableState
from compactord.storage.base import Storage

T = TypeVar("T")
K = TypeVar("K", bound="MaintenanceKind[Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """The oldest of what may still write files of a table, and what it reads.

    Files tell their age by the wall clock, which may be set meanwhile. `since_ms` is the least that
    it has shown since that began, as far as was seen, and `for_ms` how long ago that is in steady
    time. Neither alone is enough: a file made after the clock was set back is from before
    `since_ms` if nobody saw that; once it is set ahead again, it looks older than `for_ms`.

    `reads_from` is the lowest snapshot that it reads, None when it reads none.
    """

    since_ms: int
    for_ms: int
    reads_from: int | None = None


class TableValues(Protocol):
    """A table in its newest schema that is known."""

    @property
    def storage(self) -> Storage: ...

    @property
    def ref(self) -> TableRef: ...

    @property
    def schema(self) -> TableSchema: ...

    @property
    def options(self) -> TableOptions: ...

    @property
    def entries(self) -> PartitionEntries | None:
        """What its catalog keeps of partitions where options ask for it, as the events."""
        ...

    @property
    def events(self) -> PartitionEvents | None: ...

    def bucket_folder(self, bucket: BucketId) -> str: ...

    def partition_path(self, partition: bytes) -> str:
        """Raises `FormatError` for one that cannot be read, as `partition_spec`."""
        ...

    def partition_spec(self, partition: bytes) -> PartitionSpec: ...

    def partition_text(self, partition: bytes) -> str:
        """For people, also of one that cannot be read."""
        ...


# Which partitions of the newest state go.
ChosenPartitions: TypeAlias = Callable[[TableValues, TableState], Collection[bytes]]


class OpenedTable(Protocol):
    """What kinds run on: a table as its compactor has it open. Any thread may ask."""

    @property
    def table(self) -> TableValues: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def owner(self) -> Owner:
        """Whose files are this process's."""
        ...

    def memory(self, type_: type[T]) -> T:
        """What a kind knows of the table from round to round; for one round at a time.

        Of each type there is one, which knows nothing at first.
        """
        ...

    @property
    def watches_files(self) -> bool:
        """Whether files whose times may lie are deleted only after rounds have seen them for long.

        Not where people ask for a round, which is the only one.
        """
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the process is about to end, and so are long rounds."""
        ...

    def newest_state(self) -> TableState:
        """The newest state. Raises what reading raises."""
        ...

    def why_held(self) -> Hold | None:
        """Why nothing may be deleted now: live files are missing or damaged, or None.

        Raises what reading raises: whether they are is not known then.
        """
        ...

    def expiry_blocker(self) -> str | None:
        """Why no snapshot may expire now, or None; also what `why_held` has. Raises as that."""
        ...

    def drop_partitions(self, chosen: ChosenPartitions) -> CommitOutcome:
        """Remove partitions in one snapshot; `chosen` is asked anew at each attempt to publish it.

        It waits for what the table's own thread does. Raises as `Committer.commit`.
        """
        ...


class DueTable(Protocol):
    """What the scheduler tells a kind of a table. Times are steady."""

    @property
    def policy(self) -> TablePolicy: ...

    @property
    def requested_maintenance(self) -> Mapping[str, int]:
        """The kinds that its options ask for, of those that run only then.

        By name, with the least time between two rounds that the options ask for, in ms.
        """
        ...

    @property
    def snapshot_id(self) -> int:
        """The newest snapshot of the last plan; 0: there is none."""
        ...

    @property
    def settling_until_ms(self) -> int:
        """Until when our newest snapshot may be replaced, so that old ones may be needed."""
        ...


@dataclass(slots=True, kw_only=True)
class MaintenanceRecord:
    """The rounds of one kind for one table; owned by the scheduler. Times are steady, 0: never."""

    began_ms: int = 0
    # When a round ended last; 0 also when another one is to follow at once.
    ended_ms: int = 0
    # When one ended last that did not fail.
    succeeded_ms: int = 0
    # What its rounds counted, by the names of counters.
    counts: Counter[str] = field(default_factory=Counter)
    # Whether the table has been planned since the last round began, or that round left something.
    has_news: bool = True
    # The newest snapshot that was known as the last round began; 0: none, or that round failed.
    snapshot_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round came to. `counts` are added to the table's counters, by name.

    `more`: something is left to do, at once. `first_snapshot_id` is the oldest snapshot left by a
    round that removed some.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    has_failed: bool = False
    first_snapshot_id: int | None = None


class MaintenanceKind(ABC, Generic[T]):
    """Immutable; a reload makes others. `T` is what a run returns.

    `duration_metric` is the name and meaning of a metric of its seconds, `counters` are those of
    metrics that sum up what `Round.counts` has by these names; all without the namespace.
    `is_long`: a round may take an hour. One such runs at a time in a catalog, and no other round
    beside it in the same folder. `is_short`: a round takes a few requests. It begins before others,
    and in threads that others leave free.
    """

    name: ClassVar[str]
    is_long: ClassVar[bool] = False
    is_short: ClassVar[bool] = False
    duration_metric: ClassVar[tuple[str, str] | None] = None
    counters: ClassVar[tuple[tuple[str, str], ...]] = ()

    @abstractmethod
    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        """Whether a round may begin now. Pure."""

    def for_table(self: K, policy: TablePolicy) -> K:
        """The kind as it runs by the rules for one table."""
        return self

    @abstractmethod
    def run(self, table: OpenedTable, under_way: UnderWay | None) -> T:
        """One round. `under_way` None: nothing of this process is.

        Raises any `CompactordError`, which `ended` is then told.
        """

    @abstractmethod
    def ended(self, result: T | CompactordError, seconds: float) -> Round:
        """Log what `run` returned or raised, and say what it came to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Generic[T]):
    """What a command did to a table by one kind: what its rounds returned.

    Or what they would do, as one, with the `files` that would go as far as these are known.
    `why_not`: no round began, for this reason. `error` ended the rounds after one.
    """

    rounds: Sequence[T] = ()
    files: Sequence[str] | None = None
    why_not: str | None = None
    error: CompactordError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTable:
    """A table as a command tells of it: by `name`; `table` None: it was not opened."""

    name: str
    is_dry: bool
    table: TableValues | None

    @property
    def expired(self) -> str:
        """What is said of what goes: `3 snapshots expired`."""
        return "would expire" if self.is_dry else "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a command tells: lines for people, and the same as plain data."""

    lines: Sequence[str]
    found: Mapping[str, Any]


def because(why_not: str | None, *, has_some: object) -> list[str]:
    """The line below what was done, `has_some` if anything, that says why no more; none without."""
    return [] if why_not is None else [f"  {'no more ' if has_some else ''}because {why_not}"]


class OfferedKind(MaintenanceKind[T]):
    """A kind that people can run by a command, too, under the name `choice`.

    Kinds that share a name run in turn, and the first tells of all. `explicit_only`: not unless
    they name it. A `rule`, by its key, may have it off.
    """

    choice: ClassVar[str]
    explicit_only: ClassVar[bool] = False
    rule: ClassVar[str | None] = None

    def not_configured(self, table: TableValues) -> str | None:
        """Why the table's options do not ask for it; None: they do, or it is always done."""
        return None

    @abstractmethod
    def preview(self, table: OpenedTable) -> Done[T]:
        """What all rounds together would do to what options ask for; changes nothing.

        Raises what `run` raises before it changes anything.
        """

    def has_more(self, result: T) -> bool:
        """Whether a round left something to do, at once: what it returned may have a `more`."""
        return bool(getattr(result, "more", False))

    @abstractmethod
    def told(self, shown: ShownTable, done: Done[T], *others: Done[Any]) -> Told:
        """Say what it came to; `others` are those of the kinds that share its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledKind(OfferedKind[T]):
    """A kind that a rule may have off, by its key `rule`; due every `interval_ms` at most.

    Unless it `always_runs` a table's options have to ask for it, which may say how often;
    `unasked` says that they do not. `after_plans`: due only after a plan. `is_free`: also while our
    newest snapshot may be replaced. `at_any_time`: also outside of the windows of expiry. What
    deletes files waits while copies of metadata are younger than `grace_ms`; 0: for none.
    """

    rule: ClassVar[str]
    always_runs: ClassVar[bool] = False
    unasked: ClassVar[str | None] = None
    after_plans: ClassVar[bool] = False
    is_free: ClassVar[bool] = False
    at_any_time: ClassVar[bool] = False

    interval_ms: int
    grace_ms: int = 0

    def not_configured(self, table: TableValues) -> str | None:
        is_asked = self.always_runs or self.name in table.options.maintenance.requested
        return None if is_asked else self.unasked

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        own_ms = 0 if self.always_runs else table.requested_maintenance.get(self.name)
        return (
            own_ms is not None
            and getattr(table.policy, self.rule) is MaintenanceRule.FROM_TABLE
            and now_ms - record.ended_ms >= max(self.interval_ms, own_ms)
            and (record.has_news or not self.after_plans)
            and (self.is_free or table.settling_until_ms <= now_ms)
            and (self.at_any_time or in_windows(table, now_ms, wall))
        )


def in_windows(table: DueTable, now_ms: int, wall: WallTime) -> bool:
    """Whether the table's windows of expiry are open."""
    return may_start(table.policy.windows, WorkKind.EXPIRE, wall.at(now_ms), wall.zone)


AnyKind: TypeAlias = MaintenanceKind[Any]
