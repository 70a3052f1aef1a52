"""A catalog whose server keeps which tables there are and which snapshot of each is the newest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog, CatalogPlace, Check, TableList, Verdict
from compactord.catalog.kinds import CatalogKind
from compactord.catalog.publishing import Publishing
from compactord.commit.publish import Delta, SnapshotPublisher
from compactord.errors import (
    AccessDenied,
    CatalogOptionInvalid,
    CompactordError,
    ErrorAtPath,
    TableNotFound,
)
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef, TableSchema
from compactord.paimon.snapshot import Snapshot, read_snapshot, snapshot_json
from compactord.state.table_state import Refreshed
from compactord.storage.base import Creation, Storage


class Server:
    """What the catalog's server knows: the location of each table, and its newest snapshot.

    Tables of which it keeps no pointer publish by their stores. `before` is called with the lock
    not yet taken, `after` when the pointer has been moved.
    """

    def __init__(self, pin: str) -> None:
        self.pin = pin
        self.locations: dict[str, str] = {}
        self.identities: dict[str, str] = {}
        self.newest: dict[str, int] = {}
        # Snapshots that were to be published, by table, and tables whose schema was asked for.
        self.asked: list[tuple[str, int]] = []
        self.schemas_asked: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.lock = threading.Lock()


# The servers that run, by name.
servers: dict[str, Server] = {}


@dataclass(frozen=True, slots=True)
class Pointers:
    """Publishes: the newest snapshot of a table is what the server says, changed under a lock."""

    server: Server
    storage: Storage
    excludes_writers = True
    settle_ms = 0

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        server, name = self.server, table.full_name
        server.asked.append((name, snapshot.id))
        server.before()
        with server.lock:
            if snapshot.id != server.newest[name] + 1:
                return Creation.EXISTS
            path = paths.snapshot_path(table.location, snapshot.id)
            self.storage.overwrite(path, snapshot_json(snapshot))
            server.newest[name] = snapshot.id
        server.after()
        return Creation.CREATED


@dataclass(frozen=True, slots=True, kw_only=True)
class PointedTable(TableAccess):
    """A table whose newest snapshot and schema the server tells."""

    server: Server

    def newest_schema(self, known: TableSchema | None = None) -> TableSchema:
        self.server.schemas_asked.append(self.ref.full_name)
        return TableAccess.newest_schema(self, known)

    def newest_state(self) -> Refreshed:
        found = TableAccess.newest_state(self)
        newest = self.server.newest[self.ref.full_name]
        assert found.state.snapshot == read_snapshot(self.storage, self.ref.location, newest)
        return found


class PointerCatalog(Catalog):
    def __init__(self, place: CatalogPlace, server: Server) -> None:
        self.warehouse, self.warehouse_storage = place.path, place.storage
        self._place = place
        self._server = server

    def check_access(self) -> None:
        if self._place.values["pointers.pin"] != self._server.pin:
            raise AccessDenied("pointers:", "the pin is wrong")

    def list_tables(self) -> TableList:
        self.check_access()
        return TableList(tables=tuple(map(self._ref, self._server.locations)), unreadable={})

    def find_table(self, name: str) -> TableRef:
        if name not in self._server.locations:
            raise TableNotFound(name)
        return self._ref(name)

    def open(self, table: TableRef) -> TableAccess:
        storage, path = self._place.locate(
            self._server.locations[table.full_name], self._place.store_options
        )
        if table.full_name not in self._server.newest:
            is_guarded = self._place.is_guarded
            return Publishing(storage, path, is_guarded=is_guarded).access(table)
        publisher: SnapshotPublisher = Pointers(self._server, storage)
        return PointedTable(ref=table, storage=storage, publisher=publisher, server=self._server)

    def checks(self) -> Iterator[Check]:
        yield Check(name="server", verdict=Verdict.OK, found="it runs")

    def advice(self, error: CompactordError) -> str:
        is_own = isinstance(error, ErrorAtPath) and error.path == "pointers:"
        return "correct pointers.pin" if is_own else ""

    def _ref(self, name: str) -> TableRef:
        _, path = self._place.locate(self._server.locations[name], self._place.store_options)
        database, _, table = name.partition(".")
        identity = self._server.identities.get(name, "")
        return TableRef(database=database, name=table, location=path, identity=identity)


def open_pointers(place: CatalogPlace) -> PointerCatalog:
    name = place.values.get("pointers.server", "")
    if name not in servers:
        raise CatalogOptionInvalid("pointers.server", "a server that runs")
    return PointerCatalog(place, servers[name])


POINTERS = CatalogKind(
    name="pointers",
    opener=f"{__name__}:open_pointers",
    options=("pointers.server", "pointers.pin"),
    credentials=("pointers.pin",),
)
