from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.rewrite.pages import UNKNOWN_BYTES, open_pages_bytes, page_bytes

_ROWS = 50_000


def bytes_of(table: pa.Table, columns, **options) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", **options)
    stream = pa.BufferReader(sink.getvalue())
    return open_pages_bytes(stream, pq.ParquetFile(stream).metadata, columns)


NUMBERS = pa.table({"a": np.arange(_ROWS), "b": np.arange(_ROWS)})


@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_a_page_counts_as_stored_and_as_decoded(rows):
    found = bytes_of(NUMBERS, ["a"], use_dictionary=False, max_rows_per_page=rows)
    assert found == pytest.approx(2 * 8 * rows, rel=0.1)


def test_only_columns_that_are_read_count():
    one = bytes_of(NUMBERS, ["a"], use_dictionary=False)
    assert bytes_of(NUMBERS, ["a", "b"], use_dictionary=False) == 2 * one


def test_a_dictionary_counts_beside_its_page():
    texts = pa.table({"t": pa.array(["x" * 1000, "y" * 1000] * 10)})
    assert bytes_of(texts, ["t"], use_dictionary=True) > 2 * 2000


def test_leaves_of_nested_columns_count():
    lists = pa.table({"l": pa.array([[1, 2, 3]] * 10_000)})
    assert bytes_of(lists, ["l"], use_dictionary=False) > 2 * 8 * 30_000


def test_a_file_without_rows_takes_nothing():
    assert bytes_of(NUMBERS.slice(0, 0), ["a", "b"]) == 0


@pytest.mark.parametrize("header", [b"", b"\x15\x00\x15\xff\xff", b"\x00" * 18])
def test_a_header_that_cannot_be_read_counts_as_a_large_page(header):
    assert page_bytes(header) == UNKNOWN_BYTES
