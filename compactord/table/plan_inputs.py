"""Inputs of a plan besides live files: commits since a full compaction, expired records."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from compactord.errors import ObjectNotFound
from compactord.model import TableKind
from compactord.paimon.binary_row import decode_row
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.snapshot import CommitKind, read_snapshot
from compactord.paimon.types import DataField
from compactord.plan.picks import never_expired
from compactord.rewrite.reader import oldest_second
from compactord.state.table_state import TableState, delta_entries
from compactord.table.opening import OpenTable


def delta_commits_due(table: OpenTable, state: TableState) -> frozenset[BucketId]:
    """Buckets whose full compaction is due by `full-compaction.delta-commits` = N.

    Walks back from the newest snapshot until N APPEND snapshots lie behind. Buckets that a COMPACT
    snapshot on this way took to the highest level (or emptied) are not due, all other buckets are;
    planning then finds out which of them have work. If snapshots expired before N were counted,
    all N count as found: better too early than never. Reads the delta manifests of
    the COMPACT snapshots on the way.
    """
    interval = table.options.compaction.full_compaction_delta_commits
    if interval is None or state.snapshot is None or table.kind is not TableKind.PRIMARY_KEY:
        return frozenset()
    max_level = table.options.compaction.num_levels - 1
    final: set[BucketId] = set()
    appends = 0
    storage, snapshot = table.storage, state.snapshot
    while appends < interval:
        try:
            if snapshot.commit_kind is CommitKind.APPEND:
                appends += 1
            elif snapshot.commit_kind is CommitKind.COMPACT:
                for entry in delta_entries(storage, table.ref.location, snapshot):
                    if entry.file.level >= max_level:
                        final.add(entry.bucket_id)
            if appends == interval:
                break
            if snapshot.id == 1:
                return frozenset()
            snapshot = read_snapshot(storage, table.ref.root, snapshot.id - 1)
        except ObjectNotFound:
            break
    live = frozenset(state.files.bucket_ids())
    if interval == 1:
        # Another commit may have come while the compaction ran.
        final = {each for each in final & live if not state.files.summary(each).level0_count}
    return live - final


def expired_files(
    table: OpenTable, *, now_s: int, zone: datetime.tzinfo
) -> Callable[[DataFile], bool]:
    """Whether the oldest record of a file has expired; false for files without that statistic.

    Statistics use the file's schema: the column is found by its id, and its bound is cast.
    """
    expire = table.options.compaction.record_expire
    if expire is None:
        return never_expired
    [column] = table.schema.fields_named((expire.field,))
    limit = now_s - expire.seconds

    def is_expired(file: DataFile) -> bool:
        second = _oldest(table, file, column, zone)
        return second is not None and second < limit

    return is_expired


def _oldest(
    table: OpenTable, file: DataFile, column: DataField, zone: datetime.tzinfo
) -> int | None:
    fields = table.history.schema(file.schema_id).fields
    if file.value_stats_columns is not None:
        by_name = {field.name: field for field in fields}
        fields = tuple(by_name[name] for name in file.value_stats_columns if name in by_name)
    place = next((n for n, field in enumerate(fields) if field.id == column.id), None)
    types = [field.type for field in fields]
    if place is None or not file.value_stats.null_counts:
        return None
    values = decode_row(file.value_stats.min_values, types, source=table.manifests)
    return oldest_second(values[place], fields[place], column, zone)
