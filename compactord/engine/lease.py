"""Leases: how the worker of a part learns that nobody waits for it any more.

Spark does not tell a Python worker that its task was killed: after about three seconds the process
gets a SIGKILL, and what it wrote would stay. So each part travels with a lease. The worker keeps a
connection to the driver while it works, and the driver closes it when the part's job has ended, for
whatever reason: a result came (a speculative twin has to stop), it was cancelled, or the driver
died. A worker that cannot reach the driver works without.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

_TOKEN_BYTES = 16
_CONNECT_SECONDS_MAX = 5.0


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
        connection.settimeout(_CONNECT_SECONDS_MAX)
        connection.connect(lease.address)
        connection.sendall(lease.token)
    except OSError:
        connection.close()
        return None
    return connection


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
        self._valid: dict[bytes, list[socket.socket]] = {}
        self._wake, self._awake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="leases", daemon=True)
        self._thread.start()

    def grant(self) -> Lease:
        token = secrets.token_bytes(_TOKEN_BYTES)
        with self._lock:
            self._valid[token] = []
        return Lease(address=self._address, token=token)

    def end(self, lease: Lease) -> None:
        """Who holds the lease is told so, and so is whoever comes with it later."""
        with self._lock:
            holders = self._valid.pop(lease.token, [])
        for connection in holders:
            _hang_up(connection)

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
                        selector.register(connection, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket) and not self._admit(key.fileobj):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()

    def _admit(self, connection: socket.socket) -> bool:
        """Whether the connection stays open after it became readable."""
        try:
            said = connection.recv(_TOKEN_BYTES)
        except OSError:
            said = b""
        with self._lock:
            for token, holders in self._valid.items():
                if hmac.compare_digest(token, said):
                    holders.append(connection)
                    return True
                if connection in holders:
                    holders.remove(connection)
        return False


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
