"""Tables with a partition for each day, filled by a write-only writer."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.storage.base import Storage
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests.builders import FIELDS, WRITER, VirtualClock, rows_of
from tests.storages import MemoryStorage

HOME = "/wh/db.db/t"
TEXT = AtomicType(root=TypeRoot.VARCHAR, precision=2**31 - 1, nullable=False)
DT = DataField(id=2, name="dt", type=TEXT)


def table_of_days(options: Mapping[str, str]) -> tuple[MemoryStorage, TableRef]:
    storage = MemoryStorage()
    table = TableRef(database="db", name="t", location=HOME)
    create_table(
        storage,
        table,
        [*FIELDS, DT],
        primary_keys=["dt", "k"],
        partition_keys=["dt"],
        options={"bucket": "1", "write-only": "true", **options},
    )
    return storage, table


def write_days(storage: Storage, table: TableRef, now_ms: int, *days: str) -> None:
    """A row in the partition of each day, in files that were made at `now_ms`."""
    rows = rows_of([(number, 1) for number in range(len(days))])
    field = pa.field("dt", pa.string(), nullable=False)
    writer = WriteOnlyWriter(storage, table, owner=WRITER, clock=VirtualClock(now_ms))
    writer.write(rows.append_column(field, pa.array(days)))
