"""A relay before a PostgreSQL server that lets some of the clients' requests fail.

    with DatabaseRelay(port) as relay:
        relay.fail(Ailment.SILENT, every=3)
        ...                                   # a client of `relay.port`

Data that a client sends at once, a statement or a step of its login, counts as one request.
Requests of all connections are counted together. There is no TLS; PostgreSQL's clients accept that.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import threading
from types import TracebackType

from tests.tools.http_relay import Connection

_SILENCE_S = 0.5
_BYTES = 1 << 16
# The first words of a client: "may I use TLS" and "GSSAPI", by their numbers, or its login.
_QUESTIONS = (80877103, 80877104)


class Ailment(enum.Enum):
    """The failure that a client observes. Silence ends after half a second: the connection is
    closed.
    """

    CLOSED = "the connection is closed"
    SILENT = "nothing is answered"
    REFUSED = "the login is refused, later the connection ended, with a reason"


class DatabaseRelay:
    """The relay, in threads of this process; `failed` counts the requests that failed."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = threading.Lock()
        self._ailment: Ailment | None = None
        self._every = self._requests = self.failed = 0
        self._is_over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> DatabaseRelay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def fail(self, ailment: Ailment | None, *, every: int = 1) -> None:
        """From now on every n-th request fails with `ailment`, n being `every`; with None, no
        request fails.
        """
        with self._lock:
            self._ailment, self._every, self._requests, self.failed = ailment, every, 0, 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._server_port))
        with contextlib.suppress(OSError):
            while not self._is_over.is_set():
                ready, _, _ = select.select([client, server], [], [], 0.1)
                for source in ready:
                    data = source.recv(_BYTES)
                    if not data:
                        return self._end(client, server)
                    ailment = self._admit() if source is client else None
                    if ailment is not None:
                        self._show(ailment, client, data)
                        return self._end(client, server)
                    (server if source is client else client).sendall(data)
        return self._end(client, server)

    def _admit(self) -> Ailment | None:
        with self._lock:
            self._requests += 1
            if self._ailment is None or self._requests % self._every:
                return None
            self.failed += 1
            return self._ailment

    def _show(self, ailment: Ailment, client: socket.socket, data: bytes) -> None:
        if ailment is Ailment.SILENT:
            self._is_over.wait(_SILENCE_S)
        elif ailment is Ailment.REFUSED:
            while int.from_bytes(data[4:8], "big") in _QUESTIONS and len(data) == 8:
                client.sendall(b"N")
                data = client.recv(_BYTES)
            client.sendall(refusal())

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for each in sockets:
            Connection(each).abort()


def refusal() -> bytes:
    """PostgreSQL's response to an unknown login."""
    fields = b"SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user\0\0"
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields
