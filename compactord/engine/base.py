"""The engine protocol, and an engine over any transport to workers.

An engine sends subcompactions to workers and returns their outcomes in the order in which they
finish. It decides nothing: retries and the order of work belong to the caller.

A job costs several times as much as a small rewrite. So a worker that has finished a
small subcompaction gets the next one that waits, until its job is half a second old.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import traceback
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from compactord.clock import Clock, SystemClock
from compactord.errors import CompactordError, EngineUnavailable, ErrorKind
from compactord.model import (
    FailureKind,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
)

# A thread only waits, so this limits jobs at once on a very large cluster, not work.
JOBS_MAX = 4_096


class Engine(Protocol):
    """Runs subcompactions. One thread takes the outcomes; all other methods are thread-safe.

    Every submitted subcompaction has exactly one outcome, unless `close` is called first. If its
    worker died, or it was cancelled, the outcome is a `SubcompactionFailure` of kind LOST.
    """

    @property
    def capacity(self) -> int:
        """Number of subcompactions that can run at once, at least 1. Changes with the cluster."""
        ...

    def submit(self, subcompaction: Subcompaction) -> None:
        """Submit a subcompaction; returns at once. Those beyond `capacity` are queued.

        They begin in the order of submission.

        Raises `EngineUnavailable` if the engine has failed permanently.
        """
        ...

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        """The outcome of the subcompaction that finished first; waits at most `timeout_s` seconds.

        A `timeout_s` of None waits without a limit. Returns None after the timeout, and at once if
        every submitted subcompaction has had its outcome.
        """
        ...

    def why_failed(self) -> str | None:
        """Why the engine cannot run subcompactions any more, or None if it can."""
        ...

    def cancel(self) -> None:
        """Stop all submitted subcompactions; their workers remove the files that they wrote.

        Subcompactions that finished before still return their result; the rest are LOST.
        """
        ...

    def cancel_one(self, compaction: int, index: int) -> None:
        """Stop one subcompaction unless it has an outcome; returns at once.

        Its worker removes its files if it still can. Its outcome, LOST unless it finished before,
        follows once the engine has released the worker.
        """
        ...

    def close(self) -> None:
        """Stop all subcompactions and processes, delete temporary files. May be called twice."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


def cancelled(subcompaction: Subcompaction) -> SubcompactionFailure:
    """The outcome of a subcompaction stopped by `cancel` or `cancel_one`."""
    return SubcompactionFailure(
        compaction_id=subcompaction.compaction_id,
        index=subcompaction.index,
        kind=FailureKind.LOST,
        error=ErrorKind.CANCELLED,
        message="the subcompaction was cancelled",
    )


CANCEL_SECONDS_MAX = 15.0
_WATCH_SECONDS = 1.0
_CANCEL_AGAIN_SECONDS = 0.2
# How long a job takes small subcompactions, and waits for them, as that costs less than a new job.
_JOB_SECONDS_MAX = 0.5


class JobFailed(CompactordError):
    """A job returned no outcome; `detail` is the long text for logs."""

    def __init__(self, kind: FailureKind, error: ErrorKind, message: str, detail: str = "") -> None:
        self.kind = kind
        self.error = error
        self.detail = detail
        super().__init__(message)


class Job:
    """Subcompactions that one worker runs one after the other, from `first` on. Thread-safe.

    `group` names the job for `Carrier.cancel`; no two running jobs share it.
    """

    def __init__(
        self, engine: PooledEngine, group: str, first: Subcompaction, until_s: float
    ) -> None:
        self.group = group
        self.first = first
        # Its worker received these; by key.
        self.sent = {_key(first): first}
        # Until when it takes more.
        self.until_s = until_s
        # None between two subcompactions, and when the job has ended.
        self.current: Subcompaction | None = first
        # Then it takes no more, and its core counts as lost until the job has ended.
        self.is_cancelled = False
        self.taken: list[SubcompactionOutcome] = []
        self._engine = engine

    @property
    def is_at_first(self) -> bool:
        """Whether no outcome was taken yet."""
        return not self.taken

    def deliver(self, outcome: SubcompactionOutcome) -> bool:
        """Take an outcome; returns False unless it belongs to the current subcompaction."""
        return self._engine.take_outcome(self, outcome)

    def has_taken(self, outcome: SubcompactionOutcome) -> bool:
        """Whether an equal outcome was taken."""
        return outcome in self.taken

    def following(self) -> Subcompaction | None:
        """The next subcompaction for the job's worker, or None if the job ends here."""
        return self._engine.next_of(self)


class Carrier(Protocol):
    """Sends jobs to workers. Thread-safe."""

    @property
    def capacity(self) -> int: ...

    def run(self, job: Job) -> None:
        """Run the job's first subcompaction and all following ones, and deliver their outcomes.

        Raises `JobFailed` if the job ends without an outcome of its current subcompaction.
        """
        ...

    def cancel(self, group: str) -> None:
        """Stop the group's job if it has started; returns at once."""
        ...

    def watch(self) -> None:
        """Called about once a second while outcomes are awaited: stop jobs that cannot finish."""
        ...

    def why_failed(self) -> str | None:
        """Why no job can run any more, or None."""
        ...

    def close(self) -> None: ...


def _key(each: Subcompaction | SubcompactionOutcome) -> tuple[int, int]:
    return each.compaction_id, each.index


class PooledEngine:
    """An `Engine` over a `Carrier`.

    Subcompactions wait in one queue. A bounded pool of threads starts jobs for them and waits for
    the jobs' ends. The failure of a job becomes the outcome of its first subcompaction; a later
    one runs again. Errors are raised only if the engine has failed permanently.
    """

    def __init__(self, carrier: Carrier, *, clock: Clock | None = None) -> None:
        self._carrier = carrier
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(max_workers=JOBS_MAX, thread_name_prefix="subcompaction")
        self._outcomes: queue.SimpleQueue[SubcompactionOutcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[Subcompaction] = deque()
        # Jobs that have not ended.
        self._jobs: dict[Job, Future[None]] = {}
        # Waiting subcompactions that lost their job.
        self._lost: set[tuple[int, int]] = set()
        # Jobs whose worker waits for another subcompaction.
        self._idle = 0
        self._numbers = itertools.count()
        self._undelivered = 0
        # The capacity at the last submission.
        self._slots = 1
        self._closed = False

    @property
    def capacity(self) -> int:
        return max(1, min(JOBS_MAX, self._carrier.capacity))

    def submit(self, subcompaction: Subcompaction) -> None:
        assert not self._closed, "the engine is in use"
        gone = self._carrier.why_failed()
        if gone is not None:
            raise EngineUnavailable(gone)
        # Outside the lock, as the query may hang.
        slots = self.capacity
        with self._lock:
            self._slots = slots
            self._undelivered += 1
            self._waiting.append(subcompaction)
            self._start_jobs()

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        if self._undelivered == 0:
            return None
        start = self._clock.monotonic_s()
        while True:
            left = float("inf")
            if timeout_s is not None:
                left = max(0.0, start + timeout_s - self._clock.monotonic_s())
            try:
                outcome = self._outcomes.get(timeout=min(left, _WATCH_SECONDS))
            except queue.Empty:
                if left <= _WATCH_SECONDS:
                    return None
                self._carrier.watch()
            else:
                with self._lock:
                    self._undelivered -= 1
                return outcome

    def why_failed(self) -> str | None:
        return self._carrier.why_failed()

    def cancel(self) -> None:
        """See `Engine`. Waits until the jobs have ended, at most `CANCEL_SECONDS_MAX`."""
        with self._lock:
            for each in self._waiting:
                self._outcomes.put(cancelled(each))
            self._waiting.clear()
            jobs = {future: job for job, future in self._jobs.items()}
            for job in self._jobs:
                job.is_cancelled = True
            self._arrived.notify_all()
            idle = {future for future, job in jobs.items() if job.current is None}
        # A job between two subcompactions ends by itself, and its worker can be used again.
        running = jobs.keys() - idle | wait(idle, timeout=_CANCEL_AGAIN_SECONDS).not_done
        deadline = self._clock.monotonic_s() + CANCEL_SECONDS_MAX
        while running and self._clock.monotonic_s() < deadline:
            # Repeatedly: the first call misses a job that is about to start.
            for future in running:
                self._carrier.cancel(jobs[future].group)
            running = wait(running, timeout=_CANCEL_AGAIN_SECONDS).not_done

    def cancel_one(self, compaction: int, index: int) -> None:
        key = compaction, index
        with self._lock:
            for each in self._waiting:
                if _key(each) == key:
                    self._waiting.remove(each)
                    self._outcomes.put(cancelled(each))
                    return
            for job in self._jobs:
                if job.current is not None and _key(job.current) == key:
                    job.is_cancelled = True
                    self._start_jobs()
                    break
            else:
                return
        # In a thread, because the call into the engine of a hanging worker may hang as well.
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._threads.submit(self._carrier.cancel, job.group)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.cancel()
        finally:
            self._carrier.close()
            self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> PooledEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for `Job`

    def take_outcome(self, job: Job, outcome: SubcompactionOutcome) -> bool:
        """See `Job.deliver`."""
        with self._lock:
            current = job.current
            if current is None or _key(current) != _key(outcome):
                return False
            job.taken.append(outcome)
            self._end_current(job, outcome)
        return True

    def next_of(self, job: Job) -> Subcompaction | None:
        """See `Job.following`."""
        with self._lock:
            self._idle += 1
            self._arrived.wait_for(lambda: self._waiting or self._is_over(job), self._left_s(job))
            self._idle -= 1
            if not self._waiting or not self._shares(self._waiting[0]) or self._is_over(job):
                return None
            job.current = following = self._waiting.popleft()
            job.sent[_key(following)] = following
            return following

    def _shares(self, subcompaction: Subcompaction) -> bool:
        """Whether it may follow another one in a job."""
        return subcompaction.is_small and _key(subcompaction) not in self._lost

    def _is_over(self, job: Job) -> bool:
        """Whether the job takes no more: it is old, or another job waits for a core."""
        return self._left_s(job) <= 0 or len(self._jobs) > self._slots

    def _left_s(self, job: Job) -> float:
        return 0.0 if job.is_cancelled else job.until_s - self._clock.monotonic_s()

    # -- with the lock

    def _start_jobs(self) -> None:
        while not self._closed and self._waiting and len(self._jobs) < JOBS_MAX:
            running = sum(not job.is_cancelled for job in self._jobs)
            is_taken = len(self._waiting) <= self._idle or running >= self._slots
            if is_taken and self._shares(self._waiting[0]):
                break
            first = self._waiting.popleft()
            group = f"compactord-{first.compaction_id}-{first.index}-{next(self._numbers)}"
            job = Job(self, group, first, self._clock.monotonic_s() + _JOB_SECONDS_MAX)
            self._jobs[job] = self._threads.submit(self._carry, job)
        self._arrived.notify_all()

    def _end_current(self, job: Job, outcome: SubcompactionOutcome | None) -> None:
        """End the job's current subcompaction; without an outcome it waits again."""
        current, job.current = job.current, None
        assert current is not None, "it runs"
        if job.is_cancelled and not isinstance(outcome, SubcompactionResult):
            outcome = cancelled(current)
        if outcome is None:
            self._lost.add(_key(current))
            self._waiting.appendleft(current)
        else:
            self._lost.discard(_key(current))
            self._outcomes.put(outcome)

    # -- threads

    def _carry(self, job: Job) -> None:
        """Thread entry. Its subcompactions have exactly one outcome each, even after an error."""
        try:
            self._carrier.run(job)
            failed = JobFailed(
                FailureKind.LOST, ErrorKind("NoOutcome"), "its worker returned no outcome"
            )
        except JobFailed as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - the border: no outcome may be missing
            detail = traceback.format_exc()
            failed = JobFailed(FailureKind.TRANSIENT, ErrorKind.of(error), str(error), detail)
        with self._lock:
            del self._jobs[job]
            job.until_s = 0.0
            if job.current is not None:
                # The job may have failed because of another subcompaction, so it runs once more.
                is_first = job.current is job.first
                self._end_current(job, _failure(job.first, failed) if is_first else None)
            self._start_jobs()


def _failure(subcompaction: Subcompaction, error: JobFailed) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=subcompaction.compaction_id,
        index=subcompaction.index,
        kind=error.kind,
        error=error.error,
        message=str(error),
        traceback=error.detail,
    )
