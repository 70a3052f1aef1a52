from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.formats.parquet.copied_chunks import checked_pages
from compactord.formats.parquet.footer import read_footer
from compactord.formats.parquet.pages import UNKNOWN_BYTES, Pages, open_pages_bytes, read_leaves
from tests.sampling import examples

_ROWS = 50_000


def bytes_of(table: pa.Table, columns, *, header: bytes | None = None, **options) -> int:
    """`header`: what there is in place of the file's pages."""
    sink = pa.BufferOutputStream()
    usual = {"compression": "none", "write_page_index": True}
    pq.write_table(table, sink, **usual | options)
    pages = Pages.of(pa.BufferReader(sink.getvalue()))
    footer = read_footer(pages.read, pages.size_bytes, "a file")
    read = pages.read if header is None else lambda at, size: header
    return open_pages_bytes(footer, read_leaves(footer, columns), read)


NUMBERS = pa.table({"a": np.arange(_ROWS), "b": np.arange(_ROWS)})


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("rows", [1_000, 20_000])
def test_a_page_counts_as_stored_and_as_decoded(rows, indexed):
    options = {"max_rows_per_page": rows, "write_page_index": indexed}
    found = bytes_of(NUMBERS, ["a"], use_dictionary=False, **options)
    assert found == pytest.approx(2 * 8 * rows, rel=0.1)


def test_only_columns_that_are_read_count():
    one = bytes_of(NUMBERS, ["a"], use_dictionary=False)
    assert bytes_of(NUMBERS, ["a", "b"], use_dictionary=False) == 2 * one


@pytest.mark.parametrize("indexed", [True, False])
def test_a_dictionary_counts_beside_its_page(indexed):
    texts = pa.table({"t": pa.array(["x" * 1000, "y" * 1000] * 10)})
    assert bytes_of(texts, ["t"], use_dictionary=True, write_page_index=indexed) > 2 * 2000


def test_leaves_of_nested_columns_count():
    lists = pa.table({"l": pa.array([[1, 2, 3]] * 10_000)})
    assert bytes_of(lists, ["l"], use_dictionary=False) > 2 * 8 * 30_000


def test_a_file_without_rows_takes_nothing():
    assert bytes_of(NUMBERS.slice(0, 0), ["a", "b"]) == 0


@pytest.mark.parametrize(
    "header", [b"", b"\x15\x00\x15\xff\xff", b"\x00" * 18, b"\x15" + b"\xff" * 17]
)
def test_pages_of_which_nothing_can_be_read_count_as_large_ones_but_as_no_more_than_their_chunk(
    header,
):
    plain = {"use_dictionary": False, "write_page_index": False, "header": header}
    numbers = pa.table({"a": np.arange(1 << 20)})
    assert bytes_of(numbers, ["a"], **plain) == UNKNOWN_BYTES
    assert bytes_of(numbers[:1000], ["a"], **plain) == pytest.approx(2 * 8 * 1000, rel=0.1)


@pytest.mark.parametrize("first_size", [b"\xf5\x0c", b"\xfe\x7f"], ids=["negative", "large"])
def test_an_index_with_a_size_that_no_page_has_counts_as_none(first_size):
    index = b"\x19\x1c\x16\x08\x15" + first_size + b"\x16\x00\x00\x00"
    numbers = pa.table({"a": np.arange(100)})
    plain = {"use_dictionary": False, "compression": "none"}
    found = bytes_of(numbers, ["a"], header=index, **plain)
    assert found == bytes_of(numbers, ["a"], header=b"", **plain)


# --- pages as they are stored ---------------------------------------------------------------------


def chunk_of(**options) -> memoryview:
    """The only column chunk of a file, with several pages."""
    sink = pa.BufferOutputStream()
    numbers = pa.table({"a": pa.array([None, *range(4_999)])})
    usual = {"use_dictionary": False, "max_rows_per_page": 1_500, "write_page_checksum": True}
    pq.write_table(numbers, sink, **usual | options)
    content = sink.getvalue()
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return memoryview(content).cast("B")[start : start + chunk.total_compressed_size]


def test_pages_are_cut_out_of_a_chunk_without_a_change():
    chunk = chunk_of()
    pages = checked_pages(chunk)
    assert pages is not None
    assert [page.values for page in pages] == [1_500, 1_500, 1_500, 500]
    assert b"".join(bytes(part) for page in pages for part in (page.header, page.body)) == chunk
    assert sum(page.stored_size for page in pages) == len(chunk)
    assert {page.encodings for page in pages} == {(0, 3, 3)}


@pytest.mark.parametrize(
    "options",
    [{"data_page_version": "2.0"}, {"use_dictionary": True}, {"write_page_checksum": False}],
)
def test_other_kinds_of_pages_are_left_to_arrow(options):
    assert checked_pages(chunk_of(**options)) is None


def test_a_chunk_without_bytes_has_no_pages():
    assert checked_pages(memoryview(b"")) == []


@given(st.data())
@settings(max_examples=examples(200))
def test_a_chunk_that_changed_is_refused_or_left_to_arrow_or_has_the_same_pages(data):
    chunk = chunk_of()
    changed = bytearray(chunk)
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        pages = checked_pages(memoryview(changed))
    except ValueError:
        return
    if pages is not None:
        assert [bytes(page.body) for page in pages] == [
            bytes(page.body) for page in checked_pages(chunk) or ()
        ]


@given(st.binary(max_size=200))
def test_any_bytes_are_pages_or_none_or_a_value_error(data):
    try:
        pages = checked_pages(memoryview(data))
    except ValueError:
        return
    assert pages is None or sum(len(page.body) for page in pages) <= len(data)


def test_a_chunk_cut_anywhere_is_refused():
    chunk = chunk_of()
    whole = {0, *itertools.accumulate(page.stored_size for page in checked_pages(chunk) or ())}
    for end in set(range(0, len(chunk), 11)) - whole:
        with pytest.raises(ValueError, match=r"Thrift|longer than"):
            checked_pages(chunk[:end])
