"""Probes are answered at once, whatever other clients do."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from compactord.service.http import (
    CONNECTIONS_MAX,
    THREADS,
    WAITING_MAX,
    HttpServer,
    PageResponse,
    Request,
)
from compactord.service.site import PROBES
from tests.unit.service.http_client import connect, get, parse, serving

_SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
_SLOW_S = 0.3
# A probe takes milliseconds; all that is asked for below takes much longer, one after the other.
_PROBE_S = 3.0


def _answer(request: Request) -> PageResponse:
    if request.path not in PROBES:
        time.sleep(_SLOW_S)
    return PageResponse(status=200, content_type="text/plain", body=request.path.encode())


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with serving(_answer, urgent=PROBES) as running:
        yield running


@pytest.fixture
def clients(server: HttpServer) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections."""
    with contextlib.ExitStack() as opened:

        def open_one() -> socket.socket:
            return opened.enter_context(connect(server))

        yield open_one


@pytest.mark.parametrize(
    ("count", "sent"),
    [
        (1, 3_000 * _SLOW),
        (40, 3_000 * _SLOW),
        (2 * CONNECTIONS_MAX, _SLOW),
        (2 * CONNECTIONS_MAX, b""),
        (2 * CONNECTIONS_MAX, b"GET /slow HTTP/1.1\r\nX-"),
    ],
    ids=["pipelined", "many pipelined", "many", "idle", "half sent"],
)
def test_probes_wait_for_no_other_client(
    server: HttpServer, clients: Callable[[], socket.socket], count: int, sent: bytes
) -> None:
    for _ in range(count):
        # The server may refuse or close it, and not read what does not matter.
        connection = clients()
        connection.setblocking(False)
        with contextlib.suppress(ConnectionError, BlockingIOError):
            connection.send(sent)
    for path in sorted(PROBES):
        began = time.monotonic()
        assert get(server, path).body == path.encode()
        assert time.monotonic() - began < _PROBE_S


def test_of_pipelined_requests_the_first_is_answered_and_the_client_is_told(
    server: HttpServer,
) -> None:
    with connect(server) as connection:
        connection.sendall(3 * _SLOW)
        reply = parse(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    assert (reply.status, reply.body) == (200, b"/slow")
    assert reply.headers["connection"] == "close"


def test_requests_that_would_wait_for_long_are_refused(
    server: HttpServer, clients: Callable[[], socket.socket]
) -> None:
    connections = [clients() for _ in range(THREADS + WAITING_MAX + 20)]
    for connection in connections:
        connection.sendall(_SLOW)
    replies = [parse(connection.recv(1 << 16)) for connection in connections]
    refused = [reply for reply in replies if reply.status == 503]
    # A thread may not have taken its first request yet when the last one comes.
    assert 0 < len(refused) <= 20 + THREADS
    assert b"try again later" in refused[0].body
    assert [reply.status for reply in replies].count(200) == len(replies) - len(refused)
