"""The pages of a file: an estimate of their memory, and the stored pages themselves.

Footers do not record the size of pages, and it varies: Java's and our own pages end after 20,000
rows, those of other writers after a megabyte or later. Writers cut a chunk into pages of equal
size, so the first page is the estimate for all; it affects memory, never the result.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import NamedTuple

from compactord.formats.parquet import thrift
from compactord.formats.parquet.assembly import Location, decoded_locations
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.page_headers import SIZES_BYTES, page_sizes
from compactord.formats.parquet.statistics import ReadIndex
from compactord.formats.parquet.structs import Chunk, DataHeader, Header, Meta, PageType
from compactord.formats.parquet.thrift import Kind, Struct, required

# The assumed bytes of a page, stored and decoded, where neither index nor header is known.
UNKNOWN_BYTES = 2 << 20
# A damaged footer may say anything of an index's size.
_MOST_INDEX_BYTES = 16 << 20


def open_pages_bytes(footer: Footer, leaves: Collection[int], read: ReadIndex) -> int:
    """Bytes of one page and dictionary per leaf of the columns, stored plus decoded.

    By the page indexes of the first row group, or else the first page headers; 0 if there are no
    rows. `read` returns bytes of the file at an offset, or None where that would take a request.
    """
    if not footer.arrow.num_rows:
        return 0
    return sum(_chunk_bytes(footer.chunk(0, leaf), read) for leaf in leaves)


def _chunk_bytes(chunk: Struct, read: ReadIndex) -> int:
    meta = chunk[Chunk.META].value
    stored, size = meta[Meta.STORED_SIZE].value, meta[Meta.SIZE].value
    pages = 0
    if found := page_locations(chunk, read):
        pages = found[0].size
        if Meta.DICTIONARY_AT in meta:
            pages += max(0, found[0].offset - meta[Meta.DICTIONARY_AT].value)
    # A damaged index may say anything.
    if not 0 < pages <= stored:
        starts = [meta[at].value for at in (Meta.DATA_AT, Meta.DICTIONARY_AT) if at in meta]
        sizes = [page_sizes(bytes(read(start, SIZES_BYTES) or b"")) for start in starts]
        known = [sum(each) for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else int(min(UNKNOWN_BYTES, stored + size))
    return int(pages + pages * size / max(1, stored))


def page_locations(chunk: Struct, index: ReadIndex) -> Sequence[Location]:
    """The data pages of a chunk by its OffsetIndex; none if it has none or that is damaged."""
    if Chunk.OFFSET_INDEX_AT not in chunk or Chunk.OFFSET_INDEX_LENGTH not in chunk:
        return ()
    start, size = chunk[Chunk.OFFSET_INDEX_AT].value, chunk[Chunk.OFFSET_INDEX_LENGTH].value
    encoded = index(start, size) if start >= 0 and 0 < size <= _MOST_INDEX_BYTES else None
    if encoded is None or size != len(encoded):
        return ()
    try:
        return decoded_locations(bytes(encoded))
    except (ValueError, LookupError):
        return ()


class Page(NamedTuple):
    """A data page of a chunk as it is stored. `values` counts nulls.

    Encodings are numbers of `Encoding`: of the values, the definition and repetition levels.
    """

    header: memoryview
    body: memoryview
    encodings: tuple[int, int, int]
    values: int
    uncompressed_size: int

    @property
    def stored_size(self) -> int:
        """The bytes of header and body, as stored."""
        return len(self.header) + len(self.body)


def checked_pages(chunk: memoryview) -> list[Page] | None:
    """The data pages of a chunk without a dictionary, after a check of their checksums.

    Returns None if a page has no checksum, so that only decoding can validate it, or if it is not a
    data page of version 1. Raises `ValueError` if the bytes are not pages or a checksum is wrong.
    `uncompressed_size` includes the header, as in chunks.
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
    """The CRC32 as a signed 32-bit number, the type of Thrift's i32."""
    checksum = zlib.crc32(body)
    return checksum - (1 << 32) if checksum >> 31 else checksum
