"""Rows of a JDBC catalog for tables that lie in its warehouse already.

Sources: jdbc/JdbcUtils.java (tables and columns), jdbc/JdbcCatalog.java (`repairCatalog`). Java
also copies the options of tables into `paimon_table_properties`, which it never reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from compactord.catalog.base import Catalog, CatalogPlace, Registered
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.jdbc.address import Dialect
from compactord.catalog.jdbc.database import Database, Duplicate, MissingTable
from compactord.catalog.jdbc.options import JdbcOptions
from compactord.catalog.names import DATABASE_SUFFIX
from compactord.paimon.schema import TableRef

_TABLES: Mapping[str, str] = {
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
# What lets an INSERT do nothing where the key is there.
_UNLESS_KNOWN = {
    Dialect.SQLITE: "ON CONFLICT DO NOTHING",
    Dialect.POSTGRESQL: "ON CONFLICT DO NOTHING",
    Dialect.MYSQL: "ON DUPLICATE KEY UPDATE catalog_key = catalog_key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row that is added unless one with its key is there; values by column."""

    table: str
    values: Mapping[str, str]

    def sql(self, values: Iterable[str]) -> str:
        return f"INSERT INTO {self.table} ({', '.join(self.values)}) VALUES ({', '.join(values)})"


class JdbcRegistration:
    """Registers tables that lie in the warehouse; nothing is published, lock or not."""

    def __init__(self, place: CatalogPlace, given: JdbcOptions, database: Database) -> None:
        self.files: Catalog = FilesystemCatalog(place.storage, place.path)
        self._database = database
        self._warehouse = place.warehouse.rstrip("/")
        self._key = given.catalog_key
        self._tables = dict(_TABLES)
        if given.is_locked:
            self._tables["paimon_distributed_locks"] = _LOCKS.format(given.lock_key_max)

    def rows(self, tables: Iterable[TableRef]) -> Iterator[Row]:
        """What Java has of databases and tables, each database before its first table."""
        databases: set[str] = set()
        for table in tables:
            if table.database not in databases:
                databases.add(table.database)
                yield from self._of_database(table.database)
            values = {**self._database_key(table.database), "table_name": table.name}
            yield Row(table="paimon_tables", values=values)

    def script(self, tables: Iterable[TableRef]) -> Iterator[str]:
        """The statements, values included, for a person to run."""
        for name, columns in self._tables.items():
            yield f"CREATE TABLE IF NOT EXISTS {name} ({columns})"
        unless_known = _UNLESS_KNOWN[self._database.address.dialect]
        for row in self.rows(tables):
            yield f"{row.sql(map(self._literal, row.values.values()))} {unless_known}"

    def add(self, tables: Iterable[TableRef]) -> Registered:
        """See `Registration`; the catalog's own tables are created as Java does."""
        created = [name for name, columns in self._tables.items() if self._add_table(name, columns)]
        added = [row.values for row in self.rows(tables) if self._add_row(row)]
        names = [f"{v['database_name']}.{v['table_name']}" for v in added if "table_name" in v]
        return Registered(created=created, tables=names)

    def _add_row(self, row: Row) -> bool:
        """Whether it was not there."""
        try:
            self._database.execute(row.sql(f":{column}" for column in row.values), **row.values)
        except Duplicate:
            return False
        return True

    def _add_table(self, name: str, columns: str) -> bool:
        # Whoever may not create tables can still register in those that are there.
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
