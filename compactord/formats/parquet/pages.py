"""The pages of a file: their headers and levels, where they lie, an estimate of their memory.

No checksum covers a header; `headers` compares all of them with the footer. Definition and
repetition levels, which mark nulls, precede a page's values.

Footers do not record the size of pages, and it varies: Java's and our own pages end after 20,000
rows, those of other writers after a megabyte or later. Writers cut a chunk into pages of equal
size, so the first page is the estimate for all; it affects memory, never the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from compactord.formats.parquet import thrift
from compactord.formats.parquet.assembly import Location, decoded_locations
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.statistics import ReadIndex
from compactord.formats.parquet.structs import (
    Chunk,
    Codec,
    DataHeader,
    DataHeaderV2,
    Encoding,
    Header,
    Meta,
    PageType,
)
from compactord.formats.parquet.thrift import Kind, Struct, required

# Headers by Java and by us take 30 bytes; with the statistics of other writers, any number.
_USUAL_BYTES = 128
MOST_BYTES = 1 << 20
# Kinds of the fields of statistics; a flag's kind is its value. Plain integers, for speed.
_LAST_FLAG, _I64, _BINARY = Kind.FALSE.value, Kind.I64.value, Kind.BINARY.value
# An encoded integer, and a header as most writers encode it: of a data page of version 1, with or
# without a checksum, up to its statistics if there are any. Other headers are decoded field by
# field, which takes ten times as long.
_NUMBER = rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])"
_USUAL = re.compile(
    rb"\x15\x00"
    + 2 * _NUMBER
    + rb"(?:\x15[\x80-\xff]{0,4}[\x00-\x7f]\x1c|\x2c)"
    + _NUMBER
    + rb"((?:\x15[\x00-\x7f]){3})(?:\x00\x00|(\x1c))"
)
_SIZES = re.compile(rb"\x15[\x00-\x7f]" + 2 * _NUMBER)
# The assumed bytes of a page, stored and decoded, where neither index nor header is known.
UNKNOWN_BYTES = 2 << 20
# Page indexes of more bytes are not read: a damaged footer may say anything of their size.
MOST_INDEX_BYTES = 16 << 20
# The bytes that have both sizes.
SIZES_BYTES = 2 + 2 * 6
# Of the length before the levels of a page of version 1.
_LENGTH_BYTES = 4
# The older framing of LZ4 is not one of Arrow's codecs.
_CODECS = {
    Codec.SNAPPY: "snappy",
    Codec.GZIP: "gzip",
    Codec.BROTLI: "brotli",
    Codec.ZSTD: "zstd",
    Codec.LZ4_RAW: "lz4_raw",
}


class PageHeader(NamedTuple):
    """A decoded page header. Sizes are in bytes; `stored_size` excludes the header's own `length`.

    `is_plain`: the decoded size equals the stored one. `encodings`: of values, definition levels
    and repetition levels. `version_2`: the fields of the header of such a page, else None.
    """

    length: int
    type: int
    is_plain: bool
    stored_size: int
    values: int
    encodings: tuple[int, ...]
    version_2: Struct | None = None


class Pages:
    """Reads and decodes page headers at given offsets of a file."""

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        self.read = read
        self.size_bytes = size_bytes

    @classmethod
    def of(cls, stream: pa.NativeFile) -> Pages:
        """The pages of a file that can be read anywhere at little cost."""
        return cls(lambda start, size: stream.read_at(size, start), stream.size())

    def header(self, start: int) -> PageHeader:
        """Decode the header at an offset. Raises `ValueError` if there is none."""
        try:
            return _header(self.read(start, _USUAL_BYTES))
        except ValueError:
            return _header(self.read(start, MOST_BYTES))


def page_sizes(header: bytes) -> tuple[int, int] | None:
    """A page's decoded and stored size by the first bytes of its header; None if they are none."""
    found = _SIZES.match(header)
    return None if found is None else (_number(found[1]), _number(found[2]))


def _header(data: bytes) -> PageHeader:
    """Decode the header at the start of `data`. Raises `ValueError` if there is none."""
    usual = _USUAL.match(data)
    if usual is None:
        return _any_header(data)
    size, stored_size, values, encodings, statistics = usual.groups()
    end = usual.end()
    if statistics is not None:
        end = _statistics_end(data, end)
        if data[end : end + 2] != b"\x00\x00":
            return _any_header(data)
        end += 2
    return _checked(
        PageHeader(
            end,
            PageType.DATA,
            size == stored_size,
            _number(stored_size),
            _number(values),
            _encodings(encodings),
        )
    )


def _statistics_end(data: bytes, position: int) -> int:
    """The end of statistics in `data`; 0 if they have unusual fields or are longer than `data`."""
    try:
        while head := data[position]:
            kind = head & 0x0F
            position += 1
            # With a smaller byte, the field's id would follow.
            if head < 0x10:
                return 0
            if kind == _BINARY and data[position] < 0x80:
                position += 1 + data[position]
            elif kind == _I64:
                while data[position] >= 0x80:
                    position += 1
                position += 1
            elif not 0 < kind <= _LAST_FLAG:
                return 0
    except IndexError:
        return 0
    return position + 1


def _any_header(data: bytes) -> PageHeader:
    fields, length = thrift.decode(data)
    type_ = required(fields, Header.TYPE, Kind.I32)
    stored_size = required(fields, Header.STORED_SIZE, Kind.I32)
    is_plain = required(fields, Header.SIZE, Kind.I32) == stored_size
    found = {
        PageType.DATA: Header.DATA,
        PageType.DICTIONARY: Header.DICTIONARY,
        PageType.DATA_V2: Header.DATA_V2,
    }
    if type_ not in found:
        raise ValueError(f"unknown page type {type_}")
    part = required(fields, found[type_], Kind.STRUCT)
    encodings = {
        PageType.DATA: (DataHeader.ENCODING, DataHeader.DEFINITION, DataHeader.REPETITION),
        PageType.DATA_V2: (DataHeaderV2.ENCODING,),
    }
    numbers = [required(part, field, Kind.I32) for field in encodings.get(type_, ())]
    return _checked(
        PageHeader(
            length,
            type_,
            is_plain,
            stored_size,
            required(part, DataHeader.VALUES, Kind.I32),
            (*map(one_name, numbers), *[Encoding.RLE] * (3 - len(numbers))),
            part if type_ == PageType.DATA_V2 else None,
        )
    )


def _checked(header: PageHeader) -> PageHeader:
    if header.stored_size < 0 or header.values < 0:
        raise ValueError("negative size or value count in a page header")
    return header


def _number(encoded: bytes) -> int:
    """Decode a Thrift integer of at most five bytes, without a loop over its groups of 7 bits."""
    raw = int.from_bytes(encoded, "little")
    value = (
        (raw & 0x7F)
        | (raw >> 1 & 0x7F << 7)
        | (raw >> 2 & 0x7F << 14)
        | (raw >> 3 & 0x7F << 21)
        | (raw >> 4 & 0x7F << 28)
    )
    return (value >> 1) ^ -(value & 1)


@lru_cache(1 << 10)
def _encodings(encoded: bytes) -> tuple[int, ...]:
    return tuple(one_name(_number(encoded[n : n + 1])) for n in (1, 3, 5))


def one_name(encoding: int) -> int:
    """One number for the two encodings of dictionary indices, which mean the same."""
    return Encoding.RLE_DICTIONARY if encoding == Encoding.PLAIN_DICTIONARY else encoding


def are_levels(encoded: bytes, most: int, count: int) -> bool:
    """Whether the bytes are exactly runs of `count` levels; no bytes if `most` is 0."""
    if not most:
        return not encoded
    width = most.bit_length()
    position = found = 0
    try:
        while position < len(encoded):
            if found >= count:
                return False
            # The lowest bit is the kind of run; `signed` takes it for the sign.
            run, position = thrift.signed(encoded, position)
            found += run if run >= 0 else 8 * ~run
            position += (width + 7) // 8 if run >= 0 else width * ~run
    except IndexError:
        return False
    # The last run may be padded to a multiple of eight.
    return position == len(encoded) and found >= count


def begins_with_levels(stored: bytes, codec: int, size: int, count: int) -> bool | None:
    """Whether a page of version 1, of a column that is not nested, begins with definition levels.

    `size`: bytes of the decoded page. `count`: its values. None if this cannot be decided.
    """
    if codec != Codec.UNCOMPRESSED:
        if codec not in _CODECS:
            return None
        stored = pa.Codec(_CODECS[codec]).decompress(stored, size).to_pybytes()
    end = _LENGTH_BYTES + int.from_bytes(stored[:_LENGTH_BYTES], "little")
    return end <= len(stored) and are_levels(stored[_LENGTH_BYTES:end], 1, count)


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
    encoded = index(start, size) if start >= 0 and 0 < size <= MOST_INDEX_BYTES else None
    if encoded is None or size != len(encoded):
        return ()
    try:
        return decoded_locations(bytes(encoded))
    except (ValueError, LookupError):
        return ()
