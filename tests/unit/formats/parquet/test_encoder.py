"""How rows are encoded: pages of a bounded size, and files of which most is not values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.encoder import WRITES_BLOOM_FILTERS
from compactord.formats.parquet.options import ColumnOptions
from compactord.formats.parquet.thrift import Chunk, Codec, File, Meta
from compactord.rewrite.subcompaction import rewrite
from tests.unit.formats.parquet.stored_pages import bodies
from tests.unit.rewrite.builders import (
    concat_subcompaction,
    fields,
    input_file,
    output_paths,
    write_parquet,
)

PAGE_BYTES = 64 << 10
MAP = {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"}
_CHANCE = np.random.default_rng(5)


def _rewritten(
    folder: Path,
    types: dict[str, str],
    table: pa.Table,
    *,
    page_bytes: int = 1 << 20,
    compression: str = "zstd",
    **encoding: Any,
) -> Path:
    columns = fields(**types)
    path = folder / "in.parquet"
    write_parquet(path, table)
    subcompaction = concat_subcompaction(
        folder,
        columns,
        [input_file(path, table.num_rows)],
        page_bytes=page_bytes,
        compression=compression,
        **encoding,
    )
    (written,) = output_paths(subcompaction, rewrite(subcompaction))
    assert pq.read_table(written).equals(table)
    return written


def _first_rows(path: Path) -> list[int]:
    """Of each page of the first column, out of its offset index."""
    content = path.read_bytes()
    (group,) = footer_of(content)[4].value.values
    index, _ = thrift.decode(content, group[1].value.values[0][4].value)
    return [location[3].value for location in index[1].value.values]


def test_pages_of_small_values_end_after_as_many_rows_as_java_s(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array(_CHANCE.integers(0, 100, 50_000), pa.int8())})

    path = _rewritten(tmp_path, {"v": "TINYINT"}, table)

    assert _first_rows(path) == [0, 20_000, 40_000]


def test_pages_of_large_values_end_soon_after_their_size_is_reached(tmp_path: Path) -> None:
    values = [bytes(_CHANCE.integers(0, 256, 500, np.uint8)) for _ in range(8_000)]

    path = _rewritten(tmp_path, {"v": "BYTES"}, pa.table({"v": values}), page_bytes=PAGE_BYTES)

    sizes = [len(body) for body in bodies(path, "v")]
    # Arrow looks after 1,024 rows at the earliest.
    assert all(PAGE_BYTES <= size <= PAGE_BYTES + 1_024 * 504 for size in sizes[:-1])
    assert len(sizes) == 8


def test_a_file_of_which_hardly_anything_is_values_is_encoded(tmp_path: Path) -> None:
    names = [f"{number:01000}" for number in range(700)]

    path = _rewritten(
        tmp_path,
        dict.fromkeys(names, "INT"),
        pa.table({name: pa.array([number], pa.int32()) for number, name in enumerate(names)}),
    )

    assert path.stat().st_size > 1 << 20


def test_gzip_pages_are_not_searched_for_the_smallest_size(tmp_path: Path) -> None:
    table = pa.table({"v": [f"{number:09}" for number in range(50_000)]})

    path = _rewritten(tmp_path, {"v": "STRING"}, table, compression="gzip")

    # The byte of a gzip header (RFC 1952, XFL) that is 2 for zlib's level 9, 4 for 1.
    assert {body[8] for body in bodies(path, "v")} == {0}


@pytest.mark.skipif(not WRITES_BLOOM_FILTERS, reason="Arrow is older than 26")
def test_columns_are_encoded_as_their_options_say(tmp_path: Path) -> None:
    names = ["b", "f", "i", "m.key_value.key", "m.key_value.value", "s", "w"]
    numbers = pa.array(range(30_000), pa.int32())
    table = pa.table(
        {
            "b": pa.array([True, False] * 15_000),
            "f": pa.array(range(30_000), pa.float32()),
            "i": numbers,
            "m": pa.array([[("k", 1)]] * 30_000, pa.map_(pa.string(), pa.int32())),
            "s": [f"{number:05}" for number in range(30_000)],
            "w": numbers,
        }
    )
    path = _rewritten(
        tmp_path,
        {"b": "BOOLEAN", "f": "FLOAT", "i": "INT", "m": MAP, "s": "STRING", "w": "INT"},
        table,
        bloom_filters=True,
        bloom_filter_bytes=4096,
        column_options={
            "i": ColumnOptions(compression="gzip", compression_level=6),
            "m.key_value.value": ColumnOptions(compression="none"),
            "w": ColumnOptions(bloom_filter=False),
        },
    )

    (group,) = footer_of(path.read_bytes())[File.GROUPS].value.values
    metas = dict(zip(names, (c[Chunk.META].value for c in group[1].value.values), strict=True))
    assert {name: meta[Meta.CODEC].value for name, meta in metas.items()} == {
        **dict.fromkeys(names, Codec.ZSTD),
        "i": Codec.GZIP,
        "m.key_value.value": Codec.UNCOMPRESSED,
    }
    # Floats have no filter: it would hide NaN and one of the zeros.
    sizes = {
        name: meta[Meta.BLOOM_FILTER_LENGTH].value
        for name, meta in metas.items()
        if Meta.BLOOM_FILTER_AT in meta
    }
    assert sizes.keys() == {"i", "m.key_value.key", "m.key_value.value", "s"}
    assert all(0 < size <= 4096 + 32 for size in sizes.values())
