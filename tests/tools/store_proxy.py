"""A proxy before an object store's test server: counts requests, delays them, lets them fail.

In a test:

    with StoreProxy(backend) as proxy:
        proxy.fail(nth(3, Fault(how=How.CLOSE, after=True)))
        ...                                   # a client that has `proxy.url` for its endpoint
        assert proxy.counts["get"] == 5

For a bench, as a process of its own, `ProxyProcess(backend, delay_ms=10)`, or

    python -m tests.tools.store_proxy 127.0.0.1:9000 --delay-ms 10

Heads pass unchanged, so that a signature that covers the header Host stays right. Each connection
of a client has a thread and one connection to the store, which live as long as it does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.tools.http_relay import BUFFER_BYTES, Closed, Connection, Head
from tests.tools.store_faults import CODES, Decide, Fault, How, Request, kind_of

REPOSITORY = Path(__file__).parent.parent.parent
_SECONDS_TO_BACKEND = 30


class StoreProxy:
    """The proxy, in threads of this process; `backend` is the store's host and port.

    `counts` are requests by kind since the last `reset`, `log` the requests, `failed` those that
    failed. They count from the moment a request's head was received.
    """

    def __init__(self, backend: tuple[str, int], *, delay_ms: float = 0, port: int = 0) -> None:
        self._backend = backend
        self.delay_ms = delay_ms
        self._lock = threading.Lock()
        self._decide: Decide | None = None
        self._open: set[Connection] = set()
        self._stopped = False
        self.counts: Counter[str] = Counter()
        self.log: list[Request] = []
        self.failed: list[Request] = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> StoreProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close everything; requests under way are cut."""
        with self._lock:
            self._stopped = True
            connections = list(self._open)
        # Wakes a thread in accept; close does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in connections:
            connection.abort()
        self._acceptor.join(timeout=180)

    def fail(self, decide: Decide | None) -> None:
        """From now on `decide` selects failing requests and their faults; with None, no request
        fails.

        It is called for one request at a time, in the order of arrival.
        """
        with self._lock:
            self._decide = decide

    def reset(self) -> None:
        """Reset all counts."""
        with self._lock:
            self.counts, self.log, self.failed = Counter(), [], []

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            client = Connection(sock)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Connection) -> None:
        """One connection of a client, from its first request to its end."""
        link = _Link(client, self._backend)
        self._track(client, is_open=True)
        try:
            while (head := client.read_head()) is not None:
                fault = self._admit(head)
                if self.delay_ms:
                    time.sleep(self.delay_ms / 1000)
                if not link.exchange(head, fault, lambda: self._stopped):
                    break
        except (OSError, ValueError):
            # Either side closed, or sent bytes that are not HTTP: the client sees the end.
            pass
        finally:
            self._track(client, is_open=False)
            link.close()
            client.abort()

    def _track(self, client: Connection, *, is_open: bool) -> None:
        with self._lock:
            (self._open.add if is_open else self._open.discard)(client)

    def _admit(self, head: Head) -> Fault | None:
        method, target, _ = head.first
        kind = kind_of(method, target, head.headers)
        with self._lock:
            key = head.headers.get("authorization", "")
            request = Request(len(self.log) + 1, method, target, kind, key)
            self.counts[kind] += 1
            self.log.append(request)
            fault = self._decide(request) if self._decide is not None else None
            if fault is not None:
                self.failed.append(request)
            return fault


class _Link:
    """A client's connection and the one to the store that goes with it."""

    def __init__(self, client: Connection, backend: tuple[str, int]) -> None:
        self._client = client
        self._backend = backend
        self._store: Connection | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        # Neither connection can be used after this exchange.
        self._is_last = False

    def close(self) -> None:
        if self._store is not None:
            self._store.abort()
            self._store = None

    def exchange(self, head: Head, fault: Fault | None, stopped: Callable[[], bool]) -> bool:
        """One request with its answer; whether the connection can be used again."""
        if fault is None:
            return self._pass(head)
        if not fault.after and fault.how is not How.HALF:
            return self._deny(head, fault, stopped)
        answer = self._send(head)
        if fault.how is How.HALF:
            self._answer_half(head, answer)
            return False
        # Read it to its end, so that the store has finished its work.
        self._relay_answer(head, answer, None)
        self._show(fault, stopped)
        return False

    def _pass(self, head: Head) -> bool:
        answer = self._send(head)
        self._client.socket.sendall(answer.raw)
        self._relay_answer(head, answer, self._client.socket)
        return not (answer.ends_connection or head.ends_connection or self._is_last)

    def _deny(self, head: Head, fault: Fault, stopped: Callable[[], bool]) -> bool:
        # A client that waits for 100 has its body still. Otherwise it is read, as a client that is
        # still sending when the connection closes would not see the answer.
        if fault.how is How.ANSWER and "expect" not in head.headers:
            self._relay_body(head, None)
        self._show(fault, stopped)
        return False

    def _show(self, fault: Fault, stopped: Callable[[], bool]) -> None:
        if fault.how is How.ANSWER:
            self._client.socket.sendall(_error(fault))
            self._client.socket.shutdown(socket.SHUT_WR)
        elif fault.how is How.HANG:
            while not stopped() and not self._client.hung_up(within_ms=50):
                pass

    def _send(self, head: Head) -> Head:
        """The request goes to the store; the head of its answer."""
        store = self._connected()
        store.socket.sendall(head.raw)
        if "expect" in head.headers:
            answer = _read_answer(store)
            if answer.first[1] != "100":
                # The body is not wanted, and it may come nevertheless.
                self._is_last = True
                return answer
            self._client.socket.sendall(answer.raw)
        try:
            self._relay_body(head, store.socket)
        except (BrokenPipeError, ConnectionResetError):
            # The store has answered, and closed, before the end of the body.
            self._is_last = True
        while (answer := _read_answer(store)).first[1].startswith("1"):
            self._client.socket.sendall(answer.raw)
        return answer

    def _connected(self) -> Connection:
        if self._store is not None and not self._store.is_idle():
            self.close()
        if self._store is None:
            address = socket.create_connection(self._backend, timeout=_SECONDS_TO_BACKEND)
            address.settimeout(None)
            self._store = Connection(address)
        return self._store

    def _relay_body(self, head: Head, target: socket.socket | None) -> None:
        if head.is_chunked:
            self._client.relay_chunks(target, self._buffer)
        else:
            self._client.relay(target, head.content_length or 0, self._buffer)

    def _relay_answer(self, head: Head, answer: Head, target: socket.socket | None) -> None:
        assert self._store is not None
        if head.first[0] == "HEAD" or answer.first[1] in {"204", "304"}:
            return
        if answer.is_chunked:
            self._store.relay_chunks(target, self._buffer)
        elif answer.content_length is not None:
            self._store.relay(target, answer.content_length, self._buffer)
        else:
            self._store.relay_to_end(target)
            self._is_last = True

    def _answer_half(self, head: Head, answer: Head) -> None:
        """The head of the answer and half of its body; of one without a body, its first word."""
        assert self._store is not None
        length = 0 if head.first[0] == "HEAD" else answer.content_length or 0
        if length:
            self._client.socket.sendall(answer.raw)
            self._store.relay(self._client.socket, length // 2, self._buffer)
        else:
            self._client.socket.sendall(answer.raw[: len("HTTP/1.1")])


def _read_answer(store: Connection) -> Head:
    answer = store.read_head()
    if answer is None:
        raise Closed("the store closed without an answer")
    return answer


def _error(fault: Fault) -> bytes:
    code = CODES.get(fault.status, "Error")
    kind, body = "application/xml", f"<Error><Code>{code}</Code><Message>as asked</Message></Error>"
    if fault.is_foreign:
        kind, body = "text/plain; charset=utf-8", f"default backend - {fault.status}"
        if fault.status == 200:
            kind, body = "text/html", "<html><head></head><body><h1>Welcome!</h1></body></html>"
    return (
        f"HTTP/1.1 {fault.status} {code}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    ).encode()


class ProxyProcess:
    """The proxy as a process of its own, so that it takes no time of a bench's."""

    def __init__(self, backend: tuple[str, int], *, delay_ms: float = 0) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.tools.store_proxy"),
                *(f"{backend[0]}:{backend[1]}", "--delay-ms", str(delay_ms)),
            ],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._ask("port"))
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def counts(self) -> Counter[str]:
        """Requests by kind since the last `reset`."""
        return Counter(json.loads(self._ask("counts")))

    def reset(self) -> None:
        """Reset all counts."""
        self._ask("reset")

    def delay(self, milliseconds: float) -> None:
        """From now on each request waits as long."""
        self._ask(f"delay {milliseconds}")

    def stop(self) -> None:
        """Close everything; requests under way are cut."""
        # It lives until its standard input ends.
        self._process.communicate(timeout=180)

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the proxy ended with exit code {self._process.wait()}")
        return answer


def main() -> int:
    """Serve until standard input ends; a command a line there, its answer a line here."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.store_proxy")
    parser.add_argument("backend", metavar="HOST:PORT", help="the store")
    parser.add_argument("--delay-ms", type=float, default=0, metavar="N", help="to each request")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: a free one")
    arguments = parser.parse_args()
    host, _, port = arguments.backend.rpartition(":")
    with StoreProxy((host, int(port)), delay_ms=arguments.delay_ms, port=arguments.port) as proxy:
        for line in sys.stdin:
            print(_obey(proxy, line), flush=True)
    return 0


def _obey(proxy: StoreProxy, line: str) -> str:
    match line.split():
        case ["port"]:
            return str(proxy.port)
        case ["counts"]:
            return json.dumps(proxy.counts)
        case ["reset"]:
            proxy.reset()
        case ["delay", milliseconds]:
            proxy.delay_ms = float(milliseconds)
        case _:
            return "commands: port, counts, reset, delay MILLISECONDS"
    return "done"


if __name__ == "__main__":
    sys.exit(main())
