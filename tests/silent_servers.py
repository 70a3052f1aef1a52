"""Servers that hang up, fall silent, drip, or answer nonsense.

Only the client's own clock and bounds end a call to most of them.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping

_SSL, _GSS = 80877103, 80877104
Answer = Callable[[socket.socket], None]
# Between two bytes of what drips.
_DRIP_S = 0.05


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[int]:
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


def _quietly(answer: Answer, connection: socket.socket) -> None:
    with contextlib.suppress(OSError, struct.error):
        answer(connection)


def silence(connection: socket.socket) -> None:
    """Read all that is said, and say nothing."""
    while connection.recv(1 << 16):
        pass


def hang_up(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def _request(connection: socket.socket) -> None:
    """Read one request of HTTP, whose body has a known length."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += _received(connection)
    head, _, body = found.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            while len(body) < int(value):
                body += _received(connection)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise OSError("the client is gone")
    return data


def _head(*fields: str, status: str = "200 OK") -> bytes:
    common = ("Last-Modified: Sat, 28 Nov 2026 09:00:00 GMT", 'ETag: "x"', "Connection: close")
    return "\r\n".join((f"HTTP/1.1 {status}", *common, *fields, "", "")).encode()


def page(status: str, body: bytes, *, more: int = 0) -> Answer:
    """Answers each request alike; `more` are bytes that are promised and do not come."""

    def answer(connection: socket.socket) -> None:
        _request(connection)
        length = f"Content-Length: {len(body) + more}"
        connection.sendall(_head(length, status=status) + body)
        connection.shutdown(socket.SHUT_RDWR)

    return answer


def drip(*, from_body: bool) -> Answer:
    """An answer byte by byte, whose head comes at once or drips as well."""

    def answer(connection: socket.socket) -> None:
        _request(connection)
        head = _head("Content-Length: 100000")
        if from_body:
            connection.sendall(head)
        for byte in b" " * 100_000 if from_body else head * 100:
            connection.sendall(bytes((byte,)))
            time.sleep(_DRIP_S)

    return answer


def endless(*fields: str, is_chunked: bool) -> Answer:
    """A body without an end, as fast as the client takes it, a little at a time."""
    piece = b" " * (1 << 10)

    def answer(connection: socket.socket) -> None:
        _request(connection)
        connection.sendall(_head(*fields))
        while True:
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
            time.sleep(_DRIP_S / 10)

    return answer


_GARBAGE = b"\x00\x01\x02garbage" * 1000
# What a gateway, a proxy, a captive portal, or another program on the store's port may do.
HTTP_SERVERS: Mapping[str, Answer] = {
    "hangs up": hang_up,
    "silent": silence,
    "drips a head": drip(from_body=False),
    "drips a body": drip(from_body=True),
    "HTML with 200": page("200 OK", b"<html><body>Sign in<br></body></html>"),
    "HTML with 500": page("500 Internal Server Error", b"<html><body>nginx</body></html>"),
    "HTML with 404": page("404 Not Found", b"<html><body>nginx</body></html>"),
    "half of XML": page("200 OK", b'<?xml version="1.0"?><ListBucketResult><Contents><Key>a'),
    "half of JSON": page("200 OK", b'{"items": [{"name": "a'),
    "less than promised": page("200 OK", b"<html>", more=1000),
    "no end": endless("Transfer-Encoding: chunked", is_chunked=True),
    "a terabyte": endless("Content-Length: 1099511627776", is_chunked=False),
    "no HTTP": lambda connection: connection.sendall(_GARBAGE),
}


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
