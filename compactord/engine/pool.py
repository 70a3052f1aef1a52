"""An engine on top of a transport that takes a subcompaction to a worker and returns its outcome.

Each subcompaction is one job, started by a bounded pool of threads that wait for their job's
answer. A job that fails for whatever cause becomes the outcome of its subcompaction; an error is
raised only if the engine is gone for good.
"""

from __future__ import annotations

import queue
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from compactord.clock import Clock, SystemClock
from compactord.engine.base import cancelled
from compactord.errors import CompactordError, EngineUnavailable
from compactord.model import FailureKind, Subcompaction, TaskFailure, TaskOutcome

# A thread only waits, so this bounds the subcompactions in flight on a large cluster, not the work.
JOBS_MAX = 256
CANCEL_SECONDS_MAX = 15.0
_WATCH_SECONDS = 1.0
_CANCEL_AGAIN_SECONDS = 0.2


class JobFailed(CompactordError):
    """A job returned no outcome; `detail` is the long text for logs."""

    def __init__(self, kind: FailureKind, error: str, message: str, detail: str = "") -> None:
        self.kind = kind
        self.error = error
        self.detail = detail
        super().__init__(message)


class Carrier(Protocol):
    """Sends subcompactions to workers; all methods may be called from several threads at once."""

    @property
    def capacity(self) -> int: ...

    @property
    def start_seconds(self) -> float: ...

    def run(self, subcompaction: Subcompaction, group: str) -> TaskOutcome:
        """The worker's outcome. Raises `JobFailed` when there is none."""
        ...

    def cancel(self, group: str) -> None:
        """Stop all jobs of the group that have begun; does not wait for it."""
        ...

    def watch(self) -> None:
        """Called about once a second while outcomes are awaited: stop what can never finish."""
        ...

    def why_gone(self) -> str | None:
        """Why no job can run any more, None while they can."""
        ...

    def close(self) -> None: ...


class PooledEngine:
    """See the `Engine` protocol."""

    def __init__(self, carrier: Carrier, *, clock: Clock | None = None) -> None:
        self._carrier = carrier
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(max_workers=JOBS_MAX, thread_name_prefix="subcompaction")
        self._outcomes: queue.SimpleQueue[TaskOutcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: set[Future[None]] = set()
        self._undelivered = 0
        self._generation = 0
        self._closed = False

    @property
    def capacity(self) -> int:
        return max(1, min(JOBS_MAX, self._carrier.capacity))

    @property
    def start_seconds(self) -> float:
        return self._carrier.start_seconds

    def submit(self, subcompaction: Subcompaction) -> None:
        assert not self._closed, "the engine is in use"
        gone = self._carrier.why_gone()
        if gone is not None:
            raise EngineUnavailable(gone)
        with self._lock:
            self._undelivered += 1
            job = self._threads.submit(self._carry, subcompaction, self._generation)
            self._running.add(job)
        job.add_done_callback(self._forget)

    def next_outcome(self, timeout_s: float | None) -> TaskOutcome | None:
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

    def why_gone(self) -> str | None:
        return self._carrier.why_gone()

    def cancel(self) -> None:
        """As the protocol says; waits until the jobs have ended, at most `CANCEL_SECONDS_MAX`."""
        with self._lock:
            group = _group(self._generation)
            self._generation += 1
            running = set(self._running)
        deadline = self._clock.monotonic_s() + CANCEL_SECONDS_MAX
        while running and self._clock.monotonic_s() < deadline:
            # Repeatedly: the first call misses a job that is just about to start.
            self._carrier.cancel(group)
            running = wait(running, timeout=_CANCEL_AGAIN_SECONDS).not_done

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

    def _carry(self, subcompaction: Subcompaction, generation: int) -> None:
        """Thread entry: puts exactly one outcome, whatever happens."""
        try:
            outcome = self._outcome(subcompaction, generation)
        except JobFailed as error:
            outcome = _failure(subcompaction, error)
        except Exception as error:  # noqa: BLE001 - the border: no outcome may be missing
            detail = traceback.format_exc()
            failed = JobFailed(FailureKind.TRANSIENT, type(error).__name__, str(error), detail)
            outcome = _failure(subcompaction, failed)
        if generation != self._generation and isinstance(outcome, TaskFailure):
            outcome = cancelled(subcompaction)
        self._outcomes.put(outcome)

    def _outcome(self, subcompaction: Subcompaction, generation: int) -> TaskOutcome:
        if generation != self._generation:
            return cancelled(subcompaction)
        outcome = self._carrier.run(subcompaction, _group(generation))
        assert (outcome.compaction, outcome.index) == (
            subcompaction.compaction,
            subcompaction.index,
        )
        return outcome

    def _forget(self, job: Future[None]) -> None:
        with self._lock:
            self._running.discard(job)


def _group(generation: int) -> str:
    return f"compactord-{generation}"


def _failure(subcompaction: Subcompaction, error: JobFailed) -> TaskFailure:
    return TaskFailure(
        compaction=subcompaction.compaction,
        index=subcompaction.index,
        kind=error.kind,
        error=error.error,
        message=str(error),
        traceback=error.detail,
    )
