"""Copies pages of column chunks into new chunks without decoding them.

Checksums cover the bodies of pages, not their headers. A value in a header is used only if the
footer confirms it or if only one value is valid. Pages that differ from what our own writer would
have written are not copied but encoded again, so that Arrow decodes them with all its checks.

Some rows of a row group are copied if whole pages hold most of them. Pages of different columns
begin at different rows, so a column's values before its first and after its last whole page are
encoded. The footer bounds the values of a whole chunk, so bounds of a part come from the column
index; no checksum covers either.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import DataFileDamaged
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import EncodedChunk, Location
from compactord.formats.parquet.encoder import Encoder
from compactord.formats.parquet.footer import restored_meta
from compactord.formats.parquet.options import ParquetEncoding, codec_of
from compactord.formats.parquet.page_runs import StoredRows, WholeFile
from compactord.formats.parquet.statistics import (
    Bounds,
    bound_order,
    decoded_bounds,
    indexed_bounds,
)
from compactord.formats.parquet.thrift import (
    Codec,
    ColumnIndex,
    DataHeader,
    Encoding,
    EncodingStats,
    Header,
    Kind,
    Meta,
    Order,
    PageType,
    Statistics,
    Struct,
    Type,
    Typed,
    required,
)
from compactord.paimon.types import FLOATS, WIDE_TIMESTAMP, AtomicType, arrow_type

# By Arrow's names. LZ4 is not among the codecs: Arrow has one name for its two framings.
_CODECS = {name: getattr(Codec, name) for name in ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD")}
_NAMES_OF_CODECS = {"none": "UNCOMPRESSED"}
# Encodings of chunks that are copied. RLE is for levels. Levels of required columns take no bytes;
# Java declares them as BIT_PACKED.
_PLAIN = {name: getattr(Encoding, name) for name in ("PLAIN", "RLE", "BIT_PACKED")}
_OF_INDICES = {name: getattr(Encoding, name) for name in ("PLAIN_DICTIONARY", "RLE_DICTIONARY")}
_ENCODINGS = _PLAIN | _OF_INDICES
_BOUNDS = (Statistics.MIN, Statistics.MAX)
_PAGE_ENCODINGS = (DataHeader.ENCODING, DataHeader.DEFINITION, DataHeader.REPETITION)


class Page(NamedTuple):
    """A data page of a chunk as it is stored, or its dictionary. `values` counts nulls.

    Encodings are numbers of `Encoding`: of the values, the definition and repetition levels. A
    dictionary has the first one only, and no values of rows.
    """

    header: memoryview
    body: memoryview
    encodings: tuple[int, ...]
    values: int
    uncompressed_size: int

    @property
    def stored_size(self) -> int:
        """The bytes of header and body, as stored."""
        return len(self.header) + len(self.body)

    @property
    def type(self) -> int:
        """Its number of `PageType`."""
        return PageType.DATA if len(self.encodings) > 1 else PageType.DICTIONARY


def checked_pages(chunk: memoryview, *, has_dictionary: bool = False) -> list[Page] | None:
    """The pages of a chunk, after a check of their checksums; the first may be a dictionary.

    Returns None if a page has no checksum, so that only decoding can validate it, or if it is not a
    data page of version 1. Raises `ValueError` if the bytes are not pages or a checksum is wrong.
    `uncompressed_size` includes the header, as in chunks.
    """
    pages = []
    position = 0
    while position < len(chunk):
        header, start = thrift.decode(chunk, position)
        is_dictionary = has_dictionary and not position
        type_ = PageType.DICTIONARY if is_dictionary else PageType.DATA
        if required(header, Header.TYPE, Kind.I32) != type_ or Header.CHECKSUM not in header:
            return None
        part = Header.DICTIONARY if is_dictionary else Header.DATA
        data = required(header, part, Kind.STRUCT)
        size = required(header, Header.STORED_SIZE, Kind.I32)
        body = chunk[start : start + size]
        if len(body) != size:
            raise ValueError("a page is longer than its column chunk")
        if required(header, Header.CHECKSUM, Kind.I32) != _checksum(body):
            raise ValueError("a page's checksum is wrong: its bytes have changed")
        pages.append(
            Page(
                header=chunk[position:start],
                body=body,
                encodings=tuple(
                    required(data, field, Kind.I32)
                    for field in _PAGE_ENCODINGS[: 1 if is_dictionary else None]
                ),
                values=0 if is_dictionary else required(data, DataHeader.VALUES, Kind.I32),
                uncompressed_size=start - position + required(header, Header.SIZE, Kind.I32),
            )
        )
        position = start + size
    return pages


def _checksum(body: memoryview) -> int:
    """The CRC32 as a signed 32-bit number, the type of Thrift's i32."""
    checksum = zlib.crc32(body)
    return checksum - (1 << 32) if checksum >> 31 else checksum


@dataclass(frozen=True, slots=True)
class FlatColumn:
    """A column that is not nested; `schema` is how our files declare it."""

    name: str
    type: AtomicType
    schema: pq.ColumnSchema

    @property
    def is_float(self) -> bool:
        """Whether it has floats: our footers have no bounds for them (see `statistics`)."""
        return self.type.root in FLOATS

    @property
    def is_int96(self) -> bool:
        """Whether it has INT96, for which a footer only counts nulls (see `footer`)."""
        return bool(arrow_type(self.type) == WIDE_TIMESTAMP)

    @property
    def is_unbounded(self) -> bool:
        """Whether our footers have no bounds for it."""
        return self.is_float or self.is_int96


class _PlacedPage(NamedTuple):
    page: Page
    bounds: Bounds


class _Part(NamedTuple):
    """Pages side by side, and the bounds of all their values."""

    placed: list[_PlacedPage]
    total: Bounds


class StoredFile:
    """A file in memory; finds chunks by the name of their column."""

    def __init__(self, whole: WholeFile) -> None:
        self.whole = whole
        self.path = whole.input.path
        self.schema: pq.ParquetSchema = whole.parquet.schema
        self.footer: pq.FileMetaData = whole.footer.arrow
        self._leaves: dict[str, list[int]] = {}
        for leaf in range(len(self.schema)):
            self._leaves.setdefault(self.schema.column(leaf).path, []).append(leaf)

    def leaf(self, name: str) -> int | None:
        """The index of the Parquet column of that path; None if there is not exactly one."""
        found = self._leaves.get(name, ())
        return found[0] if len(found) == 1 else None

    def chunks(self, leaf: int) -> Iterator[pq.ColumnChunkMetaData]:
        """The column's chunks in all row groups."""
        for group in range(self.footer.num_row_groups):
            yield self.footer.row_group(group).column(leaf)


def copied_chunk(
    files: Sequence[StoredFile], column: FlatColumn, encoding: ParquetEncoding
) -> EncodedChunk | None:
    """One chunk with the column's pages of all `files`; None if it has to be encoded again.

    It has a dictionary if there is only one chunk and that has one: the caller has to decode it,
    as no checksum covers the number of words. Raises `FormatError` if pages are damaged or their
    number of values differs from the footer's.
    """
    are_one = len(files) == 1 and files[0].footer.num_row_groups == 1
    for file in files:
        leaf = file.leaf(column.name)
        if leaf is None or not file.schema.column(leaf).equals(column.schema):
            return None
        if not _are_as_written(file.chunks(leaf), column, encoding, are_one=are_one):
            return None
    placed: list[_PlacedPage] = []
    dictionary: list[Page] = []
    totals: list[Bounds] = []
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
            if chunk.has_dictionary_page:
                dictionary, pages = pages[:1], pages[1:]
            rows += sum(page.values for page in pages)
            if not column.is_float:
                totals.append(_chunk_bounds(chunk, column))
            placed += _bounded(file, group, leaf, pages, totals[-1] if totals else None)
        file.whole.input.check_rows(rows)
    meta = partial(_meta, chunk, column, encodings, statistics=_statistics(totals, column))
    return _assembled(column, dictionary, placed, meta)


def _assembled(
    column: FlatColumn,
    dictionary: Sequence[Page],
    placed: Sequence[_PlacedPage],
    meta_of: Callable[[Sequence[Page]], Struct],
) -> EncodedChunk:
    pages = [*dictionary, *(each.page for each in placed)]
    return EncodedChunk(
        pieces=[piece for page in pages for piece in (page.header, page.body)],
        meta=meta_of(pages),
        locations=_locations(pages),
        column_index=None if column.is_unbounded else _column_index([p.bounds for p in placed]),
    )


def copied_rows(stored: StoredRows, column: FlatColumn, plain: Encoder) -> EncodedChunk | None:
    """One chunk with the column's values of some rows of a row group; None as in `copied_chunk`.

    Whole pages are copied; the values before and after them are encoded with `plain`, which uses
    no dictionaries. Raises `FormatError` if pages are damaged.
    """
    leaf = stored.footer.leaf(column.name)
    chunk = stored.footer.arrow.row_group(stored.group).column(leaf)
    if (
        not stored.footer.arrow.schema.column(leaf).equals(column.schema)
        or not _are_as_written([chunk], column, plain.encoding, are_one=True)
        or not stored.pages[leaf].are_sized
    ):
        return None
    first, last = stored.pages[leaf].inside(stored.rows)
    copied = _copied_pages(stored, leaf, (first, last), column)
    bounds = _bounds_of_pages(stored, leaf, (first, last), column)
    if copied is None or bounds is None:
        return None
    dictionary, pages = copied
    (begin, end), rows = stored.rows, stored.pages[leaf].rows
    if dictionary and (begin, end) != (rows[first], rows[last]):
        return None
    before = _encoded(stored, (begin, rows[first]), column, plain)
    after = _encoded(stored, (rows[last], end), column, plain)
    if before is None or after is None:
        return None
    total = Bounds(None, None, None)
    if not column.is_float:
        total = _total(bounds, _chunk_bounds(chunk, column), column)
    parts = (before, _Part(list(map(_PlacedPage, pages, bounds)), total), after)
    placed = [page for part in parts for page in part.placed]
    encodings = dict.fromkeys(
        name for page in (*dictionary, *(each.page for each in placed)) for name in page.encodings
    )
    statistics = _statistics([part.total for part in parts], column)
    meta = partial(_meta, chunk, column, encodings, statistics=statistics)
    return _assembled(column, dictionary, placed, meta)


def _copied_pages(
    stored: StoredRows, leaf: int, span: tuple[int, int], column: FlatColumn
) -> tuple[list[Page], list[Page]] | None:
    """The dictionary, if the pages need it, and these pages; None to encode them again.

    A dictionary is copied with each part of a row group, so it must not be larger than the pages.
    """
    places, (first, last) = stored.pages[leaf], span
    try:
        words = checked_pages(
            stored.content.view(places.start, places.offsets[0]), has_dictionary=True
        )
        pages = checked_pages(stored.content.view(places.offsets[first], places.offsets[last]))
    except ValueError as error:
        raise DataFileDamaged(stored.input.path, f"column {column.name}: {error}") from error
    if words is None or not pages:
        return None
    if not all(_is_readable(page, column, has_dictionary=bool(words)) for page in pages):
        return None
    if all(page.encodings[0] == Encoding.PLAIN for page in pages):
        return [], pages
    is_small = sum(each.stored_size for each in words) <= sum(each.stored_size for each in pages)
    return (words, pages) if is_small else None


def _bounds_of_pages(
    stored: StoredRows, leaf: int, span: tuple[int, int], column: FlatColumn
) -> Sequence[Bounds] | None:
    """The bounds of these pages with counts of nulls; None if the file does not have them all."""
    first, last = span
    places = stored.pages[leaf]
    if column.is_float:
        return [Bounds(None, None, None)] * (last - first)
    chunk = stored.footer.arrow.row_group(stored.group).column(leaf)
    nulls = chunk.statistics.null_count
    if column.is_int96:
        known = nulls in (0, chunk.num_values)
        counts = [places.rows[n + 1] - places.rows[n] if nulls else 0 for n in range(first, last)]
        return [Bounds(None, None, count) for count in counts] if known else None
    found = stored.bounds[leaf] or ()
    if nulls == 0:
        found = [each._replace(nulls=0) if each.nulls is None else each for each in found]
    rows = itertools.pairwise(places.rows)
    is_usable = (
        all(each.nulls is not None for each in found)
        and sum(each.nulls or 0 for each in found) == nulls
        and chunk.statistics.has_min_max == any(each.low is not None for each in found)
        and all(
            each.low is not None or each.nulls == end - start
            for each, (start, end) in zip(found, rows, strict=False)
        )
    )
    # An index that contradicts itself or the footer is not used.
    return found[first:last] if found and is_usable else None


def _total(pages: Sequence[Bounds], whole: Bounds, column: FlatColumn) -> Bounds:
    """The bounds of pages together, cut to the chunk's.

    Writers truncate the bounds of a page, which makes them wider than its values.
    """
    found = _statistics(pages, column) or {}
    if Statistics.MIN not in found:
        return Bounds(None, None, found[Statistics.NULL_COUNT].value)

    def order(bound: bytes) -> Any:
        return bound_order(bound, column.schema.physical_type, column.type)

    assert whole.low is not None, "pages of a chunk without values have no bounds"
    assert whole.high is not None, "as above"
    return Bounds(
        max(found[Statistics.MIN].value, whole.low, key=order),
        min(found[Statistics.MAX].value, whole.high, key=order),
        found[Statistics.NULL_COUNT].value,
    )


def _encoded(
    stored: StoredRows, rows: tuple[int, int], column: FlatColumn, plain: Encoder
) -> _Part | None:
    """The column's values of these rows in encoded pages; None if their bounds are unknown."""
    if rows[0] == rows[1]:
        return _Part([], Bounds(None, None, 0))
    schema = pa.schema([plain.layout.row_schema.field(column.name)])
    table = pa.Table.from_batches(stored.rows_of(schema, [rows]), schema)
    (chunk,) = plain.chunks(table)[column.name]
    pages = checked_pages(memoryview(b"".join(chunk.pieces)))
    assert pages is not None, "our pages have checksums"
    unknown = [Bounds(None, None, None)] * len(pages)
    if column.is_float:
        return _Part(list(map(_PlacedPage, pages, unknown)), unknown[0])
    found = chunk.meta[Meta.STATISTICS].value
    low, high = (found[field].value if field in found else None for field in _BOUNDS)
    total = Bounds(low, high, found[Statistics.NULL_COUNT].value)
    if column.is_int96:
        return _Part(list(map(_PlacedPage, pages, unknown)), total)
    of_pages = decoded_bounds(chunk.column_index or b"", len(pages))
    if of_pages is None or (total.low is None and total.nulls != table.num_rows):
        return None
    return _Part(list(map(_PlacedPage, pages, of_pages)), total)


def _are_as_written(
    chunks: Iterable[pq.ColumnChunkMetaData],
    column: FlatColumn,
    encoding: ParquetEncoding,
    *,
    are_one: bool,
) -> bool:
    """Whether, by the footer, the chunks are as our writer makes them; if not `are_one`, without a
    dictionary.
    """
    options = encoding.of_column(column.name)
    codec = codec_of(options.compression or "none")
    wanted = _NAMES_OF_CODECS.get(codec, codec.upper())
    may_index = are_one and bool(options.dictionary)
    # A filter of several files would let almost every value pass.
    may_copy = wanted in _CODECS and not options.bloom_filter
    return may_copy and all(
        chunk.compression == wanted
        and (may_index or not chunk.has_dictionary_page)
        and (_ENCODINGS if chunk.has_dictionary_page else _PLAIN).keys() >= set(chunk.encodings)
        and (column.is_float or _has_statistics(chunk, column))
        for chunk in chunks
    )


def _has_statistics(chunk: pq.ColumnChunkMetaData, column: FlatColumn) -> bool:
    """Whether nulls are counted and there are bounds, if our footers have them."""
    found = chunk.statistics
    if found is None or not found.has_null_count:
        return False
    return bool(column.is_int96 or found.has_min_max or found.null_count == chunk.num_values)


def _pages(
    file: StoredFile, chunk: pq.ColumnChunkMetaData, column: FlatColumn
) -> list[Page] | None:
    """The chunk's pages; None if they have to be encoded again."""
    has_dictionary = chunk.has_dictionary_page
    start = chunk.dictionary_page_offset if has_dictionary else chunk.data_page_offset
    stored = file.whole.content[start : start + chunk.total_compressed_size]
    try:
        pages = checked_pages(stored, has_dictionary=has_dictionary)
    except ValueError as error:
        raise DataFileDamaged(file.path, f"column {column.name}: {error}") from error
    found = pages and all(
        _is_readable(page, column, has_dictionary=has_dictionary) for page in pages[has_dictionary:]
    )
    if not pages or not found:
        return None
    gained = sum(page.uncompressed_size - page.stored_size for page in pages)
    if gained != chunk.total_uncompressed_size - chunk.total_compressed_size:
        return None
    return pages


def _is_readable(page: Page, column: FlatColumn, *, has_dictionary: bool) -> bool:
    """Whether all readers accept the page's encodings, including unused level encodings."""
    values, definition, repetition = page.encodings
    are_known = values == Encoding.PLAIN or (has_dictionary and values in _OF_INDICES.values())
    none = (Encoding.RLE, Encoding.BIT_PACKED)
    some = (Encoding.RLE,) if column.schema.max_definition_level else none
    return are_known and definition in some and repetition in none


def _chunk_bounds(chunk: pq.ColumnChunkMetaData, column: FlatColumn) -> Bounds:
    found = chunk.statistics
    if column.is_int96 or not found.has_min_max:
        return Bounds(None, None, found.null_count)
    kind = chunk.physical_type
    return Bounds(_plain(found.min_raw, kind), _plain(found.max_raw, kind), found.null_count)


def _bounded(
    file: StoredFile, group: int, leaf: int, pages: Sequence[Page], whole: Bounds | None
) -> Iterator[_PlacedPage]:
    """Each page with its bounds from the column index, or else with the chunk's, which are also
    valid.
    """
    bounds: Sequence[Bounds]
    if whole is None:
        bounds = [Bounds(None, None, None)] * len(pages)
    elif len(pages) == 1:
        bounds = [whole]
    else:
        bounds = _indexed(file, group, leaf, len(pages)) or [
            _part(whole, page.values) for page in pages
        ]
    return map(_PlacedPage, pages, bounds)


def _part(whole: Bounds, values: int) -> Bounds:
    if whole.low is None:
        return whole._replace(nulls=values)
    return whole if whole.nulls == 0 else whole._replace(nulls=None)


def _indexed(file: StoredFile, group: int, leaf: int, pages: int) -> list[Bounds] | None:
    """The bounds of a chunk's pages from its column index; None if it has no usable one."""
    chunk = file.whole.footer.chunk(group, leaf)
    return indexed_bounds(chunk, file.whole.index_bytes, pages)


def _plain(value: Any, physical_type: str) -> bytes:
    """A bound in PLAIN encoding, byte arrays without their length."""
    if physical_type == "INT32":
        return struct.pack("<i", value)
    if physical_type == "INT64":
        return struct.pack("<q", value)
    if physical_type == "BOOLEAN":
        return bytes([value])
    return bytes(value)


def _statistics(chunks: Sequence[Bounds], column: FlatColumn) -> Struct | None:
    """Statistics over all chunks; None for floats."""
    if column.is_float:
        return None

    def order(bound: bytes) -> Any:
        return bound_order(bound, column.schema.physical_type, column.type)

    found = {Statistics.NULL_COUNT: thrift.i64(sum(chunk.nulls or 0 for chunk in chunks))}
    lows = [chunk.low for chunk in chunks if chunk.low is not None]
    highs = [chunk.high for chunk in chunks if chunk.high is not None]
    if lows:
        found[Statistics.MAX] = thrift.binary(max(highs, key=order))
        found[Statistics.MIN] = thrift.binary(min(lows, key=order))
    return found


def _meta(
    chunk: pq.ColumnChunkMetaData,
    column: FlatColumn,
    encodings: dict[int, None],
    pages: Sequence[Page],
    *,
    statistics: Struct | None,
) -> Struct:
    """The ColumnMetaData; `chunk` is one of the copied chunks."""
    meta: dict[int, Typed] = {
        Meta.TYPE: thrift.i32(getattr(Type, chunk.physical_type)),
        Meta.ENCODINGS: thrift.items(Kind.I32, encodings),
        Meta.PATH: thrift.items(Kind.BINARY, [column.name.encode()]),
        Meta.CODEC: thrift.i32(_CODECS[chunk.compression]),
        Meta.VALUES: thrift.i64(sum(page.values for page in pages)),
        Meta.SIZE: thrift.i64(sum(page.uncompressed_size for page in pages)),
        Meta.STORED_SIZE: thrift.i64(sum(page.stored_size for page in pages)),
        Meta.DATA_AT: thrift.i64(0),
    }
    if pages[0].type == PageType.DICTIONARY:
        meta[Meta.DATA_AT] = thrift.i64(pages[0].stored_size)
        meta[Meta.DICTIONARY_AT] = thrift.i64(0)
    if statistics is not None:
        meta[Meta.STATISTICS] = thrift.struct(statistics)
    meta[Meta.ENCODING_STATS] = thrift.items(
        Kind.STRUCT,
        [
            {
                EncodingStats.PAGE_TYPE: thrift.i32(type_),
                EncodingStats.ENCODING: thrift.i32(encoding),
                EncodingStats.COUNT: thrift.i32(count),
            }
            for (type_, encoding), count in Counter(
                (page.type, page.encodings[0]) for page in pages
            ).items()
        ],
    )
    return restored_meta(meta) if column.is_int96 else meta


def _locations(pages: Sequence[Page]) -> list[Location]:
    found = []
    offset = row = 0
    for page in pages:
        if page.type == PageType.DATA:
            found.append(Location(offset, page.stored_size, row))
        offset += page.stored_size
        # A flat column has a value for each row.
        row += page.values
    return found


def _column_index(pages: Sequence[Bounds]) -> bytes:
    index = {
        ColumnIndex.NULL_PAGES: thrift.items(
            Kind.TRUE, [Kind.TRUE if page.low is None else Kind.FALSE for page in pages]
        ),
        ColumnIndex.LOWS: thrift.items(Kind.BINARY, [page.low or b"" for page in pages]),
        ColumnIndex.HIGHS: thrift.items(Kind.BINARY, [page.high or b"" for page in pages]),
        ColumnIndex.ORDER: thrift.i32(Order.UNORDERED),
    }
    counts = [page.nulls for page in pages]
    if None not in counts:
        index[ColumnIndex.NULL_COUNTS] = thrift.items(Kind.I64, counts)
    return thrift.encode(index)
