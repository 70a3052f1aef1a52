"""A JDBC catalog's database fails while a table is compacted under its lock: no row is lost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests import builders, database_servers
from tests.builders import SECOND
from tests.database_servers import Server
from tests.databases import LOCKS_SQL, TABLES_SQL
from tests.retained import expire, maintain, retained, sweep
from tests.tools.database_relay import Ailment, DatabaseRelay


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with database_servers.server_folder() as folder, database_servers.postgresql(folder) as server:
        for sql in (TABLES_SQL, LOCKS_SQL):
            server.database().execute(sql)
        server.database().execute("INSERT INTO paimon_tables VALUES ('jdbc', 'db', 't')")
        yield server


def _catalog(warehouse: Path, server: Server, port: int) -> Catalog:
    """What a process that died leaves locked is free again after a second."""
    uri = server.uri.replace(str(server.port), str(port), 1)
    extra = {"lock.enabled": "true", "lock-acquire-timeout": "1 s", "lock-check-max-sleep": "20 ms"}
    return open_catalog(
        str(warehouse), metastore="jdbc", options={**server.options, "uri": uri, **extra}
    )


def _compact(catalog: Catalog, storage: Storage, table: TableRef) -> None:
    assert catalog.find_table("db.t") == table
    builders.compact(storage, table, owner=SECOND, publisher=catalog.open(table).publisher)


@pytest.mark.parametrize("n", [1, 7, 19])
@pytest.mark.parametrize("ailment", Ailment, ids=lambda ailment: ailment.name)
def test_every_nth_request_to_the_database_fails(
    server: Server, tmp_path: Path, ailment: Ailment, n: int
) -> None:
    given, local = retained(), LocalStorage()
    table = given.put(local, f"{tmp_path}/db.db/t")
    with DatabaseRelay(server.port) as relay:
        catalog = _catalog(tmp_path, server, relay.port)
        steps = (partial(_compact, catalog), expire, sweep)
        relay.fail(ailment, every=n)
        for number in range(3):
            maintain(local, table, steps)
            given.check(local, table, f"{ailment}, run {number}")
        assert relay.failed
        relay.fail(None)
        assert maintain(local, table, steps) == []
        given.check(local, table, str(ailment))
        given.check_tidy(local, table, str(ailment))
