"""Raw requests over real sockets, since a client library would not send what must be withstood."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Iterator
from typing import NamedTuple

from compactord.service.http import Answer, HttpServer, Patience


class Reply(NamedTuple):
    """`headers` have lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


@contextlib.contextmanager
def serving(
    answer: Answer, patience: Patience | None = None, urgent: Collection[str] = ()
) -> Iterator[HttpServer]:
    """A server on a free port; afterwards no thread of it may be left."""
    before = set(threading.enumerate())
    server = HttpServer(answer, host="127.0.0.1", port=0, patience=patience, urgent=urgent)
    try:
        yield server
    finally:
        server.stop()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("http", "waitress")):
            thread.join(180)
            assert not thread.is_alive()


def connect(server: HttpServer, timeout_s: float = 180) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)


def send(server: HttpServer, request: bytes, timeout_s: float = 180) -> bytes:
    """All that comes back until the server closes; the request's end is told to it."""
    with connect(server, timeout_s) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


def get(server: HttpServer, path: str, *headers: str, method: str = "GET") -> Reply:
    """One request on a connection of its own."""
    lines = (f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers, "", "")
    with connect(server) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return parse(b"".join(iter(lambda: connection.recv(1 << 16), b"")))


def parse(reply: bytes) -> Reply:
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    headers = {name.lower(): value for name, value in headers.items()}
    if headers.get("transfer-encoding") == "chunked":
        body = b"".join(_chunks(body))
    return Reply(int(first.split()[1]), headers, body)


def _chunks(body: bytes) -> Iterator[bytes]:
    """What was sent in chunks, up to the empty one, which must be there."""
    while (sized := body.partition(b"\r\n"))[0] != b"0":
        size = int(sized[0], 16)
        yield sized[2][:size]
        body = sized[2][size + 2 :]
