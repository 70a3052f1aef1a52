"""Databases of JDBC catalogs, as Java's catalog makes them (jdbc/JdbcUtils.java)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

TABLES_SQL = (
    "CREATE TABLE paimon_tables (catalog_key VARCHAR(255) NOT NULL, "
    "database_name VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL, "
    "PRIMARY KEY (catalog_key, database_name, table_name))"
)
LOCKS_SQL = (
    "CREATE TABLE paimon_distributed_locks (lock_id VARCHAR(255) NOT NULL, "
    "acquired_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL, "
    "expire_time_seconds BIGINT DEFAULT 0 NOT NULL, PRIMARY KEY (lock_id))"
)


def sqlite_database(
    path: Path, names: Iterable[str] = (), *, key: str = "jdbc", locks: bool = True
) -> str:
    """The address of a new database that knows the tables `database.table`."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(TABLES_SQL)
        if locks:
            connection.execute(LOCKS_SQL)
        for name in names:
            add_table(connection, name, key=key)
    return f"jdbc:sqlite:{path}"


def add_table(connection: sqlite3.Connection, name: str, *, key: str = "jdbc") -> None:
    database, _, table = name.partition(".")
    connection.execute("INSERT INTO paimon_tables VALUES (?, ?, ?)", (key, database, table))


def run_sql(path: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    """As another process would, committed."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(sql, values).fetchall()
