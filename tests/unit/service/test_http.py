from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from compactord.errors import UsageError
from compactord.service.http import THREADS, HttpServer, PageResponse, Patience, Request
from tests.sampling import examples
from tests.unit.service.http_client import connect, get, parse, send, serving

DAY_S = 86_400
BRIEF = Patience(request_s=1, answer_s=1, idle_s=1)


def echo(request: Request) -> PageResponse:
    """What arrived; with `?size=` so many bytes of it, and a crash at `/crash`."""
    if request.path == "/crash":
        raise RuntimeError("secret-in-a-message")
    size = int(request.query.get("size", "0"))
    body = b"x" * size or json.dumps([request.path, dict(request.query)]).encode()
    return PageResponse(status=200, content_type="text/x-echo", body=body)


@pytest.fixture(scope="module")
def server():
    with serving(echo) as running:
        yield running


def test_path_and_query_arrive_decoded(server: HttpServer) -> None:
    reply = get(server, "/t%C3%A4bles/a%20b?n=%C3%BC+1&n=2&empty=")
    assert json.loads(reply.body) == ["/täbles/a b", {"n": "2", "empty": ""}]
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/x-echo"


def test_head_is_get_without_the_body(server: HttpServer) -> None:
    whole, head = get(server, "/a"), get(server, "/a", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"] != "0"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_but_reading_is_allowed(server: HttpServer, method: str) -> None:
    reply = get(server, "/a", "Content-Length: 0", method=method)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD"


def test_every_answer_tells_browsers_to_trust_nothing(server: HttpServer) -> None:
    for path in ("/a", "/crash", "/%ff"):
        headers = get(server, path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_a_page_brings_its_own_policy() -> None:
    policy = "default-src 'none'; script-src 'sha256-abc'"
    page = PageResponse(status=200, content_type="text/html", body=b"<p>", security_policy=policy)
    with serving(lambda request: page) as running:
        assert get(running, "/").headers["content-security-policy"] == policy


def test_a_crash_is_told_to_the_log_and_not_to_the_client(server: HttpServer) -> None:
    with capture_logs() as logs:
        reply = get(server, "/crash")
    assert reply.status == 500
    assert json.loads(reply.body) == {"error": "internal error, see the log"}
    (told,) = [log for log in logs if log["event"] == "http_request_failed"]
    assert told["exc_info"], "with its stack"
    assert get(server, "/a").status == 200


@pytest.mark.parametrize(
    ("accepted", "is_compressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("deflate, gzip ; q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.00", False),
        ("br", False),
        ("", False),
    ],
)
def test_large_answers_are_compressed_for_those_who_take_it(
    server: HttpServer, accepted: str, *, is_compressed: bool
) -> None:
    reply = get(server, "/?size=5000", f"Accept-Encoding: {accepted}")
    assert ("content-encoding" in reply.headers) == is_compressed
    assert (gzip.decompress(reply.body) if is_compressed else reply.body) == b"x" * 5000
    assert reply.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("accepted", ["", "gzip"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_answer_is_sent_while_it_is_made(accepted: str, method: str) -> None:
    made: list[int] = []

    def chunks() -> Iterator[bytes]:
        for number in range(100):
            made.append(number)
            yield str(number).encode() * 1000

    answer = lambda _: PageResponse(status=200, content_type="a/b", body=chunks())  # noqa: E731
    with serving(answer) as server:
        reply = get(server, "/", f"Accept-Encoding: {accepted}", method=method)
    body = gzip.decompress(reply.body) if accepted and method == "GET" else reply.body
    whole = b"".join(str(number).encode() * 1000 for number in range(100))
    assert body == (whole if method == "GET" else b"")
    assert "content-length" not in reply.headers
    assert len(made) == (100 if method == "GET" else 0)


def test_small_answers_are_not_compressed(server: HttpServer) -> None:
    assert "content-encoding" not in get(server, "/", "Accept-Encoding: gzip").headers


@pytest.mark.parametrize("path", ["/%ff", "/a%C3", "/%E2%82"])
def test_a_path_that_is_no_text_is_refused(server: HttpServer, path: str) -> None:
    reply = get(server, path)
    assert (reply.status, json.loads(reply.body)) == (400, {"error": "the path is not UTF-8"})


def test_broken_percent_signs_are_just_text(server: HttpServer) -> None:
    assert json.loads(get(server, "/%zz%?a=%zz").body) == ["/%zz%", {"a": "%zz"}]


def test_a_query_has_few_fields(server: HttpServer) -> None:
    assert get(server, "/?" + "&".join(f"f{i}=1" for i in range(16))).status == 200
    assert get(server, "/?" + "&".join(f"f{i}=1" for i in range(17))).status == 400


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % 9000 + b"a" * 9000, 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
    ],
    ids=[
        *("large header", "long path", "large body", "negative length", "large chunk"),
        *("no chunk", "unknown coding", "no request", "no header"),
    ],
)
def test_what_is_too_large_or_no_http_is_refused(
    server: HttpServer, request_bytes: bytes, status: int
) -> None:
    reply = parse(send(server, request_bytes))
    assert reply.status == status
    assert b"Traceback" not in reply.body
    assert get(server, "/a").status == 200


def test_several_requests_share_a_connection(server: HttpServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=180)
    try:
        connection.connect()
        opened = connection.sock
        for _ in range(3):
            connection.request("GET", "/again")
            assert connection.getresponse().read() == b'["/again", {}]'
            assert connection.sock is opened
    finally:
        connection.close()


requests = st.binary(max_size=400) | st.builds(
    lambda method, path, header, body: (
        b"%s %s HTTP/1.1\r\n%s\r\n\r\n%s" % (method, path, header, body)
    ),
    st.sampled_from([b"GET", b"HEAD", b"POST", b"get", b"", b"\x00"]),
    st.binary(max_size=60) | st.sampled_from([b"/", b"/../../etc/passwd", b"//h/x", b"http://x/"]),
    st.binary(max_size=60) | st.sampled_from([b"Content-Length: 9", b"Expect: 100-continue"]),
    st.binary(max_size=40),
)


@given(request=requests)
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_bytes_are_withstood(server: HttpServer, request: bytes) -> None:
    reply = send(server, request)
    assert reply == b"" or reply.startswith(b"HTTP/1.")
    assert b"Traceback" not in reply
    assert b"Internal" not in reply


def test_clients_that_trickle_are_cut_off_and_hold_up_nobody() -> None:
    with serving(echo, BRIEF) as running:
        slow = [connect(running) for _ in range(20)]
        try:
            started = time.monotonic()
            for connection in slow:
                connection.sendall(b"GET / HTTP/1.1\r\nX-")
            assert get(running, "/a").status == 200
            # Not after one another, a second each.
            assert time.monotonic() - started < 10
            assert all(_is_cut_off(connection, trickle=b"a") for connection in slow)
        finally:
            for connection in slow:
                connection.close()


def _is_cut_off(connection: socket.socket, trickle: bytes) -> bool:
    """Whether the server closes although a byte arrives every now and then."""
    connection.settimeout(0.2)
    for _ in range(900):
        try:
            if trickle:
                connection.sendall(trickle)
            if connection.recv(1 << 16) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_silent_connections_are_closed() -> None:
    with serving(echo, BRIEF) as running, connect(running) as connection:
        assert _is_cut_off(connection, trickle=b"")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-"], ids=["silent", "trickles"])
def test_connections_are_closed_although_the_wall_clock_was_set_back(sent: bytes) -> None:
    with serving(echo, BRIEF) as running, connect(running) as connection:
        connection.sendall(b"GET /a HTTP/1.1\r\n\r\n")
        assert connection.recv(1 << 16)
        # What waitress noted by the clock as it was before.
        server = running._server
        assert server is not None
        server.next_channel_cleanup = time.time() + DAY_S
        for channel in server.active_channels.values():
            channel.last_activity = time.time() + DAY_S
        if sent:
            connection.sendall(sent)
        assert _is_cut_off(connection, trickle=sent[-1:])


def test_a_client_that_hardly_takes_its_answer_is_cut_off() -> None:
    with serving(echo, BRIEF) as running, connect(running) as connection:
        connection.sendall(b"GET /?size=60000000 HTTP/1.1\r\n\r\n")
        taken = 0
        for _ in range(30):
            taken += len(connection.recv(1))
            time.sleep(0.1)
        # What the kernels hold still arrives, the rest never does.
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 20):
                taken += len(piece)
        assert taken < 60_000_000
        assert get(running, "/a").status == 200


def test_clients_that_stall_while_their_answers_are_made_hold_up_nobody() -> None:
    def answer(request: Request) -> PageResponse:
        size = int(request.query.get("mib", "0"))
        return replace(echo(request), body=itertools.repeat(bytes(1 << 20), size))

    with serving(answer) as running, contextlib.ExitStack() as stalled:
        for _ in range(THREADS):
            connection = stalled.enter_context(connect(running))
            connection.sendall(b"GET /?mib=30 HTTP/1.1\r\n\r\n")
        started = time.monotonic()
        assert get(running, "/").status == 200
        assert time.monotonic() - started < 8


def test_more_connections_than_fit_do_not_keep_others_out_for_long() -> None:
    with serving(echo) as running:
        idle = [connect(running) for _ in range(300)]
        try:
            started = time.monotonic()
            assert get(running, "/a").status == 200
            assert time.monotonic() - started < 8
        finally:
            for connection in idle:
                connection.close()


def test_a_port_in_use_is_named_with_what_to_do(server: HttpServer) -> None:
    with pytest.raises(UsageError, match=rf"127\.0\.0\.1:{server.port} .*in use.*service\.http\."):
        HttpServer(echo, host="127.0.0.1", port=server.port)


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("no such host", 0), ("127.0.0.1", 70_000)]
)
def test_an_address_that_cannot_be_had_is_a_usage_error(host: str, port: int) -> None:
    with pytest.raises(UsageError, match="cannot serve HTTP at"):
        HttpServer(echo, host=host, port=port)


def test_a_port_is_free_again_at_once_after_a_stop() -> None:
    with serving(echo) as first:
        port = first.port
        assert get(first, "/a").status == 200
    again = HttpServer(echo, host="127.0.0.1", port=port)
    try:
        assert get(again, "/a").status == 200
    finally:
        again.stop()


def test_it_stops_beside_open_connections_and_twice() -> None:
    with serving(echo) as running:
        half = connect(running)
        half.sendall(b"GET / HTTP/1.1\r\n")
        assert get(running, "/a").status == 200
        started = time.monotonic()
        running.stop()
        assert time.monotonic() - started < 8
        assert half.recv(10) == b""
        half.close()


def test_a_request_under_way_is_answered_before_it_stops() -> None:
    arrived: list[float] = []

    def slow(request: Request) -> PageResponse:
        arrived.append(time.monotonic())
        time.sleep(0.3)
        return PageResponse(status=200, content_type="text/plain", body=b"late")

    with serving(slow) as running, connect(running) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while not arrived:
            time.sleep(0.01)
        running.stop()
        assert parse(connection.recv(1 << 16)).body == b"late"
