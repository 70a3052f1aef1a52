"""The filesystem catalog: `<warehouse>/<database>.db/<table>`, found by its schema folder."""

from __future__ import annotations

import difflib

from compactord.catalog.base import TableList
from compactord.commit.publish import StorePublisher
from compactord.errors import ObjectNotFound, StorageError, TableNotFound, UsageError
from compactord.paimon.paths import is_file_name
from compactord.paimon.schema import schema_ids
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage

_DATABASE_SUFFIX = ".db"


class FilesystemCatalog:
    """Tables below `warehouse`, a path of `storage`, which publishes their snapshots itself."""

    def __init__(self, storage: Storage, warehouse: str) -> None:
        self.storage = storage
        self.warehouse = warehouse
        self.publisher = StorePublisher(storage)

    def find_table(self, name: str) -> TableRef:
        storage, warehouse = self.storage, self.warehouse
        database, dot, table = name.partition(".")
        if not (dot and is_file_name(database) and is_file_name(table)):
            hint = self._nearest(name)
            raise UsageError(f"table {name!r} is not of the form database.table{hint}")
        if "$" in table:
            raise UsageError(f"table {name!r}: branches and system tables are not supported yet")
        location = f"{warehouse}/{database}{_DATABASE_SUFFIX}/{table}"
        for path, what in (
            (warehouse, "warehouse"),
            (
                f"{warehouse}/{database}{_DATABASE_SUFFIX}",
                f"database {database} of warehouse {warehouse}",
            ),
            (location, f"table {name} of warehouse {warehouse}"),
        ):
            status = storage.status(path)
            if status is None or not status.is_folder:
                hint = "" if path == warehouse else self._nearest(name)
                raise TableNotFound(f"{what} does not exist: {path}{hint}")
        if not _may_be_table(storage, location):
            raise TableNotFound(f"{location} is not a Paimon table: it has no schema")
        return TableRef(database=database, name=table, location=location)

    def check_access(self) -> None:
        """See `Catalog`."""
        self._require_warehouse()
        for _ in self.storage.list(self.warehouse):
            return

    def _require_warehouse(self) -> None:
        status = self.storage.status(self.warehouse)
        if status is None or not status.is_folder:
            raise TableNotFound(f"warehouse does not exist: {self.warehouse}")

    def _nearest(self, name: str) -> str:
        """The tables whose names are most like this one, as a question; empty if there is none."""
        try:
            known = [table.full_name for table in self.list_tables().tables]
        except (StorageError, TableNotFound):
            return ""
        # Upper case is the usual slip, and folders are told apart by it.
        lower = {full.lower(): full for full in known}
        near = difflib.get_close_matches(name.lower(), lower, n=3)
        # A table of that name in another database counts, however its database is called.
        same = [full for full in known if full.partition(".")[2] == name.rpartition(".")[2]]
        found = list(dict.fromkeys([*(lower[text] for text in near), *same]))[:3]
        return f"; did you mean {' or '.join(found)}?" if found else ""

    def list_tables(self) -> TableList:
        """See `Catalog`.

        A table is a folder with a schema in it; other folders are skipped, as in Java's catalog
        (catalog/FileSystemCatalog.java), and so are names that are not UTF-8: no command or option
        could name them.
        """
        storage, warehouse = self.storage, self.warehouse
        self._require_warehouse()
        tables: list[TableRef] = []
        unreadable: dict[str, StorageError] = {}
        for database in storage.list(warehouse):
            if not database.is_folder or not database.name.endswith(_DATABASE_SUFFIX):
                continue
            folder = f"{warehouse}/{database.name}"
            name = database.name.removesuffix(_DATABASE_SUFFIX)
            try:
                found = [child for child in storage.list(folder) if child.is_folder]
            except StorageError as error:
                unreadable[name] = error
                continue
            for table in found:
                location = f"{folder}/{table.name}"
                if _is_text(location) and _may_be_table(storage, location):
                    tables.append(TableRef(database=name, name=table.name, location=location))
        tables.sort(key=lambda table: (table.database, table.name))
        return TableList(tables=tuple(tables), unreadable=unreadable)


def _is_text(path: str) -> bool:
    """Whether the name is UTF-8 on disk; Python reads other bytes as lone surrogates."""
    return path.encode(errors="ignore").decode() == path


def _may_be_table(storage: Storage, location: str) -> bool:
    """Whether there is a schema. When listing fails, True: opening the table reports the error."""
    try:
        return bool(schema_ids(storage, location))
    except ObjectNotFound:
        return False
    except StorageError:
        return True
