"""The catalog protocol: which tables there are, where each is, how its snapshots are published.

A catalog gives a table's location; schemas are read from there, as Paimon 2.0.0 does for catalogs
that know tables by path (catalog/AbstractCatalog.java, `tableSchemaInFileSystem`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from compactord.commit.publish import SnapshotPublisher
from compactord.errors import StorageError
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class TableList:
    """Tables by name; `unreadable` are databases that could not be listed, with the reason."""

    tables: tuple[TableRef, ...]
    unreadable: Mapping[str, StorageError]


class Catalog(Protocol):
    """The tables of one warehouse; any number of threads may ask."""

    @property
    def warehouse(self) -> str:
        """The warehouse's path in `storage`."""
        ...

    @property
    def storage(self) -> Storage:
        """The store of all its tables; locations of tables are paths in it."""
        ...

    @property
    def publisher(self) -> SnapshotPublisher:
        """The publisher of the snapshots of its tables."""
        ...

    def check_access(self) -> None:
        """Whether it can be asked for tables: one small request.

        Raises `TableNotFound` without a warehouse, and what its store raises.
        """
        ...

    def check_commits(self) -> None:
        """Whether its store creates only what is absent; one in an object store is tried once.

        That makes an object below the warehouse. Where this is forbidden, the first commit tries it
        in its table's folder instead. Raises `UnsafeStore`, and what the store raises.
        """
        ...

    def list_tables(self) -> TableList:
        """Every table of every database. Raises `TableNotFound` without a warehouse."""
        ...

    def find_table(self, name: str) -> TableRef:
        """The table `database.table`.

        Raises `UsageError` for a malformed name, `TableNotFound` for one that is not there.
        """
        ...
