"""Which files have expired records, by their statistics (io/RecordLevelExpire.java)."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from compactord.paimon.binary_row import decode_row
from compactord.paimon.data_file import DataFile
from compactord.paimon.types import DataField
from compactord.plan.picks import never_expired
from compactord.rewrite.reader import oldest_second
from compactord.table.opening import OpenTable


def expired_files(
    table: OpenTable, *, now_s: int, zone: datetime.tzinfo
) -> Callable[[DataFile], bool]:
    """Whether the oldest record of a file has expired; false for files without that statistic.

    Statistics are those of the file's schema: the column is found by its id, and its bound cast.
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
