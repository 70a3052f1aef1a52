"""Inputs as different writers make them: which pages are copied, and what is said of them."""

from __future__ import annotations

import struct
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import Kind
from compactord.paimon.types import value_schema
from compactord.rewrite.subcompaction import rewrite
from tests.unit.formats.parquet.small_files import (
    EXACT,
    FLAT,
    PAD,
    ROWS,
    assert_same_as_by_decoding,
    copied,
    inputs,
    padded,
    table_of,
    write_small,
)
from tests.unit.formats.parquet.stored_pages import (
    assert_healthy,
    bodies,
    column_index,
    is_copied,
    with_footer,
)
from tests.unit.rewrite.builders import concat_subcompaction, input_file, output_paths

MADE: dict[str, dict[str, Any]] = {
    "several row groups": {"row_group_size": 700},
    "several pages": {"max_rows_per_page": 300},
    "small pages by bytes": {"data_page_size": 4_000, "write_batch_size": 64},
    "row groups of several pages": {"row_group_size": 900, "max_rows_per_page": 250},
    "no indexes": {"write_page_index": False},
    "several pages without indexes": {"write_page_index": False, "max_rows_per_page": 300},
    "with the Arrow schema": {"store_schema": True},
    "another version": {"version": "1.0"},
}
COLUMNS = padded(n="BIGINT", s="STRING", d="DOUBLE", t="TIMESTAMP(6)", b="BOOLEAN")


@pytest.mark.parametrize("nulls", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("made", MADE)
def test_pages_are_copied_however_many_and_whatever_is_known_of_them(tmp_path, made, nulls):
    files = inputs(tmp_path, COLUMNS, nulls=nulls, **MADE[made])
    subcompaction = concat_subcompaction(tmp_path, COLUMNS, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    names = ["n", "s", "d", "b", PAD]
    if made != "another version":
        names.append("t")
    assert [name for name in names if not is_copied(subcompaction, result, name)] == []
    (path,) = output_paths(subcompaction, result)
    knows = made != "several pages without indexes"
    assert_healthy(path, knows_null_pages=knows)
    assert (5 in column_index(path, "n")) == (knows or nulls in (0.0, 1.0))


def test_pages_without_checksums_are_not_copied(tmp_path):
    """Nothing but decoding shows that their bytes are sound; they would be vouched for."""
    files = inputs(tmp_path, COLUMNS, nulls=0.2, write_page_checksum=False)
    subcompaction = concat_subcompaction(tmp_path, COLUMNS, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert not any(is_copied(subcompaction, result, name) for name in ("n", "s", "d", PAD))


@pytest.mark.parametrize(
    ("nulls", "counts"), [(0, [0] * 8), (ROWS, [500] * 8), (500, None)], ids=["no", "all", "some"]
)
def test_pages_without_a_column_index_have_the_bounds_of_their_chunk(tmp_path, nulls, counts):
    columns = padded(n="INT")
    numbers = pa.array([None] * nulls + list(range(ROWS - nulls)), pa.int32())
    tables = [table_of(columns, ROWS, seed, n=numbers) for seed in range(2)]
    files = [
        write_small(tmp_path / f"{n}.parquet", t, max_rows_per_page=500, write_page_index=False)
        for n, t in enumerate(tables)
    ]
    subcompaction, result = copied_without_null_pages(tmp_path, columns, files)
    (path,) = output_paths(subcompaction, result)
    index = column_index(path, "n")
    if nulls < ROWS:
        assert index[2].value.values == [struct.pack("<i", 0)] * 8
        assert index[3].value.values == [struct.pack("<i", ROWS - nulls - 1)] * 8
    assert (index[5].value.values if 5 in index else None) == counts


@pytest.mark.parametrize(
    "kind", ["INT", "BIGINT", "DECIMAL(9, 2)", "DECIMAL(38, 10)", "TIMESTAMP(3)"]
)
def test_bounds_are_those_of_all_files_in_the_order_of_numbers(tmp_path, kind):
    columns = padded(v=kind)
    type_ = value_schema(columns).field("v").type
    files = []
    for name, pool in (("low", [-3, -2]), ("high", [256, 258]), ("none", [None])):
        if pa.types.is_decimal(type_):
            pool = [None if number is None else Decimal(number) for number in pool]
        column = pa.array([pool[n % len(pool)] for n in range(ROWS)], type_)
        table = table_of(columns, ROWS, len(files), v=column)
        files.append(write_small(tmp_path / f"{name}.parquet", table))
    subcompaction, result = copied(tmp_path, columns, files)
    assert is_copied(subcompaction, result, "v")


def copied_without_null_pages(folder: Path, columns: Any, files: Any) -> tuple[Any, Any]:
    subcompaction = concat_subcompaction(folder, columns, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert is_copied(subcompaction, result, "n")
    assert_healthy(output_paths(subcompaction, result)[0], knows_null_pages=False)
    return subcompaction, result


def test_null_pages_and_counts_are_those_of_the_inputs(tmp_path):
    columns = padded(n="INT")
    numbers = pa.array([None] * 500 + list(range(250)) + [None] * 250 + [7] * 1_000, pa.int32())
    files = [
        write_small(
            tmp_path / f"{seed}.parquet",
            table_of(columns, ROWS, seed, n=numbers),
            max_rows_per_page=500,
        )
        for seed in range(2)
    ]
    subcompaction, result = copied(tmp_path, columns, files)
    index = column_index(output_paths(subcompaction, result)[0], "n")
    assert index[1].value.values == [Kind.TRUE, Kind.FALSE, Kind.FALSE, Kind.FALSE] * 2
    assert index[5].value.values == [500, 250, 0, 0] * 2


@pytest.mark.parametrize(
    "how",
    [
        {"data_page_version": "2.0"},
        {"use_dictionary": ["s", "n"]},
        {"use_dictionary": ["s", "n"], "dictionary_pagesize_limit": 1_000},
        {"column_encoding": {"n": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY"}},
        {"column_encoding": {"n": "BYTE_STREAM_SPLIT", "s": "DELTA_LENGTH_BYTE_ARRAY"}},
        {"write_statistics": [PAD]},
    ],
    ids=["version 2", "dictionaries", "full dictionaries", "deltas", "streams", "no statistics"],
)
@pytest.mark.parametrize("all_files", [True, False], ids=["all", "one of them"])
def test_what_our_writer_would_not_make_is_encoded_anew(tmp_path, how, all_files):
    columns = padded(n="INT", s="STRING")
    others = inputs(tmp_path, columns, 2, **how if all_files else {})
    (tmp_path / "b").mkdir()
    files = [*others, *inputs(tmp_path / "b", columns, 1, **how)]
    subcompaction = concat_subcompaction(tmp_path, columns, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert not is_copied(subcompaction, result, "n")
    assert not is_copied(subcompaction, result, "s")
    assert is_copied(subcompaction, result, PAD) == ("data_page_version" not in how)
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)
    group = pq.read_metadata(path).row_group(0)
    encodings = {name for i in range(3) for name in group.column(i).encodings}
    assert encodings <= {"PLAIN", "RLE", "RLE_DICTIONARY"}


def test_columns_without_field_ids_are_encoded_with_them(tmp_path):
    columns = padded(n="BIGINT", s="STRING")
    tables = [table_of(columns, ROWS, seed) for seed in range(2)]
    files = [
        write_small(tmp_path / f"{n}.parquet", table.replace_schema_metadata().cast(_bare(table)))
        for n, table in enumerate(tables)
    ]
    subcompaction = concat_subcompaction(tmp_path, columns, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert not is_copied(subcompaction, result, "n")
    assert pq.read_schema(output_paths(subcompaction, result)[0]).field("n").metadata == {
        b"PARQUET:field_id": b"0"
    }


def _bare(table: pa.Table) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in table.schema])


def with_nanoseconds(table: pa.Table, name: str, seed: int) -> pa.Table:
    """The table with such a column as others write: 64 bits, or INT96 if they are asked for it."""
    chance = np.random.default_rng(seed)
    times = pa.array(chance.integers(-(1 << 62), 1 << 62, table.num_rows)).view(pa.timestamp("ns"))
    return table.set_column(table.column_names.index(name), name, times)


def test_files_by_the_defaults_of_pyarrow(tmp_path):
    columns = padded(n="BIGINT", s="STRING", d="DOUBLE", t="TIMESTAMP(9)", c="DECIMAL(7, 2)")
    files = []
    for seed in range(3):
        path = tmp_path / f"{seed}.parquet"
        table = with_nanoseconds(table_of(columns, 5_000, seed), "t", seed)
        pq.write_table(table, path, compression="zstd")
        files.append(input_file(path, 5_000))
    subcompaction = concat_subcompaction(tmp_path, columns, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert_healthy(output_paths(subcompaction, result)[0])


@pytest.mark.parametrize("kind", ["decimal 9", "decimal 18", "decimal 38"])
@pytest.mark.parametrize("stored", ["fixed", "variable"])
def test_decimals_in_another_form_are_encoded_as_ours(tmp_path, kind, stored):
    columns = padded(v=FLAT[kind])
    files = []
    for seed in range(2):
        path = tmp_path / f"{seed}.parquet"
        table = table_of(columns, ROWS, seed)
        if stored == "fixed":
            files.append(write_small(path, table, store_decimal_as_integer=False))
        else:
            files.append(variable_decimals(path, table))
    subcompaction = concat_subcompaction(tmp_path, columns, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert is_copied(subcompaction, result, PAD)
    assert is_copied(subcompaction, result, "v") == (kind == "decimal 38" and stored == "fixed")


def variable_decimals(path: Path, table: pa.Table) -> Any:
    """The decimals of column v as BYTE_ARRAY: written as bytes, declared as decimals afterwards."""
    type_ = table.schema.field("v").type
    raw = [_big_endian(value, type_.scale) for value in table.column("v").to_pylist()]
    index = table.schema.get_field_index("v")
    as_bytes = table.schema.field("v").with_type(pa.binary())
    write_small(path, table.set_column(index, as_bytes, pa.array(raw)), write_statistics=[PAD])
    content = path.read_bytes()
    footer = footer_of(content)
    elements = footer[2].value.values
    found = elements[index + 1]
    elements[index + 1] = {
        **{field: found[field] for field in (1, 3, 4)},
        6: thrift.i32(5),
        7: thrift.i32(type_.scale),
        8: thrift.i32(type_.precision),
        9: found[9],
    }
    return with_footer(path, footer, table.num_rows)


def _big_endian(value: Decimal | None, scale: int) -> bytes | None:
    if value is None:
        return None
    number = int(value.scaleb(scale, EXACT))
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def test_chunks_whose_nulls_nobody_counted_are_not_copied(tmp_path):
    """Nulls that are not counted would be said not to be there."""
    files = []
    for number, file in enumerate(inputs(tmp_path, COLUMNS, nulls=0.2)):
        footer = footer_of(Path(file.path).read_bytes())
        for group in footer[4].value.values if number else ():
            for chunk in group[1].value.values:
                chunk[3].value.get(12, thrift.struct({})).value.pop(3, None)
        files.append(with_footer(Path(file.path), footer, file.row_count))
    subcompaction = concat_subcompaction(tmp_path, COLUMNS, files, keeps_encoding=True)
    result = assert_same_as_by_decoding(subcompaction)
    assert not is_copied(subcompaction, result, "n")
    assert result.after[0].value_stats.null_counts[0] > 0


def test_int96_is_encoded_as_ours(tmp_path):
    columns = padded(t="TIMESTAMP(9)", u="TIMESTAMP(6)", n="INT")
    files = []
    for seed in range(2):
        given = {"u": pa.nulls(ROWS, pa.timestamp("us"))}
        files.append(
            write_small(
                tmp_path / f"{seed}.parquet",
                with_nanoseconds(table_of(columns, ROWS, seed, **given), "t", seed),
                use_deprecated_int96_timestamps=True,
            )
        )
    subcompaction, result = copied(tmp_path, columns, files)
    assert is_copied(subcompaction, result, "n")
    schema = pq.ParquetFile(output_paths(subcompaction, result)[0]).schema
    assert [schema.column(i).physical_type for i in range(2)] == ["INT96", "INT64"]


def test_what_we_wrote_is_copied_again(tmp_path):
    first = concat_subcompaction(tmp_path / "1", COLUMNS, inputs(tmp_path, COLUMNS, 2, rows=ROWS))
    second = concat_subcompaction(tmp_path / "2", COLUMNS, inputs(tmp_path, COLUMNS, 3, rows=ROWS))
    files = []
    for subcompaction, keeps in ((first, False), (second, True)):
        subcompaction = replace(
            subcompaction, write=replace(subcompaction.write, keeps_encoding=keeps)
        )
        result = rewrite(subcompaction)
        files += [
            input_file(path, file.row_count)
            for path, file in zip(output_paths(subcompaction, result), result.after, strict=True)
        ]
    subcompaction, result = copied(tmp_path, COLUMNS, files)
    names = [field.name for field in COLUMNS]
    assert [name for name in names if not is_copied(subcompaction, result, name)] == []
    assert len(bodies(output_paths(subcompaction, result)[0], "n")) == 1 + 3


def test_columns_that_files_lack_or_have_otherwise_are_not_copied(tmp_path):
    columns = padded(n="BIGINT", b="BYTES", gone="INT", dt="STRING")
    files = []
    for number, whole in enumerate(table_of(columns, ROWS, seed) for seed in range(3)):
        rows = whole.drop_columns(["gone", "dt"])
        if number:
            texts = pa.array([f"{n:08}" for n in range(len(rows))])
            rows = rows.set_column(rows.schema.get_field_index("b"), "b", texts)
        path = tmp_path / f"{number}.parquet"
        write_small(path, rows)
        files.append(input_file(path, len(rows)))
    subcompaction = replace(
        concat_subcompaction(tmp_path, columns, files, keeps_encoding=True),
        partition=(("dt", "2024"),),
    )
    result = assert_same_as_by_decoding(subcompaction)
    assert is_copied(subcompaction, result, PAD)
    assert is_copied(subcompaction, result, "n")
    assert not is_copied(subcompaction, result, "b")
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)
    found = pq.read_table(path)
    assert found.column("dt").unique().to_pylist() == ["2024"]
    assert found.column("gone").null_count == len(found) == 3 * ROWS
    assert found.column("b").slice(ROWS, 1).to_pylist() == [b"00000000"]
