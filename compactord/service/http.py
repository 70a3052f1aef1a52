"""The HTTP server: which requests it answers, within which bounds, how it starts and stops.

`service/site.py` maps paths to answers. Requests are GET or HEAD; no file is served. Headers,
bodies, connections, threads and the time of a client are bounded.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import structlog
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from compactord.errors import UsageError

HEADER_BYTES_MAX = 16 << 10
BODY_BYTES_MAX = 4 << 10
CONNECTIONS_MAX = 256
THREADS = 4
JSON = "application/json"
_FIELDS_MAX = 16
_GZIP_FROM_BYTES = 1 << 10
_STOP_S = 5
# How often slow clients are searched for.
_LOOK_S = 1.0
_READ_BYTES = 64 << 10
_PORT_MAX = 65_535

_log = structlog.get_logger(__name__)


# Answers other than pages run nothing and fetch nothing.
_BARE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResponse:
    """An answer. A page says in `security_policy` (CSP) which style and script of it may run."""

    status: int
    content_type: str
    body: bytes
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
        headers = _security_headers(response.security_policy)
        body = response.body
        if len(body) >= _GZIP_FROM_BYTES:
            headers.append(("Vary", "Accept-Encoding"))
            if _accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", "")):
                body = gzip.compress(body, compresslevel=1, mtime=0)
                headers.append(("Content-Encoding", "gzip"))
        headers.append(("Content-Type", response.content_type))
        headers.append(("Content-Length", str(len(body))))
        if response.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", headers)
        return [b"" if method == "HEAD" else body]

    return serve


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


def _accepts_gzip(header: str) -> bool:
    for choice in header.lower().split(","):
        coding, *parameters = (part.replace(" ", "") for part in choice.split(";"))
        if coding == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


def _security_headers(policy: str) -> list[tuple[str, str]]:
    return [
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", "no-store"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a client may take to send its request, to receive the answer, to stay silent.

    They hold however slowly bytes arrive. When no further connection fits, all are `crowded_s`.
    """

    request_s: float = 10
    answer_s: float = 30
    idle_s: float = 60
    crowded_s: float = 1


class _Waiting(NamedTuple):
    """What the server has awaited from a connection since `since_s`, by the monotonic clock.

    `what` is a request, None for the rest of an answer, or the time of the last activity.
    """

    what: object
    since_s: float


class _BoundedServer(TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """waitress closes silent connections; this also closes slow ones, by the monotonic clock.

    waitress uses the wall clock; after that was set back it would close nothing for as long.
    """

    def __init__(self, *args: Any, patience: Patience, **kwargs: Any) -> None:
        self._patience = patience
        self._waiting: dict[Any, _Waiting] = {}
        self._next_look_s = 0.0
        super().__init__(*args, **kwargs)

    def readable(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_S
            self._close_slow(now_s)
        return bool(super().readable())

    def maintenance(self, now: float) -> None:
        """Does nothing: `readable` closes what waitress would close by the wall clock."""

    def _close_slow(self, now_s: float) -> None:
        """Close connections that the server has awaited for too long."""
        waiting: dict[Any, _Waiting] = {}
        for channel in tuple(self.active_channels.values()):
            what = channel.request
            if what is None and not channel.total_outbufs_len:
                if channel.requests:
                    # The client waits for the server.
                    continue
                what = channel.last_activity
            before = self._waiting.get(channel)
            if before is None or before.what != what:
                before = _Waiting(what, now_s)
            if now_s - before.since_s > self._limit_s(channel):
                channel.handle_close()
            else:
                waiting[channel] = before
        self._waiting = waiting

    def _limit_s(self, channel: Any) -> float:
        if self.in_connection_overflow:
            return self._patience.crowded_s
        if channel.request is not None:
            return self._patience.request_s
        return self._patience.answer_s if channel.total_outbufs_len else self._patience.idle_s

    def close_listener(self) -> None:
        """Accept no new connection; open ones continue."""
        self.del_channel()
        self.socket.close()

    def close_connections(self) -> None:
        """Close all connections, which ends the loop, and wake writers that wait."""
        for channel in tuple(self.active_channels.values()):
            channel.handle_close()
        self.trigger.close()

    def end(self) -> None:
        """Make the loop close all connections; for any thread.

        The lock keeps the loop from closing the pipe between the registration of the call and the
        write that wakes the loop; in `pull_trigger` it could, when something else has woken it.
        """
        with self.trigger.lock:
            self.trigger.thunks.append(self.close_connections)
            self.trigger._physical_pull()


class HttpServer:
    """A server in threads of its own. `start` and `stop` are called once each, by one thread."""

    def __init__(
        self, answer: Answer, *, host: str, port: int, patience: Patience | None = None
    ) -> None:
        """`port` 0 takes a free one: ask `port` after `start`."""
        self._answer = answer
        self._host = host
        self._port = port
        self._patience = patience or Patience()
        self._dispatcher = ThreadedTaskDispatcher()
        self._server: _BoundedServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> None:
        """Listen and answer. Raises `UsageError` when the address cannot be had."""
        # Bind before waitress makes threads and pipes, which it would leave open if binding failed.
        listener = _listen(self._host, self._port)
        self._port = listener.getsockname()[1]
        settings = Adjustments(
            sockets=[listener],
            ident="",
            # A refusal is lost when the client's bytes are still unread at the close.
            recv_bytes=_READ_BYTES,
            connection_limit=CONNECTIONS_MAX,
            max_request_header_size=HEADER_BYTES_MAX,
            max_request_body_size=BODY_BYTES_MAX,
            log_socket_errors=False,
            # select() fails for descriptors above 1023, and an engine holds many.
            asyncore_use_poll=True,
        )
        self._dispatcher.set_thread_count(THREADS)
        address = (listener.family, listener.type, listener.proto, listener.getsockname())
        self._server = _BoundedServer(
            application(self._answer),
            {},
            patience=self._patience,
            dispatcher=self._dispatcher,
            adj=settings,
            sockinfo=address,
            _sock=listener,
            bind_socket=False,
        )
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish requests in progress, for at most `_STOP_S`; then close and end all threads."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        self._server = None
        # Sockets belong to the server's loop, so the loop closes them. The pipe that wakes it is
        # closed last: a thread that still answers would write to a reused descriptor.
        server.trigger.pull_trigger(server.close_listener)
        self._dispatcher.shutdown(timeout=_STOP_S)
        server.end()
        thread.join(_STOP_S)


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
