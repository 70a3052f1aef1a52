"""Assembles files from column chunks that are encoded already.

The schema, and all metadata that does not depend on rows, comes from Arrow's writer for the same
output schema, so that the file does not differ from one that Arrow wrote. This module writes row
groups, page indexes and the footer (parquet.thrift in the Parquet format).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet import thrift
from compactord.formats.parquet.footer import (
    MAGIC,
    as_arrow_reads,
    declared,
    footer_bytes,
    with_tail,
)
from compactord.formats.parquet.thrift import (
    Chunk,
    File,
    Group,
    Kind,
    Meta,
    OffsetIndex,
    PageLocation,
    Struct,
    Typed,
    required,
    required_list,
)
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
