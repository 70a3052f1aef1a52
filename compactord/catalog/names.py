"""Names of tables, and where a catalog that keeps no locations has them: `<db>.db/<table>`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from compactord.catalog.base import TableList
from compactord.errors import ObjectNotFound, StorageError, TableNotFound, UsageError
from compactord.paimon.paths import is_file_name
from compactord.paimon.schema import schema_ids
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage

DATABASE_SUFFIX = ".db"


def table_at(warehouse: str, database: str, name: str) -> TableRef:
    """The table in its place (catalog/AbstractCatalog.java, `getTableLocation`)."""
    location = f"{warehouse}/{database}{DATABASE_SUFFIX}/{name}"
    return TableRef(database=database, name=name, location=location)


def parse_name(name: str, list_tables: Callable[[], TableList]) -> tuple[str, str]:
    """Database and table of `database.table`.

    Raises `UsageError` for a malformed name, with the tables that were perhaps meant.
    """
    database, dot, table = name.partition(".")
    if not (dot and is_file_name(database) and is_file_name(table)):
        hint = nearest_names(name, list_tables)
        raise UsageError(f"table {name!r} is not of the form database.table{hint}")
    if "$" in table:
        raise UsageError(f"table {name!r}: branches and system tables are not supported yet")
    return database, table


def nearest_names(name: str, list_tables: Callable[[], TableList]) -> str:
    """The tables whose names are most like this one, as a question; empty if there is none."""
    try:
        known = [table.full_name for table in list_tables().tables]
    except (StorageError, TableNotFound):
        return ""
    # Upper case is the usual slip, and folders are told apart by it.
    lower = {full.lower(): full for full in known}
    near = difflib.get_close_matches(name.lower(), lower, n=3)
    # A table of that name in another database counts, however its database is called.
    same = [full for full in known if full.partition(".")[2] == name.rpartition(".")[2]]
    found = list(dict.fromkeys([*(lower[text] for text in near), *same]))[:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def may_be_table(storage: Storage, location: str) -> bool:
    """Whether there is a schema. When listing fails, True: opening the table reports the error."""
    try:
        return bool(schema_ids(storage, location))
    except ObjectNotFound:
        return False
    except StorageError:
        return True
