"""Footers of Parquet files, read and checked.

Arrow does not validate footers: if two fields contradict each other, access to a column chunk ends
the process. No checksum covers a footer, so one flipped bit is enough. Every footer of a file is
read by `read_footer`, which decodes it once, validates it and passes it to Arrow. INT96 columns are
declared to Arrow as 12 fixed bytes; `int96` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import DataFileDamaged, FileNotSupported, FormatError
from compactord.formats.parquet import thrift
from compactord.formats.parquet.int96 import WIDTH
from compactord.formats.parquet.thrift import (
    Chunk,
    Codec,
    Converted,
    Decimal,
    Element,
    Encoding,
    EncodingStats,
    File,
    Group,
    Integer,
    KeyValue,
    Kind,
    Logical,
    Meta,
    PageType,
    Repetition,
    SizeStatistics,
    Statistics,
    Struct,
    Time,
    Type,
    required,
    required_list,
)

_INT96, _FIXED = thrift.i32(Type.INT96), thrift.i32(Type.FIXED_LEN_BYTE_ARRAY)
_TYPE_DECLARATIONS = (Element.CONVERTED, Element.LOGICAL)
MAGIC = b"PAR1"
_LENGTH_BYTES = 4
# The first read, in bytes, the same as Arrow's: most footers need no second one.
_USUAL_BYTES = 64 << 10
_TAIL_BYTES = _LENGTH_BYTES + len(MAGIC)


def footer_bytes(read: Callable[[int, int], bytes | memoryview], size: int) -> bytes | memoryview:
    """The encoded footer of a file of `size` bytes; `read` takes an offset and a length.

    Raises `ValueError` when there is none.
    """
    start = max(0, size - _USUAL_BYTES)
    tail = read(start, size - start)
    end = len(tail) - _TAIL_BYTES
    length = int.from_bytes(tail[end : end + _LENGTH_BYTES], "little", signed=True)
    if end < 0 or tail[-len(MAGIC) :] != MAGIC or not 0 <= length <= size - _TAIL_BYTES:
        raise ValueError("no Parquet footer")
    if length <= end:
        return tail[end - length : end]
    return read(size - _TAIL_BYTES - length, length)


def with_tail(footer: bytes) -> bytes:
    """The footer followed by its length and the magic, as at the end of a file."""
    return footer + len(footer).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def as_arrow_reads(footer: bytes) -> pq.FileMetaData:
    """The footer as Arrow decodes it. Raises Arrow's errors if it cannot."""
    return pq.read_metadata(pa.BufferReader(MAGIC + with_tail(footer)))


def declared(footer: Struct) -> Struct:
    """The decoded footer with INT96 columns as 12 fixed bytes; the same object if it has none."""
    elements = required_list(footer, File.SCHEMA, Kind.STRUCT)
    if not any(element.get(Element.TYPE) == _INT96 for element in elements):
        return footer
    changed = [
        element
        if element.get(Element.TYPE) != _INT96
        else {Element.TYPE: _FIXED, Element.LENGTH: thrift.i32(WIDTH)}
        | {field: value for field, value in element.items() if field > Element.LENGTH}
        for element in elements
    ]
    groups = map(_declared_group, required_list(footer, File.GROUPS, Kind.STRUCT))
    return {
        **footer,
        File.SCHEMA: thrift.items(Kind.STRUCT, changed),
        File.GROUPS: thrift.items(Kind.STRUCT, groups),
    }


def _declared_group(group: Struct) -> Struct:
    chunks = map(_declared_chunk, required_list(group, Group.COLUMNS, Kind.STRUCT))
    return {**group, Group.COLUMNS: thrift.items(Kind.STRUCT, chunks)}


def _declared_chunk(chunk: Struct) -> Struct:
    meta = required(chunk, Chunk.META, Kind.STRUCT)
    if meta.get(Meta.TYPE) != _INT96:
        return chunk
    return {**chunk, Chunk.META: thrift.struct({**meta, Meta.TYPE: _FIXED})}


def restored(template: Struct) -> Struct:
    """The footer without rows of a new file, with INT96 in place of 12 fixed bytes.

    Only timestamps are written as 12 fixed bytes without another declaration.
    """
    changed = [
        {field: value for field, value in element.items() if field != Element.LENGTH}
        | {Element.TYPE: _INT96}
        if _is_bare(element)
        else element
        for element in required_list(template, File.SCHEMA, Kind.STRUCT)
    ]
    return {**template, File.SCHEMA: thrift.items(Kind.STRUCT, changed)}


def _is_bare(element: Struct) -> bool:
    length = element.get(Element.LENGTH)
    return (
        element.get(Element.TYPE) == _FIXED
        and length is not None
        and length.value == WIDTH
        and not any(field in element for field in _TYPE_DECLARATIONS)
    )


def restored_meta(meta: Struct) -> Struct:
    """The metadata of an INT96 chunk that was written as fixed bytes: without bounds, as Java's.

    The bytes do not sort like the values.
    """
    changed = {**meta, Meta.TYPE: _INT96}
    if Meta.STATISTICS in meta:
        found = required(meta, Meta.STATISTICS, Kind.STRUCT)
        counts = {f: v for f, v in found.items() if f == Statistics.NULL_COUNT}
        changed[Meta.STATISTICS] = thrift.struct(counts)
    return changed


_I32, _I64, _BINARY, _LIST, _STRUCT = Kind.I32, Kind.I64, Kind.BINARY, Kind.LIST, Kind.STRUCT
# The kinds of the fields that are read. Arrow ignores a field of another kind as if it were
# missing, so such a footer is refused.
_FILE_KINDS = {
    File.VERSION: _I32,
    File.SCHEMA: _LIST,
    File.ROWS: _I64,
    File.GROUPS: _LIST,
    File.KEY_VALUES: _LIST,
    File.CREATED_BY: _BINARY,
    File.COLUMN_ORDERS: _LIST,
}
_ELEMENT_KINDS = {
    Element.TYPE: _I32,
    Element.LENGTH: _I32,
    Element.REPETITION: _I32,
    Element.NAME: _BINARY,
    Element.CHILDREN: _I32,
    Element.CONVERTED: _I32,
    Element.SCALE: _I32,
    Element.PRECISION: _I32,
    Element.ID: _I32,
    Element.LOGICAL: _STRUCT,
}
_GROUP_KINDS = {
    Group.COLUMNS: _LIST,
    Group.SIZE: _I64,
    Group.ROWS: _I64,
    Group.SORTING: _LIST,
    Group.OFFSET: _I64,
    Group.STORED_SIZE: _I64,
}
_CHUNK_KINDS = {
    Chunk.OFFSET: _I64,
    Chunk.META: _STRUCT,
    Chunk.OFFSET_INDEX_AT: _I64,
    Chunk.OFFSET_INDEX_LENGTH: _I32,
    Chunk.COLUMN_INDEX_AT: _I64,
    Chunk.COLUMN_INDEX_LENGTH: _I32,
}
# Encryption, and the name of another file.
_ELSEWHERE = frozenset({Chunk.FILE, Chunk.ENCRYPTION, Chunk.ENCRYPTED_META})
_META_KINDS = {
    Meta.TYPE: _I32,
    Meta.ENCODINGS: _LIST,
    Meta.PATH: _LIST,
    Meta.CODEC: _I32,
    Meta.VALUES: _I64,
    Meta.SIZE: _I64,
    Meta.STORED_SIZE: _I64,
    Meta.KEY_VALUES: _LIST,
    Meta.DATA_AT: _I64,
    Meta.INDEX_AT: _I64,
    Meta.DICTIONARY_AT: _I64,
    Meta.STATISTICS: _STRUCT,
    Meta.ENCODING_STATS: _LIST,
    Meta.BLOOM_FILTER_AT: _I64,
    Meta.BLOOM_FILTER_LENGTH: _I32,
    Meta.SIZE_STATISTICS: _STRUCT,
}
_BOUNDS = (Statistics.OLD_MAX, Statistics.OLD_MIN, Statistics.MAX, Statistics.MIN)
_STATISTICS_KINDS = dict.fromkeys(_BOUNDS, _BINARY) | dict.fromkeys(
    (Statistics.NULL_COUNT, Statistics.DISTINCT_COUNT), _I64
)
_SIZE_KINDS = {
    SizeStatistics.UNENCODED_BYTES: _I64,
    SizeStatistics.REPETITIONS: _LIST,
    SizeStatistics.DEFINITIONS: _LIST,
}
# The bytes of a value.
_WIDTHS = {Type.BOOLEAN: 1, Type.INT32: 4, Type.INT64: 8, Type.FLOAT: 4, Type.DOUBLE: 8}
# No reader supports LZO.
_CODECS = frozenset(range(Codec.LZ4_RAW + 1)) - {Codec.LZO}
# Number 1 was never assigned.
_KNOWN_ENCODINGS = frozenset(range(Encoding.BYTE_STREAM_SPLIT + 1)) - {1}
_PAGE_TYPES = frozenset(range(PageType.DATA_V2 + 1))
# Elements lie in depth-first order: the map, its repeated group, the key.
_KEY_BEHIND_MAP = 2
# The key under which Arrow's writers store the Arrow schema. It is not passed to Arrow: the Parquet
# schema has all types, and two schemas could contradict each other.
_ARROW_SCHEMA = b"ARROW:schema"
# The older ConvertedType that corresponds to each LogicalType: of times by unit, of integers by
# width and signedness.
_OLD_TIMES = {
    Converted.TIME_MILLIS: (Logical.TIME, Time.UNIT_MILLIS),
    Converted.TIME_MICROS: (Logical.TIME, Time.UNIT_MICROS),
    Converted.TIMESTAMP_MILLIS: (Logical.TIMESTAMP, Time.UNIT_MILLIS),
    Converted.TIMESTAMP_MICROS: (Logical.TIMESTAMP, Time.UNIT_MICROS),
}
_OLD_INTEGERS = {
    Converted.UINT_8: (8, False),
    Converted.UINT_16: (16, False),
    Converted.UINT_32: (32, False),
    Converted.UINT_64: (64, False),
    Converted.INT_8: (8, True),
    Converted.INT_16: (16, True),
    Converted.INT_32: (32, True),
    Converted.INT_64: (64, True),
}


class Footer(NamedTuple):
    """`groups` are as stored; `arrow` declares INT96 as 12 fixed bytes.

    `declared` is the footer that Arrow decoded, `path` the file's path.
    """

    arrow: pq.FileMetaData
    groups: list[Struct]
    declared: Struct
    path: str

    def leaf(self, name: str) -> int:
        """The index of the Parquet column of `name`, which is not nested; `FormatError` if none."""
        for leaf in range(self.arrow.num_columns):
            if self.arrow.schema.column(leaf).path == name:
                return leaf
        raise FormatError(self.path, f"the file has no column {name}")

    def chunk(self, group: int, leaf: int) -> Struct:
        """ColumnChunk."""
        found: Struct = self.groups[group][Group.COLUMNS].value.values[leaf]
        return found

    def declared_meta(self, group: int, leaf: int) -> Struct:
        """ColumnMetaData as Arrow reads it."""
        chunks = self.declared[File.GROUPS].value.values[group][Group.COLUMNS]
        found: Struct = chunks.value.values[leaf][Chunk.META].value
        return found


class _UnsupportedError(ValueError):
    """The footer may be right: it declares what no writer of Paimon does."""


class _Leaf(NamedTuple):
    """A leaf column of the schema; the metadata of its chunks must agree with it."""

    path: str
    type: int
    width: int | None
    levels: tuple[int, int]


def read_footer(read: Callable[[int, int], bytes | memoryview], size: int, path: str) -> Footer:
    """Read and validate the footer of a file of `size` bytes; `read` takes an offset and a length.

    Raises `DataFileDamaged` when the footer is damaged or contradicts itself, `FileNotSupported`
    when it declares what is not supported.
    """
    try:
        encoded = bytes(footer_bytes(read, size))
    except ValueError as error:
        raise DataFileDamaged(path, f"not a readable Parquet file ({error})") from error
    try:
        return _checked(encoded, path)
    except pa.ArrowMemoryError:
        raise
    except (_UnsupportedError, pa.ArrowNotImplementedError) as error:
        raise FileNotSupported(path, f"the Parquet footer cannot be read ({error})") from error
    except (ValueError, pa.ArrowException, OSError) as error:
        raise DataFileDamaged(path, f"the Parquet footer cannot be read ({error})") from error


def _checked(encoded: bytes, path: str) -> Footer:
    fields, end = thrift.decode(encoded)
    if end != len(encoded):
        raise ValueError("trailing bytes after the footer")
    _check_kinds(fields, _FILE_KINDS)
    # The first element is the root, which has none of these fields.
    elements = required_list(fields, File.SCHEMA, Kind.STRUCT)[1:]
    for element in elements:
        _check_element(element)
    _check_map_keys(elements, path)
    groups = required_list(fields, File.GROUPS, Kind.STRUCT)
    for_arrow = _for_arrow(fields)
    arrow = as_arrow_reads(encoded if for_arrow is fields else thrift.encode(for_arrow))
    leaves = _leaves(arrow.schema)
    rows = 0
    for group, seen in zip(groups, required_list(for_arrow, File.GROUPS, _STRUCT), strict=True):
        _check_kinds(group, _GROUP_KINDS)
        chunks = required_list(seen, Group.COLUMNS, Kind.STRUCT)
        if len(chunks) != len(leaves):
            raise ValueError(f"a row group has {len(chunks)} of {len(leaves)} columns")
        for chunk, leaf in zip(chunks, leaves, strict=True):
            _check_chunk(chunk, leaf)
        rows += _natural(group, Group.ROWS)
    if rows != _natural(fields, File.ROWS):
        raise ValueError(f"its row groups have {rows} rows, not as many as it declares")
    return Footer(arrow, groups, for_arrow, path)


def _for_arrow(fields: Struct) -> Struct:
    """The footer to pass to Arrow; the same object if it needs no change."""
    if File.KEY_VALUES in fields:
        pairs = required_list(fields, File.KEY_VALUES, Kind.STRUCT)
        if any(required(pair, KeyValue.KEY, Kind.BINARY) == _ARROW_SCHEMA for pair in pairs):
            fields = {field: value for field, value in fields.items() if field != File.KEY_VALUES}
    return declared(fields)


def _leaves(schema: pq.ParquetSchema) -> list[_Leaf]:
    found = []
    for i in range(len(schema)):
        column = schema.column(i)
        # Arrow has the same names.
        type_: int = getattr(Type, column.physical_type)
        levels = (column.max_repetition_level, column.max_definition_level)
        found.append(
            _Leaf(
                column.path,
                type_,
                column.length if type_ == Type.FIXED_LEN_BYTE_ARRAY else _WIDTHS.get(type_),
                levels,
            )
        )
    return found


def _check_element(element: Struct) -> None:
    """Check that both declarations of a type agree; Arrow reads only LogicalType, the newer one."""
    _check_kinds(element, _ELEMENT_KINDS)
    if not 0 <= required(element, Element.REPETITION, Kind.I32) <= Repetition.REPEATED:
        raise ValueError("unknown repetition type")
    if Element.LOGICAL not in element:
        return
    logical = required(element, Element.LOGICAL, Kind.STRUCT)
    if Logical.DECIMAL in logical:
        decimal = required(logical, Logical.DECIMAL, Kind.STRUCT)
        pairs = [(Element.SCALE, Decimal.SCALE), (Element.PRECISION, Decimal.PRECISION)]
        are_same = all(element.get(old) in (None, decimal.get(new)) for old, new in pairs)
    elif Element.CONVERTED not in element:
        return
    else:
        old = element[Element.CONVERTED].value
        are_same = True
        if old in _OLD_TIMES:
            kind, unit = _OLD_TIMES[old]
            are_same = unit in required(
                required(logical, kind, Kind.STRUCT), Time.UNIT, Kind.STRUCT
            )
        elif old in _OLD_INTEGERS:
            integer = required(logical, Logical.INTEGER, Kind.STRUCT)
            bits, is_signed = integer.get(Integer.BITS), integer.get(Integer.IS_SIGNED)
            are_same = (bits and bits.value, is_signed and is_signed.value) == _OLD_INTEGERS[old]
    if not are_same:
        raise ValueError("contradictory types of a column")


def _check_chunk(chunk: Struct, leaf: _Leaf) -> None:
    _check_kinds(chunk, _CHUNK_KINDS)
    if not _ELSEWHERE.isdisjoint(chunk):
        raise _UnsupportedError(f"a chunk of column {leaf.path} is encrypted or in another file")
    meta = required(chunk, Chunk.META, Kind.STRUCT)
    _check_kinds(meta, _META_KINDS)
    type_ = required(meta, Meta.TYPE, Kind.I32)
    if type_ != leaf.type:
        raise ValueError(f"column {leaf.path} is of type {leaf.type}, a chunk of it of {type_}")
    name = required_list(meta, Meta.PATH, Kind.BINARY)
    if b".".join(name).decode() != leaf.path:
        raise ValueError(f"a chunk of column {leaf.path} has another name")
    if required(meta, Meta.CODEC, Kind.I32) not in _CODECS:
        raise _UnsupportedError(f"a chunk of column {leaf.path} has an unknown codec")
    if not _KNOWN_ENCODINGS.issuperset(required_list(meta, Meta.ENCODINGS, Kind.I32)):
        raise _UnsupportedError(f"a chunk of column {leaf.path} has an unknown encoding")
    for field in (Meta.VALUES, Meta.SIZE, Meta.STORED_SIZE, Meta.DATA_AT):
        _natural(meta, field)
    if Meta.STATISTICS in meta:
        _check_statistics(meta[Meta.STATISTICS].value, leaf)
    if Meta.ENCODING_STATS in meta:
        for each in required_list(meta, Meta.ENCODING_STATS, Kind.STRUCT):
            type_ = required(each, EncodingStats.PAGE_TYPE, Kind.I32)
            encoding = required(each, EncodingStats.ENCODING, Kind.I32)
            required(each, EncodingStats.COUNT, Kind.I32)
            if type_ not in _PAGE_TYPES or encoding not in _KNOWN_ENCODINGS:
                raise _UnsupportedError(
                    f"column {leaf.path} has pages of an unknown type or encoding"
                )
    if Meta.SIZE_STATISTICS in meta:
        _check_sizes(meta[Meta.SIZE_STATISTICS].value, leaf)


def _check_statistics(statistics: Struct, leaf: _Leaf) -> None:
    _check_kinds(statistics, _STATISTICS_KINDS)
    for field in _BOUNDS if leaf.width is not None else ():
        if field in statistics and len(statistics[field].value) != leaf.width:
            raise ValueError(f"column {leaf.path} has bounds of another type")


def _check_sizes(sizes: Struct, leaf: _Leaf) -> None:
    """Check that level histograms are absent, empty or complete."""
    _check_kinds(sizes, _SIZE_KINDS)
    if SizeStatistics.UNENCODED_BYTES in sizes and leaf.type != Type.BYTE_ARRAY:
        raise ValueError(f"column {leaf.path} has a statistic of text sizes but no text")
    for field, most in zip(
        (SizeStatistics.REPETITIONS, SizeStatistics.DEFINITIONS), leaf.levels, strict=True
    ):
        if field in sizes:
            counts = required_list(sizes, field, Kind.I64)
            if counts and len(counts) != most + 1:
                raise ValueError(f"column {leaf.path} has level histograms of the wrong length")


def _check_kinds(fields: Struct, kinds: Mapping[int, Kind]) -> None:
    for field, (kind, _) in fields.items():
        if kinds.get(field, kind) is not kind:
            raise ValueError(f"field {field} is of kind {kind.name} instead of {kinds[field].name}")


def _natural(fields: Struct, field: int) -> int:
    number: int = required(fields, field, Kind.I64)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"field {field} is {number}")
    return number


def _check_map_keys(elements: Sequence[Struct], path: str) -> None:
    """Raise `FormatError` naming the first map whose keys may be null: Arrow refuses its file.

    Release 0.8 declares them so (format/parquet/ParquetSchemaConverter.java of that release).
    """
    for element, key in zip(elements, elements[_KEY_BEHIND_MAP:], strict=False):
        if _is_map(element) and _is_optional(key):
            name = required(element, Element.NAME, Kind.BINARY).decode(errors="replace")
            raise FileNotSupported(
                path,
                f"MAP {name} has keys that are declared optional, as Paimon 0.8 declares them,"
                " and cannot be read here; Java Paimon 0.9 and later read such a file, and write"
                " readable ones when they compact it",
            )


def _is_map(element: Struct) -> bool:
    old, logical = element.get(Element.CONVERTED), element.get(Element.LOGICAL)
    if logical is not None:
        return Logical.MAP in logical.value
    return old is not None and old.value == Converted.MAP


def _is_optional(element: Struct) -> bool:
    found = element.get(Element.REPETITION)
    return found is not None and found.value == Repetition.OPTIONAL
