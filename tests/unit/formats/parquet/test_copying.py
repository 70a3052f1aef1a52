"""Copied pages hold what decoding and encoding would have written, and are what was stored."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.paimon.data_file import parse_stats_mode
from compactord.paimon.types import value_schema
from tests.unit.formats.parquet.small_files import (
    FLAT,
    LONG,
    PAD,
    ROWS,
    assert_same_as_by_decoding,
    copied,
    inputs,
    padded,
    table_of,
    write_small,
)
from tests.unit.formats.parquet.stored_pages import assert_healthy, is_copied
from tests.unit.rewrite.builders import concat_subcompaction, output_paths

LIST = {"type": "ARRAY", "element": "BIGINT"}
CODECS = ("zstd", "snappy", "gzip", "none")
NESTED = {
    "type": "ROW",
    "fields": [
        {"id": 11, "name": "x", "type": "INT"},
        {"id": 12, "name": "y", "type": {"type": "ARRAY", "element": "STRING"}},
    ],
}


@pytest.mark.parametrize("nulls", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("kind", FLAT)
def test_pages_of_every_flat_type_are_copied(tmp_path, kind, nulls):
    columns = padded(v=FLAT[kind])
    subcompaction, result = copied(tmp_path, columns, inputs(tmp_path, columns, nulls=nulls))
    assert is_copied(subcompaction, result, "v")


@pytest.mark.parametrize("kind", ["int", "double", "string", "decimal 38", "timestamp 6"])
def test_pages_of_required_columns_are_copied(tmp_path, kind):
    columns = padded(v=f"{FLAT[kind]} NOT NULL")
    subcompaction, result = copied(tmp_path, columns, inputs(tmp_path, columns))
    assert is_copied(subcompaction, result, "v")
    (path,) = output_paths(subcompaction, result)
    assert not pq.read_schema(path).field("v").nullable


@pytest.mark.parametrize("kind", ["int", "double", "string"])
def test_a_file_of_nulls_between_others(tmp_path, kind):
    columns = padded(v=FLAT[kind])
    files = inputs(tmp_path, columns, 2)
    empty = write_small(tmp_path / "nulls.parquet", table_of(columns, ROWS, 9, nulls=1.0))
    subcompaction, result = copied(tmp_path, columns, [files[0], empty, files[1]])
    assert is_copied(subcompaction, result, "v")


@pytest.mark.parametrize("codec", CODECS)
def test_pages_of_every_codec_that_the_output_has_are_copied(tmp_path, codec):
    columns = padded(n="BIGINT", s="STRING", d="DOUBLE")
    subcompaction, result = copied(
        tmp_path, columns, inputs(tmp_path, columns, compression=codec), compression=codec
    )
    assert all(is_copied(subcompaction, result, name) for name in ("n", "s", "d"))
    (path,) = output_paths(subcompaction, result)
    found = pq.read_metadata(path).row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())


@pytest.mark.parametrize(
    ("there", "wanted"),
    [("zstd", "snappy"), ("snappy", "zstd"), ("none", "gzip"), ("lz4", "lz4"), ("lz4", "lz4_raw")],
)
def test_pages_of_another_codec_and_of_lz4_are_encoded_anew(tmp_path, there, wanted):
    columns = padded(n="BIGINT")
    files = inputs(tmp_path, columns, compression=there)
    subcompaction = concat_subcompaction(
        tmp_path, columns, files, keeps_encoding=True, compression=wanted
    )
    result = assert_same_as_by_decoding(subcompaction)
    assert not is_copied(subcompaction, result, "n")
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)
    found = pq.read_metadata(path).row_group(0).column(0).compression
    assert found == wanted.removesuffix("_raw").upper()


def test_one_file_of_another_codec_and_its_column_is_encoded_anew(tmp_path):
    columns = padded(n="BIGINT", s="STRING")
    files = [
        *inputs(tmp_path, columns, 2),
        write_small(
            tmp_path / "other.parquet",
            table_of(columns, ROWS, 5),
            compression={"n": "snappy", "s": "zstd", PAD: "zstd"},
        ),
    ]
    subcompaction, result = copied(tmp_path, columns, files)
    assert is_copied(subcompaction, result, "s")
    assert not is_copied(subcompaction, result, "n")


@pytest.mark.parametrize("longest", [LONG, f"z{LONG}"], ids=["in the middle", "the last"])
def test_columns_with_values_that_the_footer_has_no_bounds_for(tmp_path, longest):
    columns = padded(s="STRING", n="INT")
    files = inputs(tmp_path, columns, 2)
    texts = pa.array([longest if n % 9 == 0 else "m" for n in range(ROWS)])
    table = table_of(columns, ROWS, 5, s=texts)
    files.append(write_small(tmp_path / "long.parquet", table))
    full = tuple((name, parse_stats_mode("full")) for name in ("s", "n", PAD))
    subcompaction, result = copied(tmp_path, columns, files, stats_modes=full)
    assert is_copied(subcompaction, result, "n")
    assert not is_copied(subcompaction, result, "s")


def test_all_columns_together_with_nested_ones(tmp_path):
    types = {f"c {name}": type_ for name, type_ in FLAT.items()}
    columns = padded(**{"a.x": "INT", "a": NESTED, "l": LIST, **types})
    schema = value_schema(columns)
    rows, files = 5_000, []
    for seed in range(3):
        nested = [{"x": n, "y": [None, str(n)]} if n % 3 else None for n in range(rows)]
        lists = [list(range(n % 4)) if n % 5 else None for n in range(rows)]
        given = {
            "a": pa.array(nested, schema.field("a").type),
            "l": pa.array(lists, schema.field("l").type),
        }
        table = table_of(columns, rows, seed, **given)
        files.append(write_small(tmp_path / f"{seed}.parquet", table))
    subcompaction, result = copied(tmp_path, columns, files)
    assert [name for name in types if not is_copied(subcompaction, result, name)] == []
    # The nested column has a leaf of that path.
    assert not is_copied(subcompaction, result, "a.x")


def test_a_name_may_hold_dots(tmp_path):
    columns = padded(**{"a.b": "INT", "a.b.c": "DOUBLE", ".": "STRING"})
    subcompaction, result = copied(tmp_path, columns, inputs(tmp_path, columns))
    assert all(is_copied(subcompaction, result, name) for name in ("a.b", "a.b.c", "."))
