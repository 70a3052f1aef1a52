"""A table's compactor driven by hand: what the daemon's threads do, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from compactord.catalog.access import TableAccess
from compactord.clock import Clock
from compactord.commit.publish import StorePublisher
from compactord.engine.worker import run_subcompaction
from compactord.errors import CompactordError, ErrorKind
from compactord.maintenance.kind import UnderWay
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.model import FailureKind, Subcompaction, SubcompactionFailure, TableName
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.table.backlog import DispatchFilter
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import CycleResult, InFlight, Planned
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from tests.builders import FIRST, VirtualClock
from tests.rounds import Expired

ALL = DispatchFilter()
C = TypeVar("C", bound=TableCompactor)
NAME = TableName("lake", "db", "t")


def compactor_of(
    storage: Storage,
    table: TableRef,
    *,
    clock: Clock | None = None,
    overrides: Mapping[str, str] | None = None,
    append_wait_ms: int | None = None,
    max_freshness_lag_ms: int | None = None,
    quiet_for_ms: int = 0,
    settle_ms: int = 0,
    strategy: Strategy = Strategy.MINOR,
    made_by: type[C] = TableCompactor,  # type: ignore[assignment]
) -> C:
    clock = clock or VirtualClock()
    return made_by(
        TableAccess(
            ref=table, storage=storage, publisher=StorePublisher(storage, settle_ms=settle_ms)
        ),
        CompactRequest(
            strategy=strategy,
            overrides=overrides or {},
            append_wait_ms=append_wait_ms,
            max_freshness_lag_ms=max_freshness_lag_ms,
            quiet_for_ms=quiet_for_ms,
        ),
        clock=clock,
        worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=VirtualClock().time_zone),
    )


def outcome_of(in_flight: InFlight, *, failed: bool = False) -> InFlight:
    """With its result: each subcompaction is run once, unless it is to have `failed`."""
    while in_flight.waiting:
        part = in_flight.waiting.popleft()
        outcome = _poisoned(part) if failed else run_subcompaction(part)
        in_flight.record_outcome(outcome, NAME, attempts_max=1)
    assert in_flight.ended() is not None
    return in_flight


def _poisoned(subcompaction: Subcompaction) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=subcompaction.compaction_id,
        index=subcompaction.index,
        kind=FailureKind.POISON,
        error=ErrorKind("E"),
        message="it failed",
        traceback="",
    )


def expire(compactor: TableCompactor, *, keep_from: int | None = None) -> Expired:
    """A round of snapshot expiry, beside what reads from `keep_from` on."""
    under_way = UnderWay(since_ms=0, for_ms=0, reads_from=keep_from)
    return Expired.of(ExpireSnapshots(interval_ms=0).run(compactor, under_way))


class Driver:
    """Cycles and dispatches until nothing is due; remembers the errors that came back."""

    def __init__(self, compactor: TableCompactor, *, after: int = 0) -> None:
        """Compactions are numbered from the one after `after`."""
        self.compactor = compactor
        self.errors: list[CompactordError] = []
        self.cycles: list[CycleResult] = []
        self._number = after

    def run(self, *, cycles: int) -> Planned | None:
        """The plan in the end; at most so many cycles, of which the last one begins nothing."""
        planned: Planned | None = None
        ended: list[InFlight] = []
        for left in reversed(range(cycles)):
            cycle = self.compactor.cycle(ended, ALL)
            self.cycles.append(cycle)
            ended = []
            if cycle.error is not None:
                self.errors.append(cycle.error)
            planned = cycle.planned or planned
            for pending in cycle.planned.offered if cycle.planned is not None and left else ():
                self._number += 1
                try:
                    dispatched = self.compactor.dispatch(
                        pending.bucket, compaction_id=self._number, free_slots=1
                    )
                except CompactordError as error:
                    self.errors.append(error)
                    continue
                if dispatched is not None:
                    ended.append(outcome_of(dispatched))
        return planned
