"""The entries that a catalog has of partitions that expire.

They go before the files, as in Java (hive/HiveCatalog.java, `dropPartitions`): where a round is cut
short in between, the next one finds the partition by its files, and goes on. So do the entries that
say that a partition is done, which Java drops last, and leaves for ever if it is cut short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import structlog

from compactord.maintenance.kind import TableValues
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionSpec, done_spec
from compactord.paimon.snapshot import branch_names
from compactord.state.table_state import load_newest

_log = structlog.get_logger()


def has_entries(table: TableValues) -> bool:
    """Whether the table's catalog has entries for its partitions."""
    return table.entries is not None and table.options.maintenance.in_catalog


class ExpiringEntries:
    """Those of the partitions that are to go with one snapshot."""

    def __init__(self) -> None:
        self._dropped: dict[bytes, PartitionSpec] = {}
        self._entries: PartitionEntries | None = None

    def drop(self, table: TableValues, partitions: Collection[bytes]) -> None:
        """Drop those of partitions that no other branch of the table has, once each.

        Raises what reading the branches raises, before any is dropped, and what the catalog does.
        """
        new = [each for each in partitions if each not in self._dropped]
        if table.entries is None or not has_entries(table) or not new:
            return
        elsewhere = frozenset[bytes]().union(*_of_other_branches(table))
        specs = {each: table.partition_spec(each) for each in new if each not in elsewhere}
        self._entries = table.entries
        self._entries.drop([*map(done_spec, specs.values()), *specs.values()])
        self._dropped |= specs
        folders = sorted(map(paths.spec_path, specs.values()))
        if folders:
            _log.info("partition_entries_dropped", partitions=folders)

    def restore(self, gone: Collection[bytes]) -> None:
        """Add those of partitions that have not `gone` after all. Raises what the catalog does."""
        kept = [spec for each, spec in self._dropped.items() if each not in gone]
        if kept and self._entries is not None:
            self._entries.add(kept)


def _of_other_branches(table: TableValues) -> Iterator[frozenset[bytes]]:
    """The partitions of each."""
    for branch in (paths.MAIN_BRANCH, *branch_names(table.storage, table.ref.location)):
        if branch != table.ref.branch:
            state = load_newest(table.storage, replace(table.ref, branch=branch)).state
            yield frozenset(bucket.partition for bucket in state.files.bucket_ids())
