"""Stores on this machine, each a process of its own that ends with its context."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path

from compactord.storage.hdfs.spec import HdfsSpec
from compactord.storage.objects.spec import ObjectSpec
from tests.tools.obtain import tool_path
from tests.tools.store_servers import server_path
from tests.tools.workbench import ToolError

BUCKET = "lake"
ACCESS_KEY, SECRET_KEY = "test-access", "test-secret-key"
# Azurite's own, which everybody knows.
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_SECONDS_MAX = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServer:
    """A bucket of a running server.

    `options` are Paimon's for a catalog in it, `spec` opens it without them.
    """

    port: int
    spec: ObjectSpec | HdfsSpec
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        return self.spec.root


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def moto() -> Iterator[StoreServer]:
    """S3 as moto has it; any credentials will do."""
    port = free_port()
    packages = {"PYTHONPATH": str(tool_path("moto").parent / "packages")}
    command = (sys.executable, Path(__file__).parent / "tools" / "moto_server.py", str(port))
    with _running(*command, port=port, environment=packages):
        request(port, "PUT", f"/{BUCKET}", expected=200)
        yield s3(port)


@contextlib.contextmanager
def minio() -> Iterator[StoreServer]:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        # A folder of its disk is a bucket.
        (Path(folder) / BUCKET).mkdir()
        secrets = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
        address = (
            "--address",
            f"127.0.0.1:{port}",
            "--console-address",
            f"127.0.0.1:{free_port()}",
        )
        command = (server_path("minio"), "server", "--quiet", *address, folder)
        with _running(*command, port=port, environment=secrets):
            # It says that it is ready before it knows its users; then it refuses who is none.
            _await(lambda: _answers(port, f"/{BUCKET}/none", 403), "MinIO is ready")
            yield s3(port)


@contextlib.contextmanager
def fake_gcs() -> Iterator[StoreServer]:
    port = free_port()
    address = ("-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
    public = ("-backend", "memory", "-public-host", f"127.0.0.1:{port}")
    with _running(server_path("fake-gcs-server"), *address, *public, port=port):
        body = json.dumps({"name": BUCKET}).encode()
        request(port, "POST", "/storage/v1/b?project=test", body=body, expected=200)
        yield gcs(port)


@contextlib.contextmanager
def azurite() -> Iterator[StoreServer]:
    port = free_port()
    address = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence")
    command = (tool_path("node"), server_path("azurite"), *address, "--skipApiVersionCheck")
    with tempfile.TemporaryDirectory() as folder, _running(*command, port=port, cwd=folder):
        _create_container(port)
        yield azure(port)


@contextlib.contextmanager
def fake_oss() -> Iterator[StoreServer]:
    port = free_port()
    with _running(sys.executable, "-m", "tests.fake_oss", str(port), port=port):
        yield oss(port)


@contextlib.contextmanager
def hdfs() -> Iterator[StoreServer]:
    """Hadoop's name node and a data node, in a JVM."""
    # Slow to import, and needed for this one alone.
    from tests.oracle.hdfs_cluster import hdfs_cluster
    from tests.oracle.judge_jar import JudgeJarError

    if find_spec("hdfs_native") is None:
        raise ToolError("hdfs-native is missing: run `make setup`")
    with contextlib.ExitStack() as running:
        try:
            cluster = running.enter_context(hdfs_cluster())
        except JudgeJarError as error:
            raise ToolError(str(error)) from error
        yield StoreServer(port=cluster.ports[0], spec=HdfsSpec(root=cluster.root))


SERVERS = {
    "moto": moto,
    "minio": minio,
    "fake_gcs": fake_gcs,
    "azurite": azurite,
    "fake_oss": fake_oss,
    "hdfs": hdfs,
}


def s3(port: int, scheme: str = "s3") -> StoreServer:
    """The bucket of an S3 server that listens at a port."""
    endpoint = f"http://127.0.0.1:{port}"
    options = {
        "bucket": BUCKET,
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
    }
    paimon = {
        "s3.endpoint": endpoint,
        "s3.access-key": ACCESS_KEY,
        "s3.secret-key": SECRET_KEY,
        "s3.path.style.access": "true",
    }
    spec = _spec(f"{scheme}://{BUCKET}", "s3", options)
    return StoreServer(port=port, spec=spec, options=paimon)


def gcs(port: int) -> StoreServer:
    options = {
        "bucket": BUCKET,
        "endpoint": f"http://127.0.0.1:{port}",
        "skip_signature": "true",
    }
    return StoreServer(port=port, spec=_spec(f"gs://{BUCKET}", "gcs", options))


def azure(port: int) -> StoreServer:
    options = {
        "container": BUCKET,
        "endpoint": f"http://127.0.0.1:{port}/{_AZURE_ACCOUNT}",
        "account_name": _AZURE_ACCOUNT,
        "account_key": _AZURE_KEY,
    }
    root = f"abfs://{BUCKET}@{_AZURE_ACCOUNT}.dfs.core.windows.net"
    return StoreServer(port=port, spec=_spec(root, "azblob", options))


def oss(port: int) -> StoreServer:
    options = {
        "bucket": BUCKET,
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key_id": ACCESS_KEY,
        "access_key_secret": SECRET_KEY,
        "addressing_style": "path",
    }
    return StoreServer(port=port, spec=_spec(f"oss://{BUCKET}", "oss", options))


def request(
    port: int,
    method: str,
    path: str,
    *,
    expected: int,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """One request by a client that is not the product's."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SECONDS_MAX)
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        found = answer.read()
    assert answer.status == expected, (method, path, answer.status, found)
    return found


def _spec(root: str, service: str, options: Mapping[str, str]) -> ObjectSpec:
    return ObjectSpec(root=root, service=service, options=tuple(sorted(options.items())))


def _create_container(port: int) -> None:
    """Signed as Azure's Shared Key wants it."""
    date, version = formatdate(usegmt=True), "2021-12-02"
    path = f"/{_AZURE_ACCOUNT}/{BUCKET}"
    named = f"x-ms-date:{date}\nx-ms-version:{version}\n/{_AZURE_ACCOUNT}{path}\nrestype:container"
    text = "PUT" + "\n" * 12 + named
    digest = hmac.new(base64.b64decode(_AZURE_KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {_AZURE_ACCOUNT}:{signature}",
    }
    request(port, "PUT", f"{path}?restype=container", headers=headers, expected=201)


@contextlib.contextmanager
def _running(
    *command: str | Path,
    port: int,
    environment: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        _await(listens, f"{command[0]} listens")
        yield
    finally:
        process.terminate()
        process.wait(_SECONDS_MAX)


def _answers(port: int, path: str, status: int) -> bool:
    with contextlib.suppress(OSError, AssertionError):
        request(port, "GET", path, expected=status)
        return True
    return False


def _await(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + _SECONDS_MAX
    while not holds():
        assert time.monotonic() < ends, f"{what}: not within {_SECONDS_MAX} s"
        time.sleep(0.05)
