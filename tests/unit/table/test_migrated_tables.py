"""Append tables whose files other writers made: columns that lack, other types, other names."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import UnreadableColumn
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.types import from_nanoseconds
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.table import report
from compactord.table.opening import describe_table
from compactord_demo.writer import create_table
from tests import builders
from tests.migrated import add_file
from tests.storages import MemoryStorage
from tests.unit.rewrite.builders import fields
from tests.unit.table.compacting import ALL, Driver, compactor_of

TABLE = TableRef(database="db", name="t", location="/warehouse/db.db/t")
COLUMNS = fields(dt="STRING", k="BIGINT", v="DECIMAL(10, 2)")


def made(**options: str) -> MemoryStorage:
    storage = MemoryStorage()
    create_table(
        storage, TABLE, COLUMNS, partition_keys=["dt"], options={"bucket": "-1", **options}
    )
    return storage


def part(*keys: int, **columns: Any) -> pa.Table:
    """Rows without the partition's column, as Hive writes them."""
    return pa.table({"k": pa.array(keys, pa.int64()), **columns})


def decimals(*values: str | None) -> pa.Array:
    return pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(12, 2))


def live(storage: MemoryStorage) -> list[str]:
    return sorted(builders.live_paths(storage, TABLE, load_state(storage, TABLE)))


def rows_in(storage: MemoryStorage, path: str) -> list[dict[str, Any]]:
    return sorted(
        pq.read_table(io.BytesIO(storage.read(path))).to_pylist(), key=lambda row: row["k"]
    )


def fill(storage: MemoryStorage, *, partition: str = "a", begin: int = 0) -> None:
    for n in range(begin, begin + 6):
        add_file(
            storage, TABLE, f"part-{n}.parquet", part(n, v=decimals("1.50")), partition=[partition]
        )


def test_missing_columns_are_null_and_those_of_the_partition_have_its_value() -> None:
    storage = made()
    fill(storage)
    add_file(storage, TABLE, "000000_0.parquet", part(100), partition=["a"])
    untyped = part(101, v=pa.nulls(1))
    add_file(storage, TABLE, "000001_0.parquet", untyped, partition=["a"])
    # Spark takes the values of folders for numbers.
    other = part(102, dt=pa.array([7]), v=decimals(None))
    add_file(storage, TABLE, "000002_0.parquet", other, partition=["a"])
    totals = builders.compact(storage, TABLE, strategy=Strategy.FULL)
    assert totals.failures == []
    (path,) = live(storage)
    found = rows_in(storage, path)
    assert [row["k"] for row in found] == [*range(6), 100, 101, 102]
    assert {row["dt"] for row in found} == {"a"}
    assert [row["v"] for row in found] == [Decimal("1.50")] * 6 + [None] * 3


UNREADABLE = {
    "a type": (part(7, v=pa.array([5])), "column v: the file has INT64, the table DECIMAL(10, 2)"),
    "a value": (part(7, v=decimals("1234567890.00")), "column v holds a value that is not"),
    "a name": (
        pa.table({"K": pa.array([7]), "v": decimals("1.00")}),
        "column k: the file has K, which differs in case",
    ),
}


@pytest.mark.parametrize(("rows", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_stays_and_the_others_are_compacted(
    rows: pa.Table, why: str
) -> None:
    storage = made()
    bad = add_file(storage, TABLE, "bad-0.parquet", rows, partition=["a"])
    fill(storage)
    other = add_file(storage, TABLE, "bad-1.parquet", rows, partition=["a"])
    fill(storage, partition="b", begin=10)
    totals = builders.compact(storage, TABLE)
    failure = totals.failures[-1]
    assert failure.startswith("partition dt=a bucket 0: ")
    assert why in failure
    assert f"{bad} (and 1 more file); the other files are compacted." in failure
    # Footers do not show values, so that each file needs a try.
    assert len(totals.failures) == (2 if "value" in why else 1)
    assert len(totals.snapshots) == totals.compactions == 2
    found = live(storage)
    assert {bad, other} < set(found)
    assert len(found) == 4
    (path,) = (path for path in found if "dt=a" in path and path not in (bad, other))
    assert [row["k"] for row in rows_in(storage, path)] == list(range(6))
    builders.check_chain(storage, TABLE)


def test_the_file_is_tried_once_and_named_until_it_is_gone() -> None:
    storage = made()
    bad = add_file(storage, TABLE, "bad.parquet", part(7, v=pa.array([5])), partition=["a"])
    fill(storage)
    driver = Driver(compactor_of(storage, TABLE))
    planned = driver.run(cycles=4)
    assert planned is not None
    (known,) = planned.damaged
    assert (known.error, known.partition) == (UnreadableColumn.__name__, "dt=a")
    assert f"the table DECIMAL(10, 2): {bad}; the other files are compacted." in known.message
    assert planned.offered == ()
    assert len(live(storage)) == 2
    fill(storage, begin=20)
    planned = driver.run(cycles=4)
    assert planned is not None
    assert [each.message for each in planned.damaged] == [known.message]


def test_the_file_is_tried_again_once_the_table_has_another_schema() -> None:
    storage = made()
    add_file(storage, TABLE, "bad.parquet", part(7, v=pa.array([5])), partition=["a"])
    fill(storage)
    driver = Driver(compactor_of(storage, TABLE, strategy=Strategy.FULL))
    planned = driver.run(cycles=4)
    assert planned is not None
    assert len(planned.damaged) == 1
    schema = json.loads(storage.read(paths.schema_path(TABLE.location, 0)))
    schema["id"] = 1
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "v"]
    storage.write_new(paths.schema_path(TABLE.location, 1), json.dumps(schema).encode())
    fill(storage, begin=20)
    planned = driver.run(cycles=4)
    assert planned is not None
    assert planned.damaged == ()
    (path,) = live(storage)
    assert 7 in [row["k"] for row in rows_in(storage, path)]


def test_an_ordered_bucket_with_such_a_file_is_left_as_it_is() -> None:
    storage = made(bucket="1", **{"bucket-key": "k"})
    fill(storage)
    bad = add_file(storage, TABLE, "bad.parquet", part(7, v=pa.array([5])), partition=["a"])
    before = live(storage)
    compactor = compactor_of(storage, TABLE)
    planned = Driver(compactor).run(cycles=4)
    assert planned is not None
    (known,) = planned.damaged
    assert f"{bad}; the bucket is left as it is." in known.message
    assert planned.offered == ()
    assert live(storage) == before
    assert compactor.cycle((), ALL).planned is None


def notes(storage: MemoryStorage, table: TableRef) -> list[str]:
    opened = describe_table(access := table_in_folder(storage, table), access.newest_schema(), {})
    state = load_state(storage, table)
    shapes = report.bucket_shapes(opened, state)
    lines = report.inspect_text(opened, state, shapes, ())
    assert report.inspect_json(opened, state, shapes, ())["warnings"] == [
        line.removeprefix("note: ") for line in lines if line.startswith("note: ")
    ]
    return [line for line in report.inspect_text(opened, state, shapes, ()) if "Java" in line]


def test_inspect_notes_where_java_may_misread_times() -> None:
    storage = made()
    fill(storage)
    assert notes(storage, TABLE) == [], "the table has no times"
    timed = TableRef(database="db", name="timed", location="/warehouse/db.db/timed")
    create_table(
        storage, timed, fields(at="TIMESTAMP(6)", on="TIMESTAMP(9)"), options={"bucket": "-1"}
    )
    writer = builders.writer(storage, timed)
    moments = pa.array([1, 2], pa.timestamp("ns"))
    own = pa.table({"at": moments.cast(pa.timestamp("us"), safe=False), "on": moments})
    writer.write(own.set_column(1, "on", from_nanoseconds([1, 2])))
    assert notes(storage, timed) == [], "all files are Paimon's"
    foreign = pa.table({"at": pa.array([1, 2], pa.timestamp("ms"))})
    add_file(storage, timed, "part-0.parquet", foreign)
    (note,) = notes(storage, timed)
    assert "1 file with names of other writers" in note
    assert "(columns at)" in note
    assert "inspect reads no footers" in note
