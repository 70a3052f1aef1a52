"""The worker's end of an engine: runs the subcompactions of a job under a lease.

A task is stopped from outside by the end of its lease, by SIGTERM, or by SIGHUP, which its daemon
sends when the executor has ended. The worker then removes the files that it wrote. Only SIGKILL
leaves files behind; their names identify their owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pickle
import select
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from compactord.engine.inspection import rewrite_module
from compactord.engine.leases import (
    OUTCOME_BYTES_MAX,
    Lease,
    LeaseOver,
    discard,
    hold,
    receive,
    send,
)
from compactord.model import Subcompaction, SubcompactionOutcome

# Memory of an idle worker, in addition to the memory for a task.
IDLE_WORKER_BYTES = 90 << 20
_STATM = Path("/proc/self/statm")
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The payload sent to a worker."""

    subcompaction: Subcompaction
    lease: Lease | None


def run_subcompaction(
    subcompaction: Subcompaction, created: list[str] | None = None
) -> SubcompactionOutcome:
    """Calls `run_subcompaction` of the rewrite package, imported at the first subcompaction."""
    outcome: SubcompactionOutcome = rewrite_module().run_subcompaction(
        subcompaction, created=created
    )
    give_back(subcompaction.memory_bytes + IDLE_WORKER_BYTES)
    return outcome


def give_back(limit_bytes: int) -> None:
    """Return freed memory to the system if the process holds more than `limit_bytes`.

    The allocator keeps freed memory, as the next subcompaction is faster with it; but after many
    of different shapes it keeps more than any of them needs.
    """
    pages = int(_STATM.read_text().split()[1])
    if pages * mmap.PAGESIZE > limit_bytes:
        # Only the C library of GNU has it.
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def run_assignment(payload: bytes) -> bytes:
    """Runs a pickled assignment, and then each subcompaction that the driver sends.

    Returns the last outcome, pickled, if the driver has not acknowledged it; else nothing.

    If stopped from outside, it removes its files and raises `KeyboardInterrupt`, which ends the
    worker process: its answer is not needed any more.
    """
    assignment: Assignment = pickle.loads(payload)
    subcompaction = assignment.subcompaction
    # Its own record: an interrupt may come after the rewrite has ended and before it has returned.
    created: list[str] = []
    stop = StopWatch(assignment.lease)
    try:
        with stop:
            while True:
                outcome = pickle.dumps(run_subcompaction(subcompaction, created))
                following = stop.report(outcome, created)
                if not following:
                    return outcome if following is None else b""
                subcompaction = pickle.loads(following)
    finally:
        if stop.was_stopped:
            discard(subcompaction, created)


def run_payloads(payloads: Iterator[bytes]) -> Iterator[bytes]:
    """For `mapPartitions`. Reads all input first: Spark ends a worker that leaves some unread."""
    for payload in list(payloads):
        yield run_assignment(payload)


def run_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """For `mapInArrow`: one binary column `payload` in, one binary column `outcome` out."""
    import pyarrow as pa

    payloads = [value for batch in batches for value in batch.column(0).to_pylist()]
    for payload in payloads:
        outcome = pa.array([run_assignment(payload)], pa.binary())
        yield pa.RecordBatch.from_arrays([outcome], ["outcome"])


class StopWatch:
    """While entered, turns a request to stop into one `KeyboardInterrupt` in the main thread.

    Requests are the end of the lease and the stop signals. Only the first one counts: a second
    interrupt during clean-up would leave files behind. Outside the main thread, where Python
    forbids signal handlers, it does nothing.
    """

    def __init__(self, lease: Lease | None) -> None:
        self._lease = lease
        self._previous: dict[signal.Signals, Any] = {}
        self._watcher: threading.Thread | None = None
        self._over: int | None = None
        self._held: socket.socket | None = None
        self._has_tried = threading.Event()
        self._is_over = False
        self._defers = False
        self.was_stopped = False

    def __enter__(self) -> StopWatch:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in _STOP_SIGNALS:
            self._previous[number] = signal.signal(number, self._interrupt)
        over, self._over = os.pipe()
        self._watcher = threading.Thread(
            target=self._watch, args=(over,), name="stop-watch", daemon=True
        )
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is None or self._over is None:
            return
        os.close(self._over)
        self._watcher.join()
        if self._held is not None:
            self._held.close()
        if self.was_stopped:
            return  # the worker is ending: do not interrupt its clean-up
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def report(self, outcome: bytes, created: list[str]) -> bytes | None:
        """Send an outcome to the driver. Empties `created`, as its files then belong to the driver.

        Returns the driver's answer, or None if there is none: Spark has to return the outcome.
        Raises `KeyboardInterrupt` if the lease has ended: another attempt was faster.
        """
        if self._watcher is None:
            return None
        self._has_tried.wait()
        if self._is_over:
            self._interrupt(signal.SIGTERM, None)
        if self._held is None or len(outcome) > OUTCOME_BYTES_MAX:
            return None
        # An interrupt has to know whose the files are.
        self._defers = True
        try:
            return self._exchange(self._held, outcome, created)
        except TimeoutError:
            # Only the end of the lease is a reason to stop.
            return None
        except OSError:
            self.was_stopped = True
            return None
        finally:
            self._defers = False
            if self.was_stopped:
                raise KeyboardInterrupt

    def _exchange(self, held: socket.socket, outcome: bytes, created: list[str]) -> bytes:
        send(held, outcome)
        created.clear()
        with held.makefile("rb") as stream:
            answer = receive(stream)
        if answer is None:
            raise ConnectionResetError
        return answer

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.was_stopped:
            self.was_stopped = True
            if not self._defers:
                raise KeyboardInterrupt

    def _watch(self, over: int) -> None:
        """Waits in `poll` until the lease ends or the task is over."""
        # Connects here, in its own thread, to not delay the task.
        try:
            self._held = hold(self._lease) if self._lease is not None else None
        except LeaseOver:
            self._is_over = True
        self._has_tried.set()
        poller = select.poll()
        poller.register(over, 0)
        if self._held is not None:
            poller.register(self._held, select.POLLRDHUP)
        has_ended = not self._is_over and over in dict(poller.poll())
        os.close(over)
        if not has_ended:
            main = threading.main_thread().ident
            assert main is not None, "the main thread runs"
            signal.pthread_kill(main, signal.SIGTERM)
