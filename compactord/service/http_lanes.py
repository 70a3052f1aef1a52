"""Who waits for whom at the HTTP server: a request of each connection, and probes for no others.

waitress reads thousands of pipelined requests at once, and all requests wait in one line.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.task import ThreadedTaskDispatcher
from waitress.utilities import Error

# Requests that wait for a thread; more are refused, so that connections stay free for probes.
WAITING_MAX = 64


class _OneRequest(HTTPRequestParser):  # type: ignore[misc]
    """Drops what a client sends after a request without waiting for the answer, and says so.

    The connection ends with the answer then, so that the client sends the rest again.
    """

    def received(self, data: bytes) -> int:
        used: int = super().received(data)
        if not self.completed or self.empty or used == len(data):
            return used
        self.headers["CONNECTION"] = "close"
        return len(data)


class Channel(HTTPChannel):  # type: ignore[misc]
    """A connection; it has one request at a time."""

    parser_class = _OneRequest


class _Overloaded(Error):  # type: ignore[misc]
    code = HTTPStatus.SERVICE_UNAVAILABLE
    reason = HTTPStatus.SERVICE_UNAVAILABLE.phrase


class Lanes:
    """A dispatcher of waitress: requests for `urgent` paths, and refusals, have a thread alone."""

    def __init__(self, urgent: Collection[str], *, threads: int) -> None:
        self._urgent = urgent
        self._all, self._first = ThreadedTaskDispatcher(), ThreadedTaskDispatcher()
        self._all.set_thread_count(threads)
        self._first.set_thread_count(1)

    def add_task(self, channel: Channel) -> None:
        """Any thread may call it; the connection has a complete request."""
        request = channel.requests[0]
        is_urgent = request.error is not None or request.path in self._urgent
        if not is_urgent and len(self._all.queue) >= WAITING_MAX:
            request.error = _Overloaded("too many requests wait for an answer: try again later")
            is_urgent = True
        (self._first if is_urgent else self._all).add_task(channel)

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:
        """End the threads; requests under way are answered, for at most `timeout` seconds each."""
        ended = [each.shutdown(cancel_pending, timeout) for each in (self._all, self._first)]
        return all(ended)
