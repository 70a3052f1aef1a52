"""A table as its catalog returns it: location, store, publisher, schema."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactord.commit.publish import SnapshotPublisher, StorePublisher
from compactord.errors import ObjectNotFound
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents
from compactord.paimon.schema import (
    SchemaHistory,
    TableRef,
    TableSchema,
    has_later_schema,
    latest_schema,
    read_schema,
    schema_ids,
)
from compactord.state.table_state import Refreshed, TableState, load_newest, refresh_state
from compactord.storage.base import Storage
from compactord.storage.calls import DeleteRateLimiter


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """One table: its path in its store, and the publisher of its snapshots.

    Tables of one catalog may lie in several stores with different credentials. The newest schema
    and snapshot are read from the folder of the table or branch, as in Paimon's path-based catalogs
    (catalog/AbstractCatalog.java, `tableSchemaInFileSystem`). A catalog that stores them itself
    overrides these methods.

    `entries` and `events` are the catalog's records of partitions, for tables whose options enable
    them, or None.
    """

    ref: TableRef
    storage: Storage
    publisher: SnapshotPublisher
    entries: PartitionEntries | None = None
    events: PartitionEvents | None = None

    def rate_limited(self, pace: DeleteRateLimiter) -> TableAccess:
        """The table with rate-limited deletions in its store. Publishing is not limited."""
        return replace(self, storage=pace.rate_limited(self.storage))

    def newest_schema(self, known: TableSchema | None = None) -> TableSchema:
        """The newest schema. `known` was the newest before, or None when opening the table.

        Raises `TableNotFound` if there is none, and the errors of reading it.
        """
        return latest_schema(self.storage, self.ref.root, known=known)

    def has_later_schema(self, known: TableSchema) -> bool:
        """Whether a schema newer than `known` exists; one small request."""
        return has_later_schema(self.storage, self.ref.root, known.id)

    def newest_schema_id(self) -> int | None:
        """The id of the newest schema listed in the table's folder, or None without any.

        Commits of all catalogs check it, as Java's do: a rollback deletes the latest.
        """
        return max(schema_ids(self.storage, self.ref.root), default=None)

    def schemas(self, newest: TableSchema) -> SchemaHistory:
        """The schemas of the table's files, read on demand."""
        return SchemaHistory(self.storage, self.ref.root, newest)

    def keeps_schema(self, known: TableSchema) -> bool:
        """Whether `known` is still one of the table's schemas, unchanged; one request.

        If not, it was rolled back, or the table was dropped and created again, which the identity
        of `ref` shows only for some catalogs. Raises the errors of reading.
        """
        try:
            return read_schema(self.storage, self.ref.root, known.id) == known
        except ObjectNotFound:
            return False

    def made_ms(self) -> int | None:
        """Creation time of the branch, from the file of its first schema; None for main.

        A branch that is created again has the same schemas, because they are copied from the table.
        """
        if self.ref.branch == paths.MAIN_BRANCH:
            return None
        folder = paths.schema_folder(self.ref.root)
        return min((status.changed_ms for status in self.storage.list(folder)), default=None)

    def newest_state(self) -> Refreshed:
        """The state of the newest snapshot, read completely. Raises as `load_newest`."""
        return load_newest(self.storage, self.ref)

    def refreshed_state(self, known: TableState, *, checks_hint: bool = False) -> Refreshed:
        """The newest state, updated from a known one if possible; see `refresh_state`."""
        return refresh_state(self.storage, known, checks_hint=checks_hint)


def table_in_folder(storage: Storage, ref: TableRef) -> TableAccess:
    """A table without a catalog: its store publishes its snapshots."""
    return TableAccess(ref=ref, storage=storage, publisher=StorePublisher(storage))
