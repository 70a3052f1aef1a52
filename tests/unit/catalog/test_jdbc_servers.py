"""The JDBC catalog and its lock on PostgreSQL of `make tools`, and on MariaDB if it is here."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from compactord.catalog.jdbc.database import Database, jdbc_address
from compactord.catalog.jdbc.lock import JdbcLock
from compactord.catalog.jdbc.options import jdbc_options
from compactord.catalog.open import open_catalog
from compactord.clock import SystemClock
from compactord.commit.publish import LockedPublisher, StorePublisher
from compactord.errors import AccessDenied, CatalogDown, CatalogUnavailable, StorageError
from compactord.paimon.schema import TableRef
from tests import builders, database_servers
from tests.database_servers import Server
from tests.databases import LOCKS_SQL, TABLES_SQL
from tests.storages import Call, HookedStorage, MemoryStorage

TABLE = TableRef(database="db", name="t", location="")
_SECONDS_MAX = 180
_UTC, _SHANGHAI = ZoneInfo("UTC"), ZoneInfo("Asia/Shanghai")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with database_servers.server_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def postgresql(folder: Path) -> Iterator[Server]:
    with database_servers.postgresql(folder) as server:
        yield server


@pytest.fixture(scope="module")
def mysql(folder: Path) -> Iterator[Server]:
    with database_servers.mysql(folder) as server:
        yield server


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


class _Table:
    """A table that is due and whose snapshots are published under the lock of a server.

    `before` happens once, before the first call of a method of the store on such a path.
    """

    def __init__(self, server: Server, method: str, where: str, before: Callable[[], None]):
        self.inner = MemoryStorage()
        self.table = builders.keyed_table(self.inner, "/w/db.db/t")
        self.rows = builders.fill_keyed(builders.writer(self.inner, self.table), commits=6)
        left = [before]

        def hook(call: Call) -> None:
            if call.method == method and where in call.path and left:
                left.pop()()

        storage = HookedStorage(self.inner, before=hook)
        given = jdbc_options({**server.options, "lock.enabled": "true"})
        lock = JdbcLock(server.database(), given, SystemClock())
        # Its connections break, too.
        lock.acquire(self.table).release()
        publisher = LockedPublisher(StorePublisher(storage), lock)
        self.totals = builders.compact(
            storage, self.table, publisher=publisher, clock=SystemClock()
        )


@pytest.mark.parametrize(
    ("method", "where"),
    [
        pytest.param("write_new", "/manifest/", id="before the lock is taken"),
        pytest.param("create_if_absent", "/snapshot/", id="while the lock is held"),
    ],
)
def test_a_database_that_restarts_while_a_commit_runs_is_waited_for(
    postgresql_server: Server, method: str, where: str
) -> None:
    compacted = _Table(postgresql_server, method, where, lambda: postgresql_server.restart(0.3))
    assert (compacted.totals.snapshots, compacted.totals.failures) == ([7], [])
    assert builders.read_keyed(compacted.inner, compacted.table) == compacted.rows
    rows = postgresql_server.database().rows("SELECT * FROM paimon_distributed_locks")
    assert list(rows) == []


class _Relay:
    """Passes bytes on to a server, and breaks one connection at its first INSERT.

    `is_heard`: once the server has answered; otherwise the server never sees the statement.
    """

    def __init__(self, port: int, *, is_heard: bool) -> None:
        self._server = ("127.0.0.1", port)
        self._is_heard = is_heard
        self.breaks_left = 1
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for source in readable:
                    data = source.recv(65_536)
                    if not data:
                        return
                    is_broken = b"INSERT INTO" in data and self.breaks_left > 0
                    if is_broken and not self._is_heard:
                        self.breaks_left -= 1
                        return
                    (server if source is client else client).sendall(data)
                    if is_broken:
                        self.breaks_left -= 1
                        assert server.recv(65_536)
                        return


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_connection_that_breaks_at_the_insert_leaves_no_lock_of_ours_to_wait_for(
    postgresql_server: Server, is_heard: bool
) -> None:
    port = int(postgresql_server.uri.split(":")[-1].partition("/")[0])
    relay = _Relay(port, is_heard=is_heard)
    uri = postgresql_server.uri.replace(f":{port}/", f":{relay.port}/")
    with contextlib.closing(relay), capture_logs() as logs:
        assert replace(postgresql_server, uri=uri).lock().acquire(TABLE).release()
        assert relay.breaks_left == 0
    assert [log["event"] for log in logs] == ["catalog_lock_found"] * is_heard
    assert not postgresql_server.database().rows("SELECT * FROM paimon_distributed_locks")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("FATAL: the database system is starting up", CatalogDown),
        ("FATAL: the database system is shutting down", CatalogDown),
        ("terminating connection due to administrator command", CatalogDown),
        ("FATAL: the database system is starting up FATAL: no pg_hba.conf entry", CatalogDown),
        ("server closed the connection unexpectedly", CatalogDown),
        ("FATAL: password authentication failed for user u", AccessDenied),
        ("FATAL: no pg_hba.conf entry for host", AccessDenied),
    ],
)
def test_a_server_that_is_away_for_now_is_told_from_one_that_refuses(
    said: str, kind: type[StorageError]
) -> None:
    looks: list[str] = []

    def same() -> None:
        looks.append(said)

    with _greeting(said) as port:
        uri = f"jdbc:postgresql://127.0.0.1:{port}/paimon?sslmode=disable"
        address = jdbc_address(uri, {"user": "u", "password": "p"})
        with pytest.raises(kind) as raised:
            Database(address, pool_size=2, zone=None, replaced=same).rows("SELECT 1")
    assert type(raised.value) is kind
    assert looks == [said] * (kind is AccessDenied), "whether the login was replaced"


@contextlib.contextmanager
def _greeting(said: str) -> Iterator[int]:
    """A port whose server refuses each connection with an error of PostgreSQL."""

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    client.recv(65_536)
                    body = b"SFATAL\0C57P03\0M" + said.encode() + b"\0\0"
                    client.sendall(b"E" + (len(body) + 4).to_bytes(4, "big") + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


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


def test_tables_of_a_warehouse_are_registered_once_by_program_and_by_script(
    server: Server, tmp_path: Path
) -> None:
    for name in ("orders", "o'brien\\x"):
        (tmp_path / f"sales.db/{name}/schema").mkdir(parents=True)
        (tmp_path / f"sales.db/{name}/schema/schema-0").write_bytes(b"{}")
    registration = open_catalog(
        str(tmp_path), metastore="jdbc", options=server.options
    ).registration()
    assert registration is not None
    tables = registration.files.list_tables().tables
    database = server.database()
    try:
        assert registration.add(()).created == ["paimon_database_properties"]
        for sql in 2 * list(registration.script(tables)):
            database.execute(sql.replace(":", "\\:"))
        scripted = database.rows("SELECT * FROM paimon_tables ORDER BY table_name")
        database.execute("DELETE FROM paimon_tables WHERE table_name = 'orders'")
        assert registration.add(tables).tables == ["sales.orders"]
        assert database.rows("SELECT * FROM paimon_tables ORDER BY table_name") == scripted
        assert {row[2] for row in scripted} == {"orders", "o'brien\\x"}
    finally:
        database.execute("DROP TABLE IF EXISTS paimon_database_properties")


def test_a_lock_is_held_waited_for_and_given_back(server: Server) -> None:
    ours, theirs = server.lock(timeout="1 s"), server.lock()
    held = theirs.acquire(TABLE)
    rows = server.database().rows(
        "SELECT lock_id, expire_time_seconds FROM paimon_distributed_locks"
    )
    ((lock_id, seconds),) = rows
    assert lock_id == "jdbc.db.t"
    assert 480 < seconds <= 600
    with pytest.raises(CatalogUnavailable, match="held by other writers"):
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
    _age(server, 210)
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
    with pytest.raises(CatalogUnavailable, match="held by other writers"):
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


def test_a_password_that_was_replaced_is_used_at_the_next_refused_login(
    postgresql: Server, tmp_path: Path
) -> None:
    """Sessions that stand go on; the next login is refused, and the file read again.

    Another address waits for a restart.
    """
    admin, key, address = postgresql.database(), tmp_path / "password", tmp_path / "uri"
    admin.execute(TABLES_SQL)
    admin.execute("CREATE ROLE renewed LOGIN PASSWORD 'first'")
    admin.execute("GRANT SELECT ON paimon_tables TO renewed")
    key.write_text("first")
    address.write_text(postgresql.uri)
    options = {
        "uri": f"${{file:{address}}}",
        "jdbc.user": "renewed",
        "jdbc.password": f"${{file:{key}}}",
    }
    catalog = open_catalog(str(tmp_path), metastore="jdbc", options=options)
    catalog.check_access()

    def replace(text: str) -> None:
        admin.execute(f"ALTER ROLE renewed PASSWORD '{text}'")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'renewed'"
        )

    replace("second")
    with pytest.raises(AccessDenied, match="password authentication failed"):
        open_catalog(str(tmp_path), metastore="jdbc", options=options).check_access()
    key.write_text("second")
    address.write_text(f"{postgresql.uri}_of_others")
    catalog.check_access()
    replace("third")
    key.write_text("third")
    with pytest.raises(AccessDenied, match="password authentication failed"):
        # Within the same minute.
        catalog.check_access()
    admin.execute("DROP TABLE paimon_tables")


def test_a_user_who_may_not_lock_is_told(postgresql_server: Server) -> None:
    database = postgresql_server.database()
    database.execute("CREATE ROLE reader LOGIN PASSWORD 'r'")
    database.execute("GRANT SELECT ON paimon_distributed_locks TO reader")
    reader = Server(uri=postgresql_server.uri, user="reader", password="r")
    with pytest.raises(AccessDenied, match="permission denied for table paimon_distributed_locks"):
        reader.lock().acquire(TABLE)
