"""What lies in a Parquet file: its pages as stored, and whether all that is said of them holds."""

from __future__ import annotations

import struct
from decimal import Context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.reader import ParquetInput
from compactord.formats.parquet.thrift import Kind, Struct, Type
from compactord.model import InputFile, Subcompaction, SubcompactionResult
from compactord.storage.local import LocalStorage
from compactord.storage.ranges import Fetcher
from tests.unit.rewrite.builders import input_file, output_paths

EXACT = Context(prec=80)


def bodies(path: Path | str, name: str) -> list[bytes]:
    """The data pages of a column without their headers, of all row groups, as they are stored."""
    content = Path(path).read_bytes()
    found = []
    for group in footer_of(content)[4].value.values:
        for chunk in group[1].value.values:
            meta = chunk[3].value
            if meta[3].value.values != [name.encode()]:
                continue
            position = start = min(meta[field].value for field in (9, 11) if field in meta)
            while position < start + meta[7].value:
                header, body = thrift.decode(content, position)
                position = body + header[3].value
                if header[1].value != 2:
                    found.append(content[body:position])
    return found


def parquet_input(file: InputFile) -> ParquetInput:
    """The file opened, of which nothing is read yet."""
    storage = LocalStorage()
    return ParquetInput(storage, Fetcher(storage), file)


def is_copied(subcompaction: Subcompaction, result: SubcompactionResult, name: str) -> bool:
    """Whether the outputs hold the very pages of the inputs, which are several."""
    inputs = [body for file in subcompaction.source.files for body in bodies(file.path, name)]
    outputs = [body for path in output_paths(subcompaction, result) for body in bodies(path, name)]
    assert len(inputs) > 1
    return inputs == outputs


def column_index(path: Path, name: str) -> Struct:
    """Of the only row group."""
    content = path.read_bytes()
    (group,) = footer_of(content)[4].value.values
    (chunk,) = [
        chunk
        for chunk in group[1].value.values
        if chunk[3].value[3].value.values == [name.encode()]
    ]
    return thrift.decode(content, chunk[6].value)[0]


def with_footer(path: Path, footer: Struct, rows: int) -> InputFile:
    """The file with another footer."""
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    encoded = thrift.encode(footer)
    path.write_bytes(content[:start] + encoded + struct.pack("<i", len(encoded)) + b"PAR1")
    return input_file(path, rows)


def assert_healthy(path: Path, *, knows_null_pages: bool = True) -> None:
    """Footer and page indexes of a file are true of its rows.

    `knows_null_pages` False: a page without values may be said to have bounds, which hold.
    """
    parquet = pq.ParquetFile(path)
    content = path.read_bytes()
    footer, arrow = footer_of(content), parquet.metadata
    assert footer[3].value == sum(group[3].value for group in footer[4].value.values)
    end = 4
    for number, group in enumerate(footer[4].value.values):
        rows = parquet.read_row_group(number)
        assert rows.num_rows == group[3].value == arrow.row_group(number).num_rows
        chunks = group[1].value.values
        metas = [chunk[3].value for chunk in chunks]
        assert group[2].value == sum(meta[6].value for meta in metas)
        assert group[6].value == sum(meta[7].value for meta in metas)
        for leaf, chunk in enumerate(chunks):
            end = _assert_chunk(content, chunk, end)
            path = chunk[3].value[3].value.values
            # Those of nested columns have several parts.
            if len(path) == 1:
                column = rows.column(path[0].decode()).combine_chunks()
                _assert_statistics(arrow.row_group(number).column(leaf), column)
                _assert_indexes(content, chunk, column, knows_null_pages=knows_null_pages)


def _assert_chunk(content: bytes, chunk: Any, start: int) -> int:
    """Pages lie one after another from `start` on, each with a checksum; where they end."""
    meta = chunk[3].value
    assert min(meta[field].value for field in (9, 11) if field in meta) == start
    position, uncompressed, locations = start, 0, []
    counts: dict[tuple[int, int], int] = {}
    while position < start + meta[7].value:
        header, body = thrift.decode(content, position)
        assert 4 in header
        size = body - position + header[3].value
        uncompressed += body - position + header[2].value
        kind = header[1].value
        data = header[{0: 5, 2: 7, 3: 8}[kind]].value
        encoding = data[{0: 2, 2: 2, 3: 4}[kind]].value
        if kind == 0:
            # Java knows no others, and asks even where levels take no bytes.
            assert {data[3].value, data[4].value} <= {3, 4}
        counts[kind, encoding] = counts.get((kind, encoding), 0) + 1
        if kind != 2:
            locations.append((position, size))
        position += size
    assert position == start + meta[7].value
    assert uncompressed == meta[6].value
    stats = [(each[1].value, each[2].value, each[3].value) for each in meta[13].value.values]
    assert {(kind, encoding): count for kind, encoding, count in stats} == counts
    assert {encoding for _, encoding in counts} <= set(meta[2].value.values)
    index, end = thrift.decode(content, chunk[4].value)
    assert end == chunk[4].value + chunk[5].value
    assert [(each[1].value, each[2].value) for each in index[1].value.values] == locations
    return position


def _assert_statistics(chunk: pq.ColumnChunkMetaData, column: pa.Array) -> None:
    assert chunk.num_values == len(column)
    if pa.types.is_floating(column.type):
        assert not chunk.is_stats_set
        return
    statistics = chunk.statistics
    stored = [value for value in _stored(column) if value is not None]
    longest = max((len(value) for value in stored if isinstance(value, bytes)), default=0)
    if longest > 4096 and (statistics is None or not statistics.has_min_max):
        return
    assert statistics.null_count == column.null_count
    has_bounds = bool(stored) and chunk.physical_type != "INT96"
    assert statistics.has_min_max == has_bounds
    if has_bounds:
        order = [
            _stored_bound(raw, column.type) for raw in (statistics.min_raw, statistics.max_raw)
        ]
        assert order == [min(stored), max(stored)]


def _assert_indexes(
    content: bytes, chunk: Any, column: pa.Array, *, knows_null_pages: bool
) -> None:
    """Row indexes, null counts and bounds of every page are true of its values."""
    offsets, _ = thrift.decode(content, chunk[4].value)
    firsts = [each[3].value for each in offsets[1].value.values]
    ends = [*firsts[1:], len(column)]
    for location, first, end in zip(offsets[1].value.values, firsts, ends, strict=True):
        header, _ = thrift.decode(content, location[1].value)
        data = header[5 if 5 in header else 8].value
        assert data[1].value == end - first
    if pa.types.is_floating(column.type) or chunk[3].value[1].value == Type.INT96:
        assert 6 not in chunk
        return
    stored = _stored(column)
    if 6 not in chunk:
        assert any(isinstance(value, bytes) and len(value) > 4096 for value in stored)
        return
    index, end = thrift.decode(content, chunk[6].value)
    assert end == chunk[6].value + chunk[7].value
    lists = [index[field].value.values for field in (1, 2, 3)]
    assert [len(found) for found in lists] == [len(firsts)] * 3
    counts = index[5].value.values if 5 in index else [None] * len(firsts)
    for is_null, low, high, count, first, end in zip(*lists, counts, firsts, ends, strict=True):
        page = stored[first:end]
        found = [value for value in page if value is not None]
        assert count in (None, len(page) - len(found))
        if knows_null_pages or found:
            assert (is_null == Kind.TRUE) == (not found)
        if is_null == Kind.TRUE:
            assert (low, high) == (b"", b"")
        for value in found:
            assert _bound(low, column.type) <= value <= _bound(high, column.type)


def _stored(column: pa.Array) -> list[Any]:
    """Values by which Parquet orders them: numbers, or bytes."""
    type_ = column.type
    if pa.types.is_string(type_):
        return column.cast(pa.binary()).to_pylist()
    if pa.types.is_decimal(type_):
        return [
            None if v is None else int(v.scaleb(type_.scale, EXACT)) for v in column.to_pylist()
        ]
    if pa.types.is_temporal(type_):
        return column.view(f"int{type_.bit_width}").to_pylist()
    return column.to_pylist()


def _stored_bound(raw: Any, type_: pa.DataType) -> Any:
    """A bound of a footer as Arrow gives it."""
    if pa.types.is_decimal(type_) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _bound(raw: bytes, type_: pa.DataType) -> Any:
    """A bound of a page."""
    if pa.types.is_boolean(type_):
        return bool(raw[0])
    if pa.types.is_decimal(type_):
        order = "little" if type_.precision <= 18 else "big"
        return int.from_bytes(raw, order, signed=True)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return raw
    (value,) = struct.unpack("<i" if len(raw) == 4 else "<q", raw)
    return value
