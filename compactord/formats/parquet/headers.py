"""Checks page headers against the footer before Arrow decodes them.

Checksums cover the bodies of pages, not their headers. If one bit of a header is flipped, Arrow may
read one value more than the page has, or skip the page. Then the column's values are in the wrong
rows, without an error. Each value of a header can be checked against the footer, the position of
the next header or the page's levels.

The check reads the headers of all row groups that are about to be read, one after the other. It
does not use page indexes: no checksum covers them either, and they would be additional reads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.parquet import thrift
from compactord.formats.parquet.checked_footer import Footer
from compactord.formats.parquet.leaves import top_column
from compactord.formats.parquet.levels import are_levels, begins_with_levels
from compactord.formats.parquet.structs import (
    Chunk,
    Codec,
    DataHeader,
    DataHeaderV2,
    Encoding,
    EncodingStats,
    Header,
    Meta,
    PageType,
)
from compactord.formats.parquet.thrift import Kind, Struct, Typed, required

# Headers by Java and by us take 30 bytes; with the statistics of other writers, any number.
_USUAL_BYTES = 128
_MOST_BYTES = 1 << 20
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


class _Header(NamedTuple):
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


def check_headers(
    stream: pa.NativeFile,
    footer: Footer,
    groups: Iterable[int],
    row_schema: pa.Schema,
    path: str,
) -> None:
    """Raise `FormatError` unless all page headers of these row groups and columns are right.

    With right headers Arrow reads the values that were written. Costs one small read per page; the
    memory does not depend on the number of pages.

    If the file and `row_schema` disagree on whether a column is nullable, either the table's schema
    has changed or the footer is damaged. Then a page is read to decide.
    """
    names = frozenset(row_schema.names)
    schema = footer.arrow.schema
    leaves = [
        (leaf, column)
        for leaf in range(len(schema))
        if top_column((column := schema.column(leaf)).path, names) is not None
    ]
    pages = _Pages(stream)
    for group in groups:
        rows = footer.arrow.row_group(group).num_rows
        # Arrow reads no pages of empty groups; its writer stores an empty dictionary and no data.
        for leaf, column in leaves if rows else ():
            meta = footer.chunk(group, leaf)[Chunk.META].value
            try:
                _check_chunk(pages, meta, column, rows)
                if _is_doubtful(column, row_schema):
                    _check_first_page(pages, meta, column.max_definition_level)
            except ValueError as error:
                message = f"column {column.path}, row group {group}: {error}"
                raise FormatError(path, message) from error


class _Pages:
    """Reads and decodes page headers at given offsets of a file."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.size_bytes: int = stream.size()

    def read(self, start: int, size: int) -> bytes:
        found: bytes = self._stream.read_at(size, start)
        return found

    def header(self, start: int) -> _Header:
        try:
            return _header(self.read(start, _USUAL_BYTES))
        except ValueError:
            return _header(self.read(start, _MOST_BYTES))


def _is_doubtful(column: pq.ColumnSchema, row_schema: pa.Schema) -> bool:
    """Whether file and table disagree on nullability; False for nested columns."""
    index = row_schema.get_field_index(column.path)
    if index < 0:
        return False
    is_nullable: bool = row_schema.field(index).nullable
    return is_nullable != bool(column.max_definition_level)


def _check_first_page(pages: _Pages, meta: Struct, most: int) -> None:
    """Raise `ValueError` when the first page has levels but should not, or lacks them."""
    position, end = _extent(meta)
    while position < end:
        fields, length = thrift.decode(pages.read(position, _MOST_BYTES))
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


def _extent(meta: Struct) -> tuple[int, int]:
    """The offsets of a chunk's first byte and of the byte after it."""
    start = meta[Meta.DATA_AT].value
    if Meta.DICTIONARY_AT in meta and 0 < meta[Meta.DICTIONARY_AT].value < start:
        start = meta[Meta.DICTIONARY_AT].value
    return start, start + meta[Meta.STORED_SIZE].value


def _check_chunk(pages: _Pages, meta: Struct, column: pq.ColumnSchema, rows: int) -> None:
    """Check all headers of the chunk that `meta` describes. Raises `ValueError` for damage."""
    start, end = _extent(meta)
    if end > pages.size_bytes:
        raise ValueError("the footer places it outside the file")
    is_plain = meta[Meta.CODEC].value == Codec.UNCOMPRESSED
    levels = (column.max_definition_level, column.max_repetition_level)
    found: Counter[tuple[int, ...]] = Counter()
    values = 0
    position = start
    while position < end:
        header = pages.header(position)
        body = position + header.length
        if is_plain and not header.is_plain:
            raise ValueError("an uncompressed page has two different sizes")
        if header.type != PageType.DICTIONARY:
            if header.version_2 is not None:
                _check_version_2(pages, header, body, levels)
            found[header.encodings] += 1
            values += header.values
        position = body + header.stored_size
    if position != end:
        raise ValueError("its pages do not end where the footer says")
    if values != meta[Meta.VALUES].value:
        said = meta[Meta.VALUES].value
        raise ValueError(f"its pages hold {values} values, the footer says {said}")
    if not column.max_repetition_level and values != rows:
        raise ValueError(f"it has {values} values for {rows} rows")
    _check_encodings(meta, found, levels)


def _check_encodings(
    meta: Struct, found: Mapping[tuple[int, ...], int], levels: tuple[int, int]
) -> None:
    listed = {_one_name(encoding) for encoding in meta[Meta.ENCODINGS].value.values}
    by_values: Counter[int] = Counter()
    for (of_values, *of_levels), count in found.items():
        by_values[of_values] += count
        # Levels that take no bytes are not decoded, and some writers do not list RLE for them.
        used = {each for each, most in zip(of_levels, levels, strict=True) if most} - {Encoding.RLE}
        if not used | {of_values} <= listed:
            raise ValueError("a page has an encoding that the footer does not name")
    # With a dictionary, PLAIN is that of the dictionary page or of pages after it became full.
    if len(listed - {Encoding.RLE, Encoding.BIT_PACKED}) > 1 and Meta.ENCODING_STATS in meta:
        counts: Counter[int] = Counter()
        for each in meta[Meta.ENCODING_STATS].value.values:
            if each[EncodingStats.PAGE_TYPE].value != PageType.DICTIONARY:
                encoding = _one_name(each[EncodingStats.ENCODING].value)
                counts[encoding] += each[EncodingStats.COUNT].value
        if counts != by_values:
            raise ValueError("its pages have other encodings than the footer says")


def _check_version_2(pages: _Pages, header: _Header, body: int, levels: tuple[int, int]) -> None:
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
            raise ValueError("a page's levels are not as long as its header says")
        body += size


def _header(data: bytes) -> _Header:
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
        _Header(
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


def _any_header(data: bytes) -> _Header:
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
        _Header(
            length,
            type_,
            is_plain,
            stored_size,
            required(part, DataHeader.VALUES, Kind.I32),
            (*map(_one_name, numbers), *[Encoding.RLE] * (3 - len(numbers))),
            part if type_ == PageType.DATA_V2 else None,
        )
    )


def _checked(header: _Header) -> _Header:
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
    return tuple(_one_name(_number(encoded[n : n + 1])) for n in (1, 3, 5))


def _one_name(encoding: int) -> int:
    """One number for the two encodings of dictionary indices, which mean the same."""
    return Encoding.RLE_DICTIONARY if encoding == Encoding.PLAIN_DICTIONARY else encoding
