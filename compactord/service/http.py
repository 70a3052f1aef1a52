"""The HTTP server: requests, bounds, fair shares of clients.

`service/site.py` maps paths to answers. Requests are GET or HEAD; no file is served. Headers,
bodies, connections, threads and the time of a client are bounded.

waitress reads thousands of pipelined requests at once, and all requests wait in one line.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import structlog
from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.task import ThreadedTaskDispatcher
from waitress.utilities import Error

from compactord.errors import UsageError

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


HEADER_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 4 << 10
CONNECTIONS_MAX = 256
# More are closed that the server awaits, those that were opened first; the rest is for probes.
_CROWD = 192
THREADS = 4
JSON = "application/json"
_FIELDS_MAX = 16
_GZIP_FROM_BYTES = 1 << 10
# The largest window of zlib, with gzip's header.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_STOP_S = 5
# What waits for its client is on disk, so that no thread does: a few stalled ones would stop all.
_WAITING_BYTES_MAX = 1 << 30
# How often slow clients are searched for.
_CHECK_S = 1.0
# Of waitress's own search, by the wall clock.
_NEVER_S = 1 << 40
_READ_BYTES = 64 << 10
_PORT_MAX = 65_535

_log = structlog.get_logger(__name__)


# Answers other than pages run nothing and fetch nothing.
_BARE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SECURITY_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResponse:
    """An answer. A page says in `security_policy` (CSP) which style and script of it may run.

    A body that is an iterator is sent while it is made, and never held as a whole.
    """

    status: int
    content_type: str
    body: bytes | Iterator[bytes]
    security_policy: str = _BARE_POLICY


class Request(NamedTuple):
    """`path` is decoded; of a field that is given twice, `query` holds the last value."""

    path: str
    query: Mapping[str, str]
    accept: str


Answer = Callable[[Request], PageResponse]
Environ = Mapping[str, Any]


class StartResponse(Protocol):
    def __call__(self, status: str, headers: list[tuple[str, str]], /) -> object: ...


class BadRequest(Exception):
    """A malformed request; the text is for the client."""


def error_response(status: int, message: str) -> PageResponse:
    """`{"error": message}`."""
    body = json.dumps({"error": message}).encode() + b"\n"
    return PageResponse(status=status, content_type=JSON, body=body)


def application(answer: Answer) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    """The WSGI application around `answer`: methods, decoding, failures, headers, compression."""

    def serve(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        response = _respond(answer, environ, method)
        headers = [("Content-Security-Policy", response.security_policy), *_SECURITY_HEADERS]
        body = response.body
        chunks: Iterable[bytes] = [body] if isinstance(body, bytes) else body
        if not isinstance(body, bytes) or len(body) >= _GZIP_FROM_BYTES:
            headers.append(("Vary", "Accept-Encoding"))
            if accepts(environ.get("HTTP_ACCEPT_ENCODING", ""), "gzip"):
                chunks = _compressed(chunks)
                headers.append(("Content-Encoding", "gzip"))
        headers.append(("Content-Type", response.content_type))
        if isinstance(body, bytes):
            chunks = [whole := b"".join(chunks)]
            headers.append(("Content-Length", str(len(whole))))
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", headers)
        return [] if method == "HEAD" else chunks

    return serve


def _compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    compressor = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
    for chunk in chunks:
        yield compressor.compress(chunk)
    yield compressor.flush()


def _respond(answer: Answer, environ: Environ, method: str) -> PageResponse:
    if method not in ("GET", "HEAD"):
        return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served")
    try:
        return answer(_request(environ))
    except BadRequest as error:
        return error_response(HTTPStatus.BAD_REQUEST, str(error))
    except Exception:  # noqa: BLE001 - a client gets an answer, never a stack
        _log.error("http_request_failed", path=environ["PATH_INFO"], exc_info=True)
        return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error, see the log")


def _request(environ: Environ) -> Request:
    # WSGI passes bytes as Latin-1 text.
    try:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8")
        pairs = parse_qsl(
            environ["QUERY_STRING"], keep_blank_values=True, max_num_fields=_FIELDS_MAX
        )
    except UnicodeError as error:
        raise BadRequest("the path is not UTF-8") from error
    except ValueError as error:
        raise BadRequest(f"more than {_FIELDS_MAX} fields in the query") from error
    return Request(path=path, query=dict(pairs), accept=environ.get("HTTP_ACCEPT", ""))


def accepts(header: str, wanted: str) -> bool:
    """Whether a header like Accept names a format or coding, and not with a quality of 0."""
    for choice in header.lower().split(","):
        named, *parameters = (part.replace(" ", "") for part in choice.split(";"))
        if named == wanted:
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a client may take to send its request, to receive the answer, to stay silent.

    They hold however slowly bytes arrive.
    """

    request_s: float = 10
    answer_s: float = 30
    idle_s: float = 60


class _SlowClients:
    """Closes connections that the server has awaited for too long, by the monotonic clock.

    waitress closes silent ones alone, by the wall clock: after that was set back, none for as long.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        # For each connection what was awaited from it at the last check, and since when.
        self._awaited: dict[Any, tuple[object, float]] = {}

    def make_room(self, server: Any) -> None:
        """While too many connections are open: close the oldest of those that are awaited."""
        excess = len(server.active_channels) - _CROWD
        if excess > 0:
            for channel in itertools.islice(_awaited(server), excess):
                channel.handle_close()

    def close(self, server: Any, now_s: float) -> None:
        awaited = {}
        for channel in _awaited(server):
            what, limit_s = self._awaits(channel)
            before, since_s = self._awaited.get(channel, (None, now_s))
            if before != what:
                since_s = now_s
            if now_s - since_s > limit_s:
                channel.handle_close()
            else:
                awaited[channel] = (what, since_s)
        self._awaited = awaited

    def _awaits(self, channel: Any) -> tuple[object, float]:
        """The rest of a request, that an answer is taken, or any activity; and for how long."""
        if channel.request is not None:
            return channel.request, self._patience.request_s
        if channel.total_outbufs_len:
            return "answer", self._patience.answer_s
        return channel.last_activity, self._patience.idle_s


def _awaited(server: Any) -> Iterator[Any]:
    """The connections whose clients do not wait for the server, in the order of their opening."""
    for channel in tuple(server.active_channels.values()):
        if not channel.requests or channel.request is not None or channel.total_outbufs_len:
            yield channel


class HttpServer:
    """A server at `port`, in threads of its own. Once `stop` has been called it is of no use."""

    def __init__(
        self,
        answer: Answer,
        *,
        host: str,
        port: int,
        urgent: Collection[str] = (),
        patience: Patience | None = None,
    ) -> None:
        """Listen and answer; `port` 0 takes a free one. Requests for `urgent` paths wait for none.

        Raises `UsageError` when the address cannot be had.
        """
        self._slow_clients = _SlowClients(patience or Patience())
        self._sockets: dict[int, Any] = {}
        self._accepts = self._is_open = True
        # Bind before waitress makes threads and pipes, which it would leave open if binding failed.
        listener = _listen(host, port)
        self.port = listener.getsockname()[1]
        self._server: Any = create_server(
            application(answer),
            map=self._sockets,
            sockets=[listener],
            _dispatcher=Lanes(urgent, threads=THREADS),
            ident="",
            # A refusal is lost when the client's bytes are still unread at the close.
            recv_bytes=_READ_BYTES,
            connection_limit=CONNECTIONS_MAX,
            max_request_header_size=HEADER_BYTES_MAX,
            max_request_body_size=BODY_BYTES_MAX,
            outbuf_high_watermark=_WAITING_BYTES_MAX,
            log_socket_errors=False,
            channel_timeout=_NEVER_S,
        )
        self._server.channel_class = Channel
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """The loop to which all sockets belong."""
        server, next_check_s = self._server, 0.0
        while self._is_open:
            # select() fails for descriptors above 1023, and an engine holds many.
            wasyncore.loop(timeout=_CHECK_S, use_poll=True, map=self._sockets, count=1)
            if not self._accepts:
                _close_listener(server)
            self._slow_clients.make_room(server)
            if (now_s := time.monotonic()) >= next_check_s:
                next_check_s = now_s + _CHECK_S
                self._slow_clients.close(server, now_s)
        # Both may have been asked for at once.
        _close_listener(server)
        for channel in tuple(server.active_channels.values()):
            channel.handle_close()

    def stop(self) -> None:
        """Finish requests in progress, for at most `_STOP_S`; then close and end all threads."""
        if not self._accepts:
            return
        self._accepts = False
        self._server.pull_trigger()
        self._server.task_dispatcher.shutdown(timeout=_STOP_S)
        self._is_open = False
        self._server.pull_trigger()
        self._thread.join(_STOP_S)
        # The pipe that wakes the loop is closed last: nobody may write to a reused descriptor.
        self._server.trigger.close()


def _close_listener(server: Any) -> None:
    """Accept no new connection; open ones continue. Only the loop calls this."""
    if server.accepting:
        server.accepting = False
        server.del_channel()
        server.socket.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port <= _PORT_MAX:
            raise OverflowError(f"ports end at {_PORT_MAX}")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Only here is another process found that bound the same port the same way.
            listener.listen()
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"cannot serve HTTP at {host}:{port} ({reason}): end the process that listens there, "
            "or choose another service.http.port or service.http.bind"
        ) from error
    return listener
