"""Files whose page headers are right, however unusual, are read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.formats.layout import append_layout
from compactord.formats.parquet import thrift
from compactord.formats.parquet.thrift import Kind, Struct
from compactord.rewrite.reader import Input, InputReader
from compactord.storage.local import LocalStorage
from tests.unit.formats.parquet.test_page_headers import (
    COLUMNS,
    KINDS,
    ROWS,
    File,
    rows_written,
    with_metas,
    written,
)
from tests.unit.rewrite.builders import input_file, write_parquet


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("length", [1, 300, 3_000])
def test_pages_with_long_statistics_are_read(tmp_path, codec, version, length):
    path = tmp_path / "in.parquet"
    texts = [f"{n:0{length}}" for n in range(ROWS)]
    table = rows_written().set_column(1, rows_written().schema.field("s"), pa.array(texts))
    write_parquet(path, table, compression=codec, data_page_version=version, max_rows_per_page=30)
    found = File(path, path.read_bytes()).read()
    assert found.column("s").to_pylist() == texts


def test_a_footer_need_not_name_the_encoding_of_levels(tmp_path):
    """Java does not for pages of version 2."""
    file = written(tmp_path, data_page_version="2.0")
    rows = file.read()

    def changed(meta: Struct) -> Struct:
        names = [name for name in meta[2].value.values if name != 3]
        return {**meta, 2: thrift.items(Kind.I32, names)}

    assert with_metas(file, changed).read().equals(rows)


def test_how_levels_are_encoded_that_take_no_bytes_does_not_matter(tmp_path):
    file = written(tmp_path, **KINDS["as Java"])
    rows = file.read()
    page = file.pages("k")[0]
    file.with_header(page, page.changed(3, 4))
    assert file.read().equals(rows)


def test_a_file_without_rows_is_read(tmp_path):
    path = tmp_path / "in.parquet"
    write_parquet(path, rows_written().slice(0, 0))
    layout = append_layout(COLUMNS)
    assert pq.read_metadata(path).num_rows == 0
    opened = Input(InputReader(LocalStorage(), layout), input_file(path, 0))
    assert list(opened.batches(25)) == []
