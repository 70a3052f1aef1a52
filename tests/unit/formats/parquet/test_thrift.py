"""Thrift's compact protocol against Arrow's writer, against itself, and against any bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import Items, Kind, Struct, Typed, required, required_list
from tests.sampling import examples

ROWS = 4_000
BOOLEANS = (Kind.TRUE, Kind.FALSE)


def file_bytes(**options: Any) -> bytes:
    """A file of several types, with two pages a chunk and every index that Arrow writes."""
    rng = np.random.default_rng(7)
    table = pa.table(
        {
            "number": pa.array(rng.integers(-5, 1 << 60, ROWS), mask=rng.random(ROWS) < 0.2),
            "text": [f"{n * 7919:08}" for n in range(ROWS)],
            "real": rng.random(ROWS),
            "nothing": pa.nulls(ROWS, pa.int32()),
            "list": [[n, None] for n in range(ROWS)],
            "row": [{"a": n, "b": None} for n in range(ROWS)],
        }
    )
    sink = pa.BufferOutputStream()
    settings_ = {"write_page_index": True, "write_page_checksum": True}
    pq.write_table(
        table, sink, max_rows_per_page=ROWS // 2, row_group_size=ROWS, **settings_ | options
    )
    return sink.getvalue().to_pybytes()


def structs_of(content: bytes) -> list[tuple[int, int]]:
    """Where the footer, and each page header and index of a file begins and ends."""
    footer_end = len(content) - 8
    found = [(footer_end - int.from_bytes(content[-8:-4], "little"), footer_end)]
    for group in footer_of(content)[4].value.values:
        for chunk in group[1].value.values:
            meta = chunk[3].value
            start = min(meta[field].value for field in (9, 11) if field in meta)
            end = start + meta[7].value
            while start < end:
                header, body = thrift.decode(content, start)
                found.append((start, body))
                start = body + header[3].value
            assert start == end
            found += [
                (chunk[place].value, chunk[place].value + chunk[place + 1].value)
                for place in (4, 6)
                if place in chunk
            ]
    return found


VERSIONS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False},
    "dictionaries": {"use_dictionary": True},
    "version 2": {"data_page_version": "2.0", "compression": "zstd"},
    "with the Arrow schema": {"store_schema": True, "use_dictionary": False},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_structs_of_arrow_are_encoded_as_they_were(version):
    content = file_bytes(**VERSIONS[version])
    structs = structs_of(content)
    leaves, pages = 7, 2
    assert len(structs) > leaves * (pages + 1)
    for start, end in structs:
        value, position = thrift.decode(content, start)
        assert position == end
        assert thrift.encode(value) == content[start:end]


def test_the_footer_holds_what_arrow_reads():
    content = file_bytes(use_dictionary=False)
    arrow = pq.read_metadata(pa.BufferReader(content))
    (group,) = footer_of(content)[4].value.values
    assert footer_of(content)[3] == thrift.i64(ROWS)
    for index, chunk in enumerate(group[1].value.values):
        meta, column = chunk[3].value, arrow.row_group(0).column(index)
        assert b".".join(meta[3].value.values).decode() == column.path_in_schema
        assert meta[5].value == column.num_values
        assert meta[6].value == column.total_uncompressed_size
        assert meta[7].value == column.total_compressed_size
        assert meta[9].value == column.data_page_offset


# --- made-up structs ------------------------------------------------------------------------------

integers = st.integers(-(1 << 63), (1 << 63) - 1)
scalars: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.I8: st.integers(0, 255),
    Kind.I16: st.integers(-(1 << 15), (1 << 15) - 1),
    Kind.I32: st.integers(-(1 << 31), (1 << 31) - 1),
    Kind.I64: integers,
    Kind.DOUBLE: st.binary(min_size=8, max_size=8),
    Kind.BINARY: st.binary(max_size=300),
}


def _lists(kind: Kind, elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Items]:
    return st.lists(elements, max_size=20).map(lambda values: Items(kind, values))


def _values(
    children: st.SearchStrategy[Struct],
) -> st.SearchStrategy[Typed]:
    elements = scalars | {
        Kind.TRUE: st.sampled_from([1, 2]),
        Kind.FALSE: st.sampled_from([1, 2]),
        Kind.STRUCT: children,
        Kind.LIST: _lists(Kind.I32, scalars[Kind.I32]),
    }
    lists = st.one_of([_lists(kind, values) for kind, values in elements.items()])
    fields = [
        values.map(lambda value, kind=kind: Typed(kind, value))
        for kind, values in (scalars | {Kind.STRUCT: children}).items()
    ]
    fields += [lists.map(lambda found, kind=k: Typed(kind, found)) for k in (Kind.LIST, Kind.SET)]
    return st.one_of(
        st.booleans().map(lambda value: Typed(Kind.TRUE if value else Kind.FALSE, value)), *fields
    )


def _structs(children: st.SearchStrategy[Struct]) -> st.SearchStrategy[Struct]:
    ids = st.integers(1, 40) | st.integers(-(1 << 15), (1 << 15) - 1)
    return st.dictionaries(ids, _values(children), max_size=6)


structs = st.recursive(st.just({}), _structs, max_leaves=8)


@given(structs, st.binary(max_size=5), st.binary(max_size=5))
@settings(max_examples=examples(300))
def test_a_struct_is_decoded_as_it_was_encoded_wherever_it_lies(struct, before, after):
    encoded = thrift.encode(struct)
    for data in (before + encoded + after, memoryview(before + encoded + after)):
        found, end = thrift.decode(data, len(before))
        assert (found, end) == (struct, len(before) + len(encoded))
        assert list(found) == list(struct)
        assert thrift.encode(found) == encoded


@given(structs.filter(bool))
def test_no_part_of_a_struct_is_one(struct):
    encoded = thrift.encode(struct)
    for end in range(len(encoded)):
        with pytest.raises(ValueError, match="Thrift"):
            thrift.decode(encoded[:end])


# --- bytes that are not structs -------------------------------------------------------------------


def decoded_or_refused(data: bytes) -> None:
    """Any other exception than ValueError is the test's failure."""
    try:
        _, end = thrift.decode(data)
    except ValueError:
        return
    assert 0 < end <= len(data)


@given(st.binary(max_size=400))
@settings(max_examples=examples(500))
def test_any_bytes_are_a_struct_or_a_value_error(data):
    decoded_or_refused(data)


FOOTER = footer_of(file_bytes(use_dictionary=False))
FOOTER_BYTES = thrift.encode(FOOTER)


@given(st.data())
@settings(max_examples=examples(300))
def test_a_changed_footer_is_a_struct_or_a_value_error(data):
    changed = bytearray(FOOTER_BYTES)
    for place in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=5)):
        changed[place] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(changed))


def test_a_footer_cut_anywhere_is_a_value_error():
    for end in range(0, len(FOOTER_BYTES), 7):
        with pytest.raises(ValueError, match="Thrift"):
            thrift.decode(FOOTER_BYTES[:end])


# Of a field 1 each, but for the last ones.
STRUCT, LIST, I32, BINARY, MAP, UUID = b"\x1c", b"\x19", b"\x15", b"\x18", b"\x1b", b"\x1d"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        STRUCT * 100_000,
        LIST * 100_000,
        I32 + b"\xff" * 1_000_000,
        I32 + b"\x80" * 10 + b"\x00\x00",
        BINARY + b"\xff\xff\xff\xff\x0f" + b"abc\x00",
        LIST + b"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00",
        LIST + b"\xfc\xff\xff\xff\xff\x0f" + b"\x00" * 20,
        MAP + b"\x00\x00",
        UUID + b"\x00" * 17,
        b"\x1e\x00\x00",
        b"\x10\x00",
    ],
    ids=lambda data: data[:6].hex(),
)
@pytest.mark.timeout(10)
def test_what_would_loop_or_nest_or_fill_the_memory_is_a_value_error(data):
    with pytest.raises(ValueError, match="Thrift"):
        thrift.decode(data)


@pytest.mark.parametrize("position", [-1, -5, 6, 1000])
def test_a_struct_lies_within_the_bytes(position):
    with pytest.raises(ValueError, match="Thrift"):
        thrift.decode(b"\x15\x02\x00\x00\x00", position)


@pytest.mark.parametrize("size", range(8))
def test_less_than_a_footers_length_is_no_footer(size):
    with pytest.raises(ValueError, match="no Parquet footer"):
        footer_of(b"PAR1PAR1"[:size])


@pytest.mark.parametrize("length", [-1, -(1 << 31), 5, 1 << 30])
def test_a_footer_is_no_longer_than_its_file(length):
    with pytest.raises(ValueError, match="no Parquet footer"):
        footer_of(b"PAR1" + length.to_bytes(4, "little", signed=True) + b"PAR1")


def test_fields_are_asked_for_with_their_kind():
    fields = {1: thrift.i32(5), 2: thrift.items(Kind.BINARY, [b"x"]), 3: thrift.items(Kind.I64, [])}
    assert required(fields, 1, Kind.I32) == 5
    assert required_list(fields, 2, Kind.BINARY) == [b"x"]
    assert required_list(fields, 3, *BOOLEANS) == []
    for field, kind in ((1, Kind.I64), (4, Kind.I32), (2, Kind.I32)):
        with pytest.raises(ValueError, match=f"field {field}"):
            required(fields, field, kind)
    with pytest.raises(ValueError, match="list of BINARY in field 2"):
        required_list(fields, 2, *BOOLEANS)
    with pytest.raises(ValueError, match="field 1"):
        required_list(fields, 1, Kind.I32)
