"""Pages of column chunks: headers and bodies, checked before Arrow reads them.

Checksums cover the bodies of pages, not their headers. If one bit of a header is flipped, Arrow may
read one value more than the page has, or skip the page. Then the column's values are in the wrong
rows, without an error. Each value of a header can be checked against the footer, the position of
the next header or the page's definition and repetition levels, which mark nulls and precede its
values.

Headers of a row group are read before it is decoded, one after the other. In local files this needs
no page indexes: no checksum covers them either, and they would be additional reads. In files of
object stores headers are checked as they arrive. If reading ends before a chunk does, its sums are
unknown: the headers so far must then agree with the page index, or the rest is read for its
headers. If reading begins inside the chunk, each header must agree.

Footers do not record the size of pages, and it varies: Java's and our own pages end after 20,000
rows, other writers' after a megabyte or later. Writers cut a chunk into pages of equal size, so the
first page is the estimate for all; it affects memory, never the result.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import DataFileDamaged, FormatError
from compactord.formats.parquet import thrift
from compactord.formats.parquet.conversion import top_column
from compactord.formats.parquet.copying import Location, decoded_locations
from compactord.formats.parquet.footer import Footer
from compactord.formats.parquet.page_runs import ColumnPages
from compactord.formats.parquet.statistics import ReadIndex
from compactord.formats.parquet.thrift import (
    Chunk,
    Codec,
    DataHeader,
    DataHeaderV2,
    Encoding,
    EncodingStats,
    Header,
    Kind,
    Meta,
    PageType,
    Struct,
    Typed,
    required,
)

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
# Larger page indexes are not read: a damaged footer may have any size.
MOST_INDEX_BYTES = 16 << 20
# The bytes that have both sizes.
SIZES_BYTES = 2 + 2 * 6
# Size of the length before the levels of a page of version 1.
_LENGTH_BYTES = 4
# The older framing of LZ4 is not one of Arrow's codecs.
_CODECS = {
    Codec.SNAPPY: "snappy",
    Codec.GZIP: "gzip",
    Codec.BROTLI: "brotli",
    Codec.ZSTD: "zstd",
    Codec.LZ4_RAW: "lz4_raw",
}


class NoHeader(ValueError):
    """Bytes that are no page header, where one begins."""


class PageHeader(NamedTuple):
    """A decoded page header. Sizes are in bytes; `stored_size` excludes the header's own `length`.

    `size` is the decoded page's. `encodings`: of values, definition levels
    and repetition levels. `version_2`: the fields of the header of such a page, else None.
    """

    length: int
    type: int
    size: int
    stored_size: int
    values: int
    encodings: tuple[int, ...]
    version_2: Struct | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the decoded size equals the stored one."""
        return self.size == self.stored_size


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
        """Decode the header at an offset. Raises `NoHeader` if there is none."""
        try:
            return _header(self.read(start, _USUAL_BYTES))
        except ValueError:
            try:
                return _header(self.read(start, MOST_BYTES))
            except ValueError as error:
                raise NoHeader(
                    f"its page at byte {start} has no readable header ({error})"
                ) from error


def page_sizes(header: bytes) -> tuple[int, int] | None:
    """A page's decoded and stored size by the first bytes of its header, or None for other
    bytes.
    """
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
            _number(size),
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
    size = required(fields, Header.SIZE, Kind.I32)
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
            size,
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
    # a damaged index may have any value
    if not 0 < pages <= stored:
        starts = [meta[at].value for at in (Meta.DATA_AT, Meta.DICTIONARY_AT) if at in meta]
        sizes = [page_sizes(bytes(read(start, SIZES_BYTES) or b"")) for start in starts]
        known = [sum(each) for each in sizes if each is not None]
        return sum(known) if len(known) == len(sizes) else int(min(UNKNOWN_BYTES, stored + size))
    return int(pages + pages * size / max(1, stored))


def page_locations(chunk: Struct, index: ReadIndex) -> Sequence[Location]:
    """The data pages of a chunk by its OffsetIndex; empty if it has none or the index is
    damaged.
    """
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


_OF_LEVELS = frozenset({Encoding.RLE, Encoding.BIT_PACKED})


def check_headers(
    pages: Pages, footer: Footer, group: int, row_schema: pa.Schema
) -> dict[int, ColumnPages]:
    """Raise `FormatError` unless all page headers of these columns in a row group are right.

    Returns the pages of each Parquet column; pages of nested columns have no row numbers. With
    right headers Arrow reads the values that were written. Costs one small read per page.

    If the file and `row_schema` disagree on whether a column is nullable, either the table's schema
    has changed or the footer is damaged. Then a page is read to decide.
    """
    found: dict[int, ColumnPages] = {}
    # Arrow reads no pages of empty groups; its writer stores an empty dictionary and no data.
    if footer.arrow.row_group(group).num_rows:
        for leaf in read_leaves(footer, row_schema.names):
            check = ChunkCheck(pages, footer, group, leaf, row_schema)
            check.require_inside()
            check.advance(check.end)
            found[leaf] = check.found
    return found


def read_leaves(footer: Footer, names: Iterable[str]) -> list[int]:
    """The numbers of the Parquet columns of these row columns."""
    wanted, schema = frozenset(names), footer.arrow.schema
    return [
        leaf
        for leaf in range(len(schema))
        if top_column(schema.column(leaf).path, wanted) is not None
    ]


class ChunkCheck:
    """Checks the headers of one column chunk as its bytes arrive.

    `locations`: its data pages by its page index, if that is known. `begin`: the offset of the page
    from which on it is read. `needs_index`: headers that differ from the index are an error.
    """

    def __init__(
        self,
        pages: Pages,
        footer: Footer,
        group: int,
        leaf: int,
        row_schema: pa.Schema,
        *,
        locations: Sequence[Location] = (),
        begin: int | None = None,
        needs_index: bool = False,
    ) -> None:
        self._pages = pages
        self._column = footer.arrow.schema.column(leaf)
        self._meta: Struct = footer.chunk(group, leaf)[Chunk.META].value
        self._rows: int = footer.arrow.row_group(group).num_rows
        self._levels = (self._column.max_definition_level, self._column.max_repetition_level)
        self._is_doubtful = _is_doubtful(self._column, row_schema)
        self._where = f"column {self._column.path}, row group {group}"
        self._path = footer.path
        self._position, self.end = extent(self._meta)
        self._start = self._position
        self._needs_index = needs_index
        self._offsets, self._first_rows = array("q"), array("q")
        self._values = self._decoded_bytes = 0
        self._encodings: Counter[tuple[int, ...]] = Counter()
        # Only a flat column has a value for each row.
        self._is_indexed = bool(locations) and not self._column.max_repetition_level
        if begin is not None and begin > self._start:
            locations = [each for each in locations if each.offset >= begin]
            self._position, self._values = begin, locations[0].first_row
        self._begin = self._position
        self._to_come = iter((*locations, Location(self.end, 0, self._rows)))
        self._expected = next(self._to_come)

    @property
    def is_proved(self) -> bool:
        """Whether the headers so far are proved right: the page index agrees with them."""
        if self._position >= self.end:
            return True
        only = _only_encoding(self._meta)
        return all(of_values == only for of_values, *_ in self._encodings) and self._is_expected(
            self._position, self._values
        )

    @property
    def found(self) -> ColumnPages:
        """The data pages, once all headers are checked; with row numbers only for a flat column."""
        return ColumnPages(
            self._start,
            array("q", [*self._offsets, self.end]),
            array("q", [*self._first_rows, self._values]),
            self._decoded_bytes == self._meta[Meta.SIZE].value,
        )

    def require_inside(self) -> None:
        """Raise `FormatError` when the footer places the chunk outside the file."""
        if self.end > self._pages.size_bytes:
            raise FormatError(self._path, f"{self._where}: the footer places it outside the file")

    def advance(self, limit: int) -> None:
        """Check the headers before this offset, and the sums at the end of the chunk.

        Raises `FormatError`, for bytes that are no header `DataFileDamaged`.
        """
        try:
            self._check_pages(limit)
            if self._is_doubtful and self._encodings:
                # The header of the first data page is right.
                self._is_doubtful = False
                levels = self._column.max_definition_level
                _check_first_page(self._pages, self._meta, levels, self._begin)
            if self._position >= self.end:
                self._check_sums()
            elif self._encodings:
                _check_named(self._meta, self._encodings, self._levels)
        except NoHeader as error:
            raise DataFileDamaged(self._path, f"{self._where}: {error}") from error
        except ValueError as error:
            raise FormatError(self._path, f"{self._where}: {error}") from error

    def _check_pages(self, limit: int) -> None:
        pages, found = self._pages, self._encodings
        is_plain = self._meta[Meta.CODEC].value == Codec.UNCOMPRESSED
        position, values = self._position, self._values
        while position < limit:
            header = pages.header(position)
            body = position + header.length
            if is_plain and not header.is_plain:
                raise ValueError("an uncompressed page has two different sizes")
            if header.type != PageType.DICTIONARY:
                if header.version_2 is not None:
                    _check_version_2(pages, header, body, self._levels)
                if self._is_indexed:
                    self._is_indexed = self._is_expected(position, values)
                    self._expected = next(self._to_come, self._expected)
                self._offsets.append(position)
                self._first_rows.append(values)
                found[header.encodings] += 1
                values += header.values
            self._decoded_bytes += header.length + header.size
            position = body + header.stored_size
        self._position, self._values = position, values
        if self._needs_index and not self._is_expected(position, values):
            # The next page's first row in the index does not follow the last page that was read.
            raise ValueError("its page index does not agree with its pages")

    def _is_expected(self, position: int, values: int) -> bool:
        """Whether the next data page begins at the offset and row of the page index."""
        expected = self._expected
        return self._is_indexed and (expected.offset, expected.first_row) == (position, values)

    def _check_sums(self) -> None:
        if self._position != self.end:
            raise ValueError("its pages do not end at the offset in the footer")
        said = self._meta[Meta.VALUES].value
        if self._values != said:
            raise ValueError(f"its pages hold {self._values} values, the footer records {said}")
        most = self._column.max_repetition_level
        if not most and self._values != self._rows:
            raise ValueError(f"it has {self._values} values for {self._rows} rows")
        _check_encodings(
            self._meta, self._encodings, self._levels, are_all=self._begin == self._start
        )


def _is_doubtful(column: pq.ColumnSchema, row_schema: pa.Schema) -> bool:
    """Whether file and table disagree on nullability; False for nested columns."""
    index = row_schema.get_field_index(column.path)
    if index < 0:
        return False
    is_nullable: bool = row_schema.field(index).nullable
    return is_nullable != bool(column.max_definition_level)


def _check_first_page(pages: Pages, meta: Struct, most: int, position: int) -> None:
    """Raise `ValueError` when the first page has levels but should not, or lacks them."""
    _, end = extent(meta)
    while position < end:
        fields, length = thrift.decode(pages.read(position, MOST_BYTES))
        stored_size = fields[Header.STORED_SIZE].value
        if fields[Header.TYPE].value == PageType.DATA:
            body = pages.read(position + length, stored_size)
            count = fields[Header.DATA].value[DataHeader.VALUES].value
            size, codec = fields[Header.SIZE].value, meta[Meta.CODEC].value
            found = begins_with_levels(body, codec, size, count)
            if found not in (None, bool(most)):
                raise ValueError("its pages and the footer disagree on whether it may be null")
            return
        position += length + stored_size


def extent(meta: Struct) -> tuple[int, int]:
    """The offsets of the first byte of a chunk (ColumnMetaData) and of the byte after it."""
    start = meta[Meta.DATA_AT].value
    if Meta.DICTIONARY_AT in meta and 0 < meta[Meta.DICTIONARY_AT].value < start:
        start = meta[Meta.DICTIONARY_AT].value
    return start, start + meta[Meta.STORED_SIZE].value


def _check_encodings(
    meta: Struct,
    found: Mapping[tuple[int, ...], int],
    levels: tuple[int, int],
    *,
    are_all: bool,
) -> None:
    """Check the encodings of all pages of a chunk, or of its last ones if there is only one."""
    _check_named(meta, found, levels)
    # With a dictionary, PLAIN may be the dictionary page, or pages after the dictionary became
    # full.
    if len(_named(meta) - _OF_LEVELS) > 1 and Meta.ENCODING_STATS in meta:
        by_values: Counter[int] = Counter()
        for (of_values, *_), count in found.items():
            by_values[of_values] += count
        if by_values != _counted(meta) if are_all else by_values.keys() != {_only_encoding(meta)}:
            raise ValueError("its pages have other encodings than the footer records")


def _check_named(meta: Struct, found: Iterable[tuple[int, ...]], levels: tuple[int, int]) -> None:
    named = _named(meta)
    for of_values, *of_levels in found:
        # Levels that take no bytes are not decoded, and some writers do not list RLE for them.
        used = {each for each, most in zip(of_levels, levels, strict=True) if most} - {Encoding.RLE}
        if not used | {of_values} <= named:
            raise ValueError("a page has an encoding that the footer does not name")


def has_one_encoding(meta: Struct) -> bool:
    """Whether, by the footer, the values of all data pages have the same encoding."""
    return _only_encoding(meta) is not None


def _only_encoding(meta: Struct) -> int | None:
    """The encoding of the values in all data pages; None if the footer does not name just one."""
    found = set(_counted(meta)) if Meta.ENCODING_STATS in meta else _named(meta) - _OF_LEVELS
    return found.pop() if len(found) == 1 else None


def _named(meta: Struct) -> set[int]:
    return {one_name(encoding) for encoding in meta[Meta.ENCODINGS].value.values}


def _counted(meta: Struct) -> Counter[int]:
    """The data pages of each encoding, by the footer."""
    counts: Counter[int] = Counter()
    for each in meta[Meta.ENCODING_STATS].value.values:
        if each[EncodingStats.PAGE_TYPE].value != PageType.DICTIONARY:
            counts[one_name(each[EncodingStats.ENCODING].value)] += each[EncodingStats.COUNT].value
    return counts


def _check_version_2(pages: Pages, header: PageHeader, body: int, levels: tuple[int, int]) -> None:
    """Check the lengths of levels, which precede the values; only the header has these lengths."""
    fields = header.version_2
    assert fields is not None, "the header of a page of version 2"
    if not header.is_plain and fields.get(DataHeaderV2.IS_COMPRESSED) == Typed(Kind.FALSE, False):
        raise ValueError("an uncompressed page has two different sizes")
    for most, field in zip(
        reversed(levels),
        (DataHeaderV2.REPETITION_BYTES, DataHeaderV2.DEFINITION_BYTES),
        strict=True,
    ):
        size = required(fields, field, Kind.I32)
        if not 0 <= size <= header.stored_size:
            raise ValueError("a page's levels are longer than the page")
        if not are_levels(pages.read(body, size), most, header.values):
            raise ValueError("a page's levels do not have the length in its header")
        body += size
