"""The JDBC catalog: a database lists the tables, which lie below the warehouse.

Sources: jdbc/JdbcCatalog.java (`repairCatalog`), jdbc/JdbcUtils.java (tables and columns). Opening
a catalog creates no tables in the database; only locks are written. Java also copies the options of
tables into `paimon_table_properties`, which it never reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compactord.catalog.access import TableAccess
from compactord.catalog.base import (
    DATABASE_SUFFIX,
    Catalog,
    CatalogPlace,
    Check,
    Registered,
    TableList,
    lock_check,
    nearest_names,
    parse_name,
    require_schema,
    table_at,
)
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.jdbc.database import (
    Database,
    Dialect,
    Duplicate,
    JdbcAddress,
    MissingTable,
    jdbc_address,
)
from compactord.catalog.jdbc.lock import JdbcLock
from compactord.catalog.jdbc.options import JdbcOptions, jdbc_options
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

_CREATE_TABLES: Mapping[str, str] = {
    "paimon_tables": "catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) NOT NULL, "
    "table_name VARCHAR(255) NOT NULL, PRIMARY KEY (catalog_key, database_name, table_name)",
    "paimon_database_properties": "catalog_key VARCHAR(255) NOT NULL, "
    "database_name VARCHAR(255) NOT NULL, property_key VARCHAR(255), "
    "property_value VARCHAR(1000), PRIMARY KEY (catalog_key, database_name, property_key)",
}
_LOCKS = (
    "lock_id VARCHAR({}) NOT NULL, acquired_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL, "
    "expire_time_seconds BIGINT DEFAULT 0 NOT NULL, PRIMARY KEY (lock_id)"
)
# Makes an INSERT do nothing if the key exists.
_UNLESS_KNOWN = {
    Dialect.SQLITE: "ON CONFLICT DO NOTHING",
    Dialect.POSTGRESQL: "ON CONFLICT DO NOTHING",
    Dialect.MYSQL: "ON DUPLICATE KEY UPDATE catalog_key = catalog_key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row to insert unless its key exists; values by column."""

    table: str
    values: Mapping[str, str]

    def sql(self, values: Iterable[str]) -> str:
        return f"INSERT INTO {self.table} ({', '.join(self.values)}) VALUES ({', '.join(values)})"


class JdbcRegistration:
    """Registers tables of the warehouse. Publishes no snapshot, so it takes no lock."""

    def __init__(self, place: CatalogPlace, given: JdbcOptions, database: Database) -> None:
        self.files: Catalog = FilesystemCatalog(place.storage, place.path)
        self._database = database
        self._warehouse = place.warehouse.rstrip("/")
        self._key = given.catalog_key
        self._tables = dict(_CREATE_TABLES)
        if given.is_locked:
            self._tables["paimon_distributed_locks"] = _LOCKS.format(given.lock_key_max)

    def rows(self, tables: Iterable[TableRef]) -> Iterator[Row]:
        """Java's rows of databases and tables, each database before its first table."""
        databases: set[str] = set()
        for table in tables:
            if table.database not in databases:
                databases.add(table.database)
                yield from self._of_database(table.database)
            values = {**self._database_key(table.database), "table_name": table.name}
            yield Row(table="paimon_tables", values=values)

    def script(self, tables: Iterable[TableRef]) -> Iterator[str]:
        for name, columns in self._tables.items():
            yield f"CREATE TABLE IF NOT EXISTS {name} ({columns})"
        unless_known = _UNLESS_KNOWN[self._database.address.dialect]
        for row in self.rows(tables):
            yield f"{row.sql(map(self._literal, row.values.values()))} {unless_known}"

    def add(self, tables: Iterable[TableRef]) -> Registered:
        """See `Registration`. The catalog's own tables are created as in Java."""
        created = [name for name, columns in self._tables.items() if self._add_table(name, columns)]
        added = [row.values for row in self.rows(tables) if self._add_row(row)]
        names = [f"{v['database_name']}.{v['table_name']}" for v in added if "table_name" in v]
        return Registered(created=created, tables=names)

    def _add_row(self, row: Row) -> bool:
        """Whether the row was added."""
        try:
            self._database.execute(row.sql(f":{column}" for column in row.values), **row.values)
        except Duplicate:
            return False
        return True

    def _add_table(self, name: str, columns: str) -> bool:
        # Users who may not create tables can still register in existing ones.
        try:
            self._database.rows(f"SELECT 1 FROM {name} WHERE 1 = 0")
        except MissingTable:
            self._database.execute(f"CREATE TABLE {name} ({columns})")
            return True
        return False

    def _of_database(self, name: str) -> Iterator[Row]:
        location = f"{self._warehouse}/{name}{DATABASE_SUFFIX}"
        for property_key, value in (("exists", "true"), ("location", location)):
            pair = {"property_key": property_key, "property_value": value}
            values = {**self._database_key(name), **pair}
            yield Row(table="paimon_database_properties", values=values)

    def _database_key(self, name: str) -> Mapping[str, str]:
        return {"catalog_key": self._key, "database_name": name}

    def _literal(self, text: str) -> str:
        if self._database.address.dialect is Dialect.MYSQL:
            text = text.replace("\\", "\\\\")
        return "'" + text.replace("'", "''") + "'"


_TABLES = "paimon_tables"
# Rows that are read, and the longest name, limited by Java's column.
_ROWS_MAX, _NAME_MAX = 200_000, 255


class JdbcCatalog(Catalog):
    """The tables of one `catalog-key` below the warehouse."""

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
        """See `Catalog`. Also raises the errors of the database, and `MissingTable`."""
        self._publishing.require_root()
        self._names("LIMIT 1")
        if self._lock is not None:
            self._lock.check()

    def check_commits(self) -> None:
        """See `Catalog`. Also raises `MissingTable` if the table of its lock does not exist."""
        if self._lock is not None:
            self._lock.check()
        self._publishing.check()

    def open(self, table: TableRef) -> TableAccess:
        """See `Catalog`. Sends no request."""
        return self._publishing.access(table)

    def checks(self) -> Iterator[Check]:
        """Whether its lock, if any, can be taken and released."""
        if self._lock is not None:
            yield lock_check(
                self._lock,
                refused="let this user insert into and delete from paimon_distributed_locks",
                lost="compare lock-acquire-timeout and, with PostgreSQL, time zones with the "
                "writers'",
            )

    def advice(self, error: CompactordError) -> str:
        if not (isinstance(error, ErrorAtPath) and error.path == self._database.address.shown):
            return ""
        if isinstance(error, AccessDenied):
            return "correct jdbc.user and jdbc.password, or let them in (docs/operations.md)"
        return "correct uri, jdbc.user, jdbc.password or lock.enabled, or repair the database"

    def behind(self, breakers: Breakers) -> Sequence[Breaker]:
        """See `Catalog`. Without a lock, known tables do not depend on the database."""
        found = super().behind(breakers)
        self._database.breaker = breakers.of_server(self._database.address.shown)
        return found if self._lock is None else (*found, self._database.breaker)

    def registration(self) -> JdbcRegistration:
        return JdbcRegistration(self._place, self._given, self._database)

    def list_tables(self) -> TableList:
        """See `Catalog`. Lists tables of the database, not folders of the warehouse."""
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
            # One more character shows that a name is too long.
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
    """The catalog for these options; sends no request.

    User and password are read again after a refusal, at most once a minute. Raises
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

    # As in Java, where the lock is on by default in object stores.
    given = jdbc_options(place.values, is_locked=not place.storage.capabilities.has_folders)
    address, size = jdbc_address(given.uri, given.properties), given.pool_size
    database = Database(address, pool_size=size, zone=place.zone, replaced=replaced)
    lock = JdbcLock(database, given, clock) if given.is_locked else None
    return JdbcCatalog(place, given, database, lock)
