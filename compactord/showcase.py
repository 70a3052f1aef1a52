"""`compactord demo`: two tables filled as write-only jobs do, shown, compacted, shown, compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactord.clock import Clock
from compactord.demo import WriteOnlyWriter, create_table
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.table import TableRef, load_state
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.service import report
from compactord.service.table import open_table
from compactord.storage.base import Storage

_ORDERS = ("sales", "orders")
_CLICKS = ("logs", "clicks")
_ORDER_COMMITS, _ORDER_ROWS, _ORDER_KEYS = 8, 150_000, 500_000
_CLICK_COMMITS, _CLICK_ROWS = 40, 20_000

Say = Callable[[str], None]
# Compacts a table by its name and says what it did; the exit code.
Compact = Callable[[str], int]


def run(
    storage: Storage, warehouse: str, *, owner: Owner, clock: Clock, say: Say, compact: Compact
) -> bool:
    """Whether both tables hold the same rows after the compaction as before."""
    rng = np.random.default_rng(7)
    orders = _table(warehouse, _ORDERS)
    clicks = _table(warehouse, _CLICKS)
    say(f"warehouse {warehouse}")
    say(f"\n[1] write-only jobs fill {orders.full_name} and {clicks.full_name}")
    _fill_orders(storage, orders, owner, clock, rng)
    say(f"    {orders.full_name}: {_ORDER_COMMITS} commits of {_ORDER_ROWS:,} upserts and deletes")
    _fill_clicks(storage, clicks, owner, clock, rng)
    say(f"    {clicks.full_name}: {_CLICK_COMMITS} commits of {_CLICK_ROWS:,} rows")
    tables = (orders, clicks)
    say("\n[2] what they leave behind")
    _show(storage, tables, say)
    before = [_rows(storage, table) for table in tables]
    say("\n[3] compactord compacts them")
    codes = [compact(table.full_name) for table in tables]
    say("\n[4] afterwards")
    _show(storage, tables, say)
    same = [_rows(storage, table).equals(rows) for table, rows in zip(tables, before, strict=True)]
    say("\n[5] the rows, read from the files before and after")
    for table, rows, equal in zip(tables, before, same, strict=True):
        verdict = "the same" if equal else "DIFFERENT"
        say(f"    {table.full_name}: {rows.num_rows:,} rows before, after: {verdict}")
    return all(same) and not any(codes)


def _table(warehouse: str, name: tuple[str, str]) -> TableRef:
    database, table = name
    location = f"{warehouse}/{database}.db/{table}"
    return TableRef(database=database, name=table, location=location)


def _field(number: int, name: str, root: TypeRoot, precision: int | None = None) -> DataField:
    nullable = name not in ("id", "region")
    kind = AtomicType(root=root, nullable=nullable, precision=precision)
    return DataField(id=number, name=name, type=kind)


def _fill_orders(
    storage: Storage, table: TableRef, owner: Owner, clock: Clock, rng: np.random.Generator
) -> None:
    create_table(
        storage,
        table,
        [
            _field(0, "id", TypeRoot.BIGINT),
            _field(1, "amount", TypeRoot.DOUBLE),
            _field(2, "status", TypeRoot.VARCHAR, 2**31 - 1),
            _field(3, "changed", TypeRoot.TIMESTAMP, 3),
        ],
        primary_keys=["id"],
        options={"bucket": "2", "write-only": "true"},
    )
    writer = WriteOnlyWriter(storage, table, owner=owner, clock=clock)
    states = np.array(["new", "paid", "packed", "sent", "returned"])
    for commit in range(_ORDER_COMMITS):
        rows = pa.table(
            {
                "id": rng.choice(_ORDER_KEYS, _ORDER_ROWS, replace=False),
                "amount": rng.random(_ORDER_ROWS).round(2),
                "status": states[rng.integers(0, len(states), _ORDER_ROWS)],
                "changed": pa.array(
                    rng.integers(1_700_000_000_000, 1_800_000_000_000, _ORDER_ROWS),
                    pa.timestamp("ms"),
                ),
            }
        )
        deleted = (rng.random(_ORDER_ROWS) < (0.05 if commit else 0)) * 3
        writer.write(rows, kinds=pa.array(deleted, pa.int8()))


def _fill_clicks(
    storage: Storage, table: TableRef, owner: Owner, clock: Clock, rng: np.random.Generator
) -> None:
    create_table(
        storage,
        table,
        [
            _field(0, "region", TypeRoot.VARCHAR, 2**31 - 1),
            _field(1, "user", TypeRoot.BIGINT),
            _field(2, "url", TypeRoot.VARCHAR, 2**31 - 1),
        ],
        partition_keys=["region"],
        options={"bucket": "-1", "write-only": "true"},
    )
    writer = WriteOnlyWriter(storage, table, owner=owner, clock=clock)
    regions = np.array(["asia", "europe"])
    for _ in range(_CLICK_COMMITS):
        user = rng.integers(0, 1_000_000, _CLICK_ROWS)
        writer.write(
            pa.table(
                {
                    "region": regions[rng.integers(0, len(regions), _CLICK_ROWS)],
                    "user": user,
                    "url": np.char.add("/product/", user.astype(str)),
                }
            )
        )


def _show(storage: Storage, tables: tuple[TableRef, ...], say: Say) -> None:
    for ref in tables:
        table, state = open_table(storage, ref, {}), load_state(storage, ref)
        shapes = report.bucket_shapes(table, state)
        for line in report.inspect_text(table, state, shapes, ()):
            say(f"    {line}")
        say("")


def _rows(storage: Storage, ref: TableRef) -> pa.Table:
    """The table's rows in a fixed order, by sorting all files: independent of how we merge."""
    table, state = open_table(storage, ref, {}), load_state(storage, ref)
    parts = []
    for bucket in state.files.bucket_ids():
        folder = table.bucket_folder(bucket)
        for file in state.files.files_in(bucket):
            with storage.open_input(paths.data_file_path(folder, file)) as source:
                parts.append(pq.ParquetFile(source).read())
    rows = pa.concat_tables(parts)
    names = [field.name for field in table.schema.fields]
    keys = [field.name for field in table.schema.key_fields]
    if not keys:
        return rows.select(names).sort_by([(name, "ascending") for name in names]).combine_chunks()
    newest = rows.group_by(keys).aggregate([("_SEQUENCE_NUMBER", "max")])
    newest = newest.rename_columns([*keys, "_SEQUENCE_NUMBER"])
    rows = rows.join(newest, [*keys, "_SEQUENCE_NUMBER"], join_type="left semi")
    rows = rows.filter(pc.is_in(rows.column("_VALUE_KIND"), pa.array([0, 2], pa.int8())))
    return rows.select(names).sort_by([(name, "ascending") for name in keys]).combine_chunks()
