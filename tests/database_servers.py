"""Databases on this machine for JDBC catalogs, each a process that ends with its context."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

import pytest

from compactord.catalog.jdbc.database import Database, jdbc_address
from compactord.catalog.jdbc.lock import JdbcLock
from compactord.catalog.jdbc.options import jdbc_options
from compactord.errors import CatalogUnavailable
from tests.builders import VirtualClock

_SECONDS_MAX = 180


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server with an empty database `paimon`; `password` is empty where it asks for none."""

    uri: str
    user: str
    password: str = field(default="")
    # Stops it at once, as an administrator does, and starts it again after so many seconds.
    restart: Callable[[float], None] = field(default=lambda _: pytest.skip("it stays up"))

    @property
    def port(self) -> int:
        return int(self.uri.rsplit(":", 1)[1].split("/")[0])

    @property
    def options(self) -> dict[str, str]:
        return {"uri": self.uri, "jdbc.user": self.user, "jdbc.password": self.password}

    def database(self, zone: tzinfo | None = None) -> Database:
        given = jdbc_options(self.options)
        return Database(jdbc_address(given.uri, given.properties), pool_size=2, zone=zone)

    def lock(self, zone: tzinfo | None = None, timeout: str = "8 min") -> JdbcLock:
        extra = {"lock.enabled": "true", "lock-acquire-timeout": timeout}
        return JdbcLock(
            self.database(zone), jdbc_options({**self.options, **extra}), VirtualClock()
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _run(command: list[str], user: str | None) -> None:
    done = subprocess.run(command, user=user, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]} does not run here: {(done.stderr or done.stdout)[-300:]}")


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """Of a server's files; one that the user of the server can enter."""
    path = Path(tempfile.mkdtemp(prefix="compactord-database-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[Server]:
    """Of `make tools`; the test is skipped where it cannot be had."""
    spec = importlib.util.find_spec("pgserver")
    if spec is None or spec.origin is None:
        pytest.skip("pgserver is not installed: run `make tools`")
    programs = Path(spec.origin).parent / "pginstall" / "bin"
    # PostgreSQL refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    data, port, password = folder / "postgresql", _free_port(), "hunter2-and-more"
    data.mkdir()
    (folder / "password").write_text(password)
    if user is not None:
        shutil.chown(data, user)
        (folder / "password").chmod(0o644)
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "paimon", "--auth=scram-sha-256"]
    _run([*initdb, f"--pwfile={folder / 'password'}", "--encoding=UTF8"], user)
    arguments = ["-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(data), "-F"]
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [str(programs / "postgres"), *arguments]
        processes.append(subprocess.Popen(command, user=user, stderr=subprocess.DEVNULL))

    def stop() -> None:
        # Fast: it would wait for connections otherwise.
        processes[-1].send_signal(signal.SIGINT)
        processes[-1].wait(timeout=_SECONDS_MAX)

    def restart(pause_s: float) -> None:
        stop()
        starter = threading.Timer(pause_s, start)
        starter.start()

    where = f"jdbc:postgresql://127.0.0.1:{port}"
    first = Server(uri=f"{where}/postgres", user="paimon", password=password)
    start()
    try:
        _when_up(lambda: first.database().execute("CREATE DATABASE paimon"))
        yield Server(uri=f"{where}/paimon", user="paimon", password=password, restart=restart)
    finally:
        stop()


@contextlib.contextmanager
def mysql(folder: Path) -> Iterator[Server]:
    """MariaDB of this machine; the test is skipped where there is none."""
    program = shutil.which("mariadbd")
    if program is None:
        pytest.skip("no mariadbd here: install mariadb-server")
    data, port = folder / "mariadb", _free_port()
    data.mkdir()
    process = subprocess.Popen(
        [
            *(program, "--no-defaults", f"--datadir={data}", f"--socket={data}/socket"),
            *(f"--port={port}", "--bind-address=127.0.0.1", "--skip-grant-tables"),
            *(["--user=root"] if os.geteuid() == 0 else []),
        ],
        stderr=subprocess.DEVNULL,
    )
    where = f"jdbc:mysql://127.0.0.1:{port}"
    try:
        _when_up(
            lambda: (
                Server(uri=f"{where}/information_schema", user="paimon")
                .database()
                .execute("CREATE DATABASE paimon")
            )
        )
        yield Server(uri=f"{where}/paimon", user="paimon")
    finally:
        process.terminate()
        process.wait(timeout=_SECONDS_MAX)


def _when_up(action: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while True:
        try:
            action()
            return
        except CatalogUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
