"""Runs the scheduler's effects in threads, and posts the answers to the loop.

Each job ends by posting one event. Errors that a user or a store can cause are answers; any other
is a defect: it is logged with its stack, and the table waits as after any other failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from compactord.clock import Clock
from compactord.commit.publish import SnapshotPublisher
from compactord.engine.worker import discard, file_names
from compactord.errors import CompactordError, UnsupportedTable
from compactord.maintenance.expire import Expired
from compactord.model import Subcompaction, TableName
from compactord.paimon.table import TableRef
from compactord.scheduler.effects import (
    Cancel,
    Discard,
    Effect,
    Forget,
    RemoveOutputs,
    RestartEngine,
    StartCycle,
    StartDispatch,
    StartExpire,
    StartSweep,
    Submit,
)
from compactord.storage.base import Storage
from compactord.table.compactor import TableCompactor
from compactord.table.cycle import Cycle, Dispatch, Outrun, Phase
from compactord.table.in_flight import Failed, Finished
from compactord.table.info import described_info
from compactord.table.request import CompactRequest
from compactord.table.subcompactions import WorkerSpec

T = TypeVar("T")
_log = structlog.get_logger()
# Sweeps and expiry, which may be slow, never take the threads of cycles.
_MAINTENANCE_THREADS = 2


class Defect(CompactordError):
    """An exception that should not have been possible; its stack is in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """How a table is opened; a new spec takes effect with the table's next cycle."""

    ref: TableRef
    request: CompactRequest
    storage: Storage
    publisher: SnapshotPublisher
    stop_trigger_fallback: int


class Workers(Protocol):
    """What effects need of the engine; see `EngineHost`."""

    def submit(self, subcompaction: Subcompaction) -> None: ...

    def cancel_one(self, subcompaction: Subcompaction) -> None: ...

    def restart(self, why: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Events of the loop; called in its thread."""

    cycle_ended: Callable[[TableName, Cycle, float], None]
    dispatched: Callable[[TableName, Dispatch | Outrun | CompactordError | None], None]
    expired: Callable[[TableName, Expired | CompactordError, float], None]
    swept: Callable[[TableName, int], None]
    discarded: Callable[[TableName], None]


class EffectsRunner:
    """`run` and `forget` are called by the loop alone."""

    def __init__(
        self,
        *,
        post: Callable[[Callable[[], None]], None],
        answers: Answers,
        engine: Workers,
        clock: Clock,
        worker: WorkerSpec,
        orphan_grace_ms: int,
        jobs_max: int,
    ) -> None:
        self.specs: dict[TableName, TableSpec] = {}
        self.compactors: dict[TableName, TableCompactor] = {}
        self.orphan_grace_ms = orphan_grace_ms
        self._post = post
        self._answers = answers
        self._engine = engine
        self._clock = clock
        self._worker = worker
        self._opened_with: dict[TableName, TableSpec] = {}
        # Tables whose last commit before this process was looked for.
        self._looked_back: set[TableName] = set()
        self._under_way: set[Future[None]] = set()
        self._jobs = ThreadPoolExecutor(jobs_max, thread_name_prefix="table")
        self._maintenance = ThreadPoolExecutor(
            _MAINTENANCE_THREADS, thread_name_prefix="maintenance"
        )

    def run(self, effect: Effect) -> None:
        """Begin the effect; returns at once."""
        match effect:
            case Submit(subcompaction=subcompaction):
                self._engine.submit(subcompaction)
            case Cancel(subcompaction=subcompaction):
                self._engine.cancel_one(subcompaction)
            case RestartEngine(why=why):
                self._engine.restart(why)
            case RemoveOutputs(subcompaction=subcompaction, result=result):
                self._begin(self._maintenance, discard, subcompaction, file_names(result))
            case StartCycle():
                self._begin(self._jobs, self._cycle, effect)
            case StartDispatch():
                self._begin(self._jobs, self._dispatch, effect)
            case Discard(name=name, ended=ended):
                self._begin(self._jobs, self._discard, name, ended)
            case StartExpire(name=name, keep_from=keep_from):
                self._begin(self._maintenance, self._expire, name, keep_from)
            case StartSweep():
                self._begin(self._maintenance, self._sweep, effect)
            case Forget(name=name):
                self.specs.pop(name, None)
                self.compactors.pop(name, None)
                self._opened_with.pop(name, None)
                self._looked_back.discard(name)

    def close(self, seconds_max: float) -> bool:
        """Begin nothing more; whether all running jobs have ended in time."""
        for pool in (self._jobs, self._maintenance):
            pool.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._under_way), seconds_max).not_done

    def _begin(self, pool: ThreadPoolExecutor, job: Callable[..., None], *given: object) -> None:
        future = pool.submit(job, *given)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def phase(self, name: TableName) -> Phase:
        """The phase of the table's running job."""
        compactor = self.compactors.get(name)
        return compactor.phase if compactor is not None else Phase.PLAN

    def _cycle(self, effect: StartCycle) -> None:
        start_s = self._clock.monotonic_s()
        name, ended = effect.name, effect.ended
        cycle = _tried(name, lambda: self._compactor(name).cycle(ended, effect.skip))
        if isinstance(cycle, CompactordError):
            cycle = _failed(cycle, ended)
        cycle = self._with_last_commit(name, self._with_info(name, cycle))
        seconds = self._clock.monotonic_s() - start_s
        self._post(partial(self._answers.cycle_ended, name, cycle, seconds))

    def _with_info(self, name: TableName, cycle: Cycle) -> Cycle:
        """What the table is, for people, where no plan tells it.

        A table that has been planned keeps what was known of it, unless it is refused now.
        """
        compactor = self.compactors.get(name)
        is_known = compactor is not None and compactor.seen is not None
        is_refused = isinstance(cycle.error, UnsupportedTable)
        if cycle.error is None or (is_known and not is_refused):
            return cycle
        spec = self.specs[name]
        info = _tried(
            name,
            lambda: described_info(
                spec.storage,
                spec.ref,
                spec.request.overrides,
                stop_trigger_fallback=spec.stop_trigger_fallback,
            ),
        )
        return replace(cycle, info=None if isinstance(info, CompactordError) else info)

    def _with_last_commit(self, name: TableName, cycle: Cycle) -> Cycle:
        """With the table's first plan what an earlier process committed, as its snapshots tell."""
        if cycle.planned is None or name in self._looked_back:
            return cycle
        self._looked_back.add(name)
        found = _tried(name, self.compactors[name].last_commit)
        return cycle if isinstance(found, CompactordError) else replace(cycle, last_commit=found)

    def _dispatch(self, effect: StartDispatch) -> None:
        result = _tried(
            effect.name,
            lambda: self.compactors[effect.name].dispatch(
                effect.bucket, number=effect.number, free_slots=effect.free_slots
            ),
        )
        self._post(partial(self._answers.dispatched, effect.name, result))

    def _discard(self, name: TableName, ended: Sequence[Finished | Failed]) -> None:
        _tried(name, lambda: self.compactors[name].discard(ended))
        self._post(partial(self._answers.discarded, name))

    def _expire(self, name: TableName, keep_from: int | None) -> None:
        start_s = self._clock.monotonic_s()
        result = _tried(name, lambda: self.compactors[name].expire(keep_from=keep_from))
        seconds = self._clock.monotonic_s() - start_s
        self._post(partial(self._answers.expired, name, result, seconds))

    def _sweep(self, effect: StartSweep) -> None:
        name = effect.name
        result = _tried(
            name,
            lambda: self.compactors[name].sweep(
                grace_ms=self.orphan_grace_ms, under_way=effect.under_way
            ),
        )
        removed = result if isinstance(result, int) else 0
        self._post(partial(self._answers.swept, name, removed))

    def _compactor(self, name: TableName) -> TableCompactor:
        """The table's compactor, made in its first cycle; only the table's own job calls this."""
        spec = self.specs[name]
        known = self.compactors.get(name)
        opened_with = self._opened_with.get(name)
        if known is None or opened_with is None or opened_with.ref != spec.ref:
            known = TableCompactor(
                spec.ref,
                spec.request,
                storage=spec.storage,
                publisher=spec.publisher,
                clock=self._clock,
                worker=self._worker,
                stop_trigger_fallback=spec.stop_trigger_fallback,
            )
        elif opened_with != spec:
            known.reconfigure(spec.request, spec.stop_trigger_fallback)
        self.compactors[name] = known
        self._opened_with[name] = spec
        return known


def _failed(error: CompactordError, ended: Sequence[Finished | Failed]) -> Cycle:
    finished = any(isinstance(each, Finished) for each in ended)
    return Cycle(
        settled=None,
        commit_seconds=0.0,
        planned=None,
        lost_snapshots=(),
        replaced_snapshots=0,
        error=error,
        in_commit=finished,
    )


def _tried(name: TableName, work: Callable[[], T]) -> T | CompactordError:
    """The result or the error of `work`; no job may end without an answer.

    Whatever it logs, names the table.
    """
    with bound_contextvars(**name.log_fields):
        try:
            return work()
        except CompactordError as error:
            return error
        except (MemoryError, OSError) as error:
            # The machine's failure, no defect: too many open files, no memory.
            _log.error("job_failed", error=str(error))
            return Defect(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the border of the thread
            _log.error("defect", exc_info=True)
            return Defect(f"a defect of compactord, see the log: {type(error).__name__}: {error}")
