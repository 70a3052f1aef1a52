"""The worker's end of an engine: bytes of a subcompaction in, bytes of its outcome out.

A task can be stopped from outside in three ways: its lease ends, or it gets SIGTERM, or SIGHUP,
which its daemon sends when the executor is gone. The worker then removes the files that it wrote.
Only SIGKILL leaves files behind; their names identify their owner.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from compactord.engine.inspection import rewrite_module
from compactord.engine.lease import Lease, hold, report
from compactord.errors import StorageError
from compactord.model import Subcompaction, SubcompactionOutcome, SubcompactionResult

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What is sent to a worker."""

    subcompaction: Subcompaction
    lease: Lease | None


def run_subcompaction(subcompaction: Subcompaction) -> SubcompactionOutcome:
    """`run_subcompaction` of the rewrite package, imported when the first subcompaction arrives."""
    outcome: SubcompactionOutcome = rewrite_module().run_subcompaction(subcompaction)
    return outcome


def run_assignment(payload: bytes) -> bytes:
    """One pickled assignment to the pickled outcome of its subcompaction.

    When it is stopped from outside, it removes its files and raises `KeyboardInterrupt`, which ends
    the worker process: its answer is no longer needed.
    """
    assignment: Assignment = pickle.loads(payload)
    outcome: SubcompactionOutcome | None = None
    stop = StopWatch(assignment.lease)
    try:
        with stop:
            outcome = run_subcompaction(assignment.subcompaction)
            stop.report(file_names(outcome))
    finally:
        if stop.was_asked:
            discard(assignment.subcompaction, file_names(outcome))
    return pickle.dumps(outcome)


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


def file_names(outcome: SubcompactionOutcome | None) -> list[str]:
    """Names of the files that an attempt at a subcompaction has left behind."""
    if isinstance(outcome, SubcompactionResult):
        return [output.file.file_name for output in outcome.outputs]
    return []


def discard(subcompaction: Subcompaction, names: Iterable[str]) -> None:
    """Remove files of an attempt that nobody uses."""
    # The next clean-up finds by its name what cannot be removed now.
    with contextlib.suppress(StorageError):
        storage = subcompaction.storage.open()
        for name in names:
            with contextlib.suppress(StorageError):
                storage.delete(f"{subcompaction.write.folder}/{name}")


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
        self.was_asked = False

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
        if self.was_asked:
            return  # the worker is ending: do not interrupt its clean-up
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def report(self, names: Sequence[str]) -> None:
        """Report the files of this attempt to the driver, before Spark gets its result.

        Raises `KeyboardInterrupt` if the lease has ended: another attempt was faster.
        """
        if self._watcher is None or not names:
            return
        self._has_tried.wait()
        if self._held is not None and not report(self._held, names):
            self._interrupt(signal.SIGTERM, None)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.was_asked:
            self.was_asked = True
            raise KeyboardInterrupt

    def _watch(self, over: int) -> None:
        """Sleeps in `poll` until the lease ends or the task is over."""
        # Connects here, in its own thread, so that the task is not delayed.
        self._held = held = hold(self._lease) if self._lease is not None else None
        self._has_tried.set()
        poller = select.poll()
        poller.register(over, 0)
        if held is not None:
            poller.register(held, select.POLLRDHUP)
        is_over = over in dict(poller.poll())
        os.close(over)
        if held is not None:
            held.close()
        if not is_over:
            main = threading.main_thread().ident
            assert main is not None, "the main thread runs"
            signal.pthread_kill(main, signal.SIGTERM)
