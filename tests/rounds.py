"""One round of a kind of maintenance on a table that only a test has open."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timezone, tzinfo
from typing import Any, TypeVar

from compactord import ids
from compactord.commit.changes import CommitOutcome
from compactord.ids import Owner
from compactord.maintenance.consumer_expiry import ExpireConsumers, IdleConsumer
from compactord.maintenance.holds import Hold
from compactord.maintenance.kind import ChosenPartitions, TableValues
from compactord.state.table_state import TableState, load_newest
from tests.builders import VirtualClock

T = TypeVar("T")


class _Clock(VirtualClock):
    def __init__(self, now_ms: int, zone: tzinfo) -> None:
        super().__init__(now_ms)
        self.time_zone = zone


@dataclass(kw_only=True)
class Opened:
    """As `OpenedTable`: nothing is held, and no other thread works on it."""

    table: TableValues
    now_ms: int
    zone: tzinfo = timezone.utc
    owner: Owner = field(default_factory=ids.this_process)
    state: TableState | None = None
    memories: dict[type, Any] = field(default_factory=dict)
    watches_files: bool = False
    is_stopping: bool = False

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
        raise NotImplementedError


def expire_consumers(table: TableValues, now_ms: int) -> list[IdleConsumer]:
    """The consumers that a round deleted."""
    return ExpireConsumers(interval_ms=0).run(Opened(table=table, now_ms=now_ms), None).items
