"""Partitions come and go for ever; what the service holds of them does not grow."""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from compactord.errors import ErrorKind
from compactord.maintenance.orphans import SweepOrphans
from compactord.model import (
    FailureKind,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionResult,
)
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, latest_snapshot_id, read_snapshot
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.scheduler.effects import CycleJob, DispatchJob, MaintenanceJob, Submit
from compactord.table.compactor import TableCompactor
from compactord_demo.writer import create_table
from tests.builders import VirtualClock, data_outputs
from tests.simulation.world import policy
from tests.storages import MemoryStorage
from tests.unit.paimon.table_builder import History, deleted, entry
from tests.unit.plan.builders import data_file
from tests.unit.scheduler.test_scheduler import NAME, Stage
from tests.unit.table.compacting import compactor_of

DAY = DataField(id=0, name="day", type=AtomicType(root=TypeRoot.BIGINT, nullable=False))
KEY = DataField(id=1, name="k", type=AtomicType(root=TypeRoot.BIGINT, nullable=False))
ANY_KEY = encode_row([1], [KEY.type])
# Steps; each brings a partition, which lives for some of them.
MONTH, LIVE = 8, 3
STEP_S = 3_600
FILE_SIZE = 100
OPTIONS = {
    "bucket": "1",
    "write-only": "true",
    "compaction.optimization-interval": "6 h",
    "compaction.force-rewrite-all-files": "true",
    "manifest.merge-min-count": "2",
}
STATS = RewriteStats(
    input_records=10, output_records=10, input_bytes=5, output_bytes=3, cpu_s=0, peak_rss_bytes=0
)


class Years(Stage):
    """A table of metadata alone whose partitions live for some hours, and the service beside it.

    Of each partition the first compaction succeeds; the second one fails, or is under way when the
    partition is dropped, and then succeeds or fails.
    """

    def __init__(self) -> None:
        super().__init__(slots=4, kinds=[SweepOrphans(interval_ms=STEP_S * 1_000, grace_ms=1)])
        self.clock = VirtualClock()
        self.now = self.clock.steady_ms()
        self.storage = MemoryStorage()
        self.ref = TableRef(database="db", name="t", location="/wh/db.db/t")
        create_table(
            self.storage,
            self.ref,
            (DAY, KEY),
            primary_keys=["day", "k"],
            partition_keys=["day"],
            options=OPTIONS,
        )
        self.history = History(
            storage=self.storage,  # type: ignore[arg-type]
            table=self.ref,
            partition_types=[DAY.type],
        )
        self.compactor: TableCompactor = compactor_of(self.storage, self.ref, clock=self.clock)
        self.files = 0
        self.hour = 0
        # What is under way and ends only when it is told to.
        self.held: list[Subcompaction] = []
        self.scheduler.add(NAME, self.ref, policy(), self.now)

    # -- what others do

    def _bucket(self, hour: int) -> BucketId:
        return BucketId(encode_row([hour], [DAY.type]), 0)

    def _commit(self, kind: CommitKind, entries: Iterable[object]) -> None:
        newest = latest_snapshot_id(self.storage, self.ref.location)
        self.history.snapshot = (
            None if newest is None else read_snapshot(self.storage, self.ref.location, newest)
        )
        self.history.commit(list(entries), kind)  # type: ignore[arg-type]

    def write(self, hour: int) -> None:
        """Enough for a compaction."""
        partition = self._bucket(hour).partition
        files = [self._file(f"w{hour}") for _ in range(6)]
        self._commit(
            CommitKind.APPEND,
            [entry(file, partition=partition, total_buckets=1) for file in files],
        )

    def drop(self, hour: int) -> None:
        bucket = self._bucket(hour)
        assert self.compactor.last_plan is not None
        files = self.compactor.last_plan.state.files.files_in(bucket)
        self._commit(
            CommitKind.OVERWRITE,
            [deleted(entry(f, partition=bucket.partition, total_buckets=1)) for f in files],
        )

    def _file(self, name: str, level: int = 0) -> DataFile:
        self.files += 1
        file = data_file(
            f"{name}-{self.files}.parquet",
            level=level,
            sequences=(self.files, self.files),
            size=FILE_SIZE,
            created_ms=self.clock.now_ms(),
        )
        return replace(file, min_key=ANY_KEY, max_key=ANY_KEY)

    # -- what the daemon's threads and the engine do

    def work(self, *, holds: bool = False) -> None:
        """Until nothing begins; subcompactions are held back, or end well."""
        self.poll()
        while effects := self.scheduler.tick(self.now):
            for effect in effects:
                match effect:
                    case CycleJob(ended=ended, skip=skip):
                        cycle = self.compactor.cycle(ended, skip)
                        assert cycle.error is None, cycle.error
                        self.scheduler.job_ended(effect, cycle, 0.0, self.now)
                    case DispatchJob(bucket=bucket, compaction_id=number):
                        dispatched = self.compactor.dispatch(
                            bucket, compaction_id=number, free_slots=1
                        )
                        self.scheduler.job_ended(effect, dispatched, 0.0, self.now)
                    case Submit(subcompaction=subcompaction) if holds:
                        self.held.append(subcompaction)
                    case Submit(subcompaction=subcompaction):
                        self.end(subcompaction)
                    case MaintenanceJob():
                        self.maintained(effect)

    def end(self, subcompaction: Subcompaction, *, fails: bool = False) -> None:
        number = subcompaction.compaction_id
        if fails:
            failure = SubcompactionFailure(
                compaction_id=number,
                index=subcompaction.index,
                kind=FailureKind.POISON,
                error=ErrorKind("E"),
                message="bad",
                traceback="",
            )
            self.scheduler.subcompaction_ended(failure, self.now)
            return
        file = self._file("out", level=subcompaction.write.level)
        outputs = data_outputs(file)
        # A commit looks whether its outputs are there; nobody reads them.
        self.storage.write_new(f"{subcompaction.write.folder}/{file.file_name}", bytes(FILE_SIZE))
        done = SubcompactionResult(
            compaction_id=number, index=subcompaction.index, outputs=outputs, stats=STATS
        )
        self.scheduler.subcompaction_ended(done, self.now)

    def step(self) -> None:
        """One partition comes, one goes."""
        self.hour += 1
        hour, old = self.hour, self.hour - LIVE
        self.clock.sleep(STEP_S)
        self.now = self.clock.steady_ms()
        self.write(hour)
        self.work()
        if old > 0:
            self.write(old)
            self.work(holds=True)
            if hour % 3:
                self.drop(old)
            for subcompaction in self.held:
                self.end(subcompaction, fails=hour % 2 == 0)
            self.held.clear()
            self.work()
            if not hour % 3:
                self.drop(old)
                self.work()

    def held_objects(self) -> Counter[str]:
        """Everything that can be reached from the scheduler and the compactor, by type."""
        # What ended last is shown, and never more than some.
        beside = [self.storage, self.clock, self.scheduler.recent, self]
        return _reachable([self.scheduler, self.compactor], without=beside)


_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def _reachable(roots: Iterable[object], *, without: Iterable[object]) -> Counter[str]:
    seen = {id(each) for each in without}
    found: Counter[str] = Counter()
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _SHARED):
            continue
        seen.add(id(each))
        found[type(each).__name__] += 1
        waiting.extend(gc.get_referents(each))
    return found


def test_a_year_of_partitions_leaves_no_more_behind_than_two_months() -> None:
    years = Years()
    for _ in range(2 * MONTH):
        years.step()
    early = years.held_objects()
    for _ in range(10 * MONTH):
        years.step()
    late = years.held_objects()
    counts = {outcome.value: count for outcome, count in years.outcomes().items()}
    assert min(counts[what] for what in ("committed", "conflict", "failed")) > 2 * MONTH, counts
    assert years.scheduler.tables[NAME].halt is None
    before, after = sum(early.values()), sum(late.values())
    grown = {kind: late[kind] - early[kind] for kind in late if late[kind] > early[kind]}
    assert after <= 1.02 * before, f"{after - before} objects more: {grown}"
