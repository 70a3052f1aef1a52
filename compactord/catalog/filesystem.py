"""The filesystem catalog: `<warehouse>/<database>.db/<table>`, found by its schema folder."""

from __future__ import annotations

from compactord.catalog.base import TableList
from compactord.catalog.names import (
    DATABASE_SUFFIX,
    may_be_table,
    nearest_names,
    parse_name,
    require_warehouse,
    table_at,
)
from compactord.catalog.probe import StoreProof, proved
from compactord.commit.publish import SnapshotPublisher, StorePublisher
from compactord.errors import StorageError, TableNotFound
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage


class FilesystemCatalog:
    """Tables below `warehouse`, a path of `storage`, which publishes their snapshots itself.

    Snapshots stand for `settle_ms` before anything is built on them (`SnapshotPublisher`).
    """

    def __init__(self, storage: Storage, warehouse: str, *, settle_ms: int = 0) -> None:
        self.storage = storage
        self.warehouse = warehouse
        self._proof = StoreProof(storage, warehouse)
        self.publisher: SnapshotPublisher = proved(
            StorePublisher(storage, settle_ms=settle_ms), self._proof
        )

    def find_table(self, name: str) -> TableRef:
        storage, warehouse = self.storage, self.warehouse
        database, table = parse_name(name, self.list_tables)
        ref = table_at(warehouse, database, table)
        for path, what in (
            (warehouse, "warehouse"),
            (
                f"{warehouse}/{database}{DATABASE_SUFFIX}",
                f"database {database} of warehouse {warehouse}",
            ),
            (ref.location, f"table {name} of warehouse {warehouse}"),
        ):
            if not storage.folder_exists(path):
                hint = "" if path == warehouse else nearest_names(name, self.list_tables)
                raise TableNotFound(f"{what} does not exist: {path}{hint}")
        if not may_be_table(storage, ref.location):
            raise TableNotFound(f"{ref.location} is not a Paimon table: it has no schema")
        return ref

    def check_access(self) -> None:
        """See `Catalog`."""
        require_warehouse(self.storage, self.warehouse)
        for _ in self.storage.list(self.warehouse):
            return

    def check_commits(self) -> None:
        """See `Catalog`."""
        self._proof.require_if_allowed()

    def list_tables(self) -> TableList:
        """See `Catalog`.

        A table is a folder with a schema in it; other folders are skipped, as in Java's catalog
        (catalog/FileSystemCatalog.java), and so are names that are not UTF-8: no command or option
        could name them.
        """
        storage, warehouse = self.storage, self.warehouse
        require_warehouse(self.storage, self.warehouse)
        tables: list[TableRef] = []
        unreadable: dict[str, StorageError] = {}
        for database in storage.list(warehouse):
            if not database.is_folder or not database.name.endswith(DATABASE_SUFFIX):
                continue
            folder = f"{warehouse}/{database.name}"
            name = database.name.removesuffix(DATABASE_SUFFIX)
            try:
                found = [child for child in storage.list(folder) if child.is_folder]
            except StorageError as error:
                unreadable[name] = error
                continue
            for table in found:
                location = f"{folder}/{table.name}"
                if _is_text(location) and may_be_table(storage, location):
                    tables.append(TableRef(database=name, name=table.name, location=location))
        tables.sort(key=lambda table: (table.database, table.name))
        return TableList(tables=tuple(tables), unreadable=unreadable)


def _is_text(path: str) -> bool:
    """Whether the name is UTF-8 on disk; Python reads other bytes as lone surrogates."""
    return path.encode(errors="ignore").decode() == path
