"""The catalog protocol: list tables and open them; names of tables.

`<db>.db/<table>`.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Protocol

from compactord.catalog.access import TableAccess
from compactord.catalog.check import Check
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

# Of the names of all tables of a catalog; each, and each database, counts for so much more.
_LISTED_BYTES_MAX = 128 << 20
_NAMED_BYTES = 500
_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TableList:
    """Tables by name; `unreadable` are databases that could not be listed, with the reason."""

    tables: tuple[TableRef, ...]
    unreadable: Mapping[str, StorageError]

    @staticmethod
    def of(
        databases: Iterable[str],
        tables_of: Callable[[str], Iterable[TableRef]],
        *,
        bytes_max: int = _LISTED_BYTES_MAX,
    ) -> TableList:
        """The tables of each database; what one fails with, after some of them too, is its own.

        Raises what naming the databases raises, `CatalogDown`, and `CatalogUnavailable` where there
        are more names than fit into `bytes_max`: 128 MiB have room for some 150,000 tables.
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
    """As `Stores.open`."""

    def __call__(
        self,
        location: str,
        options: Mapping[str, str],
        served: Collection[str] | None = None,
        /,
    ) -> tuple[Storage, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPlace:
    """What a catalog is opened with.

    `options` are those of the catalog itself, references as they are written, and `values` what
    these stand for now. `warehouse` is its URL as writers give it, `path` the same in `storage`.
    `locate` opens the store of a location of others, as `Stores.open` of `Stores.limited`,
    `path_of` only tells the location's path in it, and of one that `locate` refuses the location
    itself; `store_options`, references as they are written, are the catalog's credentials.
    Unless the warehouse `is_located` (`CatalogKind.location_of`), these two mean nothing.
    `zone` is that of the writers, None the machine's. `is_guarded` and `settle_ms` as in
    `Publishing`. `allows_http`: the catalog's server may be asked without TLS, wherever it is.
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
    allows_http: bool = False

    def publishing(
        self, storage: Storage, root: str, lock: CatalogLock | None = None
    ) -> Publishing:
        """How snapshots of tables below `root`, a path of `storage`, are published."""
        return Publishing(
            storage, root, lock=lock, is_guarded=self.is_guarded, settle_ms=self.settle_ms
        )


class Catalog(Protocol):
    """The tables of one catalog; any number of threads may ask.

    `warehouse` is a path in `warehouse_storage`, the store that `check_access` asks. Tables may lie
    elsewhere, also in other stores. None: it is a server's, which keeps no folder.
    """

    warehouse: str
    warehouse_storage: Storage | None

    @property
    def asked(self) -> str:
        """Whom `check_access` asks, for people."""
        return self.warehouse

    def check_access(self) -> None:
        """Whether it can be asked for tables: one small request.

        Raises `TableNotFound` without a warehouse, `UsageError` for a warehouse whose tables are
        all refused, and what its store raises.
        """
        ...

    def check_commits(self) -> None:
        """Whether the warehouse's store creates only what is absent; one that may not is tried.

        That makes an object below the warehouse. Where this is forbidden, the first commit tries it
        in its table's folder instead. Raises `UnsafeStore`, and what the store raises.
        """
        return

    def list_tables(self) -> TableList:
        """Every table of every database. Raises `TableNotFound` without a warehouse."""
        ...

    def find_table(self, name: str) -> TableRef:
        """The table `database.table`.

        Raises `UsageError` for a malformed name, `TableNotFound` for one that is not there.
        """
        ...

    def open(self, table: TableRef) -> TableAccess:
        """How the table is read and written.

        Raises `UsageError` where its writers could replace each other's snapshots, and what the
        catalog raises where it has to be asked.
        """
        ...

    def checks(self) -> Iterator[Check]:
        """What `doctor` finds of the catalog itself; whatever is tried is undone again."""
        yield from ()

    def advice(self, error: CompactordError) -> str:
        """What to do about an error of the catalog's own service; empty for those of stores."""
        del error
        return ""

    def behind(self, breakers: Breakers) -> Sequence[Breaker]:
        """Let breakers refuse calls to the catalog's own server, where it has one.

        Returns those that its tables wait for, that of its warehouse's store among them.
        """
        found = breakers.of(self.warehouse_storage)
        return () if found is None else (found,)

    def registration(self) -> Registration | None:
        """What registers tables that lie in its warehouse already; None where they need not be."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What `Registration.add` made: objects of the catalog's own, and tables, by full names."""

    created: Sequence[str]
    tables: Sequence[str]


class Registration(Protocol):
    """Registers tables that lie in a warehouse already; neither reads nor changes files of them."""

    @property
    def files(self) -> Catalog:
        """The tables that lie in the warehouse."""
        ...

    def script(self, tables: Iterable[TableRef]) -> Iterator[str]:
        """The statements, values included, for a person to run."""
        ...

    def add(self, tables: Iterable[TableRef]) -> Registered:
        """Make the catalog know the tables. Raises what its service raises."""
        ...


DATABASE_SUFFIX = ".db"


def table_at(warehouse: str, database: str, name: str) -> TableRef:
    """The table in its place (catalog/AbstractCatalog.java, `getTableLocation`)."""
    location = f"{warehouse}/{database}{DATABASE_SUFFIX}/{name}"
    return TableRef(database=database, name=name, location=location)


def parse_name(name: str, list_tables: Callable[[], TableList]) -> tuple[str, str, str]:
    """Database, table and branch of `database.table` or `database.table$branch_b`.

    Raises `UsageError` for a malformed name of no table, with those that were perhaps meant, and
    for system tables.
    """
    database, dot, rest = name.partition(".")
    table, dollar, marked = rest.partition("$")
    branch = (dollar + marked).removeprefix(BRANCH_MARK) if dollar else MAIN_BRANCH
    if "$" not in branch and dot and all(map(is_file_name, (database, table, branch))):
        return database, table, branch
    # Servers have tables of any name, and folders such with a $.
    known = _known_tables(list_tables)
    for table_ref in known:
        if table_ref.full_name == name:
            return table_ref.database, table_ref.name, MAIN_BRANCH
    if "$" in branch:
        raise UsageError(f"table {name!r} is a system table, which has no files of its own")
    hint = _nearest(name, known)
    forms = "database.table or database.table$branch_name"
    raise UsageError(f"table {name!r} is not of the form {forms}{hint}")


def nearest_names(name: str, list_tables: Callable[[], TableList]) -> str:
    """The tables whose names are most like this one, as a question; empty if there is none."""
    return _nearest(name, _known_tables(list_tables))


def _nearest(name: str, tables: Sequence[TableRef]) -> str:
    known = [table.full_name for table in tables]
    # Upper case is the usual slip, and folders are told apart by it.
    lower = {full.lower(): full for full in known}
    near = difflib.get_close_matches(name.lower(), lower, n=3)
    # A table of that name in another database counts, however its database is called.
    same = [full for full in known if full.partition(".")[2] == name.rpartition(".")[2]]
    found = list(dict.fromkeys([*(lower[text] for text in near), *same]))[:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _known_tables(list_tables: Callable[[], TableList]) -> Sequence[TableRef]:
    """None where they cannot be listed: another error is told."""
    try:
        return list_tables().tables
    except (StorageError, TableNotFound):
        return ()


def require_schema(storage: Storage, ref: TableRef) -> None:
    """Raises `TableNotFound` unless the table or branch has a schema, and what listing raises."""
    if may_be_table(storage, ref.root):
        return
    if ref.branch == MAIN_BRANCH:
        raise TableNotFound(f"{ref.location} is not a Paimon table: it has no schema")
    known = ", ".join((MAIN_BRANCH, *branch_names(storage, ref.location)))
    raise TableNotFound(f"{ref.location} has no branch {ref.branch}; its branches are {known}")


def may_be_table(storage: Storage, location: str) -> bool:
    """Whether there is a schema: one small request for a table, a listing for what may be none.

    No writer removes the first schema. When listing fails, True: opening the table reports the
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
