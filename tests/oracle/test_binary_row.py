"""Rows of metadata, key order, buckets and partition folders are Java's, bit for bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from compactord.catalog.access import table_in_folder
from compactord.formats.layout import scalar_value
from compactord.paimon import paths
from compactord.paimon.binary_row import comparable_key, encode_row
from compactord.paimon.data_file import BucketId, ColumnBounds, build_stats, stats_modes
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableRef, latest_schema, parse_schema
from compactord.paimon.types import (
    WIDE_TIMESTAMP,
    AtomicType,
    DataField,
    DataType,
    TypeRoot,
    file_fields,
    file_schema,
    parse_type,
    value_schema,
)
from compactord.storage.local import LocalStorage
from compactord.table.opening import OpenTable, open_table
from compactord_demo.binary_rows import row_hash
from compactord_demo.schema_files import schema_json, type_json
from tests.oracle.judge import Judge
from tests.unit.paimon.values import atomic_types, judged, nested_types, values

ORACLE = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def batches(
    draw: st.DrawFn, types: st.SearchStrategy[DataType], *, nullable: bool = True
) -> tuple[list[DataType], list[tuple[Any, ...]]]:
    """Some types, and rows of them."""
    chosen = draw(st.lists(types, min_size=1, max_size=5))
    row = st.tuples(*(values(type_, nullable=nullable) for type_ in chosen))
    return chosen, draw(st.lists(row, min_size=1, max_size=30))


def _judged_rows(types: list[DataType], rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [[judged(v, t) for v, t in zip(row, types, strict=True)] for row in rows]


@seed(20260101)
@ORACLE
@given(batches(nested_types()))
def test_rows_hashes_and_buckets_are_javas(
    judge: Judge, batch: tuple[list[DataType], list[tuple[Any, ...]]]
) -> None:
    types, rows = batch
    answers = judge.algorithms.binary_rows(
        [type_json(type_) for type_ in types], _judged_rows(types, rows), num_buckets=7
    )
    ours = [encode_row(row, types) for row in rows]
    assert [row.hex() for row in ours] == [hexed for hexed, _, _ in answers]
    assert [(row_hash(row), abs(row_hash(row)) % 7) for row in ours] == [
        (hashed, bucket) for _, hashed, bucket in answers
    ]


@seed(20260102)
@ORACLE
@given(batches(atomic_types()))
def test_keys_are_sorted_as_java_sorts_them(
    judge: Judge, batch: tuple[list[DataType], list[tuple[Any, ...]]]
) -> None:
    types, rows = batch
    keys = [comparable_key(encode_row(row, types), types) for row in rows]
    ours = sorted(range(len(rows)), key=lambda position: keys[position])
    assert ours == judge.algorithms.sort_rows(
        [type_json(t) for t in types], _judged_rows(types, rows)
    )


PARTITION_VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False, None],
    "TINYINT": [-128, 0, 127],
    "SMALLINT": [-32768, 5],
    "INT": [-1, 2**31 - 1, None],
    "BIGINT": [-(2**63), 2**63 - 1],
    "FLOAT": [0.0, -0.0, 1.5, 1e10, 0.1, 1e-5, 3.4028234663852886e38, 1.401298464324817e-45],
    "DOUBLE": [1.0, 0.001, 9999999.0, 1e7, 5e-324, 2e23, 1.7976931348623157e308, 123.456, -1e-4],
    "DECIMAL(10, 2)": ["1.50", "-0.01", "0.00", "12345678.90"],
    "DECIMAL(38, 10)": ["0.0000000001", "-1234567890123456789012345678.0000000000"],
    "CHAR(6)": ["abc", "a b/c"],
    "STRING": ["", "  ", "\u00a0", "\u2003", "a=b%c", "é<>|~+&@", "tab\there", "x:y*?[]{}^\"'#\\"],
    "DATE": [0, 19000, -1, -719_162],
    "TIME(0)": [0, 3_600_000],
    "TIME(3)": [3_600_000, 86_399_999, 50, 120],
    "TIMESTAMP(0)": ["1700000000000:0", "-1000:0"],
    "TIMESTAMP(3)": ["1700000000000:0", "1700000000120:0", "1699999980000:0", "-1:0"],
    "TIMESTAMP(6)": ["1700000000123:456000", "-1:999000"],
    "TIMESTAMP(9)": ["1700000000123:456789", "-1:999999", "1700000000000:100"],
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": ["1700000000123:456000"],
}
# Without legacy names Java's folders of these depend on the zone of the writer's machine: refused.
ZONED = "TIMESTAMP(6) WITH LOCAL TIME ZONE"
FOLDERS = [(text, legacy) for text in PARTITION_VALUES for legacy in ("true", "false")]


def _opened(table: Path) -> OpenTable:
    ref = TableRef(database="db", name="t", location=str(table))
    return open_table(table_in_folder(LocalStorage(), ref), {})


@pytest.mark.parametrize(
    ("type_text", "legacy"), [case for case in FOLDERS if case != (ZONED, "false")]
)
def test_partition_folders_are_where_java_put_the_files(
    judge: Judge, tmp_path: Path, type_text: str, legacy: str
) -> None:
    table = tmp_path / "t"
    judge.create_table(
        table,
        [("p", type_text), ("v", "INT")],
        partition_by=["p"],
        options={"bucket": "-1", "partition.legacy-name": legacy},
    )
    judge.write(table, [(value, 1) for value in PARTITION_VALUES[type_text]])
    opened, ours = _opened(table), set()
    for file in judge.files(table):
        bucket = BucketId(bytes.fromhex(file["partition_hex"]), file["bucket"])
        path = paths.join(opened.bucket_folder(bucket), file["file_name"])
        assert Path(path).is_file()
        ours.add(path)
    assert ours == {str(path) for path in table.glob("p=*/bucket-*/*.parquet")}


def test_several_partition_columns_make_nested_folders(judge: Judge, tmp_path: Path) -> None:
    table = tmp_path / "t"
    judge.create_table(
        table,
        [("a/b", "STRING"), ("v", "INT"), ("d", "DATE")],
        partition_by=["d", "a/b"],
        options={"bucket": "-1", "partition.default-name": "none given"},
    )
    judge.write(table, [(None, 1, 19000)])
    [file] = judge.files(table)
    opened, partition = _opened(table), bytes.fromhex(file["partition_hex"])
    assert opened.partition_path(partition) == "d=19000/a%2Fb=none given"
    assert Path(opened.bucket_folder(BucketId(partition, 0)), file["file_name"]).is_file()


ALL_TYPES = [
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(9, 2)",
    "DECIMAL(18, 0)",
    "DECIMAL(38, 10)",
    "CHAR(5)",
    "VARCHAR(20)",
    "STRING",
    "BINARY(5)",
    "VARBINARY(20)",
    "BYTES",
    "DATE",
    "TIME(0)",
    "TIME(3)",
    "TIMESTAMP(0)",
    "TIMESTAMP(3)",
    "TIMESTAMP(6)",
    "TIMESTAMP(9)",
    "TIMESTAMP(3) WITH LOCAL TIME ZONE",
    "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    {"type": "ARRAY", "element": "INT NOT NULL"},
    {"type": "ARRAY", "element": {"type": "ARRAY", "element": "TIMESTAMP(3)"}},
    {"type": "MAP", "key": "STRING", "value": {"type": "ARRAY", "element": "DOUBLE"}},
    {"type": "MULTISET", "element": "STRING"},
    {
        "type": "ROW NOT NULL",
        "fields": [
            {"id": 0, "name": "x", "type": "INT NOT NULL"},
            {"id": 0, "name": "y", "type": {"type": "ARRAY", "element": "DATE"}},
        ],
    },
    {
        "type": "ARRAY",
        "element": {
            "type": "ROW",
            "fields": [
                {"id": 0, "name": "m", "type": {"type": "MAP", "key": "INT", "value": "STRING"}}
            ],
        },
    },
]


@pytest.mark.parametrize("thin", ["true", "false"])
def test_schemas_of_files_are_javas_with_ids_units_and_nullability(
    judge: Judge, tmp_path: Path, thin: str
) -> None:
    table = tmp_path / "t"
    columns: list[tuple[str, Any]] = [("k2", "TIMESTAMP(6) NOT NULL"), ("k1", "BIGINT NOT NULL")]
    columns += [(f"c{index}", type_) for index, type_ in enumerate(ALL_TYPES)]
    judge.create_table(
        table,
        columns,
        primary_key=["k1", "k2"],
        options={"bucket": "1", "data-file.thin-mode": thin},
    )
    empty = [None] * len(ALL_TYPES)
    empty[-2] = [1, None]
    judge.write(table, [("0:0", 1, *empty)])
    schema = latest_schema(LocalStorage(), str(table))
    [file] = table.glob("bucket-0/*.parquet")
    key = [field.name for field in schema.key_fields]
    ours = file_schema(schema.fields, key, thin=thin == "true")
    system = ["_SEQUENCE_NUMBER", "_VALUE_KIND"]
    assert ours.names[:4] == [
        *([] if thin == "true" else ["_KEY_k1", "_KEY_k2"]),
        *system,
        *(["k2", "k1"] if thin == "true" else []),
    ]
    assert _as_read(ours, tmp_path) == _shown(pq.read_schema(file))


def test_append_files_hold_the_columns_alone(judge: Judge, tmp_path: Path) -> None:
    table = tmp_path / "t"
    judge.create_table(table, [("a", "INT"), ("b", "STRING NOT NULL")], options={"bucket": "-1"})
    judge.write(table, [(1, "x")])
    schema = latest_schema(LocalStorage(), str(table))
    [file] = table.glob("bucket-0/*.parquet")
    assert _as_read(value_schema(schema.fields), tmp_path) == _shown(pq.read_schema(file))


def _as_read(schema: pa.Schema, folder: Path) -> str:
    """The schema that a reader finds in a file with these columns."""
    path = folder / "ours.parquet"
    fields = [field.with_type(_readable(field.type)) for field in schema]
    pq.write_table(pa.schema(fields).empty_table(), path, store_schema=False)
    return _shown(pq.read_schema(path))


def _readable(type_: pa.DataType) -> pa.DataType:
    """The type as Arrow's reader has it, which takes INT96 for nanoseconds."""
    if type_ == WIDE_TIMESTAMP:
        return pa.timestamp("ns")
    if pa.types.is_map(type_):
        item = type_.item_field.with_type(_readable(type_.item_type))
        return pa.map_(type_.key_field.with_type(_readable(type_.key_type)), item)
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_readable(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_readable(field.type)) for field in type_])
    return type_


def _shown(schema: pa.Schema) -> str:
    """Types, nullability and field ids, those inside maps as well, which == leaves out."""
    text: str = schema.to_string(show_field_metadata=True, truncate_metadata=False)
    return text


def test_schemas_written_by_us_are_read_by_java(judge: Judge, tmp_path: Path) -> None:
    table = tmp_path / "t"
    columns = [(f"c{index}", type_) for index, type_ in enumerate(ALL_TYPES)]
    judge.create_table(table, columns, options={"bucket": "-1", "k": "ü"})
    file = table / "schema" / "schema-0"
    schema = parse_schema(file.read_bytes(), str(file))
    file.write_bytes(schema_json(schema))
    assert judge.add_column(table, "later", "INT") == 1
    later = latest_schema(LocalStorage(), str(table))
    assert later.fields[:-1] == schema.fields
    assert later.options == schema.options
    assert later.highest_field_id == schema.highest_field_id + 1


def test_random_bits_of_floats_are_stored_as_java_stores_them(judge: Judge) -> None:
    chooser = random.Random(7)
    kinds = [parse_type("FLOAT"), parse_type("DOUBLE")]
    assert all(isinstance(kind, AtomicType) for kind in kinds)
    rows = [(float("nan"), float("inf")), (-0.0, -float("nan"))]
    rows += [(float(chooser.randrange(2**24)), chooser.random() * 1e300) for _ in range(50)]
    answers = judge.algorithms.binary_rows(["FLOAT", "DOUBLE"], rows)
    assert [encode_row(row, kinds).hex() for row in rows] == [answer[0] for answer in answers]


STATS_COLUMNS: list[tuple[str, Any]] = [
    ("d", "DOUBLE"),
    ("k", "STRING NOT NULL"),
    ("s", "STRING"),
    ("b", "BYTES"),
    ("n", "INT"),
    ("ts", "TIMESTAMP(6)"),
    ("nano", "TIMESTAMP(9)"),
    ("dec", "DECIMAL(20, 2)"),
    ("l", {"type": "ARRAY", "element": "INT"}),
]
STATS_ROWS = [
    (1.5, "k" * 200, "x" * 40, "x:" + "ff" * 20, None, "5:6000", "5:6", "1.50", [1]),
    (-0.0, "a" * 200, "\U0010ffff" * 20, "x:00", None, None, "-5:6", "-7.25", None),
    (0.0, "b", None, None, None, "-1:999000", None, None, []),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"metadata.stats-dense-store": "false"},
        {"data-file.thin-mode": "true", "metadata.stats-mode": "none"},
        {"metadata.stats-mode": "full"},
        {"metadata.stats-mode": "counts", "fields.s.stats-mode": "truncate(3)"},
        {"metadata.stats-keep-first-n-columns": "3", "fields.n.stats-mode": "full"},
        {"metadata.stats-mode.per.level": "0:truncate(2)", "fields.n.stats-mode": "none"},
        {"metadata.stats-mode": "none", "metadata.stats-dense-store": "false"},
    ],
    ids=lambda options: ",".join(options) or "defaults",
)
@pytest.mark.parametrize("primary_key", [["k"], []], ids=["key", "append"])
def test_statistics_are_javas(
    judge: Judge, tmp_path: Path, primary_key: list[str], options: dict[str, str]
) -> None:
    table = tmp_path / "t"
    judge.create_table(
        table,
        STATS_COLUMNS,
        primary_key=primary_key,
        options={"bucket": "1" if primary_key else "-1", "write-only": "true", **options},
    )
    judge.write(table, STATS_ROWS)
    [file] = judge.files(table)
    schema = latest_schema(LocalStorage(), str(table))
    files = parse_options(schema).files
    key = [field.name for field in schema.key_fields]
    fields = schema.fields
    if primary_key:
        fields = file_fields(schema.fields, key, thin=files.thin_mode)
    modes = dict(stats_modes(fields, schema, files, level=0))
    data = pq.read_table(table / "bucket-0" / file["file_name"])
    bounds = {field.name: _bounds(field, data.column(field.name)) for field in fields}

    stats, columns = build_stats(
        [bounds[field.name] for field in schema.fields], modes, dense=files.stats_dense
    )
    assert [stats.min_values.hex(), stats.max_values.hex(), [*stats.null_counts]] == [
        file["value_stats"][part] for part in ("min", "max", "null_counts")
    ]
    assert (None if columns is None else [*columns]) == file["value_stats_cols"]
    keys = [bounds[name if files.thin_mode else f"_KEY_{name}"] for name in key]
    stats, _ = build_stats(keys, modes, dense=False)
    assert [stats.min_values.hex(), stats.max_values.hex(), [*stats.null_counts]] == [
        file["key_stats"][part] for part in ("min", "max", "null_counts")
    ]


def _bounds(field: DataField, column: pa.ChunkedArray) -> ColumnBounds:
    """What the Parquet file's own statistics would tell, found by ordering all values."""
    if not isinstance(field.type, AtomicType):
        return ColumnBounds(name=field.name, type=field.type)
    # INT96 columns have no bounds in Parquet.
    if field.type.root is TypeRoot.TIMESTAMP and (field.type.precision or 0) > 6:
        return ColumnBounds(name=field.name, type=field.type, null_count=column.null_count)
    present = [
        (comparable_key(encode_row([value], [field.type]), [field.type]), value)
        for scalar in column
        if (value := scalar_value(scalar, field.type)) is not None
    ]
    return ColumnBounds(
        name=field.name,
        type=field.type,
        minimum=min(present)[1] if present else None,
        maximum=max(present)[1] if present else None,
        null_count=column.null_count,
    )
