"""Copies pages of column chunks into new files without decoding them.

Checksums cover the bodies of pages, not their headers. A value in a header is used only if the
footer confirms it or if only one value is valid. Pages that differ from what our own writer would
have written are not copied but encoded again, so that Arrow decodes them with all its checks.

The schema, and all metadata that does not depend on rows, comes from Arrow's writer for the same
output schema, so that the file does not differ from one that Arrow wrote. This module writes row
groups, page indexes and the footer (parquet.thrift in the Parquet format).
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import DataFileDamaged
from compactord.formats.parquet import thrift
from compactord.formats.parquet.footer import (
    MAGIC,
    as_arrow_reads,
    declared,
    footer_bytes,
    restored_meta,
    with_tail,
)
from compactord.formats.parquet.options import ParquetEncoding, codec_of
from compactord.formats.parquet.page_runs import WholeFile
from compactord.formats.parquet.statistics import Bounds, bound_order, indexed_bounds
from compactord.formats.parquet.thrift import (
    Chunk,
    Codec,
    ColumnIndex,
    DataHeader,
    Encoding,
    EncodingStats,
    File,
    Group,
    Header,
    Kind,
    Meta,
    OffsetIndex,
    Order,
    PageLocation,
    PageType,
    Statistics,
    Struct,
    Type,
    Typed,
    required,
    required_list,
)
from compactord.paimon.types import FLOATS, WIDE_TIMESTAMP, AtomicType, arrow_type
from compactord.storage.base import Storage

# Headers of an OffsetIndex's list and of a PageLocation's fields: each id is one more.
_LOCATION_LIST = OffsetIndex.LOCATIONS << 4 | Kind.LIST
_LOCATION_FIELDS = (
    (PageLocation.OFFSET, Kind.I64),
    (PageLocation.SIZE, Kind.I32),
    (PageLocation.FIRST_ROW, Kind.I64),
)
_LOCATION_HEADS = tuple(1 << 4 | kind for _, kind in _LOCATION_FIELDS)


_OF_BLOOM_FILTER = (Meta.BLOOM_FILTER_AT, Meta.BLOOM_FILTER_LENGTH)


class Location(NamedTuple):
    """A data page: offset and stored size with header, in bytes; number of its first row."""

    offset: int
    size: int
    first_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedChunk:
    """One column of a row group: the bytes of its pages and their metadata.

    Offsets in `meta` (ColumnMetaData) and `locations` count from the chunk's first byte.
    `column_index` is encoded; None where no page has bounds. `bloom_filter` has its header.
    """

    pieces: Sequence[bytes | memoryview]
    meta: Struct
    locations: Sequence[Location]
    column_index: bytes | None
    bloom_filter: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedChunk:
    """The metadata of a written chunk, kept until the footer is written."""

    meta: Struct
    offset_index: bytes
    column_index: bytes | None


class AssembledOutput:
    """A file of chunks. `template` is the decoded footer of the same file without rows.

    Only one thread may use it at a time, but another thread may continue.
    """

    companions: Sequence[str] = ()

    def __init__(self, storage: Storage, path: str, template: Struct) -> None:
        self.rows = 0
        # With the tail, once it is closed.
        self.bytes_written = 0
        self._template = template
        self._groups: list[tuple[int, list[_PlacedChunk]]] = []
        self.path = path
        self._context = storage.open_output(path)
        self._sink: pa.NativeFile = self._context.__enter__()
        try:
            self._sink.write(MAGIC)
        except BaseException as error:
            self.abort(error)
            raise

    def write_group(self, chunks: Sequence[EncodedChunk], rows: int) -> None:
        """Write one row group. The chunks belong to the schema's leaves, in its order."""
        placed = []
        for chunk in chunks:
            start = self._sink.tell()
            for piece in chunk.pieces:
                self._sink.write(piece)
            placed.append(
                _PlacedChunk(
                    meta=moved(chunk.meta, start, Meta.DATA_AT, Meta.DICTIONARY_AT),
                    offset_index=_offset_index(chunk.locations, start),
                    column_index=chunk.column_index,
                )
            )
        # Behind the group, so that they do not stay in memory.
        for place, chunk in enumerate(chunks):
            if chunk.bloom_filter is not None:
                meta = _with_bloom_filter(placed[place].meta, *self._write(chunk.bloom_filter))
                placed[place] = replace(placed[place], meta=meta)
        self._groups.append((rows, placed))
        self.rows += rows
        self.bytes_written = int(self._sink.tell())

    def finish(self) -> pq.FileMetaData:
        """Write indexes and footer, make the file durable, return the footer.

        The returned footer is Arrow's decoding, as `read_footer` gives it. If a step fails, it
        aborts and raises the error.
        """
        try:
            footer = self._write_indexes()
            encoded = thrift.encode(footer)
            for_arrow = declared(footer)
            found = as_arrow_reads(encoded if for_arrow is footer else thrift.encode(for_arrow))
            self._sink.write(with_tail(encoded))
            self.bytes_written = int(self._sink.tell())
        except BaseException as error:
            self.abort(error)
            raise
        self._context.__exit__(None, None, None)
        return found

    def abort(self, error: BaseException) -> None:
        """Exit the storage's context with `error`, which removes the file.

        Raises the storage's form of `error`: one of our errors, with the path.
        """
        suppressed = self._context.__exit__(type(error), error, error.__traceback__)
        assert not suppressed, "a store does not suppress errors"

    def _write_indexes(self) -> Struct:
        """Write all column indexes, then all offset indexes, as other writers do: the footer."""
        all_placed = [chunk for _, chunks in self._groups for chunk in chunks]
        column_indexes = [
            None if chunk.column_index is None else self._write(chunk.column_index)
            for chunk in all_placed
        ]
        offset_indexes = [self._write(chunk.offset_index) for chunk in all_placed]
        indexes = zip(offset_indexes, column_indexes, strict=True)
        groups = [
            _row_group(rows, chunks, [_column_chunk(c.meta, *next(indexes)) for c in chunks])
            for rows, chunks in self._groups
        ]
        return {
            **self._template,
            File.ROWS: thrift.i64(self.rows),
            File.GROUPS: thrift.items(Kind.STRUCT, groups),
        }

    def _write(self, part: bytes) -> tuple[int, int]:
        """The offset of the written part and its length, in bytes."""
        start = self._sink.tell()
        self._sink.write(part)
        return start, len(part)


def footer_of(content: bytes | memoryview) -> Struct:
    """The decoded footer of a whole file. Raises `ValueError` when there is none."""
    return thrift.decode(footer_bytes(partial(_copied, content), len(content)))[0]


def encoded_chunks(content: memoryview) -> list[EncodedChunk]:
    """The chunks of a whole file of one row group, with page indexes; pages are not copied."""
    (group,) = footer_of(content)[File.GROUPS].value.values
    found = []
    for chunk in group[Group.COLUMNS].value.values:
        meta = chunk[Chunk.META].value
        start = meta.get(Meta.DICTIONARY_AT, meta[Meta.DATA_AT]).value
        offset_index = _copied(
            content,
            chunk[Chunk.OFFSET_INDEX_AT].value,
            chunk[Chunk.OFFSET_INDEX_LENGTH].value,
        )
        column_index = None
        if Chunk.COLUMN_INDEX_AT in chunk:
            column_index = _copied(
                content,
                chunk[Chunk.COLUMN_INDEX_AT].value,
                chunk[Chunk.COLUMN_INDEX_LENGTH].value,
            )
        bloom_filter = None
        if Meta.BLOOM_FILTER_AT in meta:
            filter_at, filter_size = (meta[field].value for field in _OF_BLOOM_FILTER)
            bloom_filter = _copied(content, filter_at, filter_size)
            meta = {field: meta[field] for field in meta if field not in _OF_BLOOM_FILTER}
        found.append(
            EncodedChunk(
                pieces=[content[start : start + meta[Meta.STORED_SIZE].value]],
                meta=moved(meta, -start, Meta.DATA_AT, Meta.DICTIONARY_AT),
                locations=[
                    Location(offset - start, size, row)
                    for offset, size, row in decoded_locations(offset_index)
                ],
                column_index=column_index,
                bloom_filter=bloom_filter,
            )
        )
    return found


def _with_bloom_filter(meta: Struct, start: int, size: int) -> Struct:
    """The ColumnMetaData of a chunk with a bloom filter of `size` bytes at offset `start`."""
    place = dict(zip(_OF_BLOOM_FILTER, (thrift.i64(start), thrift.i32(size)), strict=True))
    return dict(sorted({**meta, **place}.items()))


def _copied(content: bytes | memoryview, start: int, size: int) -> bytes:
    """Copy the bytes, so that the whole file need not stay in memory."""
    return bytes(content[start : start + size])


def renamed(chunk: EncodedChunk, name: str) -> EncodedChunk:
    """The same chunk for another column, which is not nested."""
    path = thrift.items(Kind.BINARY, [name.encode()])
    return replace(chunk, meta={**chunk.meta, Meta.PATH: path})


def moved(fields: Struct, distance: int, *names: int) -> Struct:
    """The struct with the offsets in the fields `names`, if present, increased by `distance`."""
    moved = {name: thrift.i64(fields[name].value + distance) for name in names if name in fields}
    return {**fields, **moved}


def decoded_locations(content: bytes) -> list[Location]:
    """The page locations of an encoded OffsetIndex; a fast path, as there is one for each page."""
    if content[0] != _LOCATION_LIST:
        return _any_locations(content)
    _, count, at = thrift.list_head(content, 1)
    found = []
    for _ in range(count):
        numbers = []
        for head in _LOCATION_HEADS:
            if content[at] != head:
                return _any_locations(content)
            number, at = thrift.signed(content, at + 1)
            numbers.append(number)
        if content[at]:
            return _any_locations(content)
        at += 1
        found.append(Location(*numbers))
    return found


def _any_locations(content: bytes) -> list[Location]:
    index, _ = thrift.decode(content)
    return [
        Location(*(required(location, field, kind) for field, kind in _LOCATION_FIELDS))
        for location in required_list(index, OffsetIndex.LOCATIONS, Kind.STRUCT)
    ]


def _offset_index(locations: Sequence[Location], distance: int) -> bytes:
    """An encoded OffsetIndex with all offsets increased by `distance`."""
    out = bytearray([_LOCATION_LIST])
    thrift.put_list_head(out, Kind.STRUCT, len(locations))
    offset_head, size_head, row_head = _LOCATION_HEADS
    for offset, size, row in locations:
        out.append(offset_head)
        thrift.put_signed(out, offset + distance)
        out.append(size_head)
        thrift.put_signed(out, size)
        out.append(row_head)
        thrift.put_signed(out, row)
        out.append(0)
    out.append(0)
    return bytes(out)


def _column_chunk(
    meta: Struct, offset_index: tuple[int, int] | None, column_index: tuple[int, int] | None
) -> Mapping[int, Typed]:
    chunk = {Chunk.OFFSET: thrift.i64(0), Chunk.META: thrift.struct(meta)}
    if offset_index is not None:
        chunk[Chunk.OFFSET_INDEX_AT] = thrift.i64(offset_index[0])
        chunk[Chunk.OFFSET_INDEX_LENGTH] = thrift.i32(offset_index[1])
    if column_index is not None:
        chunk[Chunk.COLUMN_INDEX_AT] = thrift.i64(column_index[0])
        chunk[Chunk.COLUMN_INDEX_LENGTH] = thrift.i32(column_index[1])
    return chunk


def _row_group(
    rows: int, placed: Sequence[_PlacedChunk], chunks: Sequence[Mapping[int, Typed]]
) -> Mapping[int, Typed]:
    first = placed[0].meta
    return {
        Group.COLUMNS: thrift.items(Kind.STRUCT, chunks),
        Group.SIZE: thrift.i64(sum(chunk.meta[Meta.SIZE].value for chunk in placed)),
        Group.ROWS: thrift.i64(rows),
        Group.OFFSET: first.get(Meta.DICTIONARY_AT, first[Meta.DATA_AT]),
        Group.STORED_SIZE: thrift.i64(sum(chunk.meta[Meta.STORED_SIZE].value for chunk in placed)),
    }


# By Arrow's names. LZ4 is not among the codecs: Arrow has one name for its two framings.
_CODECS = {name: getattr(Codec, name) for name in ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD")}
_NAMES_OF_CODECS = {"none": "UNCOMPRESSED"}
# Encodings of chunks that are copied. RLE is for levels. Levels of required columns take no bytes;
# Java declares them as BIT_PACKED.
_PLAIN = {name: getattr(Encoding, name) for name in ("PLAIN", "RLE", "BIT_PACKED")}
_OF_INDICES = {name: getattr(Encoding, name) for name in ("PLAIN_DICTIONARY", "RLE_DICTIONARY")}
_ENCODINGS = _PLAIN | _OF_INDICES
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
    if not all(_is_as_written(file, column, encoding, is_only=are_one) for file in files):
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
    pages = [*dictionary, *(each.page for each in placed)]
    return EncodedChunk(
        pieces=[piece for page in pages for piece in (page.header, page.body)],
        meta=_meta(chunk, column, encodings, pages, _statistics(totals, column)),
        locations=_locations(pages),
        column_index=None if column.is_unbounded else _column_index([p.bounds for p in placed]),
    )


def _is_as_written(
    file: StoredFile, column: FlatColumn, encoding: ParquetEncoding, *, is_only: bool
) -> bool:
    """Whether, by the footer, the chunks are as our writer makes them; if not `is_only`, without a
    dictionary.
    """
    leaf = file.leaf(column.name)
    options = encoding.of_column(column.name)
    if leaf is None or not file.schema.column(leaf).equals(column.schema) or options.bloom_filter:
        return False
    codec = codec_of(options.compression or "none")
    wanted = _NAMES_OF_CODECS.get(codec, codec.upper())
    may_index = is_only and bool(options.dictionary)
    return wanted in _CODECS and all(
        chunk.compression == wanted
        and (may_index or not chunk.has_dictionary_page)
        and (_ENCODINGS if chunk.has_dictionary_page else _PLAIN).keys() >= set(chunk.encodings)
        and (column.is_float or _has_statistics(chunk, column))
        for chunk in file.chunks(leaf)
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
    if chunk.has_dictionary_page:
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
