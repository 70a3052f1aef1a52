from __future__ import annotations

import datetime
import re
import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import FormatError, UnreadableColumn
from compactord.formats.layout import append_layout
from compactord.formats.parquet.conversion import check_indices
from compactord.formats.parquet.int96 import convert
from compactord.paimon.types import WIDE_TIMESTAMP, from_nanoseconds, nanoseconds_of, value_schema
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import SMALL_FILE
from tests.unit.formats.parquet.stored_pages import parquet_input
from tests.unit.rewrite.builders import fields, input_file, write_parquet

DAY = 86_400_000_000_000
LIMIT = 1 << 63


def read(
    tmp_path: Path, columns, table: pa.Table, *, batch_rows: int = 1000, **options
) -> pa.Table:
    write_parquet(tmp_path / "in.parquet", table, **options)
    file = input_file(tmp_path / "in.parquet", table.num_rows)
    return read_file(columns, file, batch_rows)


def read_file(columns, file, batch_rows: int = 1000) -> pa.Table:
    layout = append_layout(columns)
    batches = list(Input(InputReader(LocalStorage(), layout), file).batches(batch_rows))
    return pa.Table.from_batches(batches, schema=layout.row_schema)


@pytest.mark.parametrize(
    ("type_", "stored", "value"),
    [
        ("STRING", pa.array(["a", None], pa.large_string()), "a"),
        ("STRING", pa.array(["a", None]).dictionary_encode(), "a"),
        ("STRING", pa.array([b"a", None]), "a"),
        ("BYTES", pa.array([b"ab", None], pa.binary(2)), b"ab"),
        ("BYTES", pa.array([b"a", None], pa.large_binary()), b"a"),
        ("TINYINT", pa.array([-5, None], pa.int32()), -5),
        ("SMALLINT", pa.array([-5, None], pa.int64()), -5),
        ("FLOAT", pa.array([1.5, None], pa.float64()), 1.5),
        # Narrowed as Java's reader narrows it, so that rows read the same before and after.
        ("FLOAT", pa.array([0.1, None], pa.float64()), float(np.float32(0.1))),
        ("FLOAT", pa.array([1e300, None], pa.float64()), float("inf")),
        ("DATE", pa.array([1, None], pa.int32()), datetime.date(1970, 1, 2)),
        ("INT", pa.array([1, None], pa.date32()), 1),
        ("INT", pa.array([7, None], pa.uint32()), 7),
        ("INT", pa.array([1000, None], pa.time32("ms")), 1000),
        ("DECIMAL(5, 0)", pa.array([12345, None], pa.int64()), Decimal(12345)),
        ("DECIMAL(18, 2)", pa.array([Decimal("1.25"), None]), Decimal("1.25")),
        ("BYTES", pa.array(["é", None]), "é".encode()),
        ("BINARY(2)", pa.array([b"ab", None], pa.binary(2)), b"ab"),
        ("TIME(3)", pa.array([1000, None], pa.int32()), datetime.time(0, 0, 1)),
        ("TIMESTAMP(3)", pa.array([5000, None], pa.timestamp("us")), datetime.datetime(1970, 1, 1, 0, 0, 0, 5000)),  # noqa: E501, DTZ001
        ("TIMESTAMP(6)", pa.array([5, None], pa.timestamp("ms")), datetime.datetime(1970, 1, 1, 0, 0, 0, 5000)),  # noqa: E501, DTZ001
        ({"type": "ARRAY", "element": "STRING"}, pa.array([["a"], None], pa.large_list(pa.large_string())), ["a"]),  # noqa: E501
    ],
)  # fmt: skip
def test_other_physical_types_are_read_as_the_declared_one(tmp_path, type_, stored, value):
    columns = fields(v=type_)
    found = read(tmp_path, columns, pa.table({"v": stored}), store_schema=True)
    assert found.schema.field("v").type == value_schema(columns).field("v").type
    assert found.column("v").to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("type_", "stored"),
    [
        ("TINYINT", pa.array([300], pa.int32())),
        ("INT", pa.array([2**32 - 1], pa.uint32())),
        ("DECIMAL(2, 0)", pa.array([100])),
        ("TIMESTAMP(3)", pa.array([1], pa.timestamp("us"))),
        ("STRING", pa.array([b"\xff\xfe"])),
        ("INT NOT NULL", pa.array([None], pa.int32())),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_file_and_column(tmp_path, type_, stored):
    with pytest.raises(FormatError, match=r"column v .*in\.parquet"):
        read(tmp_path, fields(v=type_), pa.table({"v": stored}))


@pytest.mark.parametrize(
    ("type_", "stored"),
    [
        ("INT", pa.array(["1"])),
        ("STRING", pa.array([1])),
        ("TIMESTAMP(3)", pa.array([1])),
        ("DATE", pa.array([1], pa.timestamp("ms"))),
        ("TIME(3)", pa.array([1], pa.time64("us"))),
        ({"type": "ARRAY", "element": "INT"}, pa.array([1])),
        (
            {"type": "ROW", "fields": [{"id": 9, "name": "x", "type": "INT"}]},
            pa.array([{"y": 1}]),
        ),
    ],
)
def test_an_unrelated_type_is_an_error(tmp_path, type_, stored):
    with pytest.raises(FormatError, match="column v"):
        read(tmp_path, fields(v=type_), pa.table({"v": stored}))


@pytest.mark.parametrize(
    "type_", ["INT", "STRING", "TIMESTAMP(9)", {"type": "ARRAY", "element": "INT"}]
)
def test_a_missing_column_is_null(tmp_path, type_):
    table = pa.table({"v": pa.array([1, 2], pa.int32())})
    found = read(tmp_path, fields(v="INT", w=type_), table)
    assert found.to_pylist() == [{"v": 1, "w": None}, {"v": 2, "w": None}]


@pytest.mark.parametrize(
    ("columns", "stored", "why"),
    [
        ({"v": "INT", "w": "INT NOT NULL"}, {"v": 1}, "column w: the file lacks it"),
        ({"v": "INT", "w": "INT"}, {"v": 1, "W": 2}, "the file has W, which differs in case"),
        ({"v": "INT"}, {"w": 1}, "the file has none of the table's columns"),
    ],
)
def test_a_missing_column_that_is_no_null_is_an_error(tmp_path, columns, stored, why):
    with pytest.raises(UnreadableColumn, match=why):
        read(tmp_path, fields(**columns), pa.Table.from_pylist([stored]))


MOMENT = pa.array([1], pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("type_", "stored", "said"),
    [
        ("DECIMAL(10, 2)", pa.array([1]), "INT64, the table DECIMAL(10, 2)"),
        (
            "DECIMAL(9, 2)",
            pa.array([Decimal("1.2345")]),
            "INT32 (DECIMAL(5, 4)), the table DECIMAL(9, 2)",
        ),
        ("INT", pa.array([Decimal("1")]), "INT32 (DECIMAL(1, 0)), the table INT"),
        ("SMALLINT", pa.array([1], pa.date32()), "INT32 (DATE), the table SMALLINT"),
        ("BIGINT", pa.array([1], pa.timestamp("ms")), "INT64 (TIMESTAMP in ms), the table BIGINT"),
        ("TIMESTAMP(6)", MOMENT, "INT64 (TIMESTAMP in ns), the table TIMESTAMP(6)"),
        ("DATE", pa.array([1], pa.uint32()), "INT32 (UINT32), the table DATE"),
        ("STRING", pa.array([b"ab"], pa.binary(2)), "FIXED_LEN_BYTE_ARRAY, the table STRING"),
        ("BINARY(3)", pa.array([b"ab"], pa.binary(2)), "FIXED_LEN_BYTE_ARRAY, the table BINARY(3)"),
        ("BOOLEAN", pa.array(["a"]), "BYTE_ARRAY (STRING), the table BOOLEAN"),
    ],
)
def test_a_type_that_java_misreads_or_cannot_read_is_named(tmp_path, type_, stored, said):
    with pytest.raises(UnreadableColumn, match=re.escape(f"column v: the file has {said}")):
        read(tmp_path, fields(v=type_), pa.table({"v": stored}))


@pytest.mark.parametrize("type_", ["BYTES", "BIGINT"])
def test_int96_is_no_type_but_that_of_timestamps(tmp_path, type_):
    int96_file(tmp_path / "in.parquet", [0], toward_zero=True)
    with pytest.raises(UnreadableColumn, match="the file has INT96, the table"):
        read_file(fields(v=type_), input_file(tmp_path / "in.parquet", 1))


def test_twelve_bytes_are_no_timestamp(tmp_path):
    table = pa.table({"v": pa.array([bytes(12)], pa.binary(12))})
    assert read(tmp_path, fields(v="BYTES"), table).to_pylist() == [{"v": bytes(12)}]
    with pytest.raises(UnreadableColumn, match=r"the table TIMESTAMP\(6\)"):
        read(tmp_path, fields(v="TIMESTAMP(6)"), table)


def test_a_column_of_another_field_id_is_an_error(tmp_path):
    columns = fields(v="INT")
    table = pa.Table.from_pylist([{"v": 1}], schema=value_schema(columns))
    assert read(tmp_path, columns, table).num_rows == 1
    with pytest.raises(FormatError, match="field id 0 instead of 8"):
        read(tmp_path, (replace(columns[0], id=8),), table)


def test_columns_are_found_by_name_and_others_are_passed_over(tmp_path):
    table = pa.table({"x": ["?"], "b": pa.array([2], pa.int32()), "a": pa.array([1], pa.int32())})
    found = read(tmp_path, fields(a="INT", b="INT"), table)
    assert found.to_pylist() == [{"a": 1, "b": 2}]


def test_a_column_name_may_hold_dots(tmp_path):
    columns = fields(**{"a.b": "INT", "a": {"type": "ARRAY", "element": "INT"}})
    table = pa.Table.from_pylist([{"a.b": 1, "a": [2]}], schema=value_schema(columns))
    assert read(tmp_path, columns, table).to_pylist() == [{"a.b": 1, "a": [2]}]


@pytest.mark.parametrize("rows", [3, 200_000])
def test_small_files_and_large_ones_are_read_alike(tmp_path, rows):
    values = pa.array([n * 2_654_435_761 % (1 << 62) for n in range(rows)])
    found = read(tmp_path, fields(v="BIGINT"), pa.table({"v": values}), use_dictionary=False)
    assert ((tmp_path / "in.parquet").stat().st_size > SMALL_FILE) == (rows > 3)
    assert found.column("v").combine_chunks().equals(values.cast(pa.int64()))


def test_a_file_cut_short_is_told_by_its_size_before_its_footer_is_read(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, pa.table({"v": pa.array(range(100), pa.int32())}))
    file = input_file(path, 100)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"size is \d+ bytes in the manifest, \d+ in the store"):
        parquet_input(file).footer()


def test_batches_are_no_larger_than_asked_for(tmp_path):
    write_parquet(tmp_path / "in.parquet", pa.table({"v": pa.array(range(100), pa.int32())}))
    file = input_file(tmp_path / "in.parquet", 100)
    layout = append_layout(fields(v="INT"))
    opened = Input(InputReader(LocalStorage(), layout), file)
    sizes = [batch.num_rows for batch in opened.batches(30)]
    assert max(sizes) <= 30
    assert sum(sizes) == 100


def test_flipped_bits_are_found_by_the_page_checksum(tmp_path):
    table = pa.table({"v": pa.array(range(1000), pa.int32())})
    write_parquet(
        tmp_path / "in.parquet",
        table,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    content = bytearray((tmp_path / "in.parquet").read_bytes())
    content[2000] ^= 1
    (tmp_path / "in.parquet").write_bytes(content)
    with pytest.raises(FormatError):
        read_file(fields(v="INT"), input_file(tmp_path / "in.parquet", 1000))


def test_indices_are_looked_at_where_a_slice_has_them():
    indices = pa.array([0, None, 1, 0, 9, None, 1], pa.int32())
    words = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    batch = pa.record_batch({"v": words})
    for start, rows in ((0, 4), (1, 3), (2, 0), (5, 2), (5, 1)):
        check_indices(batch.slice(start, rows), ["v"], "path")
    for start, rows in ((3, 2), (4, 1), (2, 5)):
        with pytest.raises(FormatError, match="outside of its dictionary"):
            check_indices(batch.slice(start, rows), ["v"], "path")


# --- INT96 ------------------------------------------------------------------------------------


def nanoseconds(column: pa.Array | pa.ChunkedArray) -> list[int | None]:
    return [nanoseconds_of(scalar) if scalar.is_valid else None for scalar in column]


def int96_file(path: Path, instants: list[int | None], *, toward_zero: bool) -> None:
    """A file with INT96 column v holding nanoseconds since the epoch, as Java divides them."""
    parts = []
    for instant in instants:
        if instant is None:
            continue
        day, nanos = divmod(instant, DAY)
        if toward_zero and instant < 0 and nanos:
            day, nanos = day + 1, nanos - DAY
        parts.append(struct.pack("<qi", nanos, day + 2_440_588))
    # Markers, found and replaced in the file: pages of INT96 are plain values one after another.
    markers = [None if i is None else n + 1 for n, i in enumerate(instants)]
    table = pa.table({"v": pa.array(markers, pa.timestamp("ns"))})
    pq.write_table(
        table,
        path,
        use_deprecated_int96_timestamps=True,
        compression="none",
        use_dictionary=False,
        store_schema=False,
        write_statistics=False,
    )
    content = path.read_bytes()
    old = b"".join(struct.pack("<qi", m, 2_440_588) for m in markers if m is not None)
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, b"".join(parts)))


# The longest days before and after the epoch, in years that no calendar has.
FAR = ((1 << 31) - 2_440_588 - 2) * DAY


@pytest.mark.parametrize("toward_zero", [True, False])
def test_int96_is_read_exactly(tmp_path, toward_zero):
    instants = [0, 1, -1, None, -DAY, DAY - 1, -DAY - 1, LIMIT - 1, -LIMIT, -LIMIT + 1, 123456789]
    instants += [LIMIT, -LIMIT - 1, LIMIT + 5 * DAY, 8000 * 366 * DAY + 999_999_999, FAR, -FAR - 1]
    int96_file(tmp_path / "in.parquet", instants, toward_zero=toward_zero)
    found = read_file(fields(v="TIMESTAMP(9)"), input_file(tmp_path / "in.parquet", len(instants)))
    assert nanoseconds(found.column("v")) == instants


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_in_64_bits_of_other_writers_are_read(tmp_path, unit, zone):
    """Among them files that compactord itself wrote before it wrote INT96."""
    nanos = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit]
    ticks = [0, -1, None, (1 << 63) // 10**6, -(1 << 63) // 10**6]
    table = pa.table({"v": pa.array(ticks, pa.timestamp(unit, zone))})
    found = read(tmp_path, fields(v="TIMESTAMP(9)"), table, store_schema=True)
    assert nanoseconds(found.column("v")) == [t if t is None else t * nanos for t in ticks]


@pytest.mark.parametrize("instant", [LIMIT * 1000, -LIMIT * 1000, 1001])
def test_int96_that_fewer_digits_cannot_hold_is_an_error(tmp_path, instant):
    int96_file(tmp_path / "in.parquet", [0, instant], toward_zero=True)
    with pytest.raises(FormatError, match=r"column v holds a value that is not a timestamp"):
        read_file(fields(v="TIMESTAMP(6)"), input_file(tmp_path / "in.parquet", 2))


def test_int96_serves_every_precision_and_zone(tmp_path):
    int96_file(tmp_path / "in.parquet", [-2_000_000, None], toward_zero=True)
    file = input_file(tmp_path / "in.parquet", 2)
    for type_, unit in (("TIMESTAMP(3)", "ms"), ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "us")):
        column = read_file(fields(v=type_), file).column("v")
        assert column.type.unit == unit
        assert column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64()).to_pylist() == [
            -2_000_000,
            None,
        ]


def test_int96_inside_nested_columns(tmp_path):
    columns = fields(
        a={"type": "ARRAY", "element": "TIMESTAMP(9)"},
        m={"type": "MAP", "key": "STRING NOT NULL", "value": "TIMESTAMP(9)"},
        r={
            "type": "ROW",
            "fields": [
                {"id": 9, "name": "t", "type": "TIMESTAMP(9)"},
                {"id": 10, "name": "n", "type": "INT"},
            ],
        },
    )
    one, before, late = (from_nanoseconds([n])[0] for n in (1, -7, 8000 * 366 * DAY))
    rows = [
        {"a": [one, None, before], "m": [("k", late)], "r": {"t": before, "n": 1}},
        {"a": None, "m": None, "r": None},
        {"a": [], "m": [], "r": {"t": None, "n": None}},
        {"a": [late], "m": [("k", None), ("l", one)], "r": {"t": one, "n": 2}},
    ]
    table = pa.Table.from_pylist(rows, schema=value_schema(columns))
    found = read(tmp_path, columns, table, batch_rows=3)
    assert "INT96" in str(pq.ParquetFile(tmp_path / "in.parquet").schema).upper()
    assert found.equals(table.cast(found.schema))


def test_int96_that_is_not_null_inside_rows_that_are(tmp_path):
    """Slots of a null ROW have bytes of no moment at all."""
    moment = {"id": 9, "name": "t", "type": "TIMESTAMP(9) NOT NULL"}
    inner = {"type": "ROW", "fields": [moment]}
    outer = {"type": "ROW", "fields": [{"id": 10, "name": "i", "type": inner}]}
    columns = fields(r=inner, o=outer, a={"type": "ARRAY", "element": inner})
    one, before = (from_nanoseconds([n])[0] for n in (1, -7))
    rows = [
        {"r": {"t": before}, "o": {"i": {"t": one}}, "a": [None, {"t": one}]},
        {"r": None, "o": None, "a": None},
        {"r": None, "o": {"i": None}, "a": []},
    ]
    table = pa.Table.from_pylist(rows, schema=value_schema(columns))
    found = read(tmp_path, columns, table)
    assert found.equals(table.cast(found.schema))
    found.validate(full=True)


@pytest.mark.parametrize("garbage", [struct.pack("<qi", 2 * DAY, 2_440_588), b"\x7f" * 12])
def test_int96_in_slices_and_under_null_rows_of_any_depth(garbage):
    """What stands under a null, or under one further up, is ignored."""
    day = struct.pack("<qi", 5_000, 2_440_589)
    leaf = pa.array([garbage, day, garbage, day], pa.binary(12))
    inner = pa.StructArray.from_arrays([leaf], names=["t"])
    nulls = pa.array([True, False, True, False])
    outer = pa.StructArray.from_arrays([inner], names=["i"], mask=nulls)
    moment = WIDE_TIMESTAMP
    late = from_nanoseconds([DAY + 5_000])[0]
    wanted = pa.struct([("i", pa.struct([("t", moment)]))])
    values = [None, {"i": {"t": late}}, None, {"i": {"t": late}}]
    expected = pa.array(values, wanted)
    offsets = pa.array([0, 1, 1, 2, 4], pa.int32())
    lists, in_lists = (pa.ListArray.from_arrays(offsets, each) for each in (outer, expected))
    for start, rows in ((0, 4), (1, 2), (2, 1), (1, 0)):
        assert convert(outer.slice(start, rows), wanted).equals(expected.slice(start, rows))
        found = convert(lists.slice(start, rows), pa.list_(wanted))
        assert found.to_pylist() == in_lists.slice(start, rows).to_pylist()
    plain = pa.array([garbage, day, day], pa.binary(12)).slice(1)
    assert nanoseconds(convert(plain, moment)) == [DAY + 5_000] * 2
