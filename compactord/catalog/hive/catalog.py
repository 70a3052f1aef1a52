"""The Hive catalog: a metastore lists the tables, each with its own location.

Source: hive/HiveCatalog.java (`createPartitions`, `dropPartitions`, `markDonePartitions`). The only
changes made in the metastore are locks, and entries of partitions for tables whose options enable
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from compactord.catalog.access import TableAccess
from compactord.catalog.base import (
    Catalog,
    CatalogPlace,
    Check,
    TableList,
    lock_check,
    nearest_names,
    parse_name,
    table_at,
)
from compactord.catalog.hive.client import HiveClient, MetastoreFault
from compactord.catalog.hive.lock import HiveLock
from compactord.catalog.hive.options import HiveOptions, hive_options
from compactord.catalog.hive.wire import (
    NO_DATABASE,
    NO_OBJECT,
    HivePartition,
    HiveTable,
    WholeDescriptor,
    WholeTable,
)
from compactord.clock import SystemClock
from compactord.errors import (
    CatalogUnavailable,
    CompactordError,
    ErrorAtPath,
    StorageError,
    TableNotFound,
    UnsupportedTable,
    UsageError,
)
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents, PartitionSpec
from compactord.paimon.schema import BRANCH_MARK, TableRef, branch_of
from compactord.storage.calls import Breaker, Breakers

# Parameter for the location of a partition if its descriptor has none.
LOCATION = "paimon_location"
_DATA_FOLDER = "data-file.path-directory"


@dataclass(frozen=True, eq=False, kw_only=True)
class HivePartitions(PartitionEntries, PartitionEvents):
    """The partition entries of one table, which its branches share.

    `load` returns the table, and raises if it was replaced: no entries are changed then. `location`
    returns its location according to the metastore. `in_properties`: entries hold the locations of
    partitions in their parameters.
    """

    client: HiveClient
    name: tuple[str, str]
    load: Callable[[], WholeTable]
    location: Callable[[WholeTable], str]
    in_properties: bool

    def add(self, specs: Sequence[PartitionSpec]) -> None:
        """See `PartitionEntries`. The metastore creates the folders."""
        if not specs:
            return
        table = self.load()
        added = [self._entry(table, spec) for spec in specs]
        self.client.add_partitions(*self.name, added)

    def drop(self, specs: Sequence[PartitionSpec]) -> None:
        if not specs:
            return
        self.load()
        for spec in specs:
            self.client.drop_partition(*self.name, [*spec.values()])

    def added_ms(self, spec: PartitionSpec) -> int | None:
        """See `PartitionEntries`. In whole seconds; long ago if the metastore reports none."""
        found = self.client.partition(*self.name, [*spec.values()])
        return None if found is None else (found.created_s or 0) * 1000

    def mark_done(self, spec: PartitionSpec) -> None:
        self.load()
        self.client.mark_partition(*self.name, spec)

    def are_done(self, specs: Sequence[PartitionSpec]) -> Sequence[bool]:
        return [self.client.is_marked(*self.name, spec) for spec in specs]

    def _entry(self, table: WholeTable, spec: PartitionSpec) -> HivePartition:
        """A copy of the table's own descriptor with the partition's location."""
        folder = (table.parameters or {}).get(_DATA_FOLDER)
        folders = [paths.spec_path(spec)] if folder is None else [folder, paths.spec_path(spec)]
        location = paths.join(self.location(table), *folders)
        known = vars(table.sd) if table.sd is not None else {}
        own = {} if self.in_properties else {"location": location}
        return HivePartition(
            values=[*spec.values()],
            database=self.name[0],
            table=self.name[1],
            sd=WholeDescriptor(**{**known, **own}),
            parameters={LOCATION: location} if self.in_properties else {},
        )


INPUT = "org.apache.paimon.hive.mapred.PaimonInputFormat"
OUTPUT = "org.apache.paimon.hive.mapred.PaimonOutputFormat"


class HiveCatalog(Catalog):
    def __init__(
        self, place: CatalogPlace, given: HiveOptions, client: HiveClient, lock: HiveLock | None
    ) -> None:
        self.warehouse_storage = place.storage if place.is_located else None
        self.warehouse = place.path if place.is_located else place.warehouse
        self._place = place
        self._given = given
        self._client = client
        self._lock = lock
        self._store_breaker: Breaker | None = None

    @property
    def address(self) -> str:
        return self._client.shown

    def check_access(self) -> None:
        """See `Catalog`. Does not check the warehouse, because tables may lie anywhere."""
        self._client.databases()

    def list_tables(self) -> TableList:
        """See `Catalog`. Skips views and tables of other formats."""
        # Otherwise no call would probe the warehouse's store while its tables wait for it.
        storage = self.warehouse_storage
        if storage is not None and self._store_breaker and self._store_breaker.is_probe_due:
            with contextlib.suppress(StorageError):
                storage.folder_exists(self.warehouse)
        return TableList.of(sorted(self._client.databases()), self._tables_of)

    def _tables_of(self, database: str) -> Iterator[TableRef]:
        try:
            names = self._client.table_names(database)
            for start in range(0, len(names), self._given.batch_size):
                batch = names[start : start + self._given.batch_size]
                for found in self._client.tables(database, batch):
                    # The answer may contain tables of other databases.
                    if _is_paimon(found) and _is_called(found, database, found.name):
                        yield self._ref(found)
        except MetastoreFault as error:
            if error.kind != NO_DATABASE:
                raise

    def find_table(self, name: str) -> TableRef:
        database, table, branch = parse_name(name, self.list_tables)
        try:
            found = self._load(database, table)
        except TableNotFound as error:
            raise TableNotFound(f"{error}{nearest_names(name, self.list_tables)}") from None
        return branch_of(self._ref(found), branch)

    def open(self, table: TableRef) -> TableAccess:
        """See `Catalog`. Reads the table from the metastore."""
        main = table.name.partition(BRANCH_MARK)[0]
        found = self._load(table.database, main)
        place = self._place
        try:
            storage, path = place.locate(self._location(found), place.store_options, ())
        except UsageError as error:
            raise UnsupportedTable(table.full_name, [str(error)]) from error
        ref = replace(table, location=path, identity=_identity(found))
        # The lock is on or off for all tables of a catalog (catalog/AbstractCatalog.java).
        publishing = place.publishing(storage, path, self._lock)
        partitions = HivePartitions(
            client=self._client,
            name=(table.database, main),
            load=partial(self._same, ref, main),
            location=self._location,
            in_properties=self._given.location_in_properties,
        )
        return replace(publishing.access(ref), entries=partitions, events=partitions)

    def behind(self, breakers: Breakers) -> Sequence[Breaker]:
        """See `Catalog`. Without a lock, known tables do not depend on the metastore."""
        self._client.breaker = breakers.of_server(self._client.shown)
        self._store_breaker = breakers.of(self.warehouse_storage)
        found = (self._store_breaker, self._client.breaker if self._lock else None)
        return [breaker for breaker in found if breaker is not None]

    def checks(self) -> Iterator[Check]:
        """Whether its lock, if any, can be taken and released."""
        if self._lock is not None:
            yield lock_check(
                self._lock,
                refused="enable locks in the metastore: its database needs the tables of "
                "transactions (HIVE_LOCKS)",
                lost="compare hive.txn.timeout with the metastore's",
            )

    def advice(self, error: CompactordError) -> str:
        if not (isinstance(error, ErrorAtPath) and error.path == self._client.shown):
            return ""
        return (
            "correct uri or the options of TLS and login (docs/operations.md), or start the "
            "metastore; one that requires a login closes the connection without it"
        )

    def _same(self, table: TableRef, main: str) -> WholeTable:
        """The table. Raises as `_load`, and `TableNotFound` if it was replaced."""
        found = self._load(table.database, main)
        if _identity(found) != table.identity:
            raise TableNotFound(f"table {table.database}.{main} was dropped and created again")
        return found

    def _load(self, database: str, name: str) -> WholeTable:
        """The table. Raises `TableNotFound` if it is missing or has another format."""
        try:
            found = self._client.table(database, name)
        except MetastoreFault as error:
            if error.kind != NO_OBJECT:
                raise
            where = self._client.shown
            raise TableNotFound(f"table {database}.{name} does not exist in {where}") from None
        if not _is_paimon(found):
            raise TableNotFound(f"{database}.{name} is not a Paimon table, by its formats in Hive")
        if not _is_called(found, database, name):
            # Its files would be taken for the requested table's.
            text = f"the metastore answered with another table than {database}.{name}"
            raise CatalogUnavailable(self._client.shown, text)
        return found

    def _location(self, found: HiveTable) -> str:
        """The location by Java's rules (hive/TBPropertiesLocationHelper, StorageLocationHelper)."""
        own = (found.parameters or {}).get(LOCATION) if self._given.location_in_properties else ""
        location = own or (found.sd.location if found.sd is not None else "")
        if not location:
            return table_at(self._place.warehouse.rstrip("/"), found.database, found.name).location
        if location.startswith("/") and self._given.default_fs:
            return f"{self._given.default_fs.rstrip('/')}{location}"
        return location

    def _ref(self, found: HiveTable) -> TableRef:
        path = self._place.path_of(self._location(found), self._place.store_options, ())
        return TableRef(
            database=found.database, name=found.name, location=path, identity=_identity(found)
        )


def _is_paimon(found: HiveTable) -> bool:
    sd = found.sd
    if not (found.name and found.database and sd):
        return False
    return (sd.input, sd.output) == (INPUT, OUTPUT)


def _is_called(found: HiveTable, database: str, name: str) -> bool:
    """Whether these are its names, in any case: a metastore ignores it."""
    theirs, asked = (found.database, found.name), (database, name)
    return [*map(str.casefold, theirs)] == [*map(str.casefold, asked)]


def _identity(found: HiveTable) -> str:
    return f"{found.database}.{found.name}.{found.created_s}"


def open_hive(place: CatalogPlace) -> HiveCatalog:
    """The catalog for these options; sends no request.

    Raises `CatalogOptionInvalid`.
    """
    # As in Java, where the lock is on by default if the warehouse is in an object store. For other
    # warehouses the default is unknown, and a lock that writers do not take would give false
    # safety.
    is_locked = place.is_located and not place.storage.capabilities.has_folders
    given, clock = (
        hive_options(place.values, place.store_options, is_locked=is_locked),
        SystemClock(),
    )
    client = HiveClient(given.addresses, given.shown, clock, given.security)
    lock = HiveLock(client, given, clock) if given.is_locked else None
    return HiveCatalog(place, given, client, lock)
