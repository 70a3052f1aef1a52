"""The engine protocol, and an engine over any transport to workers.

An engine sends subcompactions to workers and returns their outcomes in the order in which they
finish. It decides nothing: retries and the order of work belong to the caller.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from compactord.clock import Clock, SystemClock
from compactord.errors import CompactordError, EngineUnavailable
from compactord.model import FailureKind, Subcompaction, SubcompactionFailure, SubcompactionOutcome


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
        error="Cancelled",
        message="the subcompaction was cancelled",
    )


# A thread only waits, so this limits subcompactions in flight on a large cluster, not work.
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
    """Sends subcompactions to workers. Thread-safe."""

    @property
    def capacity(self) -> int: ...

    def run(self, subcompaction: Subcompaction, group: str) -> SubcompactionOutcome:
        """The worker's outcome. Raises `JobFailed` if there is none.

        `group` names the job for `cancel`; no two running jobs share it.
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


class PooledEngine:
    """An `Engine` over a `Carrier`.

    Each subcompaction is one job, started by a bounded pool of threads that wait for their job's
    answer. A job that fails for any reason becomes the outcome of its subcompaction; errors are
    raised only if the engine has failed permanently.
    """

    def __init__(self, carrier: Carrier, *, clock: Clock | None = None) -> None:
        self._carrier = carrier
        self._clock = clock or SystemClock()
        self._threads = ThreadPoolExecutor(max_workers=JOBS_MAX, thread_name_prefix="subcompaction")
        self._outcomes: queue.SimpleQueue[SubcompactionOutcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Jobs that have not ended, with their groups.
        self._running: dict[Future[None], str] = {}
        # Groups of individually cancelled jobs.
        self._cancelled: set[str] = set()
        self._undelivered = 0
        self._generation = 0
        self._closed = False

    @property
    def capacity(self) -> int:
        return max(1, min(JOBS_MAX, self._carrier.capacity))

    def submit(self, subcompaction: Subcompaction) -> None:
        assert not self._closed, "the engine is in use"
        gone = self._carrier.why_failed()
        if gone is not None:
            raise EngineUnavailable(gone)
        with self._lock:
            self._undelivered += 1
            job = self._threads.submit(self._carry, subcompaction, self._generation)
            self._running[job] = _group(subcompaction.compaction_id, subcompaction.index)
        job.add_done_callback(self._forget)

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
            self._generation += 1
            groups = dict(self._running)
        running = set(groups)
        deadline = self._clock.monotonic_s() + CANCEL_SECONDS_MAX
        while running and self._clock.monotonic_s() < deadline:
            # Repeatedly: the first call misses a job that is about to start.
            for job in running:
                self._carrier.cancel(groups[job])
            running = wait(running, timeout=_CANCEL_AGAIN_SECONDS).not_done

    def cancel_one(self, compaction: int, index: int) -> None:
        group = _group(compaction, index)
        with self._lock:
            if group not in self._running.values():
                return
            self._cancelled.add(group)
        # In a thread, because the call into the engine of a hanging worker may hang as well.
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._threads.submit(self._carrier.cancel, group)

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
        """Thread entry. Puts exactly one outcome, even after an error."""
        group = _group(subcompaction.compaction_id, subcompaction.index)
        outcome: SubcompactionOutcome = cancelled(subcompaction)
        try:
            if not self._is_cancelled(group, generation):
                outcome = self._carrier.run(subcompaction, group)
        except JobFailed as error:
            outcome = _failure(subcompaction, error)
        except Exception as error:  # noqa: BLE001 - the border: no outcome may be missing
            detail = traceback.format_exc()
            failed = JobFailed(FailureKind.TRANSIENT, type(error).__name__, str(error), detail)
            outcome = _failure(subcompaction, failed)
        if isinstance(outcome, SubcompactionFailure) and self._is_cancelled(group, generation):
            outcome = cancelled(subcompaction)
        with self._lock:
            self._cancelled.discard(group)
        self._outcomes.put(outcome)

    def _is_cancelled(self, group: str, generation: int) -> bool:
        return generation != self._generation or group in self._cancelled

    def _forget(self, job: Future[None]) -> None:
        with self._lock:
            self._running.pop(job, None)


def _group(compaction: int, index: int) -> str:
    """The name that cancels a subcompaction's job."""
    return f"compactord-{compaction}-{index}"


def _failure(subcompaction: Subcompaction, error: JobFailed) -> SubcompactionFailure:
    return SubcompactionFailure(
        compaction_id=subcompaction.compaction_id,
        index=subcompaction.index,
        kind=error.kind,
        error=error.error,
        message=str(error),
        traceback=error.detail,
    )
