"""Runs the scheduler's effects: jobs on executors, the rest at once; each job's end is an event.

The daemon has two pools of threads, one of which is for maintenance. `compactord compact` has the
caller's own thread (`OwnThread`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

from compactord.engine.base import Engine
from compactord.engine.worker import discard, file_names
from compactord.scheduler import effects
from compactord.service.engine_host import EngineHost
from compactord.service.table_jobs import TableJobs

# Cycles and dispatches that run at once, over all tables: mostly they wait for stores. A quiet poll
# is three requests: a thousand tables are polled in ten seconds at 50 ms a request.
JOBS_MAX = 16
# Threads of each pool, made when needed: the scheduler decides how many jobs run, and threads that
# hang in calls into stores must not use up those of others.
THREADS_MAX = 1_000


class OwnThread(Executor):
    """Runs what is submitted in the thread that submits it, and raises what that raises."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass(slots=True, kw_only=True)
class JobRunner:
    """`run` is called by the loop alone; `ended` is called by the thread in which a job has ended.

    `engine` may start one; `restart` ends it with all its workers, and says why.
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
                self.engine().cancel_one(subcompaction.compaction, subcompaction.index)
            case effects.RestartEngine(why=why):
                self.restart(why)
            case effects.RemoveOutputs(subcompaction=subcompaction, result=result):
                self._begin(self.maintenance, discard, subcompaction, file_names(result))
            case effects.MaintenanceJob():
                self._begin(self.maintenance, self._run, effect)
            case effects.Job():
                self._begin(self.jobs, self._run, effect)
            case effects.Forget(name=name):
                self.tables.forget(name)

    def close(self, seconds_max: float) -> bool:
        """Begin nothing more; whether all running jobs have ended in time."""
        for pool in (self.jobs, self.maintenance):
            pool.shutdown(wait=False, cancel_futures=True)
        return not wait(list(self._under_way), seconds_max).not_done

    def _begin(self, pool: Executor, work: Callable[..., None], *given: object) -> None:
        future = pool.submit(work, *given)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def _run(self, job: effects.Job) -> None:
        self.ended(job, *self.tables.run(job))
