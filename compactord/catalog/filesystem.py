"""The filesystem catalog: `<warehouse>/<database>.db/<table>`, found by its schema folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from compactord.catalog.access import TableAccess
from compactord.catalog.base import (
    DATABASE_SUFFIX,
    Catalog,
    CatalogPlace,
    TableList,
    may_be_table,
    nearest_names,
    parse_name,
    require_schema,
    table_at,
)
from compactord.catalog.kinds import read_option
from compactord.catalog.publishing import Publishing
from compactord.catalog.registry import CATALOGS
from compactord.errors import CatalogOptionInvalid, NotAWarehouse, TableNotFound
from compactord.paimon.options.values import boolean
from compactord.paimon.schema import TableRef, branch_of
from compactord.storage.base import Storage


class FilesystemCatalog(Catalog):
    """Tables below `warehouse`, a path of `storage`. Guarded without a wait by default."""

    def __init__(
        self, storage: Storage, warehouse: str, publishing: Publishing | None = None
    ) -> None:
        self.warehouse_storage, self.warehouse = storage, warehouse
        self._publishing = publishing or Publishing(storage, warehouse)

    def open(self, table: TableRef) -> TableAccess:
        """See `Catalog`. Sends no request."""
        return self._publishing.access(table)

    def find_table(self, name: str) -> TableRef:
        database, table, branch = parse_name(name, self.list_tables)
        self._publishing.require_root()
        storage, warehouse = self.warehouse_storage, self.warehouse
        ref = branch_of(table_at(warehouse, database, table), branch)
        for path, what in (
            (
                f"{warehouse}/{database}{DATABASE_SUFFIX}",
                f"database {database} of warehouse {warehouse}",
            ),
            (ref.location, f"table {database}.{table} of warehouse {warehouse}"),
        ):
            if not storage.folder_exists(path):
                hint = nearest_names(name, self.list_tables)
                raise TableNotFound(f"{what} does not exist: {path}{hint}")
        require_schema(storage, ref)
        return ref

    def check_access(self) -> None:
        self._publishing.require_root()
        self._databases()

    def check_commits(self) -> None:
        self._publishing.check()

    def list_tables(self) -> TableList:
        """See `Catalog`.

        A table is a folder with a schema; other folders are skipped, as in Java's catalog
        (catalog/FileSystemCatalog.java). Names that are not UTF-8 are skipped because no command or
        option can express them.
        """
        self._publishing.require_root()
        return TableList.of(self._databases(), self._tables_of)

    def _databases(self) -> list[str]:
        """The names of the databases.

        Raises `NotAWarehouse` for the folder of a database or table. Without databases it would
        look like an empty warehouse.
        """
        names = [
            each.name for each in self.warehouse_storage.list(self.warehouse) if each.is_folder
        ]
        found = [name for name in names if name.endswith(DATABASE_SUFFIX)]
        if not found:
            self._refuse_inner_folder(names)
        return [name.removesuffix(DATABASE_SUFFIX) for name in found]

    def _refuse_inner_folder(self, children: Collection[str]) -> None:
        folder, storage = self.warehouse, self.warehouse_storage
        parent, _, name = folder.rpartition("/")
        if {"schema", "snapshot"} <= set(children):
            is_usual = parent.endswith(DATABASE_SUFFIX)
            above = parent.rpartition("/")[0] if is_usual else "the folder of its database's folder"
            raise NotAWarehouse(folder, f"table {name}", above)
        if name.endswith(DATABASE_SUFFIX) and any(
            may_be_table(storage, f"{folder}/{child}") for child in children
        ):
            raise NotAWarehouse(folder, f"database {name.removesuffix(DATABASE_SUFFIX)}", parent)

    def _tables_of(self, database: str) -> Iterator[TableRef]:
        storage, folder = self.warehouse_storage, f"{self.warehouse}/{database}{DATABASE_SUFFIX}"
        for name in [child.name for child in storage.list(folder) if child.is_folder]:
            location = f"{folder}/{name}"
            if _is_text(location) and may_be_table(storage, location):
                yield TableRef(database=database, name=name, location=location)


def _is_text(path: str) -> bool:
    """Whether the name is UTF-8 on disk; Python reads other bytes as lone surrogates."""
    return path.encode(errors="ignore").decode() == path


def open_filesystem(place: CatalogPlace) -> FilesystemCatalog:
    """The catalog for these options. Raises `CatalogOptionInvalid`."""
    if read_option(place.values, "lock.enabled", boolean, False):
        locked = " and ".join(kind.name for kind in CATALOGS.values() if kind.has_lock)
        raise CatalogOptionInvalid(
            "lock.enabled",
            "false: a filesystem catalog has no lock of its own, and locks of other systems are "
            f"not supported; metastore {locked} has one",
        )
    return FilesystemCatalog(place.storage, place.path, place.publishing(place.storage, place.path))
