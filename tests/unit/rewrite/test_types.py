"""Every column type through a rewrite: values, physical form in the file, statistics."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.paimon.binary_row import decode_row
from compactord.paimon.data_file import parse_stats_mode
from compactord.paimon.types import from_nanoseconds, value_schema
from compactord.rewrite.subcompaction import rewrite
from tests.unit.rewrite.builders import (
    SEQUENCE,
    concat_subcompaction,
    fields,
    input_file,
    merge_subcompaction,
    output_paths,
    write_append,
    write_parquet,
    write_run,
)

NAN = float("nan")
# Type, three values (smallest first, None last), Parquet's physical and logical type, and the
# bounds that the manifest gets; no bounds for "none at all".
CASES: dict[str, tuple[Any, list[Any], str, str, tuple[Any, Any]]] = {
    "boolean": ("BOOLEAN", [False, True], "BOOLEAN", "None", (False, True)),
    "tinyint": ("TINYINT", [-128, 127], "INT32", "Int(bitWidth=8, isSigned=true)", (-128, 127)),
    "smallint": ("SMALLINT", [-9, 300], "INT32", "Int(bitWidth=16, isSigned=true)", (-9, 300)),
    "int": ("INT", [-(2**31), 7], "INT32", "None", (-(2**31), 7)),
    "bigint": ("BIGINT", [-(2**63), 2**63 - 1], "INT64", "None", (-(2**63), 2**63 - 1)),
    "float": ("FLOAT", [-1.5, 2.25], "FLOAT", "None", (-1.5, 2.25)),
    "double": ("DOUBLE", [-math.inf, 1e300], "DOUBLE", "None", (-math.inf, 1e300)),
    "decimal 5": (
        "DECIMAL(5, 2)",
        [Decimal("-1.50"), Decimal("12.34")],
        "INT32",
        "Decimal(precision=5, scale=2)",
        (Decimal("-1.50"), Decimal("12.34")),
    ),
    "decimal 18": (
        "DECIMAL(18, 0)",
        [Decimal(-7), Decimal(10**17)],
        "INT64",
        "Decimal(precision=18, scale=0)",
        (Decimal(-7), Decimal(10**17)),
    ),
    "decimal 38": (
        "DECIMAL(38, 4)",
        [Decimal("-99999999999999999999.0001"), Decimal("0.5000")],
        "FIXED_LEN_BYTE_ARRAY",
        "Decimal(precision=38, scale=4)",
        (Decimal("-99999999999999999999.0001"), Decimal("0.5000")),
    ),
    "char": ("CHAR(3)", ["abc", "abd"], "BYTE_ARRAY", "String", ("abc", "abd")),
    "string": (
        "STRING",
        ["", "zz-longer-than-sixteen"],
        "BYTE_ARRAY",
        "String",
        ("", "zz-longer-than-t"),
    ),
    "non-ascii string": ("STRING", ["Z", "é"], "BYTE_ARRAY", "String", ("Z", "é")),
    "binary": ("BINARY(2)", [b"\x01\x00", b"\xff\x00"], "BYTE_ARRAY", "None", (b"\1\0", b"\xff\0")),
    "bytes": ("BYTES", [b"", b"\xff" * 20], "BYTE_ARRAY", "None", (None, None)),
    "date": ("DATE", [-1, 19000], "INT32", "Date", (-1, 19000)),
    "time": (
        "TIME(3)",
        [0, 86_399_999],
        "INT32",
        "Time(isAdjustedToUTC=true, timeUnit=milliseconds)",
        (0, 86_399_999),
    ),
    "timestamp 0": (
        "TIMESTAMP(0)",
        [-1000, 5000],
        "INT64",
        "Timestamp(isAdjustedToUTC=false, timeUnit=milliseconds",
        (-1_000_000_000, 5_000_000_000),
    ),
    "timestamp 6": (
        "TIMESTAMP(6)",
        [-1, 1],
        "INT64",
        "Timestamp(isAdjustedToUTC=false, timeUnit=microseconds",
        (-1000, 1000),
    ),
    "timestamp 9": (
        "TIMESTAMP(9)",
        from_nanoseconds([-1, 1]),
        "INT96",
        "None",
        (None, None),
    ),
    "local zoned timestamp 3": (
        "TIMESTAMP(3) WITH LOCAL TIME ZONE",
        [-5, 5],
        "INT64",
        "Timestamp(isAdjustedToUTC=true, timeUnit=milliseconds",
        (-5_000_000, 5_000_000),
    ),
    "local zoned timestamp 9": (
        "TIMESTAMP(9) WITH LOCAL TIME ZONE",
        from_nanoseconds([-5, 5]),
        "INT96",
        "None",
        (None, None),
    ),
}
NESTED: dict[str, tuple[Any, list[Any]]] = {
    "array": ({"type": "ARRAY", "element": "STRING"}, [["a", None, ""], []]),
    "array of arrays": (
        {"type": "ARRAY", "element": {"type": "ARRAY", "element": "INT"}},
        [[[1], None, []], [[2, None]]],
    ),
    "map": (
        {"type": "MAP", "key": "STRING NOT NULL", "value": "BIGINT"},
        [[("k", 1), ("l", None)], []],
    ),
    "row": (
        {
            "type": "ROW",
            "fields": [
                {"id": 11, "name": "x", "type": "INT NOT NULL"},
                {"id": 12, "name": "y", "type": {"type": "ARRAY", "element": "DATE"}},
            ],
        },
        [{"x": 1, "y": None}, {"x": 2, "y": []}],
    ),
    "multiset": ({"type": "MULTISET", "element": "STRING"}, [[("a", 2)], []]),
}


def merged(tmp_path, type_, values, **write):
    """Values of column v, one per key, through a merge of two runs; the parts of the outcome."""
    columns = fields(k="INT NOT NULL", v=type_)
    rows = [{"k": n, "v": value, SEQUENCE: n} for n, value in enumerate(values)]
    runs = [
        [write_run(tmp_path / "a.parquet", columns, ["k"], rows[0::2])],
        [write_run(tmp_path / "b.parquet", columns, ["k"], rows[1::2])],
    ]
    subcompaction = merge_subcompaction(tmp_path, columns, ["k"], runs, **write)
    result = rewrite(subcompaction)
    (path,) = output_paths(subcompaction, result)
    return columns, result.after[0], path, pq.ParquetFile(path)


def bounds(columns, file, index=1):
    types = [field.type for field in columns]
    low = decode_row(file.value_stats.min_values, types)
    high = decode_row(file.value_stats.max_values, types)
    return low[index], high[index]


@pytest.mark.parametrize("case", CASES)
def test_values_form_and_statistics_of(case, tmp_path):
    type_, values, physical, logical, expected = CASES[case]
    columns, file, _, parquet = merged(tmp_path, type_, [*values, None])
    before = [
        pq.ParquetFile(tmp_path / name).read().column("v") for name in ("a.parquet", "b.parquet")
    ]
    after = parquet.read().column("v")
    assert after.take([0, 2]).equals(before[0].cast(after.type))
    assert after.take([1]).equals(before[1].cast(after.type))
    leaf = parquet.schema.column(4)
    assert leaf.physical_type == physical
    assert str(leaf.logical_type).startswith(logical)
    assert leaf.max_definition_level == 1
    assert bounds(columns, file) == expected
    assert file.value_stats.null_counts == (0, 1)
    assert file.value_stats_columns is None


@pytest.mark.parametrize("case", NESTED)
def test_nested_values_survive_and_have_no_statistics(case, tmp_path):
    type_, values = NESTED[case]
    _, file, _, parquet = merged(tmp_path, type_, [*values, None])
    assert parquet.read().column("v").to_pylist() == [*values, None]
    assert file.value_stats_columns == ("k",)
    assert file.value_stats.null_counts == (0,)


def test_field_ids_are_in_the_file(tmp_path):
    _, _, path, _ = merged(tmp_path, NESTED["row"][0], NESTED["row"][1])
    schema = pq.read_schema(path)
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert ids == {
        "_KEY_k": 1073741823,
        "_SEQUENCE_NUMBER": 2147483646,
        "_VALUE_KIND": 2147483645,
        "k": 0,
        "v": 1,
    }
    inner = schema.field("v").type
    assert [int(inner.field(n).metadata[b"PARQUET:field_id"]) for n in ("x", "y")] == [11, 12]
    assert not inner.field("x").nullable


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, NAN], (1.0, NAN)),
        ([NAN, NAN], (NAN, NAN)),
        ([-0.0, 0.0], (-0.0, 0.0)),
        ([0.0, 5.0], (0.0, 5.0)),
        ([-0.0, -5.0], (-5.0, -0.0)),
        ([-math.inf, NAN], (-math.inf, NAN)),
        ([-NAN, 1.0], (1.0, NAN)),
        ([1.0, None, 2.0, None, NAN, None, 3.0], (1.0, NAN)),
        ([NAN, 2.0, NAN, 1.0], (1.0, NAN)),
        ([NAN, 1.0], (1.0, NAN)),
        ([0.0, 5.0, -0.0, 1.0, 0.0], (-0.0, 5.0)),
        ([-0.0, -5.0, 0.0, -1.0, -0.0], (-5.0, 0.0)),
        ([None, None], (None, None)),
    ],
)
@pytest.mark.parametrize("type_", ["FLOAT", "DOUBLE"])
def test_float_bounds_are_in_the_order_of_java(tmp_path, type_, values, expected):
    columns, file, _, parquet = merged(tmp_path, type_, values)
    found = bounds(columns, file)
    assert [form(value) for value in found] == [form(value) for value in expected]
    assert file.value_stats.null_counts == (0, values.count(None))
    # Java skips row groups and pages by bounds in the file, which know nothing of NaN.
    chunk = parquet.metadata.row_group(0).column(4)
    assert chunk.path_in_schema == "v"
    assert not chunk.is_stats_set
    assert not chunk.has_column_index


def form(value: float | None) -> bytes | None:
    return None if value is None else struct.pack(">d", value)


def test_long_values_have_bounds_though_the_footer_has_none(tmp_path):
    full = parse_stats_mode("full")
    modes = tuple((name, full) for name in ("_KEY_k", "_SEQUENCE_NUMBER", "_VALUE_KIND", "k", "v"))
    texts = ["b" * 5000, "a" * 9000, "c", None]
    columns, file, _, _ = merged(tmp_path, "STRING", texts, stats_modes=modes)
    assert bounds(columns, file) == ("a" * 9000, "c")
    data = [b"\xfe" * 5000, b"\x01", b"\xff" * 4097]
    columns, file, _, _ = merged(tmp_path, "BYTES", data, stats_modes=modes)
    assert bounds(columns, file) == (b"\x01", b"\xff" * 4097)
    columns, file, _, _ = merged(tmp_path, "BYTES", [b"a" * 4097], stats_modes=modes)
    assert bounds(columns, file) == (b"a" * 4097, b"a" * 4097)


def test_long_values_of_a_later_row_group_have_bounds(tmp_path):
    columns = fields(k="BIGINT NOT NULL", v="STRING")
    texts = [f"b{k:09}" for k in range(1000)] + ["a" * 5000] + ["c"] * 500
    rows = [{"k": k, "v": text} for k, text in enumerate(texts)]
    subcompaction = concat_subcompaction(
        tmp_path,
        columns,
        [write_append(tmp_path / "a.parquet", columns, rows)],
        group_bytes=6000,
    )
    result = rewrite(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert pq.ParquetFile(path).num_row_groups > 2
    assert bounds(columns, result.after[0]) == ("a" * 16, "c")


def test_long_dictionary_values_have_bounds(tmp_path):
    texts = ["b" * 5000, "a" * 5000] * 2000
    columns, file, _, parquet = merged(tmp_path, "STRING", texts)
    assert "RLE_DICTIONARY" in parquet.metadata.row_group(0).column(4).encodings
    assert bounds(columns, file) == ("a" * 16, "b" * 15 + "c")


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_texts_that_are_not_utf_8_are_kept_and_have_bounds_as_they_are(tmp_path, use_dictionary):
    columns = fields(k="BIGINT NOT NULL", v="STRING")
    texts = pa.array([b"a", b"\xff", None, b"b"] * 500)
    texts = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())
    table = pa.table([pa.array(range(2000)), texts], schema=value_schema(columns))
    write_parquet(tmp_path / "a.parquet", table, use_dictionary=use_dictionary)
    subcompaction = concat_subcompaction(
        tmp_path, columns, [input_file(tmp_path / "a.parquet", 2000)]
    )
    result = rewrite(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert pq.ParquetFile(path).read().column("v").combine_chunks().equals(texts)
    assert bounds(columns, result.after[0]) == ("a", b"\xff")
    assert result.after[0].value_stats.null_counts == (0, 500)


@pytest.mark.parametrize("target", [2000, 1 << 20])
@pytest.mark.parametrize("word", ["a", "a" * 5000])
@pytest.mark.parametrize("later", [[None], ["b", None]])
def test_words_of_a_dictionary_that_no_row_has_are_no_bounds(tmp_path, word, target, later):
    """Row groups of one stretch of rows share a dictionary, also with words of none of theirs."""
    columns = fields(k="BIGINT NOT NULL", v="STRING")
    texts = [word, *later] * 1000 + later * 2000
    rows = [{"k": k, "v": text} for k, text in enumerate(texts)]
    files = [write_append(tmp_path / "a.parquet", columns, rows)]
    subcompaction = concat_subcompaction(
        tmp_path, columns, files, group_bytes=6000, target_file_size=target
    )
    result = rewrite(subcompaction)
    expected = []
    for path in output_paths(subcompaction, result):
        values = pq.ParquetFile(path).read().column("v").drop_null().to_pylist()
        expected.append(min(values)[:16] if values else None)
    assert [bounds(columns, file)[0] for file in result.after] == expected
    assert (expected[-1] == later[0]) == (target == 2000)


def test_columns_of_few_values_stay_dictionary_encoded_and_others_plain(tmp_path):
    columns = fields(k="BIGINT NOT NULL", few="STRING", many="STRING", number="INT")
    runs = []
    for n in range(2):
        rows = [
            {
                "k": k,
                "few": f"v{(k + n) % 7}",
                "many": f"{k * 7919:020}",
                "number": k % 3,
                SEQUENCE: k,
            }
            for k in range(n, 4000, 2)
        ]
        runs.append([write_run(tmp_path / f"{n}.parquet", columns, ["k"], rows)])
    subcompaction = merge_subcompaction(tmp_path, columns, ["k"], runs)
    (path,) = output_paths(subcompaction, rewrite(subcompaction))
    group = pq.ParquetFile(path).metadata.row_group(0)
    encoded = {
        group.column(i).path_in_schema
        for i in range(group.num_columns)
        if "RLE_DICTIONARY" in group.column(i).encodings
    }
    assert encoded == {"_VALUE_KIND", "few", "number"}
    assert pq.ParquetFile(path).read().column("few").to_pylist() == [
        f"v{(k + k % 2) % 7}" for k in range(4000)
    ]


@pytest.mark.parametrize(
    ("compression", "codec"),
    [
        ("zstd", "ZSTD"),
        ("snappy", "SNAPPY"),
        ("gzip", "GZIP"),
        ("lz4", "LZ4"),
        ("lz4_raw", "LZ4"),
        ("none", "UNCOMPRESSED"),
    ],
)
def test_codecs_have_paimons_names(tmp_path, compression, codec):
    _, _, _, parquet = merged(tmp_path, "INT", [1, 2], compression=compression)
    assert parquet.metadata.row_group(0).column(0).compression == codec
    assert parquet.metadata.row_group(0).column(0).has_offset_index
