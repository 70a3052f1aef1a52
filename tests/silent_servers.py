"""Servers that accept what comes and fall silent: only the client's own clock ends a call."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

_SSL, _GSS = 80877103, 80877104


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this machine; each connection is answered in a thread, and kept open."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    taken.append(connection)
                    threading.Thread(target=_quietly, args=(answer, connection)).start()

        threading.Thread(target=accept).start()
        try:
            yield int(server.getsockname()[1])
        finally:
            # Otherwise the thread goes on waiting.
            server.shutdown(socket.SHUT_RDWR)
            for connection in taken:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def _quietly(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with contextlib.suppress(OSError, struct.error):
        answer(connection)


def silence(connection: socket.socket) -> None:
    """Read all that is said, and say nothing."""
    while connection.recv(1 << 16):
        pass


def postgresql_after_login(connection: socket.socket) -> None:
    """Let anybody log in to a database that answers no statement."""
    while True:
        (size,) = struct.unpack("!i", connection.recv(4))
        (code,) = struct.unpack("!i", connection.recv(size - 4)[:4])
        if code not in (_SSL, _GSS):
            break
        connection.sendall(b"N")
    connection.sendall(b"R" + struct.pack("!ii", 8, 0))
    for name, value in (("server_version", "16.0"), ("client_encoding", "UTF8")):
        text = f"{name}\0{value}\0".encode()
        connection.sendall(b"S" + struct.pack("!i", 4 + len(text)) + text)
    connection.sendall(b"K" + struct.pack("!iii", 12, 1, 1))
    connection.sendall(b"Z" + struct.pack("!i", 5) + b"I")
    silence(connection)
