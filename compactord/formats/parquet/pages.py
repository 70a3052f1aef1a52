"""The pages of a file: how much memory they take, and each of them as it is stored.

Footers do not tell the size of pages, and guesses are far off: Java's and our own pages end after
20,000 rows, others' after a megabyte or later. Writers cut a chunk into pages of one size, so the
first page stands for all; that answer steers memory, never the outcome.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet import thrift
from compactord.formats.parquet.leaves import top_column
from compactord.formats.parquet.structs import DataHeader, Header, PageType
from compactord.formats.parquet.thrift import Kind, required

# Both forms of a page, as stored and as decoded, where its header cannot be read.
UNKNOWN_BYTES = 2 << 20
# Three numbers of at most five bytes, each behind the byte that announces it.
_HEADER_BYTES = 18
# Thrift's compact protocol: an i32 whose field id is one more than the last.
_NEXT_I32 = 0x15


def open_pages_bytes(
    stream: pa.NativeFile, footer: pq.FileMetaData, row_columns: Collection[str]
) -> int:
    """Bytes of one page (and dictionary) per leaf of the columns, as stored and as decoded.

    Of the first row group; 0 if there are no rows.
    """
    if not footer.num_rows:
        return 0
    group = footer.row_group(0)
    names = frozenset(row_columns)
    return sum(
        _chunk_bytes(stream, group.column(i))
        for i in range(footer.num_columns)
        if top_column(footer.schema.column(i).path, names) is not None
    )


def _chunk_bytes(stream: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page:
        starts.append(chunk.dictionary_page_offset)
    size = 0
    for start in starts:
        stream.seek(start)
        size += page_bytes(stream.read(_HEADER_BYTES))
    return size


def page_bytes(header: bytes) -> int:
    """Both sizes of the page that the first bytes of a Thrift PageHeader announce.

    Its first fields are the type, the uncompressed and the compressed size.
    """
    position = 0
    numbers = []
    for _ in range(3):
        if header[position : position + 1] != bytes([_NEXT_I32]):
            return UNKNOWN_BYTES
        try:
            number, position = thrift.signed(header, position + 1)
        except (IndexError, ValueError):
            return UNKNOWN_BYTES
        numbers.append(number)
    return numbers[1] + numbers[2]


class Page(NamedTuple):
    """A data page of a chunk as it is stored. `values` counts nulls.

    Encodings by their numbers: of the values, the definition and the repetition levels.
    """

    header: memoryview
    body: memoryview
    encodings: tuple[int, int, int]
    values: int
    uncompressed_size: int

    @property
    def stored_size(self) -> int:
        return len(self.header) + len(self.body)


def checked_pages(chunk: memoryview) -> list[Page] | None:
    """The data pages of a chunk without a dictionary, each with a checksum that is right.

    None when there is a page without one, which only decoding can show to be sound, or of another
    kind than DataPageHeader (version 1) tells of. `ValueError` when the bytes are not pages, or
    have changed since they were written. `uncompressed_size` counts the header, as chunks do.
    """
    pages = []
    position = 0
    while position < len(chunk):
        header, start = thrift.decode(chunk, position)
        if (
            required(header, Header.TYPE, Kind.I32) != PageType.DATA
            or Header.CHECKSUM not in header
        ):
            return None
        data = required(header, Header.DATA, Kind.STRUCT)
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
                encodings=(
                    required(data, DataHeader.ENCODING, Kind.I32),
                    required(data, DataHeader.DEFINITION, Kind.I32),
                    required(data, DataHeader.REPETITION, Kind.I32),
                ),
                values=required(data, DataHeader.VALUES, Kind.I32),
                uncompressed_size=start - position + required(header, Header.SIZE, Kind.I32),
            )
        )
        position = start + size
    return pages


def _checksum(body: memoryview) -> int:
    """CRC32 as a Thrift i32 holds it."""
    checksum = zlib.crc32(body)
    return checksum - (1 << 32) if checksum >> 31 else checksum
