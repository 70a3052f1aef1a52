"""The proxy before a plain HTTP server, used by a plain HTTP client."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.tools.store_faults import Fault, How, Request, every_nth, from_nth, kind_of, nth
from tests.tools.store_proxy import ProxyProcess, StoreProxy

# More than any buffer between the two.
_LARGE = bytes(range(256)) * 40_000


class _Store(ThreadingHTTPServer):
    """Keeps bodies by path; `did` are the methods of what took effect."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.did: list[str] = []
        self.hosts: set[str] = set()
        self.connections = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Store

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, *_: object) -> None: ...

    def do_PUT(self) -> None:
        self.server.objects[self.path] = self._body()
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(self.server.objects[self.path], chunked="chunked" in self.path)

    do_HEAD = do_GET  # noqa: N815 - the name is the library's

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self._answer(b"", status=204)

    def handle_expect_100(self) -> bool:
        if "refused" not in self.path:
            return super().handle_expect_100()
        self.send_error(403)
        return False

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes, *, status: int = 200, chunked: bool = False) -> None:
        self.server.did.append(self.command)
        self.server.hosts.add(self.headers["Host"])
        self.send_response(status)
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in filter(None, (body[:7], body[7:])):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def store() -> Iterator[_Store]:
    with _Store() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(store: _Store) -> Iterator[StoreProxy]:
    with StoreProxy(("127.0.0.1", store.server_port)) as running:
        yield running


class _Client(http.client.HTTPConnection):
    """Sends requests to the proxy on one connection."""

    def __init__(self, proxy: StoreProxy | ProxyProcess, timeout: float = 30) -> None:
        super().__init__("127.0.0.1", proxy.port, timeout=timeout)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        self.request(method, path, body, names)  # type: ignore[arg-type]
        answer = self.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("body", [b"", b"small", _LARGE], ids=["empty", "small", "large"])
def test_bodies_pass_whole_and_connections_are_kept(
    store: _Store, proxy: StoreProxy, body: bytes
) -> None:
    client = _Client(proxy)
    for path in ("/a", "/chunked/b"):
        assert client.ask("PUT", path, body) == (200, b"")
        assert client.ask("GET", path) == (200, body)
    assert client.ask("PUT", "/pieces", iter([body, b"!"])) == (200, b"")
    assert client.ask("HEAD", "/pieces") == (200, b"")
    assert client.ask("GET", "/pieces") == (200, body + b"!")
    assert client.ask("DELETE", "/pieces") == (204, b"")
    assert sorted(store.objects) == ["/a", "/chunked/b"]
    assert store.connections == 1
    assert store.hosts == {f"127.0.0.1:{proxy.port}"}, "a signature covers it"
    client.close()


def test_requests_are_counted_by_what_they_do(proxy: StoreProxy) -> None:
    client = _Client(proxy)
    client.ask("PUT", "/a", b"x")
    client.ask("PUT", "/a", b"x", If_None_Match="*")
    for _ in range(3):
        client.ask("GET", "/a")
    assert proxy.counts == {"put": 1, "create": 1, "get": 3}
    assert [request.method for request in proxy.log] == ["PUT", "PUT", "GET", "GET", "GET"]
    proxy.reset()
    assert (proxy.counts, proxy.log) == ({}, [])
    client.close()


@pytest.mark.parametrize(
    ("method", "target", "headers", "kind"),
    [
        ("GET", "/b/k", {}, "get"),
        ("GET", "/b?list-type=2&prefix=k%2F", {}, "list"),
        ("GET", "/b/?uploads&prefix=k", {}, "list_uploads"),
        ("POST", "/b/k?uploads", {}, "start_upload"),
        ("PUT", "/b/k?partNumber=2&uploadId=u", {}, "upload_part"),
        ("POST", "/b/k?uploadId=u", {}, "complete_upload"),
        ("DELETE", "/b/k?uploadId=u", {}, "abort_upload"),
        ("GET", "/b/k?uploadId=u", {}, "list_parts"),
        ("POST", "/b?delete", {}, "delete_many"),
        ("PUT", "/b/k", {"x-amz-copy-source": "/b/l"}, "copy"),
        ("PUT", "/b/k", {"if-none-match": "*"}, "create"),
        ("PUT", "/b/k?comp=block&blockid=1", {}, "put"),
    ],
)
def test_kinds(method: str, target: str, headers: dict[str, str], kind: str) -> None:
    assert kind_of(method, target, headers) == kind


def test_a_request_may_wait_for_the_store_before_it_sends_its_body(
    store: _Store, proxy: StoreProxy
) -> None:
    def put(path: str) -> list[int]:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=180) as sock:
            head = f"PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue"
            sock.sendall(f"{head}\r\n\r\n".encode())
            stream = sock.makefile("rb")
            statuses = [int(stream.readline().split()[1])]
            if statuses == [100]:
                stream.readline()
                sock.sendall(b"body")
                statuses.append(int(stream.readline().split()[1]))
            return statuses

    assert put("/a") == [100, 200]
    assert put("/refused") == [403]
    proxy.fail(every_nth(1, Fault(how=How.ANSWER)))
    assert put("/b") == [503]
    assert store.objects == {"/a": b"body"}


_LOST = (ConnectionError, http.client.HTTPException, TimeoutError)


@pytest.mark.parametrize("body", [b"small", _LARGE], ids=["small", "large"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("how", [How.CLOSE, How.ANSWER, How.HANG], ids=lambda how: how.name)
def test_a_request_fails_before_or_after_its_effect(
    store: _Store, proxy: StoreProxy, how: How, after: bool, body: bytes
) -> None:
    proxy.fail(nth(2, Fault(how=how, after=after, status=429)))
    client = _Client(proxy, timeout=0.5 if how is How.HANG else 180)
    client.ask("PUT", "/first", b"")
    if how is How.ANSWER:
        status, text = client.ask("PUT", "/second", body)
        assert (status, b"<Code>TooManyRequests</Code>" in text) == (429, True)
    else:
        with pytest.raises(_LOST):
            client.ask("PUT", "/second", body)
        client.close()
    assert store.objects == {"/first": b"", **({"/second": body} if after else {})}
    assert client.ask("PUT", "/third", body) == (200, b"")
    assert [request.target for request in proxy.failed] == ["/second"]
    client.close()


def test_a_gateway_answers_in_words_of_its_own(store: _Store, proxy: StoreProxy) -> None:
    store.objects["/a"] = b"body"
    client = _Client(proxy)
    proxy.fail(nth(1, Fault(how=How.ANSWER, status=404)))
    assert b"<Code>NoSuchKey</Code>" in client.ask("GET", "/a", b"")[1]
    proxy.fail(nth(1, Fault(how=How.ANSWER, status=404, is_foreign=True)))
    assert client.ask("GET", "/a", b"") == (404, b"default backend - 404")
    assert client.ask("GET", "/a", b"") == (200, b"body")
    client.close()


def test_an_answer_may_be_cut_in_the_middle(store: _Store, proxy: StoreProxy) -> None:
    store.objects["/a"] = _LARGE
    proxy.fail(every_nth(1, Fault(how=How.HALF)))
    client = _Client(proxy)
    with pytest.raises(http.client.IncompleteRead) as caught:
        client.ask("GET", "/a")
    assert caught.value.partial == _LARGE[: len(_LARGE) // 2]
    client.close()
    with pytest.raises(_LOST):
        client.ask("PUT", "/b", b"stored")
    assert store.objects["/b"] == b"stored"
    client.close()


@pytest.mark.parametrize(
    ("decide", "failing"),
    [
        (every_nth(3, Fault(how=How.ANSWER)), [3, 6]),
        (nth(3, Fault(how=How.ANSWER)), [3]),
        (from_nth(5, Fault(how=How.ANSWER)), [5, 6, 7]),
        (nth(2, Fault(how=How.ANSWER), lambda request: request.is_mutation), [4]),
    ],
)
def test_which_requests_fail(decide: object, failing: list[int]) -> None:
    methods = ["GET", "PUT", "GET", "PUT", "GET", "PUT", "GET"]
    requests = [Request(n, method, "/", "x") for n, method in enumerate(methods, 1)]
    assert [r.number for r in requests if decide(r) is not None] == failing  # type: ignore[operator]


def test_a_process_of_its_own_delays_and_counts(store: _Store) -> None:
    with ProxyProcess(("127.0.0.1", store.server_port), delay_ms=150) as proxy:
        client = _Client(proxy)
        began = time.monotonic()
        client.ask("PUT", "/a", _LARGE)
        assert time.monotonic() - began >= 0.15
        proxy.delay(0)
        _, body = client.ask("GET", "/a")
        assert hashlib.sha256(body).digest() == hashlib.sha256(_LARGE).digest()
        assert proxy.counts == {"put": 1, "get": 1}
        proxy.reset()
        assert proxy.counts == {}
        client.close()


def test_stopping_cuts_what_hangs(store: _Store) -> None:
    proxy = StoreProxy(("127.0.0.1", store.server_port))
    proxy.fail(every_nth(1, Fault(how=How.HANG)))
    client = _Client(proxy)
    client.request("GET", "/a")
    while not proxy.log:
        time.sleep(0.005)
    proxy.stop()
    with pytest.raises(_LOST):
        client.getresponse()
    client.close()
