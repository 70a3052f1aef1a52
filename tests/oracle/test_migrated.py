"""Files of other writers: what is read of them is what Java reads, and nothing else is read."""

from __future__ import annotations

import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import UnreadableColumn
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from tests.migrated import add_file
from tests.oracle.arrow_values import json_values
from tests.oracle.differential import canonical, compact
from tests.oracle.judge import Judge
from tests.unit.formats.parquet.test_reader import read_file
from tests.unit.rewrite.builders import fields, input_file

LOCAL = LocalStorage()
JAVA_FAILS = "java fails"


def _decimals(precision: int, scale: int) -> pa.Array:
    values = [Decimal("1.50"), Decimal("-2.25"), None, Decimal("1.50")]
    return pa.array(values, pa.decimal128(precision, scale))


_INTS = [100, 2, None, 100]
_MOMENTS = [1_700_000_000_123, -2, None, 1_700_000_000_123]
_BYTES = [b"12", b"\x41\x00", None, b"12"]
# The columns of files, and how they are written.
STORED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "bool": (pa.array([True, False, None, True]), {}),
    **{str(type_): (pa.array(_INTS, type_), {}) for type_ in (
        pa.int8(), pa.int16(), pa.int32(), pa.int64(),
        pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    )},
    "int64 large": (pa.array([2**40, -2, None, 2**40], pa.int64()), {}),
    "uint32 large": (pa.array([2**32 - 1, 2, None, 2**32 - 1], pa.uint32()), {}),
    "float": (pa.array([1.5, -2.25, None, 1.5], pa.float32()), {}),
    "double": (pa.array([1.1, -2.25, None, 1e300], pa.float64()), {}),
    "string": (pa.array(["12", "é", None, "12"]), {}),
    "bytes": (pa.array(_BYTES), {}),
    "fixed": (pa.array(_BYTES, pa.binary(2)), {}),
    "date": (pa.array([1, -2, None, 1], pa.date32()), {}),
    "time ms": (pa.array([1000, 2, None, 1000], pa.time32("ms")), {}),
    "time us": (pa.array([1000, 2, None, 1000], pa.time64("us")), {}),
    "ms": (pa.array(_MOMENTS, pa.timestamp("ms")), {}),
    "us": (pa.array([1_700_000_000_123_000, -2000, None, 5000], pa.timestamp("us")), {}),
    "us utc": (pa.array([1_700_000_000_123_000, -2000, None, 5000], pa.timestamp("us", "UTC")), {}),
    "ns": (pa.array([1_700_000_000_123_456_789, -2, None, 1], pa.timestamp("ns")), {}),
    "int96": (
        pa.array([1_700_000_000_123_000_000, -2_000_000, None, 0], pa.timestamp("ns")),
        {"use_deprecated_int96_timestamps": True},
    ),
    "decimal int32": (_decimals(9, 2), {"store_decimal_as_integer": True}),
    "decimal int64": (_decimals(18, 2), {"store_decimal_as_integer": True}),
    "decimal scale": (_decimals(9, 4), {"store_decimal_as_integer": True}),
    "decimal bytes": (_decimals(9, 2), {}),
    "decimal many bytes": (_decimals(38, 2), {}),
    "decimal bytes scale": (_decimals(9, 4), {}),
    "no type": (pa.nulls(4), {}),
    "list": (pa.array([[1], [2], None, [1]], pa.list_(pa.int32())), {}),
}  # fmt: skip
TYPES = [
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE"),
    *("DECIMAL(9, 2)", "DECIMAL(5, 0)", "DECIMAL(10, 2)", "DECIMAL(20, 2)", "DECIMAL(38, 0)"),
    *("STRING", "CHAR(3)", "BYTES", "BINARY(2)", "DATE", "TIME(3)"),
    *("TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
]
WIDER = {("BIGINT", stored) for stored in STORED if stored.startswith(("int", "uint"))}
# Read though Java fails: the values have one meaning, and no column without a type has any.
WIDER |= {("DOUBLE", "float"), *((type_, "no type") for type_ in TYPES)}
# Where the pages have a dictionary, Java takes the number for one of its own unit.
OTHER_UNITS = {
    ("TIMESTAMP(6)", "ms"),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "ms"),
    ("TIMESTAMP(3)", "us"),
    ("TIMESTAMP(3)", "us utc"),
}


def _table(judge: Judge, path: Path, *columns: tuple[str, str], **how: Any) -> TableRef:
    judge.create_table(path, columns, options={"bucket": "-1", "write-only": "true"}, **how)
    return TableRef(database="db", name=path.name, location=str(path))


def _by_java(judge: Judge, path: Path) -> Any:
    try:
        return [value for (value,) in judge.read(path)]
    except Exception:  # noqa: BLE001 - whatever Java says
        return JAVA_FAILS


@pytest.mark.parametrize("type_", TYPES)
def test_what_is_read_of_another_type_is_what_java_reads(
    judge: Judge, tmp_path: Path, type_: str
) -> None:
    columns = fields(v=type_)
    read = 0
    for number, (stored, (values, how)) in enumerate(STORED.items()):
        found = {}
        for with_dictionary in (True, False):
            path = tmp_path / "db.db" / f"t{number}{with_dictionary}"
            table = _table(judge, path, ("v", type_))
            rows = pa.table({"v": values})
            file = add_file(
                LOCAL, table, "part-0.parquet", rows, use_dictionary=with_dictionary, **how
            )
            try:
                ours = read_file(columns, input_file(Path(file), len(values))).column("v")
            except UnreadableColumn:
                continue
            read += 1
            plain = ours.combine_chunks()
            found[with_dictionary] = json_values(plain, columns[0].type), _by_java(judge, path)
        assert len(found) in (0, 2)
        for with_dictionary, (mine, java) in found.items():
            if java == JAVA_FAILS:
                assert (type_, stored) in WIDER, (type_, stored)
            elif with_dictionary and (type_, stored) in OTHER_UNITS:
                assert mine != java
                assert mine == found[False][1]
            else:
                assert canonical([mine]) == canonical([java]), (type_, stored, with_dictionary)
    assert read >= 2


def test_rows_of_a_partitioned_table_are_those_that_java_read_before(
    judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "t"
    columns = (("dt", "STRING"), ("k", "BIGINT"), ("d", "DATE"), ("n", "DECIMAL(9, 2)"))
    table = _table(judge, path, *columns, partition_by=["dt"])
    keys = itertools.count()

    def add(name: str, partition: str, **more: pa.Array) -> None:
        rows = pa.table({"k": pa.array([next(keys), next(keys)], pa.int64()), **more})
        add_file(LOCAL, table, name, rows, partition=[partition])

    for number in range(4):
        for dt in ("a", "b"):
            prices = pa.array([Decimal("1.50"), None], pa.decimal128(9, 2))
            days = pa.array([1, None], pa.date32())
            add(f"00000{number}_0.parquet", dt, d=days, n=prices)
            add(f"00000{number}_1.parquet", dt)
            add(f"00000{number}_2.parquet", dt, d=pa.array([7, 8], pa.int32()), n=pa.nulls(2))
            add(f"00000{number}_3.parquet", dt, dt=pa.array([5, 6]), n=prices, other=days)
    # What these files have is now an older schema.
    judge.rename_column(path, "n", "price")
    judge.add_column(path, "later", "INT")
    judge.change_column_type(path, "price", "DECIMAL(12, 2)")
    before = canonical(judge.read(path))
    assert len(before) == 64
    totals = compact(path, Strategy.FULL)
    assert totals.failures == []
    assert (totals.files_in, totals.files_out) == (32, 2)
    assert canonical(judge.read(path)) == before
    assert len(judge.read(path, filter=[("dt", "equal", "a")])) == 32
