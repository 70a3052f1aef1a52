"""The JDBC catalog: a database names the tables, which lie below the warehouse.

Source: jdbc/JdbcCatalog.java, jdbc/JdbcUtils.java. Nothing is created in the database here, and
only locks are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog, CatalogPlace, TableList
from compactord.catalog.check import Check, lock_check
from compactord.catalog.jdbc.address import JdbcAddress, jdbc_address
from compactord.catalog.jdbc.database import Database, MissingTable
from compactord.catalog.jdbc.lock import JdbcLock
from compactord.catalog.jdbc.options import JdbcOptions, jdbc_options
from compactord.catalog.jdbc.registration import JdbcRegistration
from compactord.catalog.names import (
    nearest_names,
    parse_name,
    require_schema,
    table_at,
)
from compactord.clock import SystemClock
from compactord.errors import (
    AccessDenied,
    CatalogUnavailable,
    CompactordError,
    ErrorAtPath,
    StorageError,
    TableNotFound,
    UsageError,
)
from compactord.paimon.paths import is_file_name
from compactord.paimon.schema import TableRef, branch_of
from compactord.storage.calls import Breaker, Breakers
from compactord.text import LateValues

_TABLES = "paimon_tables"
# As many as are kept, and the longest name: Java's column has no room for more.
_ROWS_MAX, _NAME_MAX = 200_000, 255


class JdbcCatalog(Catalog):
    """Tables of one `catalog-key` below the warehouse."""

    def __init__(
        self, place: CatalogPlace, given: JdbcOptions, database: Database, lock: JdbcLock | None
    ) -> None:
        self.warehouse_storage, self.warehouse = place.storage, place.path
        self._place = place
        self._given = given
        self._database = database
        self._key = given.catalog_key
        self._publishing = place.publishing(place.storage, place.path, lock)
        self._lock = lock

    def check_access(self) -> None:
        """See `Catalog`; also raises what the database does, and `MissingTable`."""
        self._publishing.require_root()
        self._names("LIMIT 1")
        if self._lock is not None:
            self._lock.check()

    def check_commits(self) -> None:
        """See `Catalog`; also raises `MissingTable` where its lock has no table."""
        if self._lock is not None:
            self._lock.check()
        self._publishing.check()

    def open(self, table: TableRef) -> TableAccess:
        """See `Catalog`; asks nothing."""
        return self._publishing.access(table)

    def checks(self) -> Iterator[Check]:
        """Whether its lock can be taken and given back, where it has one."""
        if self._lock is not None:
            yield lock_check(
                self._lock,
                refused="let this user insert into and delete from paimon_distributed_locks",
                lost="compare lock-acquire-timeout and, with PostgreSQL, time zones with the "
                "writers'",
            )

    def advice(self, error: CompactordError) -> str:
        """See `Catalog`."""
        if not (isinstance(error, ErrorAtPath) and error.path == self._database.address.shown):
            return ""
        if isinstance(error, AccessDenied):
            return "correct jdbc.user and jdbc.password, or let them in (docs/operations.md)"
        return "correct uri, jdbc.user, jdbc.password or lock.enabled, or repair the database"

    def behind(self, breakers: Breakers) -> Sequence[Breaker]:
        """See `Catalog`; without a lock its tables that are known do without the database."""
        found = super().behind(breakers)
        self._database.breaker = breakers.of_server(self._database.address.shown)
        return found if self._lock is None else (*found, self._database.breaker)

    def registration(self) -> JdbcRegistration:
        """See `Catalog`."""
        return JdbcRegistration(self._place, self._given, self._database)

    def list_tables(self) -> TableList:
        """See `Catalog`; tables are those of the database, whatever lies in the warehouse."""
        self._publishing.require_root()
        tables: list[TableRef] = []
        unreadable: dict[str, StorageError] = {}
        rows = self._names(f"ORDER BY database_name, table_name LIMIT {_ROWS_MAX + 1}")
        if len(rows) > _ROWS_MAX:
            text = f"{_TABLES} has more than {_ROWS_MAX:,} rows, the most that are read"
            raise CatalogUnavailable(self._database.address.shown, text)
        for database, name in rows:
            # Both become names of folders.
            if all(is_file_name(n) and len(n) <= _NAME_MAX for n in (database, name)):
                tables.append(table_at(self.warehouse, database, name))
            else:
                text = f"{_TABLES} has a row for {database}.{name}, which cannot be a folder's name"
                unreadable[database] = StorageError(self._database.address.shown, text)
        return TableList(tables=tuple(tables), unreadable=unreadable)

    def find_table(self, name: str) -> TableRef:
        """See `Catalog`."""
        database, table, branch = parse_name(name, self.list_tables)
        self._publishing.require_root()
        rows = self._names(
            "AND database_name = :database AND table_name = :name", database=database, name=table
        )
        if not rows:
            raise TableNotFound(
                f"table {database}.{table} does not exist in {self._database.address.shown}, "
                f"catalog-key {self._key}{nearest_names(name, self.list_tables)}"
            )
        ref = branch_of(table_at(self.warehouse, database, table), branch)
        require_schema(self.warehouse_storage, ref)
        return ref

    def _names(self, more: str, **values: str) -> list[tuple[str, str]]:
        try:
            # A name that is longer is seen by one character more.
            columns = (
                f"SUBSTR({each}, 1, {_NAME_MAX + 1})" for each in ("database_name", "table_name")
            )
            rows = self._database.rows(
                f"SELECT {', '.join(columns)} FROM {_TABLES} WHERE catalog_key = :key {more}",
                key=self._key,
                **values,
            )
        except MissingTable as error:
            raise MissingTable(
                error.path,
                f"the database has no table {_TABLES}: no JDBC catalog of Paimon was opened in it",
            ) from None
        return [(str(database), str(name)) for database, name in rows]


def open_jdbc(place: CatalogPlace) -> JdbcCatalog:
    """The catalog that the options describe; asks its database nothing.

    The user and password are read again when they are refused, once a minute at most. Raises
    `CatalogOptionInvalid`.
    """
    late, clock = LateValues(place.options), SystemClock()
    late.read()

    def replaced() -> JdbcAddress | None:
        if not late.have_changed(clock.monotonic_s()):
            return None
        try:
            again = jdbc_options(late.read())
            found = jdbc_address(again.uri, again.properties)
        except UsageError:
            return None
        # Another database needs a restart: locks may be held in this one.
        return replace(database.address, user=found.user, password=found.password)

    # As in Java, which has a lock by default in object stores.
    given = jdbc_options(place.values, is_locked=not place.storage.capabilities.has_folders)
    address, size = jdbc_address(given.uri, given.properties), given.pool_size
    database = Database(address, pool_size=size, zone=place.zone, replaced=replaced)
    lock = JdbcLock(database, given, clock) if given.is_locked else None
    return JdbcCatalog(place, given, database, lock)
