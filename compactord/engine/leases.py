"""The connection between a worker and the driver for the time of a job: a lease, and its protocol.

Spark does not notify a Python worker of a killed task: after about three seconds the process gets a
SIGKILL, which would leave its files behind. So each job is sent with a lease. The worker keeps a
connection to the driver while it works, and the driver ends it when the job has ended for any
reason: it was cancelled, a copy of its task was faster, or the driver died.

The connection also carries the outcomes, so that one job can run many small subcompactions and each
has its outcome at once. A worker that cannot reach the driver runs one subcompaction, and returns
its outcome through Spark.

On the connection the worker sends a token, which the driver answers with one byte, and then each
outcome, pickled, after its length (4 bytes, big-endian). The driver answers an outcome in the same
form with the next subcompaction, or with a length of 0 if there is none. Instead of an answer it
closes the connection if it needs no more of this worker. The files of an outcome that was sent
belong to the driver: only it knows whether it took them.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from compactord.engine.base import Job
from compactord.errors import CompactordError, StorageError
from compactord.model import Subcompaction, SubcompactionOutcome, SubcompactionResult

_TOKEN_BYTES = 16
_LENGTH_BYTES = 4
# Larger outcomes are returned through Spark.
OUTCOME_BYTES_MAX = 1 << 28
# Time limit of each call on a worker's connection.
_ANSWER_SECONDS_MAX = 2.0
# A client sends its token at once; a packet may be lost.
_TOKEN_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease; `address` is a host and a port, or the path of a Unix domain socket."""

    address: tuple[str, int] | str
    token: bytes


class LeaseOver(CompactordError):
    """The job of this lease has ended, or another worker runs it."""


def hold(lease: Lease) -> socket.socket | None:
    """A connection that the lease ends; None if the driver cannot be reached.

    Raises `LeaseOver`.
    """
    is_local = isinstance(lease.address, str)
    connection = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.settimeout(_ANSWER_SECONDS_MAX)
        connection.connect(lease.address)
        connection.sendall(lease.token)
        is_valid = connection.recv(1) != b""
    except OSError:
        connection.close()
        return None
    if not is_valid:
        connection.close()
        raise LeaseOver
    return connection


def send(connection: socket.socket, message: bytes) -> None:
    """Sends a message. Raises `OSError`: the other side has not received it whole."""
    connection.sendall(len(message).to_bytes(_LENGTH_BYTES, "big") + message)


def receive(stream: BinaryIO) -> bytes | None:
    """The next message, or None at the end of the connection. Raises `OSError`."""
    length = stream.read(_LENGTH_BYTES)
    size = int.from_bytes(length, "big")
    if len(length) < _LENGTH_BYTES or size > OUTCOME_BYTES_MAX:
        return None
    message = stream.read(size)
    return message if len(message) == size else None


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
            self._listener.listen(socket.SOMAXCONN)
        else:
            self._listener = socket.create_server((bind, 0), backlog=socket.SOMAXCONN)
            self._address = (host, self._listener.getsockname()[1])
        self._is_closed = False
        self._lock = threading.Lock()
        # By token, while the lease is valid: its job, and the connections of its holders.
        self._jobs: dict[bytes, tuple[Job, list[socket.socket]]] = {}
        self._thread = threading.Thread(target=self._accept, name="leases", daemon=True)
        self._thread.start()

    def grant(self, job: Job) -> Lease:
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._jobs[token] = job, []
        return Lease(address=self._address, token=token)

    def end(self, lease: Lease) -> None:
        """End a lease for its present and later holders.

        Outcomes that are on their way are still received, and their files removed.
        """
        with self._lock:
            _, holders = self._jobs.pop(lease.token, (None, []))
        _send_away(holders)

    def close(self) -> None:
        self._is_closed = True
        # This wakes the thread, which only closing it would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for token in list(self._jobs):
            self.end(Lease(address=self._address, token=token))

    def _accept(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Receive a holder's outcomes, until it disconnects or one of them is not needed."""
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            connection.settimeout(_TOKEN_SECONDS_MAX)
            token = stream.read(_TOKEN_BYTES)
            connection.settimeout(None)
            with self._lock:
                job, holders = self._jobs.get(token, (None, []))
                # A later attempt at the task would run the first subcompaction again.
                if job is None or not job.is_at_first:
                    return
                holders.append(connection)
            connection.sendall(b"!")
            has_more = True
            while (message := receive(stream)) is not None:
                if not has_more or not take(job, pickle.loads(message)):
                    return
                with self._lock:
                    others = [each for each in holders if each is not connection]
                _send_away(others)
                following = job.following()
                has_more = following is not None
                send(connection, pickle.dumps(following) if has_more else b"")


def _send_away(holders: Iterable[socket.socket]) -> None:
    for connection in holders:
        # Some holders may have disconnected.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def take(job: Job, outcome: SubcompactionOutcome) -> bool:
    """Give a worker's outcome to the job. If it is not needed, remove its files; returns False."""
    if job.deliver(outcome):
        return True
    # One that was taken may arrive again through Spark.
    if not job.has_taken(outcome):
        subcompaction = job.sent[outcome.compaction_id, outcome.index]
        discard(subcompaction, file_paths(subcompaction, outcome))
    return False


def file_paths(subcompaction: Subcompaction, outcome: SubcompactionOutcome | None) -> list[str]:
    """Paths of the files that an attempt at the subcompaction has left behind."""
    if isinstance(outcome, SubcompactionResult):
        folder = subcompaction.write.folder
        return [
            f"{folder}/{name}"
            for output in outcome.outputs
            for name in (output.file.file_name, *output.companions)
        ]
    return []


def discard(subcompaction: Subcompaction, paths: Iterable[str]) -> None:
    """Remove unused files of an attempt."""
    # The next sweep finds files by name that cannot be removed now.
    with contextlib.suppress(StorageError):
        storage = subcompaction.storage.open()
        for path in paths:
            with contextlib.suppress(StorageError):
                storage.delete(path)
