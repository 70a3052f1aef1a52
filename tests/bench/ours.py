"""Our side: one-shot compactions through one warm Spark session, with what they cost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from compactord.catalog.access import TableAccess
from compactord.clock import SystemClock
from compactord.commit.changes import BucketChange
from compactord.commit.publish import Delta, StorePublisher
from compactord.engine.base import Engine
from compactord.ids import Owner, this_process
from compactord.model import Compaction, PickRule
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot
from compactord.plan.table import Strategy
from compactord.service.one_shot import OneShot
from compactord.storage.base import Creation, Storage
from compactord.storage.local import LocalStorage
from compactord.table.jobs import InFlight
from compactord.table.opening import OpenTable
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec

# What `compactord compact` gives a subcompaction by default.
MEMORY_BYTES = 512 << 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one compaction, of the wall clock and of the processor."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OurRun:
    """One compaction. Seconds and bytes.

    `wall_s` goes from opening the table to the last snapshot and is the sum of `plan_s` (until the
    first decision), `work_s` (until the last subcompaction's answer) and `commit_s`. `end_s` is
    when a last look has found nothing more to do. `worker_cpu_s` is that of the subcompactions,
    `subcompaction_cpu_s` that of the largest one, `driver_cpu_s` that of this process, `tree_cpu_s`
    that of this process and all below it, the JVM and its compiler included.
    """

    wall_s: float
    plan_s: float
    work_s: float
    commit_s: float
    subcompaction_cpu_s: float
    end_s: float
    worker_cpu_s: float
    driver_cpu_s: float
    tree_cpu_s: float
    peak_rss_bytes: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    snapshots: int


class OurSide:
    """An engine that stays up; `excluded` are processes below this one that are not ours."""

    def __init__(self, engine: Engine, *, excluded: Iterable[int] = ()) -> None:
        self._engine = engine
        self._excluded = frozenset(excluded)

    def compact(self, path: Path, *, full: bool) -> OurRun:
        """Compact the table at `path` until nothing is left to do, as the command does."""
        return self.compact_in(LocalStorage(), table_ref(path), full=full)

    def compact_in(
        self,
        storage: Storage,
        table: TableRef,
        *,
        full: bool,
        watch: Callable[[str], None] = lambda step: None,
    ) -> OurRun:
        """As `compact`, in any store; `watch` hears of "planned" and "published"."""
        clock = SystemClock()
        timeline = _Timeline(watch)
        tree_cpu_s = tree_cpu_seconds(self._excluded)
        driver_cpu_s = time.process_time()
        start = time.perf_counter()
        run = OneShot(
            TableAccess(ref=table, storage=storage, publisher=_Watched(storage, watch)),
            CompactRequest(
                strategy=Strategy.FULL if full else Strategy.MINOR,
                # As Java picks, which is measured on the same table.
                pick=PickRule.RELEASE_2_0,
            ),
            start_engine=lambda: self._engine,
            clock=clock,
            worker=WorkerSpec(
                owner=this_process(), memory_bytes=MEMORY_BYTES, zone=clock.time_zone
            ),
            progress=timeline,
            stop=threading.Event(),
        )
        totals = run.run()
        end = time.perf_counter()
        driver_cpu_s = time.process_time() - driver_cpu_s
        if totals.failures or not totals.snapshots:
            raise RuntimeError(f"nothing to measure at {table.location}: {totals.failures}")
        return OurRun(
            wall_s=timeline.committed_s - start,
            plan_s=timeline.planned_s - start,
            work_s=timeline.answered_s - timeline.planned_s,
            commit_s=timeline.committed_s - timeline.answered_s,
            subcompaction_cpu_s=timeline.subcompaction_cpu_s,
            end_s=end - start,
            worker_cpu_s=totals.worker_cpu_s,
            driver_cpu_s=driver_cpu_s,
            tree_cpu_s=tree_cpu_seconds(self._excluded) - tree_cpu_s,
            peak_rss_bytes=totals.peak_worker_rss_bytes,
            rows_in=totals.rows_in,
            rows_out=totals.rows_out,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            snapshots=len(totals.snapshots),
        )


class _Timeline:
    """A `Progress` that only looks at the clock, and tells `watch`."""

    def __init__(self, watch: Callable[[str], None]) -> None:
        self._watch = watch
        self.planned_s = 0.0
        self.answered_s = 0.0
        self.committed_s = 0.0
        self.subcompaction_cpu_s = 0.0

    def planned(self, table: OpenTable, compaction: Compaction) -> None:
        self.planned_s = self.planned_s or time.perf_counter()
        self._watch("planned")

    def finished(self, in_flight: InFlight) -> None:
        finished = in_flight.result
        assert isinstance(finished, BucketChange), "it has not failed"
        self.answered_s = time.perf_counter()
        self.subcompaction_cpu_s = max(
            [self.subcompaction_cpu_s, *(stats.cpu_s for stats in in_flight.stats)]
        )

    def committed(self, snapshot_id: int) -> None:
        self.committed_s = time.perf_counter()

    def waiting(self, wait_ms: int) -> None:
        raise AssertionError("nothing waits on a local path")


class _Watched(StorePublisher):
    """Tells `watch` of each snapshot as soon as it exists."""

    def __init__(self, storage: Storage, watch: Callable[[str], None]) -> None:
        super().__init__(storage)
        self._watch = watch

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        created = super().publish(table, snapshot, delta, owner=owner)
        self._watch("published")
        return created


def table_ref(path: Path) -> TableRef:
    return TableRef(
        database=path.parent.name.removesuffix(".db"), name=path.name, location=str(path)
    )


def tree_cpu_seconds(excluded: frozenset[int]) -> float:
    """Processor seconds that this process and its descendants have used, the ended ones included.

    Resolution is one clock tick (10 ms) per process.
    """
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        # The name before the parenthesis may hold anything.
        fields = stat.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += [child for child in children.get(process, ()) if child not in excluded]
    return total / _TICKS_PER_S
