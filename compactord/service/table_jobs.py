"""Runs jobs on tables: opens each when it is first needed, and answers with what a job came to.

Errors that a user or a store can cause are outcomes; any other exception is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from compactord.catalog.access import TableAccess
from compactord.clock import Clock
from compactord.errors import CompactordError
from compactord.maintenance.kind import Round
from compactord.model import TableName
from compactord.paimon.table import TableRef
from compactord.scheduler import effects
from compactord.storage.pacing import DeletePace
from compactord.table.compactor import TableCompactor
from compactord.table.cycle import Cycle
from compactord.table.in_flight import Finished
from compactord.table.paced import PacedTable
from compactord.table.request import CompactRequest
from compactord.table.subcompactions import WorkerSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """How a table is opened, in a job; a new spec takes effect with the table's next cycle."""

    ref: TableRef
    request: CompactRequest
    open: Callable[[TableRef], TableAccess]


class TableJobs:
    """`run` is called by any thread; of a table's own lane one job at a time is."""

    def __init__(self, *, clock: Clock, worker: WorkerSpec) -> None:
        self.specs: dict[TableName, TableSpec] = {}
        self.compactors: dict[TableName, TableCompactor] = {}
        # Of all maintenance.
        self.pace = DeletePace(clock)
        self._clock = clock
        self._worker = worker
        self._opened_with: dict[TableName, TableSpec] = {}

    def run(self, job: effects.Job) -> tuple[effects.JobOutcome, float]:
        """Run the job; its outcome, and how many seconds it took."""
        start_s = self._clock.monotonic_s()
        outcome = self._outcome(job, start_s)
        return outcome, self._clock.monotonic_s() - start_s

    def _outcome(self, job: effects.Job, start_s: float) -> effects.JobOutcome:
        match job:
            case effects.CycleJob():
                return self._cycle(job)
            case effects.DispatchJob(
                name=name, bucket=bucket, number=number, free_slots=free_slots
            ):
                return self._attempted(
                    lambda: self.compactors[name].dispatch(
                        bucket, number=number, free_slots=free_slots
                    )
                )
            case effects.DiscardJob(name=name, ended=ended):
                return self._attempted(lambda: self.compactors[name].discard(ended))
            case effects.MaintenanceJob(name=name, kind=kind, under_way=under_way):
                opened = PacedTable(self.compactors[name], self.pace)
                result = self._attempted(lambda: kind.run(opened, under_way))
                seconds = self._clock.monotonic_s() - start_s
                round_: Round | CompactordError
                round_ = self._attempted(lambda: kind.ended(result, seconds))
                return round_
        raise AssertionError(f"nothing runs {job}")

    def open(self, name: TableName) -> TableCompactor:
        """The table's compactor, made when it is first needed, with the newest spec.

        Only the table's own job calls this. Raises what `Catalog.open` and `open_table` raise.
        """
        spec = self.specs[name]
        known = self.compactors.get(name)
        opened_with = self._opened_with.get(name)
        if known is None or opened_with is None or opened_with.ref != spec.ref:
            known = TableCompactor(
                self._access(spec), spec.request, clock=self._clock, worker=self._worker
            )
        elif opened_with != spec:
            known.reconfigure(spec.request)
        self.compactors[name] = known
        self._opened_with[name] = spec
        return known

    def _access(self, spec: TableSpec) -> TableAccess:
        """The table as its catalog hands it out."""
        return spec.open(spec.ref)

    def stop(self) -> None:
        """Long rounds of maintenance end early from now on, those under way too."""
        for compactor in list(self.compactors.values()):
            compactor.is_stopping = True

    def forget(self, name: TableName) -> None:
        """The table is not served any more."""
        self.specs.pop(name, None)
        self.compactors.pop(name, None)
        self._opened_with.pop(name, None)

    def _cycle(self, job: effects.CycleJob) -> Cycle:
        cycle = self._attempted(lambda: self.open(job.name).cycle(job.ended, job.skip))
        if isinstance(cycle, CompactordError):
            commits = any(isinstance(each.result, Finished) for each in job.ended)
            return Cycle(error=cycle, in_commit=commits)
        return cycle

    def _attempted(self, work: Callable[[], T]) -> T | CompactordError:
        """The result or the error of `work`."""
        try:
            return work()
        except CompactordError as error:
            return error
