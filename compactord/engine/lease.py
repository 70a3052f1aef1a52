"""Leases: how the worker of a subcompaction learns that its result is no longer needed.

Spark does not tell a Python worker that its task was killed: after about three seconds the process
gets a SIGKILL, and its files would be left behind. So each subcompaction is sent with a lease. The
worker keeps a connection to the driver while it works, and the driver closes it when the
subcompaction's job has ended, for whatever reason: a result arrived (a speculative copy of the task
has to stop), it was cancelled, or the driver died. Before a worker returns its result to Spark it
sends the names of its files to the driver and waits for an acknowledgement. So the driver can
remove the files of a speculative copy that finished as well, or of a worker whose result was lost.
A worker that cannot reach the driver works without a lease.

On the connection the worker sends a token; then, at most once, the length of the names (4 bytes,
big-endian) and the names in UTF-8, each ended by a newline. The driver answers with one byte.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TOKEN_BYTES = 16
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 16
_REPORT_BYTES_MAX = 1 << 24
# For each call on a worker's connection.
_ANSWER_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`address` is a host and a port, or the path of a Unix domain socket."""

    address: tuple[str, int] | str
    token: bytes


def hold(lease: Lease) -> socket.socket | None:
    """A connection that the driver closes when the lease ends; None when it cannot be reached."""
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


def report(connection: socket.socket, names: Sequence[str]) -> bool:
    """Tell the driver which files were written; False when the lease has ended.

    True also when the driver does not answer: only the end of the lease is a reason to stop.
    """
    text = "".join(f"{name}\n" for name in names).encode()
    try:
        connection.sendall(len(text).to_bytes(_LENGTH_BYTES, "big") + text)
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


@dataclass(slots=True, eq=False)
class _Holder:
    """A connection and the bytes received on it; `token` once it has sent a valid one."""

    connection: socket.socket
    token: bytes | None = None
    received: bytearray = field(default_factory=bytearray)


class LeaseOffice:
    """The driver's side: one listening socket and one thread that serves all connections."""

    def __init__(self, folder: Path | None, *, host: str = "", bind: str = "") -> None:
        """A Unix domain socket in `folder`, or else any free port of the address `bind`.

        `host` is the name by which workers reach this machine.
        """
        address: tuple[str, int] | str
        if folder is not None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            address = str(folder / "leases")
            self._listener.bind(address)
        else:
            self._listener = socket.create_server((bind, 0))
            address = (host, self._listener.getsockname()[1])
        self._address = address
        self._listener.listen()
        self._listener.setblocking(False)
        self._lock = threading.Lock()
        # By token, while the lease is valid.
        self._holders: dict[bytes, list[_Holder]] = {}
        self._reported: dict[bytes, set[str]] = {}
        self._wake, self._awake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="leases", daemon=True)
        self._thread.start()

    def grant(self) -> Lease:
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._holders[token] = []
            self._reported[token] = set()
        return Lease(address=self._address, token=token)

    def end(self, lease: Lease) -> set[str]:
        """End a lease for its present and later holders.

        Returns the names of all files that holders have reported.
        """
        with self._lock:
            holders = self._holders.pop(lease.token, [])
            reported = self._reported.pop(lease.token, set())
        for holder in holders:
            with contextlib.suppress(OSError):
                holder.connection.shutdown(socket.SHUT_RDWR)
        return reported

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        selector.register(self._awake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._awake:
                    for registered in list(selector.get_map().values()):
                        registered.fileobj.close()  # type: ignore[union-attr]
                    selector.close()
                    return
                if key.fileobj is self._listener:
                    with contextlib.suppress(OSError):
                        connection, _ = self._listener.accept()
                        connection.setblocking(False)
                        selector.register(connection, selectors.EVENT_READ, _Holder(connection))
                elif not self._hear(key.data):
                    selector.unregister(key.data.connection)
                    self._forget(key.data)

    def _hear(self, holder: _Holder) -> bool:
        """Read what a holder sent; False if its connection can be closed."""
        try:
            said = holder.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        holder.received += said
        if not said or len(holder.received) > _REPORT_BYTES_MAX:
            return False
        if holder.token is None and len(holder.received) >= _TOKEN_BYTES:
            holder.token = bytes(holder.received[:_TOKEN_BYTES])
            del holder.received[:_TOKEN_BYTES]
            with self._lock:
                if holder.token not in self._holders:
                    return False
                self._holders[holder.token].append(holder)
        return holder.token is None or self._take_report(holder.token, holder)

    def _take_report(self, token: bytes, holder: _Holder) -> bool:
        """Record the names once they are complete, and answer."""
        text = holder.received[_LENGTH_BYTES:]
        length = int.from_bytes(holder.received[:_LENGTH_BYTES], "big")
        if len(holder.received) < _LENGTH_BYTES or len(text) < length:
            return True
        holder.received.clear()
        with self._lock:
            if token not in self._reported:
                return False
            self._reported[token].update(text.decode().splitlines())
        try:
            holder.connection.send(b"!")
        except OSError:
            return False
        return True

    def _forget(self, holder: _Holder) -> None:
        with self._lock:
            if holder.token is not None and holder in self._holders.get(holder.token, []):
                self._holders[holder.token].remove(holder)
        holder.connection.close()
