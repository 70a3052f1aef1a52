"""Runs the scheduler's effects: jobs on executors, the rest at once; each job's end is an event.

The daemon has two pools of threads, one of which is for maintenance. `compactord compact` has the
caller's own thread (`OwnThread`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from compactord.engine.base import Engine
from compactord.engine.worker import discard, file_names
from compactord.scheduler import effects
from compactord.service.engine_host import EngineHost
from compactord.service.table_jobs import TableJobs

# Cycles and dispatches that run at once, over all tables: mostly they wait for stores. A quiet poll
# is three requests: a thousand tables are polled in ten seconds at 50 ms a request.
JOBS_MAX = 16
# As many rounds of maintenance as the scheduler begins at once.
_MAINTENANCE_THREADS = 2


class OwnThread(Executor):
    """Runs what is submitted in the thread that submits it, and raises what that raises."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class JobRunner:
    """`run` is called by the loop alone; `ended` is called by the thread in which a job has ended.

    `engine` may start one; `restart` ends it with all its workers, and says why.
    Maintenance has an executor of its own: it may be slow, and never takes the threads of cycles.
    """

    def __init__(
        self,
        tables: TableJobs,
        executors: tuple[Executor, Executor],
        *,
        engine: Callable[[], Engine | EngineHost],
        restart: Callable[[str], None],
        ended: Callable[[effects.Job, effects.JobOutcome, float], None],
    ) -> None:
        self._tables = tables
        self._engine = engine
        self._restart = restart
        self._ended = ended
        self._jobs, self._maintenance = executors
        self._under_way: set[Future[None]] = set()

    def run(self, effect: effects.Effect) -> None:
        """Begin the effect."""
        match effect:
            case effects.Submit(subcompaction=subcompaction):
                self._engine().submit(subcompaction)
            case effects.Cancel(subcompaction=subcompaction):
                self._engine().cancel_one(subcompaction.compaction, subcompaction.index)
            case effects.RestartEngine(why=why):
                self._restart(why)
            case effects.RemoveOutputs(subcompaction=subcompaction, result=result):
                self._begin(self._maintenance, discard, subcompaction, file_names(result))
            case effects.MaintenanceJob():
                self._begin(self._maintenance, self._run, effect)
            case effects.Job():
                self._begin(self._jobs, self._run, effect)
            case effects.Forget(name=name):
                self._tables.forget(name)

    def close(self, seconds_max: float) -> bool:
        """Begin nothing more; whether all running jobs have ended in time."""
        for pool in (self._jobs, self._maintenance):
            pool.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._under_way), seconds_max).not_done

    def _begin(self, pool: Executor, work: Callable[..., None], *given: object) -> None:
        future = pool.submit(work, *given)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def _run(self, job: effects.Job) -> None:
        self._ended(job, *self._tables.run(job))


def thread_pools() -> tuple[Executor, Executor]:
    """The daemon's: for the jobs of the tables' own lanes, and for maintenance."""
    own = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="table")
    return own, ThreadPoolExecutor(_MAINTENANCE_THREADS, thread_name_prefix="maintenance")
