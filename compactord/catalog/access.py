"""One table as its catalog hands it out: all that whoever opens it needs of the catalog."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """One table: its place in its store, and what publishes its snapshots.

    Tables of one catalog may lie in several stores, each with credentials of its own. The newest
    schema and snapshot are those in the folder of the table or branch, as in Paimon's catalogs that
    know tables by path (catalog/AbstractCatalog.java, `tableSchemaInFileSystem`). A catalog that
    keeps them itself has a class with its own methods.

    `entries` and `events` are what the catalog keeps of partitions of tables whose options ask for
    it; None: nothing.
    """

    ref: TableRef
    storage: Storage
    publisher: SnapshotPublisher
    entries: PartitionEntries | None = None
    events: PartitionEvents | None = None

    def newest_schema(self, known: TableSchema | None = None) -> TableSchema:
        """The newest schema; `known` was the newest before, None: the table was just opened.

        Raises `TableNotFound` where there is none, and what reading it raises.
        """
        return latest_schema(self.storage, self.ref.root, known=known)

    def has_later_schema(self, known: TableSchema) -> bool:
        """Whether there is a schema after `known`: one small request."""
        return has_later_schema(self.storage, self.ref.root, known.id)

    def newest_schema_id(self) -> int | None:
        """The id of the newest schema in the table's folder, listed; None: it has none any more.

        Commits ask for it, as Java's do, whatever the catalog keeps: a rollback deletes the latest.
        """
        return max(schema_ids(self.storage, self.ref.root), default=None)

    def schemas(self, newest: TableSchema) -> SchemaHistory:
        """The schemas with which the table's files were written, read as they are asked for."""
        return SchemaHistory(self.storage, self.ref.root, newest)

    def keeps_schema(self, known: TableSchema) -> bool:
        """Whether `known` is still one of the table's schemas, as it was: one request.

        If not, it was rolled back, or the table was dropped and made again, which the identity of
        `ref` tells only where the catalog knows it. Raises what reading raises.
        """
        try:
            return read_schema(self.storage, self.ref.root, known.id) == known
        except ObjectNotFound:
            return False

    def made_ms(self) -> int | None:
        """When the branch was made, by its first schema's file; None for main: it is not asked.

        A branch that is made again has the same schemas, as they are copied from the table.
        """
        if self.ref.branch == paths.MAIN_BRANCH:
            return None
        folder = paths.schema_folder(self.ref.root)
        return min((status.changed_ms for status in self.storage.list(folder)), default=None)

    def newest_state(self) -> Refreshed:
        """The state of the newest snapshot, read as a whole; raises as `load_newest`."""
        return load_newest(self.storage, self.ref)

    def refreshed_state(self, known: TableState, *, checks_hint: bool = False) -> Refreshed:
        """The same from a known one, as far as that is possible; see `refresh_state`."""
        return refresh_state(self.storage, known, checks_hint=checks_hint)


def table_in_folder(storage: Storage, ref: TableRef) -> TableAccess:
    """A table of no catalog: its store publishes its snapshots, whoever else writes it."""
    return TableAccess(ref=ref, storage=storage, publisher=StorePublisher(storage))
