"""Append tables with files of other writers, as Java's `migrate_table` makes them of Hive's."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.catalog.access import table_in_folder
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import (
    EMPTY_ROW,
    EMPTY_STATS,
    BucketId,
    DataFile,
    FileSource,
)
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage
from compactord.table.opening import open_table
from compactord_demo.writer import WriteOnlyWriter
from tests.builders import WRITER, VirtualClock


def add_file(
    storage: Storage,
    table: TableRef,
    name: str,
    rows: pa.Table,
    *,
    partition: Sequence[Any] = (),
    **options: Any,
) -> str:
    """Commit one file of another writer, with its own columns and types; its path.

    As migrated: without field ids and statistics, and each with the sequence number 0.
    """
    sink = io.BytesIO()
    pq.write_table(rows, sink, **{"store_schema": False, "compression": "snappy", **options})
    opened = open_table(table_in_folder(storage, table), {})
    types = [field.type for field in opened.schema.partition_fields]
    bucket = BucketId(encode_row(partition, types), 0)
    path = paths.join(opened.bucket_folder(bucket), name)
    storage.write_new(path, sink.getvalue())
    file = DataFile(
        file_name=name,
        file_size=len(sink.getvalue()),
        row_count=rows.num_rows,
        min_key=EMPTY_ROW,
        max_key=EMPTY_ROW,
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        min_sequence_number=0,
        max_sequence_number=0,
        schema_id=opened.schema.id,
        level=0,
        creation_time_ms=0,
        delete_row_count=0,
        file_source=FileSource.APPEND,
        value_stats_columns=(),
    )
    WriteOnlyWriter(storage, table, owner=WRITER, clock=VirtualClock()).commit([(bucket, file)])
    return path
