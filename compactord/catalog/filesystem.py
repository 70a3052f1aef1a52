"""The filesystem catalog: `<warehouse>/<database>.db/<table>`, found by its schema folder."""

from __future__ import annotations

import os
import re

from compactord.errors import TableNotFound, UsageError
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://?(.*)")


def open_warehouse(warehouse: str) -> tuple[Storage, str]:
    """The store that holds a warehouse and the warehouse's path in it.

    Raises UsageError for schemes that are not supported.
    """
    found = _SCHEME.fullmatch(warehouse)
    if found is None:
        return LocalStorage(), os.path.abspath(warehouse)
    scheme, rest = found.groups()
    if scheme != "file":
        raise UsageError(
            f"warehouse {warehouse}: scheme {scheme}:// is not supported yet; "
            "only local and mounted file systems are"
        )
    return LocalStorage(), "/" + rest.lstrip("/")


def find_table(storage: Storage, warehouse: str, name: str) -> TableRef:
    """The table `database.table`. Raises UsageError for a malformed name, TableNotFound else."""
    database, dot, table = name.partition(".")
    if not (database and dot and table) or "/" in name:
        raise UsageError(f"table {name!r} is not of the form database.table")
    if "$" in table:
        raise UsageError(f"table {name!r}: branches and system tables are not supported yet")
    location = f"{warehouse}/{database}.db/{table}"
    for path, what in (
        (warehouse, "warehouse"),
        (f"{warehouse}/{database}.db", f"database {database} of warehouse {warehouse}"),
        (location, f"table {name} of warehouse {warehouse}"),
    ):
        status = storage.status(path)
        if status is None or not status.is_folder:
            raise TableNotFound(f"{what} does not exist: {path}")
    if not any(child.name.startswith("schema-") for child in storage.list(f"{location}/schema")):
        raise TableNotFound(f"{location} is no Paimon table: it has no schema folder")
    return TableRef(database=database, name=table, location=location)
