"""Protocol of maintenance kinds: when due, what to do, how to report.

A kind is one class in a module of this package and one line in `registry`. The scheduler keeps a
record of each kind for each table. It runs one kind at a time for a table, and few over all tables.
Commands run each `OfferedKind` and print its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from compactord.clock import Clock, WallTime
from compactord.commit.changes import CommitOutcome
from compactord.config.choices import MaintenanceRule
from compactord.config.policy import TablePolicy
from compactord.config.windows import may_start
from compactord.errors import CompactordError
from compactord.ids import Owner
from compactord.model import WorkKind
from compactord.state.table_state import TableState
from compactord.table.opening import OpenTable
from compactord.table.session import ChosenPartitions
from compactord.verify.holds import Hold

T = TypeVar("T")
K = TypeVar("K", bound="MaintenanceKind[Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """The oldest work that may still write files of a table, and what it reads.

    The age of a file is by the wall clock, which may be set meanwhile. `since_ms` is the lowest
    wall time observed since the work began, and `for_ms` its age in steady time. Both are required.
    A file made after an unobserved step back of the clock has a time before `since_ms`. Once the
    clock is set ahead again, that file looks older than `for_ms`.

    `reads_from` is the lowest snapshot that the work reads, or None if it reads none.
    """

    since_ms: int
    for_ms: int
    reads_from: int | None = None


class OpenedTable(Protocol):
    """The open table of a compactor, on which kinds run. Thread-safe."""

    @property
    def table(self) -> OpenTable: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def owner(self) -> Owner: ...

    def memory(self, type_: type[T]) -> T:
        """The object of this type that keeps a kind's knowledge of the table between rounds.

        The first call makes it, without arguments. One round at a time may use it.
        """
        ...

    @property
    def watches_files(self) -> bool:
        """Whether files with doubtful times must be watched over rounds before their deletion.

        False in a command: its round is the only one.
        """
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the process is stopping, so that long rounds must end."""
        ...

    def newest_state(self) -> TableState:
        """Raises what reading raises."""
        ...

    def why_held(self) -> Hold | None:
        """Why deletions are blocked (live files are missing or damaged), or None.

        Raises what reading raises: the state of live files is unknown then.
        """
        ...

    def expiry_blocker(self) -> str | None:
        """Why no snapshot may expire now, or None. Includes `why_held`, and raises the same."""
        ...

    def drop_partitions(self, chosen: ChosenPartitions) -> CommitOutcome:
        """Remove partitions in one snapshot; each attempt to publish it calls `chosen` again.

        Waits for the job of the table that runs now. Raises as `Committer.commit`.
        """
        ...


class DueTable(Protocol):
    """The scheduler's view of a table, for `is_due`. Times are steady."""

    @property
    def policy(self) -> TablePolicy: ...

    @property
    def requested_maintenance(self) -> Mapping[str, int]:
        """The kinds that the table's options request, of the kinds that run only on request.

        By name, with the shortest interval between two rounds that the options allow, in ms.
        """
        ...

    @property
    def snapshot_id(self) -> int:
        """The newest snapshot of the last plan, 0 before the first plan."""
        ...

    @property
    def settling_until_ms(self) -> int:
        """Until when our newest snapshot may be replaced: old ones may be needed until then."""
        ...


@dataclass(slots=True, kw_only=True)
class MaintenanceRecord:
    """Rounds of one kind for one table, owned by the scheduler. Times are steady, 0 if never."""

    began_ms: int = 0
    # End of the last round; 0 also if another round must follow at once.
    ended_ms: int = 0
    # End of the last successful round.
    succeeded_ms: int = 0
    # Sums over rounds, by the names of counters.
    counts: Counter[str] = field(default_factory=Counter)
    # Whether the table was planned since the last round began, or that round left work.
    has_news: bool = True
    # The newest snapshot at the start of the last round, 0 if none or if that round failed.
    snapshot_id: int = 0
    # Why the last round failed or ended early, or empty.
    why_not: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the last round that ended failed."""
        return self.succeeded_ms < self.ended_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The result of a round. `counts` are added to the table's counters, by name.

    `more`: work is left, and the next round may start at once. `why_not` is why it failed or ended
    early, or None. `first_snapshot_id` is the oldest snapshot after a round that removed snapshots.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    has_failed: bool = False
    why_not: str | None = None
    first_snapshot_id: int | None = None


class MaintenanceKind(ABC, Generic[T]):
    """Immutable; a reload of the configuration makes new ones. `run` returns `T`.

    `duration_metric` is the name and help text of a metric of seconds. `counters` are the names and
    help texts of metrics that sum up `Round.counts`. Names are without the namespace.
    `is_long`: a round may take an hour. One long round at a time runs in a catalog, and no other
    round in the same folder meanwhile. `is_short`: a round takes a few requests. It starts first,
    and in threads that other kinds leave free.
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
        """The kind with the rules of one table."""
        return self

    @abstractmethod
    def run(self, table: OpenedTable, under_way: UnderWay | None) -> T:
        """Run one round. `under_way` is the oldest work of this process, or None if idle.

        Raises `CompactordError`; it is passed to `ended`.
        """

    @abstractmethod
    def ended(self, result: T | CompactordError, seconds: float) -> Round:
        """Log what `run` returned or raised, and return the result for the scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Generic[T]):
    """The results of one kind's rounds over a table in a command.

    In a dry run, what they would do, and the `files` that they would delete if known. `why_not` is
    the reason why no round started. `error` is the error that ended the rounds.
    """

    rounds: Sequence[T] = ()
    files: Sequence[str] | None = None
    why_not: str | None = None
    error: CompactordError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTable:
    """A table in the output of a command. `table` is None if it was not opened."""

    name: str
    is_dry: bool
    table: OpenTable | None

    @property
    def expired(self) -> str:
        """The verb of expiry, as in `3 snapshots expired`."""
        return "would expire" if self.is_dry else "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The output of a command: lines of text, and the same as plain data for JSON.

    `errors` left a part of the work undone.
    """

    lines: Sequence[str]
    found: Mapping[str, Any]
    errors: Sequence[CompactordError] = ()


def because(why_not: str | None, *, has_some: object) -> list[str]:
    """A line with the reason for no work, or no more if `has_some` was done; empty without one."""
    return [] if why_not is None else [f"  {'no more ' if has_some else ''}because {why_not}"]


class OfferedKind(MaintenanceKind[T]):
    """A kind that a command can also run, under the name `choice`.

    Kinds that share a `choice` run in turn, and the first reports all results. `explicit_only`:
    runs only if the command names it. `rule` is the key of the rule that can disable it.
    """

    choice: ClassVar[str]
    explicit_only: ClassVar[bool] = False
    rule: ClassVar[str | None] = None

    def not_configured(self, table: OpenTable) -> str | None:
        """Why the table's options do not request this kind, or None if it runs."""
        return None

    @abstractmethod
    def preview(self, table: OpenedTable) -> Done[T]:
        """The changes that all rounds together would make. Changes nothing itself.

        Raises what `run` raises before its first change.
        """

    def has_more(self, result: T) -> bool:
        """Whether a round left work for the next one: its result may have an attribute `more`."""
        return bool(getattr(result, "more", False))

    @abstractmethod
    def report(self, shown: ShownTable, done: Done[T], *others: Done[Any]) -> Report:
        """The output for all rounds; `others` are the results of kinds with the same `choice`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledKind(OfferedKind[T]):
    """A kind that the rule `rule` can disable; due every `interval_ms` at most.

    Unless it `always_runs`, the table's options must request it. They may set the interval.
    `not_requested` is the message if they do not. `after_plans`: due only after a plan. `is_free`:
    due also while our newest snapshot may be replaced. `at_any_time`: due also outside of the
    windows of expiry. Deletions wait while copies of metadata are younger than `grace_ms`; with 0
    they never wait.
    """

    rule: ClassVar[str]
    always_runs: ClassVar[bool] = False
    not_requested: ClassVar[str | None] = None
    after_plans: ClassVar[bool] = False
    is_free: ClassVar[bool] = False
    at_any_time: ClassVar[bool] = False

    interval_ms: int
    grace_ms: int = 0

    def not_configured(self, table: OpenTable) -> str | None:
        is_requested = self.always_runs or self.name in table.options.maintenance.requested
        return None if is_requested else self.not_requested

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
