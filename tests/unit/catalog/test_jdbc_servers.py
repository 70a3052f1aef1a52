"""The JDBC catalog and its lock on PostgreSQL of `make tools`, and on MariaDB if it is here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from compactord.catalog.database import Database
from compactord.catalog.jdbc_address import jdbc_address
from compactord.catalog.jdbc_lock import JdbcLock
from compactord.catalog.open import open_catalog
from compactord.catalog.options import jdbc_options
from compactord.errors import AccessDenied, CatalogUnavailable
from compactord.paimon.table import TableRef
from tests.builders import VirtualClock
from tests.databases import LOCKS_SQL, TABLES_SQL

TABLE = TableRef(database="db", name="t", location="")
_SECONDS_MAX = 180
_UTC, _SHANGHAI = ZoneInfo("UTC"), ZoneInfo("Asia/Shanghai")


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server with an empty database `paimon`; `password` is empty where it asks for none."""

    uri: str
    user: str
    password: str = field(default="")

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


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Of a server's files; one that the user of the server can enter."""
    path = Path(tempfile.mkdtemp(prefix="compactord-database-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def postgresql(folder: Path) -> Iterator[Server]:
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
    process = subprocess.Popen(
        [str(programs / "postgres"), *arguments], user=user, stderr=subprocess.DEVNULL
    )
    where = f"jdbc:postgresql://127.0.0.1:{port}"
    first = Server(uri=f"{where}/postgres", user="paimon", password=password)
    try:
        _when_up(lambda: first.database().execute("CREATE DATABASE paimon"))
        yield Server(uri=f"{where}/paimon", user="paimon", password=password)
    finally:
        # Fast: it would wait for connections otherwise.
        process.send_signal(signal.SIGINT)
        process.wait(timeout=_SECONDS_MAX)


@pytest.fixture(scope="module")
def mysql(folder: Path) -> Iterator[Server]:
    program = shutil.which("mariadbd")
    if program is None:
        pytest.skip("mariadbd is not installed: apt-get install mariadb-server")
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


@pytest.fixture(params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with the empty tables of a catalog."""
    found: Server = request.getfixturevalue(request.param)
    database = found.database()
    for sql in (TABLES_SQL, LOCKS_SQL):
        database.execute(sql)
    yield found
    for table in ("paimon_tables", "paimon_distributed_locks"):
        database.execute(f"DROP TABLE IF EXISTS {table}")


@pytest.fixture
def postgresql_server(postgresql: Server) -> Iterator[Server]:
    database = postgresql.database()
    database.execute(LOCKS_SQL)
    yield postgresql
    database.execute("DROP TABLE paimon_distributed_locks")


def _age(server: Server, seconds: int, zone: tzinfo | None = None) -> None:
    """Make the lock so much older."""
    server.database(zone).execute(
        "UPDATE paimon_distributed_locks "
        f"SET acquired_at = acquired_at - INTERVAL '{seconds}' SECOND"
    )


def test_tables_are_listed_and_what_is_missing_is_told(server: Server, tmp_path: Path) -> None:
    catalog = open_catalog(
        str(tmp_path), metastore="jdbc", options={**server.options, "lock.enabled": "true"}
    )
    catalog.check_access()
    assert catalog.list_tables().tables == ()
    server.database().execute("INSERT INTO paimon_tables VALUES ('jdbc', 'db', 't')")
    assert [table.full_name for table in catalog.list_tables().tables] == ["db.t"]
    for table in ("paimon_distributed_locks", "paimon_tables"):
        server.database().execute(f"DROP TABLE {table}")
        with pytest.raises(CatalogUnavailable, match=f"the database has no table {table}"):
            catalog.check_access()


def test_a_lock_is_held_waited_for_and_given_back(server: Server) -> None:
    ours, theirs = server.lock(timeout="1 s"), server.lock()
    held = theirs.acquire(TABLE)
    rows = server.database().rows(
        "SELECT lock_id, expire_time_seconds FROM paimon_distributed_locks"
    )
    assert list(rows) == [("jdbc.db.t", 480)]
    with pytest.raises(CatalogUnavailable, match="held by others"):
        ours.acquire(TABLE)
    assert held.release()
    assert ours.acquire(TABLE).release()


def test_a_lock_whose_time_is_over_is_taken_and_not_taken_from_its_new_holder(
    server: Server,
) -> None:
    held = server.lock().acquire(TABLE)
    _age(server, 400)
    with pytest.raises(CatalogUnavailable):
        server.lock(timeout="1 s").acquire(TABLE)
    _age(server, 100)
    # Their times have whole seconds in MySQL, and differ by more where nobody ages a row.
    time.sleep(1.1)
    with capture_logs() as logs:
        robber = server.lock().acquire(TABLE)
    assert [log["event"] for log in logs] == ["catalog_lock_expired"]
    assert not held.release()
    assert robber.release()


def test_postgresql_times_have_no_zone_so_sessions_have_the_zone_of_the_writers(
    postgresql_server: Server,
) -> None:
    """Java's session has its JVM's zone: a lock is fresh for those of the same one alone."""
    held = postgresql_server.lock(_SHANGHAI).acquire(TABLE)
    with pytest.raises(CatalogUnavailable, match="held by others"):
        postgresql_server.lock(_SHANGHAI, "1 s").acquire(TABLE)
    with pytest.raises(CatalogUnavailable, match="is in the future: the time zone"):
        postgresql_server.lock(_UTC, "1 s").acquire(TABLE)
    assert held.release()


def test_a_wrong_password_is_refused_and_none_is_shown(postgresql: Server, tmp_path: Path) -> None:
    secret = "wrong-and-secret"
    options = {**postgresql.options, "jdbc.password": secret}
    catalog = open_catalog(str(tmp_path), metastore="jdbc", options=options)
    with pytest.raises(AccessDenied, match="password authentication failed") as refused:
        catalog.check_access()
    shown = f"{refused.value!r} {refused.value.__cause__!r}"
    assert refused.value.__suppress_context__
    assert secret not in shown
    assert postgresql.password not in shown


def test_a_user_who_may_not_lock_is_told(postgresql_server: Server) -> None:
    database = postgresql_server.database()
    database.execute("CREATE ROLE reader LOGIN PASSWORD 'r'")
    database.execute("GRANT SELECT ON paimon_distributed_locks TO reader")
    reader = Server(uri=postgresql_server.uri, user="reader", password="r")
    with pytest.raises(AccessDenied, match="permission denied for table paimon_distributed_locks"):
        reader.lock().acquire(TABLE)
