"""One round of a kind of maintenance on a table that only a test has open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timezone, tzinfo
from functools import partial
from typing import Any, TypeVar

from compactord import ids
from compactord.commit.changes import CommitOutcome
from compactord.ids import Owner
from compactord.maintenance.changelog_expiry import ExpireChangelogs
from compactord.maintenance.consumer_expiry import ExpireConsumers, IdleConsumer
from compactord.maintenance.copied_files import NO_WATCH, CheckedFiles, CopyWatch
from compactord.maintenance.done import MarkDone, Marks
from compactord.maintenance.kind import UnderWay
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.maintenance.new_tags import CreatedTags, CreateTags, TagProgress
from compactord.maintenance.partitions import ExpirePartitions
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.snapshots import ExpireSnapshots, ExpireVersions
from compactord.maintenance.tags import ExpireTags
from compactord.paimon.options.maintenance import ExpireOptions
from compactord.state.table_state import TableState, load_newest
from compactord.table.opening import OpenTable
from compactord.table.session import ChosenPartitions, TableSession
from compactord.verify.holds import Hold
from tests.builders import VirtualClock

T = TypeVar("T")


class _Clock(VirtualClock):
    def __init__(self, now_ms: int, zone: tzinfo) -> None:
        super().__init__(now_ms)
        self.time_zone = zone


@dataclass(kw_only=True)
class Opened:
    """As `OpenedTable`: nothing is held, and no other thread works on it."""

    table: OpenTable
    now_ms: int
    zone: tzinfo = timezone.utc
    owner: Owner = field(default_factory=ids.this_process)
    state: TableState | None = None
    memories: dict[type, Any] = field(default_factory=dict)
    watches_files: bool = False
    is_stopping: bool = False
    drop: Callable[[ChosenPartitions], CommitOutcome] | None = None

    @property
    def clock(self) -> VirtualClock:
        return _Clock(self.now_ms, self.zone)

    def memory(self, type_: type[T]) -> T:
        found: T = self.memories.setdefault(type_, type_())
        return found

    def newest_state(self) -> TableState:
        return self.state or load_newest(self.table.storage, self.table.ref).state

    def why_held(self) -> Hold | None:
        return None

    def expiry_blocker(self) -> str | None:
        return None

    def drop_partitions(self, chosen: ChosenPartitions) -> CommitOutcome:
        assert self.drop is not None
        return self.drop(chosen)


def expire_consumers(table: OpenTable, now_ms: int) -> list[IdleConsumer]:
    """The consumers that a round deleted."""
    return ExpireConsumers(interval_ms=0).run(Opened(table=table, now_ms=now_ms), None).items


def expire_partitions(followed: TableSession, now_ms: int) -> RoundResult[str]:
    """A round of a table as its compactor knows it."""
    drop = partial(followed.drop_partitions, busy=())
    opened = Opened(table=followed.table, now_ms=now_ms, state=followed.state, drop=drop)
    return ExpirePartitions(interval_ms=0).run(opened, None)


def mark_done(
    table: OpenTable,
    now_ms: int,
    *,
    marks: Marks | None = None,
    zone: tzinfo = timezone.utc,
    state: TableState | None = None,
    is_dry: bool = False,
) -> list[str]:
    """The folders of the partitions that a round marked, or would mark."""
    memories = {Marks: marks or Marks()}
    opened = Opened(table=table, now_ms=now_ms, zone=zone, state=state, memories=memories)
    kind = MarkDone(interval_ms=0)
    done = kind.preview(opened).rounds[0] if is_dry else kind.run(opened, None)
    assert not done.more
    return [each.folder for each in done.items]


def create_tags(
    table: OpenTable,
    now_ms: int,
    *,
    progress: TagProgress | None = None,
    zone: tzinfo = timezone.utc,
    owner: Owner | None = None,
    is_dry: bool = False,
) -> CreatedTags:
    """A round that creates tags, or what it would do."""
    memories = {TagProgress: progress or TagProgress()}
    owner = owner or ids.this_process()
    opened = Opened(table=table, now_ms=now_ms, zone=zone, owner=owner, memories=memories)
    kind = CreateTags(interval_ms=0)
    return kind.preview(opened).rounds[0] if is_dry else kind.run(opened, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredTags:
    """The report of a round that expires tags."""

    tags: Sequence[str]
    data_files: int
    metadata: int
    why_not: str | None


def expire_tags(table: OpenTable, now_ms: int, copies: CopyWatch = NO_WATCH) -> ExpiredTags:
    kind = ExpireTags(interval_ms=0, grace_ms=copies.grace_ms)
    return ExpiredTags(**kind.data(kind.run(_watched(table, now_ms, copies), None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The report of a round that expires snapshots or changelogs."""

    first: int = 0
    end: int = 0
    snapshots: int = 0
    changelogs: int = 0
    data_files: int = 0
    changelog_files: int = 0
    manifests: int = 0
    index_files: int = 0
    size_bytes: int = 0
    more: bool = False
    why_not: str | None = None

    @classmethod
    def of(cls, result: RoundResult[int], kind: ExpireVersions | None = None) -> Expired:
        return cls(**(kind or _SNAPSHOTS).data(result))


_SNAPSHOTS = ExpireSnapshots(interval_ms=0)


def expire_snapshots(
    table: OpenTable,
    options: ExpireOptions,
    *,
    now_ms: int,
    keep_from: int | None,
    copies: CopyWatch = NO_WATCH,
    later: LaterSnapshots | None = None,
) -> Expired:
    """A round by these options, beside what reads from `keep_from` on."""
    opened = _watched(_with(table, options), now_ms, copies)
    if later is not None:
        opened.memories[LaterSnapshots] = later
    under_way = UnderWay(since_ms=0, for_ms=0, reads_from=keep_from) if keep_from else None
    kind = replace(_SNAPSHOTS, grace_ms=copies.grace_ms)
    return Expired.of(kind.run(opened, under_way))


def preview_snapshots(table: OpenTable, now_ms: int) -> tuple[Expired, Sequence[str] | None]:
    """What a round would do, and the files that it would delete."""
    return _previewed(_SNAPSHOTS, table, now_ms)


def expire_changelogs(table: OpenTable, now_ms: int, copies: CopyWatch = NO_WATCH) -> Expired:
    kind = ExpireChangelogs(interval_ms=0, grace_ms=copies.grace_ms)
    return Expired.of(kind.run(_watched(table, now_ms, copies), None), kind)


def preview_changelogs(table: OpenTable, now_ms: int) -> tuple[Expired, Sequence[str] | None]:
    return _previewed(ExpireChangelogs(interval_ms=0), table, now_ms)


def _previewed(
    kind: ExpireVersions, table: OpenTable, now_ms: int
) -> tuple[Expired, Sequence[str] | None]:
    done = kind.preview(Opened(table=table, now_ms=now_ms))
    return Expired.of(done.rounds[0], kind), done.files


def _with(table: OpenTable, options: ExpireOptions) -> OpenTable:
    return replace(table, options=replace(table.options, expire=options))


def _watched(table: OpenTable, now_ms: int, copies: CopyWatch) -> Opened:
    return Opened(table=table, now_ms=now_ms, memories={CheckedFiles: copies.checked})
