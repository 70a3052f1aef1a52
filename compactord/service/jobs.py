"""Runs the scheduler's effects on tables: jobs on executors, each with an end event.

The daemon has two pools of threads; one is for maintenance. `compactord compact` uses the caller's
thread (`OwnThread`).

Errors that a user or a store can cause are returned as outcomes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from compactord.catalog.access import TableAccess
from compactord.clock import Clock
from compactord.commit.changes import BucketChange
from compactord.engine.base import Engine
from compactord.engine.leases import discard, file_paths
from compactord.errors import CompactordError, UnsupportedTable
from compactord.maintenance.kind import Round
from compactord.model import TableKind, TableName
from compactord.paimon.schema import TableRef
from compactord.scheduler import effects
from compactord.service.engine_host import EngineHost
from compactord.storage.calls import DeleteRateLimiter
from compactord.storage.requests import StorageRequest, reporting
from compactord.table.compactor import TableCompactor
from compactord.table.explain import described_info
from compactord.table.jobs import CycleResult, Phase
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec

T = TypeVar("T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """How a job opens a table; a new spec takes effect with the table's next cycle."""

    ref: TableRef
    request: CompactRequest
    open: Callable[[TableRef], TableAccess]


class TableJobs:
    """Runs jobs; thread-safe, but a table's own lane runs one job at a time.

    Raises exceptions that are no `CompactordError`.
    """

    def __init__(self, *, clock: Clock, worker: WorkerSpec) -> None:
        self.specs: dict[TableName, TableSpec] = {}
        self.compactors: dict[TableName, TableCompactor] = {}
        # Stops all maintenance.
        self.pace = DeleteRateLimiter(clock)
        self._clock = clock
        self._worker = worker
        self._opened_with: dict[TableName, TableSpec] = {}

    def run(self, job: effects.Job) -> tuple[effects.JobOutcome, float]:
        """Run the job; returns its outcome and how many seconds it took."""
        start_s = self._clock.monotonic_s()
        outcome = self._outcome(job, start_s)
        return outcome, self._clock.monotonic_s() - start_s

    def _outcome(self, job: effects.Job, start_s: float) -> effects.JobOutcome:
        match job:
            case effects.CycleJob():
                return self._cycle(job)
            case effects.DispatchJob(
                name=name, bucket=bucket, compaction_id=compaction_id, free_slots=free_slots
            ):
                return self._attempted(
                    lambda: self.compactors[name].dispatch(
                        bucket, compaction_id=compaction_id, free_slots=free_slots
                    )
                )
            case effects.DiscardJob(name=name, ended=ended):
                return self._attempted(lambda: self.compactors[name].discard(ended))
            case effects.MaintenanceJob(name=name, kind=kind, under_way=under_way):
                result = self._attempted(lambda: kind.run(self.compactors[name], under_way))
                seconds = self._clock.monotonic_s() - start_s
                round_: Round | CompactordError
                round_ = self._attempted(lambda: kind.ended(result, seconds))
                return round_
        raise AssertionError(f"nothing runs {job}")

    def open(self, name: TableName) -> TableCompactor:
        """The table's compactor with the newest spec; created at its first use.

        Only the table's own job calls this. Raises what `Catalog.open` and `open_table` raise.
        """
        spec = self.specs[name]
        known = self.compactors.get(name)
        opened_with = self._opened_with.get(name)
        if known is None or opened_with is None or opened_with.ref != spec.ref:
            known = TableCompactor(
                self._access(spec),
                spec.request,
                clock=self._clock,
                worker=self._worker,
                pace=self.pace,
            )
        elif opened_with != spec:
            known.reconfigure(spec.request)
        self.compactors[name] = known
        self._opened_with[name] = spec
        return known

    def _access(self, spec: TableSpec) -> TableAccess:
        """The table as its catalog returns it."""
        return spec.open(spec.ref)

    def stop(self) -> None:
        """End long rounds of maintenance early from now on, including running ones."""
        for compactor in list(self.compactors.values()):
            compactor.is_stopping = True

    def forget(self, name: TableName) -> None:
        """Drop what is kept for a table that is no longer served."""
        self.specs.pop(name, None)
        self.compactors.pop(name, None)
        self._opened_with.pop(name, None)

    def _cycle(self, job: effects.CycleJob) -> CycleResult:
        cycle = self._attempted(lambda: self.open(job.name).cycle(job.ended, job.skip))
        if isinstance(cycle, CompactordError):
            commits = any(isinstance(each.result, BucketChange) for each in job.ended)
            return CycleResult(error=cycle, in_commit=commits)
        return cycle

    def _attempted(self, work: Callable[[], T]) -> T | CompactordError:
        """The result of `work`, or its error."""
        try:
            return work()
        except CompactordError as error:
            return error


class InternalError(CompactordError):
    """An unexpected exception; its stack is in the log."""


class ServedTables(TableJobs):
    """The daemon's jobs: each ends with an outcome, and its log lines name the table.

    An exception that is no `CompactordError` is a defect: it is logged with its stack, and the
    table waits as after any other failure.
    """

    def __init__(
        self, *, clock: Clock, worker: WorkerSpec, requested: Callable[[TableKind, int], None]
    ) -> None:
        """`requested` receives the number of requests to stores, with the kind of the table."""
        super().__init__(clock=clock, worker=worker)
        self._requested = requested
        self._requests: dict[TableRef, _Requests] = {}
        # Tables whose last commit by an earlier process was looked up.
        self._searched: set[TableName] = set()

    def run(self, job: effects.Job) -> tuple[effects.JobOutcome, float]:
        with bound_contextvars(**job.name.log_fields):
            return super().run(job)

    def open(self, name: TableName) -> TableCompactor:
        try:
            compactor = super().open(name)
        finally:
            opened = self._requests.pop(self.specs[name].ref, None)
        if opened is not None:
            opened.is_of(compactor.table.kind)
        return compactor

    def _access(self, spec: TableSpec) -> TableAccess:
        requests = self._requests[spec.ref] = _Requests(self._requested)
        return requests.counted(super()._access(spec))

    def forget(self, name: TableName) -> None:
        super().forget(name)
        self._searched.discard(name)

    def phase(self, name: TableName) -> Phase:
        """The phase of the table's running job."""
        compactor = self.compactors.get(name)
        return compactor.phase if compactor is not None else Phase.PLAN

    def _cycle(self, job: effects.CycleJob) -> CycleResult:
        cycle = self._with_info(job.name, super()._cycle(job))
        return self._with_last_commit(job.name, cycle)

    def _with_info(self, name: TableName, cycle: CycleResult) -> CycleResult:
        """The cycle with the table's description for operators, if it has no plan.

        A table that has been planned keeps its description, unless it is refused now.
        """
        compactor = self.compactors.get(name)
        is_known = compactor is not None and compactor.last_plan is not None
        is_refused = isinstance(cycle.error, UnsupportedTable)
        if cycle.error is None or (is_known and not is_refused):
            return cycle
        spec, registries = self.specs[name], self._worker.registries
        info = self._attempted(
            lambda: described_info(spec.open(spec.ref), spec.request, registries)
        )
        return replace(cycle, info=None if isinstance(info, CompactordError) else info)

    def _with_last_commit(self, name: TableName, cycle: CycleResult) -> CycleResult:
        """A first plan's cycle, with an earlier process's last commit from the snapshots."""
        if cycle.planned is None or name in self._searched:
            return cycle
        self._searched.add(name)
        found = self._attempted(self.compactors[name].last_commit)
        return cycle if isinstance(found, CompactordError) else replace(cycle, last_commit=found)

    def _attempted(self, work: Callable[[], T]) -> T | CompactordError:
        """The result of `work`, or any error: no job may end without an outcome."""
        try:
            return super()._attempted(work)
        except (MemoryError, OSError) as error:
            # A failure of the machine, no defect: too many open files, no memory.
            _log.error("job_failed", error=str(error))
            return InternalError(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the border of the thread
            _log.error("defect", exc_info=True)
            return InternalError(
                f"a defect of compactord, see the log: {type(error).__name__}: {error}"
            )


class _Requests:
    """Requests for one table, whose kind is known once it is open. Thread-safe.

    `count` receives the kind and the number of requests.
    """

    def __init__(self, count: Callable[[TableKind, int], None]) -> None:
        self._count = count
        self._kind: TableKind | None = None
        self._before = 0
        self._lock = threading.Lock()

    def counted(self, access: TableAccess) -> TableAccess:
        """The table in a store that reports requests; its publisher of snapshots does not."""
        return replace(access, storage=reporting(access.storage, self._report))

    def is_of(self, kind: TableKind) -> None:
        """The table is open: earlier requests were for this kind."""
        with self._lock:
            self._kind, before, self._before = kind, self._before, 0
        if before:
            self._count(kind, before)

    def _report(self, request: StorageRequest) -> None:
        with self._lock:
            kind = self._kind
            self._before += kind is None
        if kind is not None:
            self._count(kind, 1)


# Cycles and dispatches that run at once, over all tables: they mostly wait for stores. A quiet poll
# takes three requests: a thousand tables are polled in ten seconds at 50 ms a request.
JOBS_MAX = 16
# Threads of each pool, started when needed: the scheduler decides how many jobs run, and threads
# that hang in calls into stores must not use up the threads of other jobs.
THREADS_MAX = 1_000


class OwnThread(Executor):
    """Runs submitted calls in the submitting thread, and raises their exceptions."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass(slots=True, kw_only=True)
class JobRunner:
    """Runs effects. Only the loop calls `run`; a job's own thread calls `ended`.

    `engine` returns the engine, and may start it; `restart` ends it and its workers for a reason.
    Maintenance has an executor of its own: it may be slow, and never takes the threads of cycles.
    """

    tables: TableJobs
    jobs: Executor
    maintenance: Executor
    engine: Callable[[], Engine | EngineHost]
    restart: Callable[[str], None]
    ended: Callable[[effects.Job, effects.JobOutcome, float], None]
    _under_way: set[Future[None]] = field(default_factory=set, init=False)

    def run(self, effect: effects.Effect) -> None:
        """Begin the effect."""
        match effect:
            case effects.Submit(subcompaction=subcompaction):
                self.engine().submit(subcompaction)
            case effects.Cancel(subcompaction=subcompaction):
                self.engine().cancel_one(subcompaction.compaction_id, subcompaction.index)
            case effects.RestartEngine(why=why):
                self.restart(why)
            case effects.RemoveOutputs(subcompaction=subcompaction, result=result):
                self._begin(
                    self.maintenance, discard, subcompaction, file_paths(subcompaction, result)
                )
            case effects.MaintenanceJob():
                self._begin(self.maintenance, self._run, effect)
            case effects.Job():
                self._begin(self.jobs, self._run, effect)
            case effects.Forget(name=name):
                self.tables.forget(name)

    def close(self, seconds_max: float) -> bool:
        """Start no more jobs; returns whether all running jobs ended in time."""
        for pool in (self.jobs, self.maintenance):
            pool.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._under_way), seconds_max).not_done

    def _begin(self, pool: Executor, work: Callable[..., None], *given: object) -> None:
        future = pool.submit(work, *given)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def _run(self, job: effects.Job) -> None:
        self.ended(job, *self.tables.run(job))
