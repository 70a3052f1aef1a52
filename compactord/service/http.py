"""The HTTP server: requests, bounds, fair shares of clients.

`service/site.py` maps paths to answers. Requests are GET or HEAD; no file is served. Headers,
bodies, connections, threads and the time of a client are bounded.

waitress itself reads thousands of pipelined requests at once, and queues all requests in one line.
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

# Requests that may wait for a thread; more are refused, so connections stay free for probes.
WAITING_MAX = 64


class _OneRequest(HTTPRequestParser):  # type: ignore[misc]
    """Drops requests that a client sends before it has the answer to its first.

    The connection then closes with the answer, so the client sends the rest again.
    """

    def received(self, data: bytes) -> int:
        used: int = super().received(data)
        if not self.completed or self.empty or used == len(data):
            return used
        self.headers["CONNECTION"] = "close"
        return len(data)


class Channel(HTTPChannel):  # type: ignore[misc]
    """A connection with one request at a time."""

    parser_class = _OneRequest


class _Overloaded(Error):  # type: ignore[misc]
    code = HTTPStatus.SERVICE_UNAVAILABLE
    reason = HTTPStatus.SERVICE_UNAVAILABLE.phrase


class Lanes:
    """A dispatcher of waitress: `urgent` paths and refusals have a thread of their own."""

    def __init__(self, urgent: Collection[str], *, threads: int) -> None:
        self._urgent = urgent
        self._all, self._first = ThreadedTaskDispatcher(), ThreadedTaskDispatcher()
        self._all.set_thread_count(threads)
        self._first.set_thread_count(1)

    def add_task(self, channel: Channel) -> None:
        """Queue the complete request of a connection. Thread-safe."""
        request = channel.requests[0]
        is_urgent = request.error is not None or request.path in self._urgent
        if not is_urgent and len(self._all.queue) >= WAITING_MAX:
            request.error = _Overloaded("too many requests wait for an answer: try again later")
            is_urgent = True
        (self._first if is_urgent else self._all).add_task(channel)

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> bool:
        """End the threads; waits at most `timeout` seconds for each running request."""
        ended = [each.shutdown(cancel_pending, timeout) for each in (self._all, self._first)]
        return all(ended)


HEADER_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 4 << 10
CONNECTIONS_MAX = 256
# Beyond this number the server closes connections that it waits for, oldest first; the rest is
# for probes.
_CROWD = 192
THREADS = 4
JSON = "application/json"
_FIELDS_MAX = 16
_GZIP_FROM_BYTES = 1 << 10
# The largest window of zlib, with gzip's header.
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_STOP_S = 5
# Responses are spooled to disk: a few slow clients must not hold all threads.
_WAITING_BYTES_MAX = 1 << 30
# Interval of the search for slow clients.
_CHECK_S = 1.0
# Interval of waitress's own search, by the wall clock.
_NEVER_S = 1 << 40
_READ_BYTES = 64 << 10
_PORT_MAX = 65_535

_log = structlog.get_logger(__name__)


# Answers that are not pages run no script and load no resource.
_BARE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_SECURITY_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResponse:
    """An answer. The `security_policy` (CSP) of a page names its style and script.

    A body that is an iterator is streamed and never held as a whole.
    """

    status: int
    content_type: str
    body: bytes | Iterator[bytes]
    security_policy: str = _BARE_POLICY


class Request(NamedTuple):
    """`path` is decoded; `query` holds the last value of a repeated field."""

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

    The limits hold for whole requests and answers, even if bytes arrive slowly.
    """

    request_s: float = 10
    answer_s: float = 30
    idle_s: float = 60


class _SlowClients:
    """Closes connections whose clients are too slow, by the monotonic clock.

    waitress closes only silent ones, by the wall clock: after the clock was set back, it closes
    none for that long.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        # By connection: what the server waited for at the last check, and since when.
        self._awaited: dict[Any, tuple[object, float]] = {}

    def make_room(self, server: Any) -> None:
        """Close the oldest connections that the server waits for, while too many are open."""
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
        """The awaited thing (a request's rest, a response's receipt, activity), and its timeout."""
        if channel.request is not None:
            return channel.request, self._patience.request_s
        if channel.total_outbufs_len:
            return "answer", self._patience.answer_s
        return channel.last_activity, self._patience.idle_s


def _awaited(server: Any) -> Iterator[Any]:
    """Connections whose clients do not wait for the server, oldest first."""
    for channel in tuple(server.active_channels.values()):
        if not channel.requests or channel.request is not None or channel.total_outbufs_len:
            yield channel


class HttpServer:
    """A server at `port`, in threads of its own. It cannot be used after `stop`."""

    def __init__(
        self,
        answer: Answer,
        *,
        host: str,
        port: int,
        urgent: Collection[str] = (),
        patience: Patience | None = None,
    ) -> None:
        """Listen and answer; `port` 0 picks a free one. `urgent` paths do not queue behind others.

        Raises `UsageError` if the address cannot be bound.
        """
        self._slow_clients = _SlowClients(patience or Patience())
        self._sockets: dict[int, Any] = {}
        self._accepts = self._is_open = True
        # Bind before waitress makes threads and pipes: it would leak them if binding failed.
        listener = _listen(host, port)
        self.port = listener.getsockname()[1]
        self._server: Any = create_server(
            application(answer),
            map=self._sockets,
            sockets=[listener],
            _dispatcher=Lanes(urgent, threads=THREADS),
            ident="",
            # A client loses a refusal if its bytes are still unread when the connection closes.
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
        """The loop that owns all sockets."""
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
        # Both may have been requested at once.
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
        # Close the wake-up pipe last, so no thread writes to a reused descriptor.
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
            raise OverflowError(f"the largest port is {_PORT_MAX}")
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Only `listen` finds another process that bound the same port the same way.
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
