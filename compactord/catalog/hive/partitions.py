"""Entries and events of a table's partitions in a metastore.

Source: hive/HiveCatalog.java (`createPartitions`, `dropPartitions`, `markDonePartitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compactord.catalog.hive.client import HiveClient
from compactord.catalog.hive.wire import HivePartition, WholeDescriptor, WholeTable
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents, PartitionSpec

# Where an entry says where its partition lies, if its descriptor does not.
LOCATION = "paimon_location"
_DATA_FOLDER = "data-file.path-directory"


@dataclass(frozen=True, eq=False, kw_only=True)
class HivePartitions(PartitionEntries, PartitionEvents):
    """Those of one table, which branches share.

    `load` finds the table, and raises where it is another one now: nothing is changed then.
    `location` is where it lies as the metastore says it. `in_properties`: entries say in their
    parameters where partitions lie.
    """

    client: HiveClient
    name: tuple[str, str]
    load: Callable[[], WholeTable]
    location: Callable[[WholeTable], str]
    in_properties: bool

    def add(self, specs: Sequence[PartitionSpec]) -> None:
        """See `PartitionEntries`; the metastore makes the folders."""
        if not specs:
            return
        table = self.load()
        added = [self._entry(table, spec) for spec in specs]
        self.client.add_partitions(*self.name, added)

    def drop(self, specs: Sequence[PartitionSpec]) -> None:
        """See `PartitionEntries`."""
        if not specs:
            return
        self.load()
        for spec in specs:
            self.client.drop_partition(*self.name, [*spec.values()])

    def added_ms(self, spec: PartitionSpec) -> int | None:
        """See `PartitionEntries`; a whole second, or long ago if the metastore does not say it."""
        found = self.client.partition(*self.name, [*spec.values()])
        return None if found is None else (found.created_s or 0) * 1000

    def mark_done(self, spec: PartitionSpec) -> None:
        """See `PartitionEvents`."""
        self.load()
        self.client.mark_partition(*self.name, spec)

    def are_done(self, specs: Sequence[PartitionSpec]) -> Sequence[bool]:
        """See `PartitionEvents`."""
        return [self.client.is_marked(*self.name, spec) for spec in specs]

    def _entry(self, table: WholeTable, spec: PartitionSpec) -> HivePartition:
        """A copy of the table's own descriptor, but for the place."""
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
