"""Object stores on this machine, each a process of its own that ends with the test session."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.tools.store_servers import program

_START_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServer:
    """A bucket of a running server: its URL, and the options of a catalog in it."""

    root: str
    options: Mapping[str, str]
    endpoint: str


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def moto_server(bucket: str = "lake", scheme: str = "s3") -> Iterator[StoreServer]:
    """S3 as moto has it; any credentials will do."""
    port = free_port()
    with _running([program("moto"), "-H", "127.0.0.1", "-p", str(port)], port):
        request(port, "PUT", f"/{bucket}", expected=200)
        yield s3_server(port, bucket, scheme)


def s3_server(port: int, bucket: str, scheme: str = "s3") -> StoreServer:
    endpoint = f"http://127.0.0.1:{port}"
    options = {
        "s3.endpoint": endpoint,
        "s3.access-key": "test-access",
        "s3.secret-key": "test-secret",
        "s3.path.style.access": "true",
    }
    return StoreServer(root=f"{scheme}://{bucket}", options=options, endpoint=endpoint)


def request(port: int, method: str, path: str, *, expected: int) -> bytes:
    """One request without a signature, by a client of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status == expected, (method, path, answer.status, body)
    return body


@contextlib.contextmanager
def _running(command: list[str | Path], port: int) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _await(process, port)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends:
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the server did not start in {_START_SECONDS} s")
