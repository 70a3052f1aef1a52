"""The JDBC catalog: a database names the tables, which lie below the warehouse.

Source: jdbc/JdbcCatalog.java, jdbc/JdbcUtils.java. Nothing is created in the database here, and
only locks are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import tzinfo

from compactord.catalog.base import TableList
from compactord.catalog.jdbc.address import JdbcAddress, jdbc_address
from compactord.catalog.jdbc.database import Database, MissingTable
from compactord.catalog.jdbc.lock import JdbcLock
from compactord.catalog.names import (
    may_be_table,
    nearest_names,
    parse_name,
    require_warehouse,
    table_at,
)
from compactord.catalog.options import JdbcOptions, jdbc_options
from compactord.catalog.probe import StoreProof, proved
from compactord.clock import Clock
from compactord.commit.locked import LockedPublisher
from compactord.commit.publish import SnapshotPublisher, StorePublisher
from compactord.errors import StorageError, TableNotFound, UsageError
from compactord.paimon.paths import is_file_name
from compactord.paimon.table import TableRef
from compactord.references import LateValues
from compactord.storage.base import Storage

_TABLES = "paimon_tables"


class JdbcCatalog:
    """Tables of one `catalog-key`; `lock` is None where the options turn it off.

    Without it snapshots stand for `settle_ms` before anything is built on them.
    """

    def __init__(
        self,
        storage: Storage,
        warehouse: str,
        *,
        database: Database,
        catalog_key: str,
        lock: JdbcLock | None,
        settle_ms: int = 0,
    ) -> None:
        self.storage = storage
        self.warehouse = warehouse
        self._database = database
        self._key = catalog_key
        self._lock = lock
        self._proof = StoreProof(storage, warehouse)
        publisher = proved(StorePublisher(storage, settle_ms=settle_ms), self._proof)
        self.publisher: SnapshotPublisher = (
            publisher if lock is None else LockedPublisher(publisher, lock)
        )

    @property
    def has_lock(self) -> bool:
        return self._lock is not None

    def check_access(self) -> None:
        """See `Catalog`; also raises what the database does, and `MissingTable`."""
        require_warehouse(self.storage, self.warehouse)
        self._names("LIMIT 1")
        if self._lock is not None:
            self._lock.check()

    def check_commits(self) -> None:
        """See `Catalog`; also raises `MissingTable` where its lock has no table."""
        if self._lock is not None:
            self._lock.check()
        self._proof.require_if_allowed()

    def list_tables(self) -> TableList:
        """See `Catalog`; tables are those of the database, whatever lies in the warehouse."""
        require_warehouse(self.storage, self.warehouse)
        tables: list[TableRef] = []
        unreadable: dict[str, StorageError] = {}
        for database, name in self._names("ORDER BY database_name, table_name"):
            # Both become names of folders.
            if is_file_name(database) and is_file_name(name):
                tables.append(table_at(self.warehouse, database, name))
            else:
                text = f"{_TABLES} has a row for {database}.{name}, which cannot be a folder's name"
                unreadable[database] = StorageError(self._database.address.shown, text)
        return TableList(tables=tuple(tables), unreadable=unreadable)

    def find_table(self, name: str) -> TableRef:
        """See `Catalog`."""
        database, table = parse_name(name, self.list_tables)
        require_warehouse(self.storage, self.warehouse)
        rows = self._names(
            "AND database_name = :database AND table_name = :name", database=database, name=table
        )
        if not rows:
            raise TableNotFound(
                f"table {name} does not exist in {self._database.address.shown}, "
                f"catalog-key {self._key}{nearest_names(name, self.list_tables)}"
            )
        ref = table_at(self.warehouse, database, table)
        if not may_be_table(self.storage, ref.location):
            raise TableNotFound(f"{ref.location} is not a Paimon table: it has no schema")
        return ref

    def _names(self, more: str, **values: str) -> list[tuple[str, str]]:
        try:
            rows = self._database.rows(
                f"SELECT database_name, table_name FROM {_TABLES} WHERE catalog_key = :key {more}",
                key=self._key,
                **values,
            )
        except MissingTable as error:
            raise MissingTable(
                error.path,
                f"the database has no table {_TABLES}: no JDBC catalog of Paimon was opened in it",
            ) from None
        return [(str(database), str(name)) for database, name in rows]


def open_database(
    given: JdbcOptions,
    *,
    zone: tzinfo | None,
    replaced: Callable[[], JdbcAddress | None] = lambda: None,
) -> Database:
    """The database of a catalog; `zone` is that of the writers, None the machine's.

    `replaced` as in `Database`.
    """
    address = jdbc_address(given.uri, given.properties)
    return Database(address, pool_size=given.pool_size, zone=zone, replaced=replaced)


def open_jdbc(
    storage: Storage,
    warehouse: str,
    options: LateValues,
    *,
    clock: Clock,
    zone: tzinfo | None,
    settle_ms: int = 0,
) -> JdbcCatalog:
    """The catalog that the options describe; asks its database nothing.

    The user and password are read again when they are refused, once a minute at most.
    `settle_ms` holds where it has no lock. `zone` is that of the writers, None the machine's.
    Raises `CatalogOptionInvalid`.
    """

    def read() -> JdbcOptions:
        # Java's default, which other writers go by.
        return jdbc_options(options.read(), is_locked=not storage.capabilities.has_folders)

    def replaced() -> JdbcAddress | None:
        if not options.have_changed(clock.monotonic_s()):
            return None
        try:
            again = read()
            found = jdbc_address(again.uri, again.properties)
        except UsageError:
            return None
        # Another database needs a restart: locks may be held in this one.
        return replace(database.address, user=found.user, password=found.password)

    given = read()
    database = open_database(given, zone=zone, replaced=replaced)
    return JdbcCatalog(
        storage,
        warehouse,
        database=database,
        catalog_key=given.catalog_key,
        lock=JdbcLock(database, given, clock) if given.is_locked else None,
        settle_ms=settle_ms,
    )
