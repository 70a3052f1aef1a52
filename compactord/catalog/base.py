"""What a catalog answers: which tables there are, and how each is opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Protocol

from compactord.catalog.access import TableAccess
from compactord.catalog.check import Check
from compactord.catalog.publishing import Publishing
from compactord.commit.publish import CatalogLock
from compactord.errors import CatalogDown, CatalogUnavailable, CompactordError, StorageError
from compactord.paimon.schema import TableRef
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
