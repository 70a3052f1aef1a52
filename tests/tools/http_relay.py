"""Relays HTTP/1.1 messages between two connections, byte by byte.

Heads are parsed to find where a message ends; bodies are never in memory as a whole.
"""

from __future__ import annotations

import contextlib
import select
import socket
from dataclasses import dataclass

HEAD_BYTES_MAX = 1 << 20
# Large, as each turn of the loop costs two calls of the system and a turn of Python's own lock.
BUFFER_BYTES = 1 << 20
_HUNG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Closed(ConnectionError):
    """The other side closed its connection in the middle of a message, or before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first line of a message in three words, its headers by lower-case name, and its bytes."""

    first: tuple[str, str, str]
    headers: dict[str, str]
    raw: bytes

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def content_length(self) -> int | None:
        """Bytes of the body, or None if the head does not state them."""
        length = self.headers.get("content-length")
        return None if length is None else int(length)

    @property
    def ends_connection(self) -> bool:
        """Whether its sender closes the connection after this message."""
        wish = self.headers.get("connection", "").lower()
        version = self.first[0] if self.first[0].startswith("HTTP/") else self.first[2]
        return "close" in wish or (version == "HTTP/1.0" and "keep-alive" not in wish)


class Connection:
    """One side of the relay: a socket and the bytes received after the last message."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self._ahead = b""

    def close(self) -> None:
        self.socket.close()

    def abort(self) -> None:
        """Close at once and in both directions, so that the other side sees a lost connection."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def read_head(self) -> Head | None:
        """The next head; None where the other side closed between two messages."""
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            if len(self._ahead) > HEAD_BYTES_MAX:
                raise Closed(f"no end of the head in {HEAD_BYTES_MAX} bytes")
            more = self.socket.recv(65_536)
            if not more:
                if self._ahead:
                    raise Closed("closed within a head")
                return None
            self._ahead += more
        raw, self._ahead = self._ahead[: end + 4], self._ahead[end + 4 :]
        lines = raw[:-4].decode("latin-1").split("\r\n")
        first = (*lines[0].split(" ", 2), "", "")
        headers = (line.partition(":") for line in lines[1:])
        return Head(
            first=(first[0], first[1], first[2]),
            headers={name.lower(): value.strip() for name, _, value in headers},
            raw=raw,
        )

    def relay(self, target: socket.socket | None, count: int, buffer: memoryview) -> None:
        """Pass on the next `count` bytes; without a target they are dropped."""
        if self._ahead:
            piece, self._ahead = self._ahead[:count], self._ahead[count:]
            count -= len(piece)
            if target is not None:
                target.sendall(piece)
        while count:
            received = self.socket.recv_into(buffer, min(count, len(buffer)))
            if not received:
                raise Closed(f"closed {count} bytes before the end of a body")
            count -= received
            if target is not None:
                target.sendall(buffer[:received])

    def relay_chunks(self, target: socket.socket | None, buffer: memoryview) -> None:
        """Pass on a body in chunks, with their sizes and the trailer."""
        while size := int(self._relay_line(target).split(b";")[0], 16):
            self.relay(target, size + 2, buffer)
        while self._relay_line(target) != b"\r\n":
            pass

    def relay_to_end(self, target: socket.socket | None) -> None:
        """Pass on everything until the other side closes."""
        while piece := self._ahead or self.socket.recv(65_536):
            self._ahead = b""
            if target is not None:
                target.sendall(piece)

    def _relay_line(self, target: socket.socket | None) -> bytes:
        while (end := self._ahead.find(b"\n")) < 0:
            more = self.socket.recv(65_536)
            if not more:
                raise Closed("closed within a body in chunks")
            self._ahead += more
        line, self._ahead = self._ahead[: end + 1], self._ahead[end + 1 :]
        if target is not None:
            target.sendall(line)
        return line

    def is_idle(self) -> bool:
        """Whether the other side has neither sent data nor closed since the last message."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | _HUNG_UP)
        return not self._ahead and not poll.poll(0)

    def hung_up(self, within_ms: int) -> bool:
        """Whether the other side closes within that time, even after sending data."""
        poll = select.poll()
        poll.register(self.socket, _HUNG_UP)
        return bool(poll.poll(within_ms))
