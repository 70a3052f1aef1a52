"""Column chunks made of other files' pages, as they are stored.

Checksums cover the bodies of pages, not their headers: what a header says is believed where the
footer agrees or where there is one right answer. Whatever is not as our own writer would have made
it is not copied but encoded anew, so that it is decoded with all of Arrow's checks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.parquet import assembly, thrift
from compactord.formats.parquet.assembly import EncodedChunk, Location
from compactord.formats.parquet.encoder import codec_of
from compactord.formats.parquet.pages import DATA_PAGE, Page, checked_pages
from compactord.formats.parquet.reader import WholeFile, check_rows
from compactord.formats.parquet.thrift import Kind, Struct, Typed, required, required_list
from compactord.formats.values import statistics_order
from compactord.model import WriteSpec
from compactord.paimon.types import AtomicType, TypeRoot

# Numbers of parquet.thrift, by Arrow's names. LZ4 has two framings, which Arrow names alike.
_TYPES = {
    "BOOLEAN": 0,
    "INT32": 1,
    "INT64": 2,
    "FLOAT": 4,
    "DOUBLE": 5,
    "BYTE_ARRAY": 6,
    "FIXED_LEN_BYTE_ARRAY": 7,
}
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "ZSTD": 6}
_NAMES_OF_CODECS = {"none": "UNCOMPRESSED"}
# Of chunks of plain values. RLE is for levels; those of required columns take no bytes, and are
# BIT_PACKED as Java says.
_PLAIN, _RLE, _BIT_PACKED = 0, 3, 4
_ENCODINGS = {"PLAIN": _PLAIN, "RLE": _RLE, "BIT_PACKED": _BIT_PACKED}
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
# Fields of ColumnMetaData, Statistics, PageEncodingStats, PageLocation and ColumnIndex.
_TYPE, _ENCODING_LIST, _CODEC, _VALUES = 1, 2, 4, 5
_STATISTICS, _ENCODING_STATS = 12, 13
_NULL_COUNT, _MAX, _MIN = 3, 5, 6
_NULL_PAGES, _LOWS, _HIGHS, _ORDER, _NULL_COUNTS = 1, 2, 3, 4, 5
_UNORDERED = 0


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """A column that is not nested; `schema` is how our files declare it."""

    name: str
    type: AtomicType
    schema: pq.ColumnSchema

    @property
    def is_float(self) -> bool:
        """Floats have no bounds in our footers (see `parquet`), and theirs need the values."""
        return self.type.root in _FLOATS


class _Bounds(NamedTuple):
    """Of a chunk or page, each as PLAIN would store it; None where all is null."""

    low: bytes | None
    high: bytes | None
    nulls: int | None


class _Placed(NamedTuple):
    page: Page
    bounds: _Bounds


class StoredFile:
    """A file in memory, whose chunks are found by the name of their column."""

    def __init__(self, whole: WholeFile) -> None:
        self.whole = whole
        self.path = whole.input.path
        self.schema: pq.ParquetSchema = whole.parquet.schema
        self.footer: pq.FileMetaData = whole.footer.arrow
        self._leaves: dict[str, list[int]] = {}
        for leaf in range(len(self.schema)):
            self._leaves.setdefault(self.schema.column(leaf).path, []).append(leaf)

    def leaf(self, name: str) -> int | None:
        """The Parquet column of that path, None when there are several."""
        found = self._leaves.get(name, ())
        return found[0] if len(found) == 1 else None

    def chunks(self, leaf: int) -> Iterator[pq.ColumnChunkMetaData]:
        """Of all row groups."""
        for group in range(self.footer.num_row_groups):
            yield self.footer.row_group(group).column(leaf)


def copied_chunk(
    files: Sequence[StoredFile], column: FlatColumn, spec: WriteSpec
) -> EncodedChunk | None:
    """The column of all rows of `files`; None where it has to be encoded anew.

    Raises `FormatError` for pages that have changed or are not as many as the footer says.
    """
    if not all(_is_as_written(file, column, spec) for file in files):
        return None
    placed: list[_Placed] = []
    totals: list[_Bounds] = []
    encodings: dict[int, None] = {}
    chunk: Any = None
    for file in files:
        leaf = file.leaf(column.name)
        assert leaf is not None, "the file has the column"
        rows = 0
        for group, chunk in enumerate(file.chunks(leaf)):
            encodings |= dict.fromkeys(_ENCODINGS[name] for name in chunk.encodings)
            pages = _pages(file, chunk, column)
            if pages is None:
                return None
            rows += sum(page.values for page in pages)
            if not column.is_float:
                totals.append(_chunk_bounds(chunk))
            placed += _bounded(file, group, leaf, pages, totals[-1] if totals else None)
        check_rows(file.whole.input, rows)
    pages = [each.page for each in placed]
    return EncodedChunk(
        pieces=[piece for page in pages for piece in (page.header, page.body)],
        meta=_meta(chunk, column, encodings, pages, _statistics(totals, column)),
        locations=_locations(pages),
        column_index=None if column.is_float else _column_index([p.bounds for p in placed]),
    )


def _is_as_written(file: StoredFile, column: FlatColumn, spec: WriteSpec) -> bool:
    """Whether footers say that our writer might have made the chunks, without a dictionary."""
    leaf = file.leaf(column.name)
    if leaf is None or not file.schema.column(leaf).equals(column.schema):
        return False
    codec = codec_of(spec.compression)
    wanted = _NAMES_OF_CODECS.get(codec, codec.upper())
    return wanted in _CODECS and all(
        chunk.compression == wanted
        and not chunk.has_dictionary_page
        and _ENCODINGS.keys() >= set(chunk.encodings)
        and (column.is_float or _has_bounds(chunk))
        for chunk in file.chunks(leaf)
    )


def _has_bounds(chunk: pq.ColumnChunkMetaData) -> bool:
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return False
    return bool(found.has_min_max or found.null_count == chunk.num_values)


def _pages(
    file: StoredFile, chunk: pq.ColumnChunkMetaData, column: FlatColumn
) -> list[Page] | None:
    """The chunk's pages, None when they are to be encoded anew."""
    start = chunk.data_page_offset
    stored = file.whole.content[start : start + chunk.total_compressed_size]
    try:
        pages = checked_pages(stored)
    except ValueError as error:
        raise FormatError(file.path, f"column {column.name}: {error}") from error
    if pages is None or not all(_is_plain(page, column) for page in pages):
        return None
    gained = sum(page.uncompressed_size - page.stored_size for page in pages)
    if gained != chunk.total_uncompressed_size - chunk.total_compressed_size:
        return None
    return pages


def _is_plain(page: Page, column: FlatColumn) -> bool:
    """Of encodings that every reader takes; it looks at those of levels that take no bytes, too."""
    values, definition, repetition = page.encodings
    none = (_RLE, _BIT_PACKED)
    some = (_RLE,) if column.schema.max_definition_level else none
    return values == _PLAIN and definition in some and repetition in none


def _chunk_bounds(chunk: pq.ColumnChunkMetaData) -> _Bounds:
    found = chunk.statistics
    if not found.has_min_max:
        return _Bounds(None, None, found.null_count)
    kind = chunk.physical_type
    return _Bounds(_plain(found.min_raw, kind), _plain(found.max_raw, kind), found.null_count)


def _bounded(
    file: StoredFile, group: int, leaf: int, pages: Sequence[Page], whole: _Bounds | None
) -> Iterator[_Placed]:
    """Each page with its bounds: of the file's column index, or those of the chunk, which hold."""
    bounds: Sequence[_Bounds]
    if whole is None:
        bounds = [_Bounds(None, None, None)] * len(pages)
    elif len(pages) == 1:
        bounds = [whole]
    else:
        bounds = _indexed(file, group, leaf, len(pages)) or [
            _part(whole, page.values) for page in pages
        ]
    return map(_Placed, pages, bounds)


def _part(whole: _Bounds, values: int) -> _Bounds:
    """What bounds of a chunk tell of a page of it."""
    if whole.low is None:
        return whole._replace(nulls=values)
    return whole if whole.nulls == 0 else whole._replace(nulls=None)


def _indexed(file: StoredFile, group: int, leaf: int, pages: int) -> list[_Bounds] | None:
    """The bounds of a chunk's pages by its column index, None when there is none of use."""
    try:
        at = required(file.whole.footer.chunk(group, leaf), assembly.COLUMN_INDEX_AT, Kind.I64)
        index, _ = thrift.decode(file.whole.content, at)
        is_null = required_list(index, _NULL_PAGES, Kind.TRUE, Kind.FALSE)
        lows = required_list(index, _LOWS, Kind.BINARY)
        highs = required_list(index, _HIGHS, Kind.BINARY)
        nulls: list[int | None] = [None] * pages
        if _NULL_COUNTS in index:
            nulls = required_list(index, _NULL_COUNTS, Kind.I64)
    except ValueError:
        return None
    if any(len(column) != pages for column in (is_null, lows, highs, nulls)):
        return None
    return [
        _Bounds(None, None, count) if null == Kind.TRUE else _Bounds(low, high, count)
        for null, low, high, count in zip(is_null, lows, highs, nulls, strict=True)
    ]


def _plain(value: Any, physical_type: str) -> bytes:
    """A bound as PLAIN stores it, byte arrays without their length."""
    if physical_type == "INT32":
        return struct.pack("<i", value)
    if physical_type == "INT64":
        return struct.pack("<q", value)
    if physical_type == "BOOLEAN":
        return bytes([value])
    return bytes(value)


def _order(bound: bytes, column: FlatColumn) -> Any:
    kind = column.schema.physical_type
    if kind in ("INT32", "INT64", "BOOLEAN"):
        return int.from_bytes(bound, "little", signed=kind != "BOOLEAN")
    return statistics_order(bound, column.type)


def _statistics(chunks: Sequence[_Bounds], column: FlatColumn) -> Struct | None:
    """Over all chunks; None for floats."""
    if column.is_float:
        return None
    found = {_NULL_COUNT: thrift.i64(sum(chunk.nulls or 0 for chunk in chunks))}
    lows = [chunk.low for chunk in chunks if chunk.low is not None]
    highs = [chunk.high for chunk in chunks if chunk.high is not None]
    if lows:
        found[_MAX] = thrift.binary(max(highs, key=lambda bound: _order(bound, column)))
        found[_MIN] = thrift.binary(min(lows, key=lambda bound: _order(bound, column)))
    return found


def _meta(
    chunk: pq.ColumnChunkMetaData,
    column: FlatColumn,
    encodings: dict[int, None],
    pages: Sequence[Page],
    statistics: Struct | None,
) -> Struct:
    """ColumnMetaData; `chunk` is one of those copied."""
    meta: dict[int, Typed] = {
        _TYPE: thrift.i32(_TYPES[chunk.physical_type]),
        _ENCODING_LIST: thrift.items(Kind.I32, encodings),
        assembly.PATH: thrift.items(Kind.BINARY, [column.name.encode()]),
        _CODEC: thrift.i32(_CODECS[chunk.compression]),
        _VALUES: thrift.i64(sum(page.values for page in pages)),
        assembly.UNCOMPRESSED_SIZE: thrift.i64(sum(page.uncompressed_size for page in pages)),
        assembly.COMPRESSED_SIZE: thrift.i64(sum(page.stored_size for page in pages)),
        assembly.DATA_OFFSET: thrift.i64(0),
    }
    if statistics is not None:
        meta[_STATISTICS] = thrift.struct(statistics)
    meta[_ENCODING_STATS] = thrift.items(
        Kind.STRUCT,
        [{1: thrift.i32(DATA_PAGE), 2: thrift.i32(_PLAIN), 3: thrift.i32(len(pages))}],
    )
    return meta


def _locations(pages: Sequence[Page]) -> list[Location]:
    found = []
    offset = row = 0
    for page in pages:
        found.append(Location(offset, page.stored_size, row))
        offset += page.stored_size
        # A flat column has a value for each row.
        row += page.values
    return found


def _column_index(pages: Sequence[_Bounds]) -> bytes:
    index = {
        _NULL_PAGES: thrift.items(
            Kind.TRUE, [Kind.TRUE if page.low is None else Kind.FALSE for page in pages]
        ),
        _LOWS: thrift.items(Kind.BINARY, [page.low or b"" for page in pages]),
        _HIGHS: thrift.items(Kind.BINARY, [page.high or b"" for page in pages]),
        _ORDER: thrift.i32(_UNORDERED),
    }
    counts = [page.nulls for page in pages]
    if None not in counts:
        index[_NULL_COUNTS] = thrift.items(Kind.I64, counts)
    return thrift.encode(index)
