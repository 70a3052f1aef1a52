"""Reads a table's rows without compactord's merge: all files, sorted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactord.catalog.access import table_in_folder
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table.opening import open_table

# Row kinds (Java's RowKind) that leave a row behind: +I and +U.
_KINDS_THERE = (0, 2)


def rows_of(storage: Storage, ref: TableRef, sort_names: Sequence[str]) -> pa.Table:
    """The table's rows at its newest snapshot, in the order of `sort_names`.

    In a primary-key table the record with the highest sequence number is a key's row.
    """
    table, state = open_table(table_in_folder(storage, ref), {}), load_state(storage, ref)
    parts = []
    for bucket in state.files.bucket_ids():
        folder = table.bucket_folder(bucket)
        for file in state.files.files_in(bucket):
            with storage.open_input(paths.join(folder, file.file_name)) as source:
                parts.append(pq.ParquetFile(source).read())
    names = [field.name for field in table.schema.fields]
    if not parts:
        return pa.table({name: [] for name in names})
    rows = pa.concat_tables(parts)
    if keys := [field.name for field in table.schema.key_fields]:
        rows = _newest(rows, keys)
    return rows.select(names).sort_by([(name, "ascending") for name in sort_names])


def same_rows(found: pa.Table, expected: pa.Table) -> bool:
    """Whether both hold the same rows in the same order."""
    if found.column_names != expected.column_names or found.num_rows != expected.num_rows:
        return False
    # A column without rows may have no type.
    return found.num_rows == 0 or all(
        found.column(name).equals(expected.column(name).cast(found.column(name).type))
        for name in expected.column_names
    )


def _newest(records: pa.Table, keys: list[str]) -> pa.Table:
    newest = records.group_by(keys).aggregate([("_SEQUENCE_NUMBER", "max")])
    newest = newest.rename_columns([*keys, "_SEQUENCE_NUMBER"])
    records = records.join(newest, [*keys, "_SEQUENCE_NUMBER"], join_type="left semi")
    return records.filter(
        pc.is_in(records.column("_VALUE_KIND"), pa.array(_KINDS_THERE, pa.int8()))
    )
