"""The catalog protocol: list tables and open them. Names of tables. Checks for `doctor`."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Protocol

from compactord import ids
from compactord.catalog.access import TableAccess
from compactord.catalog.publishing import Publishing
from compactord.commit.publish import CatalogLock
from compactord.errors import (
    CatalogDown,
    CatalogUnavailable,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TableNotFound,
    UsageError,
)
from compactord.paimon.paths import MAIN_BRANCH, is_file_name, schema_path
from compactord.paimon.schema import BRANCH_MARK, TableRef, schema_ids
from compactord.paimon.snapshot import branch_names
from compactord.storage.base import Storage
from compactord.storage.calls import Breaker, Breakers
from compactord.text import did_you_mean_table

# Limit for the names of all tables of a catalog, plus a fixed cost per table and database.
_LISTED_BYTES_MAX = 128 << 20
_NAMED_BYTES = 500
_SHOWN_MAX = 100


class Verdict(enum.Enum):
    """FAILED: compactord cannot work. WARNING: it can, but an operator should look at it."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A finding, and `advice` for the operator, empty if no action is needed."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def failed_check(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=Verdict.FAILED, found=found, advice=advice)


def lock_check(lock: CatalogLock, *, refused: str, lost: str) -> Check:
    """Checks that a catalog's lock can be taken and released.

    `refused` and `lost` are the advice if it cannot be taken, or does not last.
    """
    # No table has such a name, so no writer waits.
    nothing = TableRef(database=".compactord-probe", name=ids.random_uuid(), location="")
    try:
        was_ours = lock.acquire(nothing).release()
    except CompactordError as error:
        return failed_check("lock", str(error), refused)
    if not was_ours:
        return failed_check("lock", "a lock that was taken was lost", lost)
    found = "taken and released; all writers of its tables must also have lock.enabled"
    return Check(name="lock", verdict=Verdict.OK, found=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableList:
    """Tables by name. `unreadable` maps databases that could not be listed to the error."""

    tables: tuple[TableRef, ...]
    unreadable: Mapping[str, StorageError]

    @staticmethod
    def of(
        databases: Iterable[str],
        tables_of: Callable[[str], Iterable[TableRef]],
        *,
        bytes_max: int = _LISTED_BYTES_MAX,
    ) -> TableList:
        """The tables of each database. A database that fails, even midway, is listed as unreadable.

        Raises the errors of listing databases, `CatalogDown`, and `CatalogUnavailable` if the names
        exceed `bytes_max`: 128 MiB hold about 150,000 tables.
        """
        tables: list[TableRef] = []
        unreadable: dict[str, StorageError] = {}
        left = bytes_max
        for database in databases:
            left -= _NAMED_BYTES + len(database)
            try:
                for table in tables_of(database):
                    left -= _NAMED_BYTES + len(table.name) + len(table.location)
                    if left < 0:
                        break
                    tables.append(table)
            except CatalogDown:
                raise
            except StorageError as error:
                unreadable[database] = error
            if left < 0:
                found = (
                    f"the catalog names more than {len(tables):,} tables, the most that are kept"
                )
                raise CatalogUnavailable(database[:_SHOWN_MAX], found)
        tables.sort(key=lambda table: (table.database, table.name))
        return TableList(tables=tuple(tables), unreadable=unreadable)


class Locate(Protocol):
    """The signature of `Stores.open`."""

    def __call__(
        self,
        location: str,
        options: Mapping[str, str],
        served: Collection[str] | None = None,
        /,
    ) -> tuple[Storage, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPlace:
    """Everything that opens a catalog.

    `options` are the catalog's own, references as written, and `values` the same with references
    resolved. `warehouse` is its URL as writers use it, `path` its path in `storage`; both mean
    nothing unless the warehouse `is_located` (`CatalogKind.location_of`).
    `locate` opens the store of a location supplied by others, as `Stores.open` of `Stores.limited`.
    `path_of` only returns the location's path, or the location itself if `locate` would refuse it.
    `store_options`, references as written, are the catalog's credentials.
    `zone` is the writers' time zone, or None for the machine's. For `is_guarded`, `settle_ms` and
    `creates_root` see `Publishing`. `allows_http` permits requests to the catalog's server without
    TLS.
    """

    warehouse: str
    storage: Storage
    path: str
    is_located: bool
    options: Mapping[str, str] = field(repr=False)
    values: Mapping[str, str] = field(repr=False)
    store_options: Mapping[str, str] = field(repr=False)
    locate: Locate
    path_of: Callable[[str, Mapping[str, str], Collection[str] | None], str]
    zone: tzinfo | None
    is_guarded: bool
    settle_ms: int
    creates_root: bool = False
    allows_http: bool = False

    def publishing(
        self, storage: Storage, root: str, lock: CatalogLock | None = None
    ) -> Publishing:
        """The publishing rules for tables below `root`, a path of `storage`."""
        return Publishing(
            storage,
            root,
            lock=lock,
            is_guarded=self.is_guarded,
            settle_ms=self.settle_ms,
            creates_root=self.creates_root,
        )


class Catalog(Protocol):
    """The tables of one catalog. Thread-safe.

    `warehouse` is a path in `warehouse_storage`, the store that `check_access` reads, or None for a
    server without a folder. Tables may lie elsewhere, including other stores.
    """

    warehouse: str
    warehouse_storage: Storage | None

    @property
    def address(self) -> str:
        """The address that `check_access` contacts, for messages."""
        return self.warehouse

    def check_access(self) -> None:
        """Check that the catalog can list tables, with one small request.

        Raises `TableNotFound` without a warehouse, `UsageError` for a warehouse whose tables are
        all refused, and the errors of its store.
        """
        ...

    def check_commits(self) -> None:
        """Check that the warehouse's store creates an object only if it is absent.

        A warehouse that may be created gets its folder. An unproved store is tested with an object
        below the warehouse. If this is forbidden, the
        first commit tests it in its table's folder instead. Raises `UnsafeStore`, and the errors of
        the store.
        """
        return

    def list_tables(self) -> TableList:
        """Every table of every database.

        Raises `TableNotFound` without a warehouse, `NotAWarehouse` for a folder within one.
        """
        ...

    def find_table(self, name: str) -> TableRef:
        """The table `database.table`.

        Raises `UsageError` for a malformed name, `TableNotFound` if the table does not exist.
        """
        ...

    def open(self, table: TableRef) -> TableAccess:
        """The table, ready to be read and written.

        Raises `UsageError` if its writers could replace each other's snapshots, and the errors of
        requests to the catalog.
        """
        ...

    def checks(self) -> Iterator[Check]:
        """The catalog's own checks for `doctor`. Their changes are undone."""
        yield from ()

    def advice(self, error: CompactordError) -> str:
        """Advice for an error of the catalog's own service; empty for errors of stores."""
        del error
        return ""

    def behind(self, breakers: Breakers) -> Sequence[Breaker]:
        """Put calls to the catalog's own server behind a breaker, if it has one.

        Returns all breakers that its tables depend on, including the warehouse store's.
        """
        found = breakers.of(self.warehouse_storage)
        return () if found is None else (found,)

    def registration(self) -> Registration | None:
        """Registers tables that already lie in the warehouse; None if the catalog needs none."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Result of `Registration.add`: objects of the catalog, and tables, by full names."""

    created: Sequence[str]
    tables: Sequence[str]


class Registration(Protocol):
    """Registers tables that already lie in a warehouse. Reads and changes none of their files."""

    @property
    def files(self) -> Catalog:
        """The tables that lie in the warehouse."""
        ...

    def script(self, tables: Iterable[TableRef]) -> Iterator[str]:
        """The statements, values included, for an operator to run."""
        ...

    def add(self, tables: Iterable[TableRef]) -> Registered:
        """Register the tables in the catalog. Raises the errors of its service."""
        ...


DATABASE_SUFFIX = ".db"


def table_at(warehouse: str, database: str, name: str) -> TableRef:
    """The table at its default location (catalog/AbstractCatalog.java, `getTableLocation`)."""
    location = f"{warehouse}/{database}{DATABASE_SUFFIX}/{name}"
    return TableRef(database=database, name=name, location=location)


def parse_name(name: str, list_tables: Callable[[], TableList]) -> tuple[str, str, str]:
    """Database, table and branch of `database.table` or `database.table$branch_b`.

    Raises `UsageError` for malformed names, with suggestions, and for system tables.
    """
    database, dot, rest = name.partition(".")
    table, dollar, marked = rest.partition("$")
    branch = (dollar + marked).removeprefix(BRANCH_MARK) if dollar else MAIN_BRANCH
    if "$" not in branch and dot and all(map(is_file_name, (database, table, branch))):
        return database, table, branch
    # Servers and folders may have tables with any name, including a $.
    known = _known_tables(list_tables)
    for table_ref in known:
        if table_ref.full_name == name:
            return table_ref.database, table_ref.name, MAIN_BRANCH
    if "$" in branch:
        raise UsageError(f"table {name!r} is a system table, which has no files of its own")
    hint = did_you_mean_table(name, [table_ref.full_name for table_ref in known])
    forms = "database.table or database.table$branch_name"
    raise UsageError(f"table {name!r} is not of the form {forms}{hint}")


def nearest_names(name: str, list_tables: Callable[[], TableList]) -> str:
    """The most similar table names, as a question; empty if there is none."""
    return did_you_mean_table(name, [table.full_name for table in _known_tables(list_tables)])


def _known_tables(list_tables: Callable[[], TableList]) -> Sequence[TableRef]:
    """The known tables; empty if listing fails, because the caller reports another error."""
    try:
        return list_tables().tables
    except (StorageError, TableNotFound):
        return ()


def require_schema(storage: Storage, ref: TableRef) -> None:
    """Raises `TableNotFound` unless the table or branch has a schema, and errors of listing."""
    if may_be_table(storage, ref.root):
        return
    if ref.branch == MAIN_BRANCH:
        raise TableNotFound(f"{ref.location} is not a Paimon table: it has no schema")
    known = ", ".join((MAIN_BRANCH, *branch_names(storage, ref.location)))
    raise TableNotFound(f"{ref.location} has no branch {ref.branch}; its branches are {known}")


def may_be_table(storage: Storage, location: str) -> bool:
    """Whether there is a schema: one small request for a table, a listing otherwise.

    No writer removes the first schema. Returns True if listing fails: opening the table reports the
    error.
    """
    with contextlib.suppress(StorageError):
        first = storage.status(schema_path(location, 0))
        if first is not None and not first.is_folder:
            return True
    try:
        return bool(schema_ids(storage, location))
    except ObjectNotFound:
        return False
    except StorageError:
        return True
