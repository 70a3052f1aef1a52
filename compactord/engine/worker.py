"""The worker's end of an engine: runs a subcompaction under a lease and returns its outcome.

A task is stopped from outside by the end of its lease, by SIGTERM, or by SIGHUP, which its daemon
sends when the executor has ended. The worker then removes the files that it wrote. Only SIGKILL
leaves files behind; their names identify their owner.

Spark does not notify a Python worker of a killed task: after about three seconds the process gets a
SIGKILL, which would leave its files behind. So each subcompaction is sent with a lease. The worker
keeps a connection to the driver while it works, and the driver closes it when the subcompaction's
job has ended for any reason: a result arrived (a speculative copy of the task has to stop), it was
cancelled, or the driver died. Before a worker returns its result to Spark it sends the paths of its
files to the driver and waits for an acknowledgement. So the driver can remove the files of a
speculative copy that finished as well, or of a worker whose result was lost. A worker that cannot
reach the driver works without a lease.

On the connection the worker sends a token; then, at most once, the length of the paths (4 bytes,
big-endian) and the paths in UTF-8, each ended by a newline. The driver answers with one byte.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import select
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from compactord.engine.inspection import rewrite_module
from compactord.errors import StorageError
from compactord.model import Subcompaction, SubcompactionOutcome, SubcompactionResult

_TOKEN_BYTES = 16
_LENGTH_BYTES = 4
_REPORT_BYTES_MAX = 1 << 24
# Time limit of each call on a worker's connection.
_ANSWER_SECONDS_MAX = 2.0
# A client sends its token at once; a packet may be lost.
_TOKEN_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease; `address` is a host and a port, or the path of a Unix domain socket."""

    address: tuple[str, int] | str
    token: bytes


def hold(lease: Lease) -> socket.socket | None:
    """A connection that the driver closes when the lease ends; None if it cannot be reached."""
    is_local = isinstance(lease.address, str)
    connection = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_SECONDS_MAX)
        connection.connect(lease.address)
        connection.sendall(lease.token)
    except OSError:
        connection.close()
        return None
    return connection


def report(connection: socket.socket, paths: Sequence[str]) -> bool:
    """Report written files to the driver. Returns False if the lease has ended.

    Also True if the driver does not answer: only the end of the lease is a reason to stop.
    """
    text = "".join(f"{path}\n" for path in paths).encode()
    try:
        connection.sendall(len(text).to_bytes(_LENGTH_BYTES, "big") + text)
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


class LeaseOffice:
    """The driver's side: a listening socket, a thread that accepts, and one for each connection."""

    def __init__(self, folder: Path | None, *, host: str = "", bind: str = "") -> None:
        """Listens on a Unix domain socket in `folder`, or on any free port of the address `bind`.

        `host` is the name by which workers reach this machine.
        """
        self._address: tuple[str, int] | str
        if folder is not None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._address = str(folder / "leases")
            self._listener.bind(self._address)
            self._listener.listen()
        else:
            self._listener = socket.create_server((bind, 0))
            self._address = (host, self._listener.getsockname()[1])
        self._is_closed = False
        self._lock = threading.Lock()
        # By token, while the lease is valid: connections, and the paths of files.
        self._holders: dict[bytes, list[socket.socket]] = {}
        self._reported: dict[bytes, set[str]] = {}
        self._thread = threading.Thread(target=self._accept, name="leases", daemon=True)
        self._thread.start()

    def grant(self) -> Lease:
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._holders[token] = []
            self._reported[token] = set()
        return Lease(address=self._address, token=token)

    def end(self, lease: Lease) -> set[str]:
        """End a lease for its present and later holders.

        Returns the paths of all files that holders have reported.
        """
        with self._lock:
            holders = self._holders.pop(lease.token, [])
            reported = self._reported.pop(lease.token, set())
        for connection in holders:
            # Some holders may have disconnected.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return reported

    def close(self) -> None:
        self._is_closed = True
        # This wakes the thread, which only closing it would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for token in list(self._holders):
            self.end(Lease(address=self._address, token=token))

    def _accept(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Record a holder's report, until it disconnects or its lease ends."""
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            connection.settimeout(_TOKEN_SECONDS_MAX)
            token = stream.read(_TOKEN_BYTES)
            connection.settimeout(None)
            with self._lock:
                if token not in self._holders:
                    return
                self._holders[token].append(connection)
            while len(length := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                size = int.from_bytes(length, "big")
                text = stream.read(size) if size <= _REPORT_BYTES_MAX else b""
                with self._lock:
                    if len(text) < size or token not in self._reported:
                        return
                    self._reported[token].update(text.decode().splitlines())
                connection.sendall(b"!")


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
    return outcome


def run_assignment(payload: bytes) -> bytes:
    """Runs one pickled assignment. Returns the pickled outcome of its subcompaction.

    If stopped from outside, it removes its files and raises `KeyboardInterrupt`, which ends the
    worker process: its answer is not needed any more.
    """
    assignment: Assignment = pickle.loads(payload)
    # Its own record: an interrupt may come after the rewrite has ended and before it has returned.
    created: list[str] = []
    stop = StopWatch(assignment.lease)
    try:
        with stop:
            outcome = run_subcompaction(assignment.subcompaction, created)
            stop.report(file_paths(assignment.subcompaction, outcome))
    finally:
        if stop.was_stopped:
            discard(assignment.subcompaction, created)
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


def file_paths(subcompaction: Subcompaction, outcome: SubcompactionOutcome | None) -> list[str]:
    """Paths of the files that an attempt at the subcompaction has left behind."""
    if isinstance(outcome, SubcompactionResult):
        folder = subcompaction.write.folder
        return [f"{folder}/{output.file.file_name}" for output in outcome.outputs]
    return []


def discard(subcompaction: Subcompaction, paths: Iterable[str]) -> None:
    """Remove unused files of an attempt."""
    # The next sweep finds files by name that cannot be removed now.
    with contextlib.suppress(StorageError):
        storage = subcompaction.storage.open()
        for path in paths:
            with contextlib.suppress(StorageError):
                storage.delete(path)


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
        if self.was_stopped:
            return  # the worker is ending: do not interrupt its clean-up
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def report(self, paths: Sequence[str]) -> None:
        """Report the files of this attempt to the driver, before Spark gets its result.

        Raises `KeyboardInterrupt` if the lease has ended: another attempt was faster.
        """
        if self._watcher is None or not paths:
            return
        self._has_tried.wait()
        if self._held is not None and not report(self._held, paths):
            self._interrupt(signal.SIGTERM, None)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.was_stopped:
            self.was_stopped = True
            raise KeyboardInterrupt

    def _watch(self, over: int) -> None:
        """Waits in `poll` until the lease ends or the task is over."""
        # Connects here, in its own thread, to not delay the task.
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
