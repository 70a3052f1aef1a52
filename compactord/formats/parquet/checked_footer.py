"""A stored file's footer, looked at before Arrow sees it.

Arrow takes what a footer says on trust: where two of its fields do not go together, asking for a
column chunk ends the process. No checksum covers a footer, so one flipped bit is enough. Every
footer of a file comes through `read_footer`; it is decoded once, checked, and given to Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.parquet import int96, thrift
from compactord.formats.parquet.tail import as_arrow_reads, footer_bytes
from compactord.formats.parquet.thrift import Kind, Struct, required, required_list

# Fields of FileMetaData.
_SCHEMA, _ROWS, _GROUPS, _KEY_VALUES = 2, 3, 4, 5
# Of RowGroup, ColumnChunk and KeyValue.
_COLUMNS, _GROUP_ROWS, _META, _KEY = 1, 3, 3, 1
# Of ColumnMetaData.
_TYPE, _ENCODINGS, _PATH, _CODEC, _VALUES, _SIZE, _STORED_SIZE, _DATA_AT = 1, 2, 3, 4, 5, 6, 7, 9
_DICTIONARY_AT, _STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS = 11, 12, 13, 16
_UNENCODED_BYTES, _REPETITIONS, _DEFINITIONS = 1, 2, 3
_ENCODING_STATS_FIELDS = (1, 2, 3)
_BOUNDS = (1, 2, 5, 6)

_I32, _I64, _BINARY, _LIST, _STRUCT = Kind.I32, Kind.I64, Kind.BINARY, Kind.LIST, Kind.STRUCT
# The kinds of fields that are read. A reader passes over a field of another kind, as if it were
# missing, and so must not be asked about it.
_FILE_KINDS = {
    1: _I32,
    _SCHEMA: _LIST,
    _ROWS: _I64,
    _GROUPS: _LIST,
    _KEY_VALUES: _LIST,
    6: _BINARY,
    7: _LIST,
}
_ELEMENT_KINDS = dict.fromkeys((1, 2, 3, 5, 6, 7, 8, 9), _I32) | {4: _BINARY, 10: _STRUCT}
_GROUP_KINDS = {_COLUMNS: _LIST, 2: _I64, _GROUP_ROWS: _I64, 4: _LIST, 5: _I64, 6: _I64}
_CHUNK_KINDS = {2: _I64, _META: _STRUCT, 4: _I64, 5: _I32, 6: _I64, 7: _I32}
# Encryption, and the name of another file.
_ELSEWHERE = frozenset({1, 8, 9})
_META_KINDS = {
    _TYPE: _I32,
    _ENCODINGS: _LIST,
    _PATH: _LIST,
    _CODEC: _I32,
    _VALUES: _I64,
    _SIZE: _I64,
    _STORED_SIZE: _I64,
    8: _LIST,
    _DATA_AT: _I64,
    10: _I64,
    _DICTIONARY_AT: _I64,
    _STATISTICS: _STRUCT,
    _ENCODING_STATS: _LIST,
    14: _I64,
    15: _I32,
    _SIZE_STATISTICS: _STRUCT,
}
_STATISTICS_KINDS = {1: _BINARY, 2: _BINARY, 3: _I64, 4: _I64, 5: _BINARY, 6: _BINARY}
_SIZE_KINDS = {_UNENCODED_BYTES: _I64, _REPETITIONS: _LIST, _DEFINITIONS: _LIST}
# By number, as Arrow names them, and the bytes of a value.
_TYPES = {
    "BOOLEAN": (0, 1),
    "INT32": (1, 4),
    "INT64": (2, 8),
    "FLOAT": (4, 4),
    "DOUBLE": (5, 8),
    "BYTE_ARRAY": (6, None),
    "FIXED_LEN_BYTE_ARRAY": (7, None),
}
_BYTE_ARRAY, _FIXED = 6, 7
# LZO (3) is read by nobody.
_CODECS = frozenset({0, 1, 2, 4, 5, 6, 7})
_KNOWN_ENCODINGS = frozenset({0, 2, 3, 4, 5, 6, 7, 8, 9})
_PAGE_TYPES = frozenset({0, 1, 2, 3})
# What Arrow's writers add of Arrow's types. The file's own are enough, and say nothing twice.
_ARROW_SCHEMA = b"ARROW:schema"
# Of SchemaElement, LogicalType and its parts.
_REPETITION, _CONVERTED, _SCALE, _PRECISION, _LOGICAL = 3, 6, 7, 8, 10
_LAST_REPETITION = 2
_DECIMAL, _TIME, _TIMESTAMP, _INTEGER, _UNIT = 5, 7, 8, 10, 2
# What a column is, as it is said in the older way (ConvertedType): for times by their unit (of
# TimeUnit), for integers by their bits and whether they have a sign.
_OLD_TIMES = {7: (_TIME, 1), 8: (_TIME, 2), 9: (_TIMESTAMP, 1), 10: (_TIMESTAMP, 2)}
_OLD_INTEGERS = {
    11: (8, False),
    12: (16, False),
    13: (32, False),
    14: (64, False),
    15: (8, True),
    16: (16, True),
    17: (32, True),
    18: (64, True),
}


class Footer(NamedTuple):
    """`arrow` has INT96 columns as twelve bytes (see `int96`); `groups` are as they are stored."""

    arrow: pq.FileMetaData
    groups: list[Struct]

    def chunk(self, group: int, leaf: int) -> Struct:
        """ColumnChunk."""
        found: Struct = self.groups[group][_COLUMNS].value.values[leaf]
        return found


class _Leaf(NamedTuple):
    """A column of the schema, and what its chunks must say of it."""

    path: str
    type: int
    width: int | None
    levels: tuple[int, int]


def read_footer(read: Callable[[int, int], bytes | memoryview], size: int, path: str) -> Footer:
    """The footer of a whole file of `size` bytes; `read` is given an offset and a length.

    Raises `FormatError` when it is not one that Arrow can be asked about.
    """
    try:
        encoded = bytes(footer_bytes(read, size))
    except ValueError as error:
        raise FormatError(path, f"not a readable Parquet file ({error})") from error
    try:
        return _checked(encoded)
    except pa.ArrowMemoryError:
        raise
    except (ValueError, pa.ArrowException, OSError) as error:
        raise FormatError(path, f"the Parquet footer cannot be read ({error})") from error


def _checked(encoded: bytes) -> Footer:
    fields, end = thrift.decode(encoded)
    if end != len(encoded):
        raise ValueError("there is something behind it")
    _check_kinds(fields, _FILE_KINDS)
    # The first one is the root, of which none of this is asked.
    for element in required_list(fields, _SCHEMA, Kind.STRUCT)[1:]:
        _check_element(element)
    groups = required_list(fields, _GROUPS, Kind.STRUCT)
    for_arrow = _for_arrow(fields)
    arrow = as_arrow_reads(encoded if for_arrow is fields else thrift.encode(for_arrow))
    leaves = _leaves(arrow.schema)
    rows = 0
    for group, seen in zip(groups, required_list(for_arrow, _GROUPS, _STRUCT), strict=True):
        _check_kinds(group, _GROUP_KINDS)
        chunks = required_list(seen, _COLUMNS, Kind.STRUCT)
        if len(chunks) != len(leaves):
            raise ValueError(f"a row group has {len(chunks)} of {len(leaves)} columns")
        for chunk, leaf in zip(chunks, leaves, strict=True):
            _check_chunk(chunk, leaf)
        rows += _natural(group, _GROUP_ROWS)
    if rows != _natural(fields, _ROWS):
        raise ValueError(f"its row groups have {rows} rows")
    return Footer(arrow, groups)


def _for_arrow(fields: Struct) -> Struct:
    """What Arrow is to see; the same where nothing has to be changed."""
    if _KEY_VALUES in fields:
        pairs = required_list(fields, _KEY_VALUES, Kind.STRUCT)
        if any(required(pair, _KEY, Kind.BINARY) == _ARROW_SCHEMA for pair in pairs):
            fields = {field: value for field, value in fields.items() if field != _KEY_VALUES}
    return int96.declared(fields)


def _leaves(schema: pq.ParquetSchema) -> list[_Leaf]:
    found = []
    for i in range(len(schema)):
        column = schema.column(i)
        type_, width = _TYPES[column.physical_type]
        levels = (column.max_repetition_level, column.max_definition_level)
        found.append(_Leaf(column.path, type_, column.length if type_ == _FIXED else width, levels))
    return found


def _check_element(element: Struct) -> None:
    """What is said twice of a type must be the same; Arrow looks at the newer way alone."""
    _check_kinds(element, _ELEMENT_KINDS)
    if not 0 <= required(element, _REPETITION, Kind.I32) <= _LAST_REPETITION:
        raise ValueError("it has a repetition that is unknown")
    if _LOGICAL not in element:
        return
    logical = required(element, _LOGICAL, Kind.STRUCT)
    if _DECIMAL in logical:
        decimal = required(logical, _DECIMAL, Kind.STRUCT)
        pairs = [(_SCALE, 1), (_PRECISION, 2)]
        are_same = all(element.get(old) in (None, decimal.get(new)) for old, new in pairs)
    elif _CONVERTED not in element:
        return
    else:
        old = element[_CONVERTED].value
        are_same = True
        if old in _OLD_TIMES:
            kind, unit = _OLD_TIMES[old]
            are_same = unit in required(required(logical, kind, Kind.STRUCT), _UNIT, Kind.STRUCT)
        elif old in _OLD_INTEGERS:
            integer = required(logical, _INTEGER, Kind.STRUCT)
            bits, is_signed = integer.get(1), integer.get(2)
            are_same = (bits and bits.value, is_signed and is_signed.value) == _OLD_INTEGERS[old]
    if not are_same:
        raise ValueError("it says two things of a column's type")


def _check_chunk(chunk: Struct, leaf: _Leaf) -> None:
    _check_kinds(chunk, _CHUNK_KINDS)
    if not _ELSEWHERE.isdisjoint(chunk):
        raise ValueError(f"a chunk of column {leaf.path} is encrypted or lies in another file")
    meta = required(chunk, _META, Kind.STRUCT)
    _check_kinds(meta, _META_KINDS)
    type_ = required(meta, _TYPE, Kind.I32)
    if type_ != leaf.type:
        raise ValueError(f"column {leaf.path} is of type {leaf.type}, a chunk of it of {type_}")
    name = required_list(meta, _PATH, Kind.BINARY)
    if b".".join(name).decode() != leaf.path:
        raise ValueError(f"a chunk of column {leaf.path} has another name")
    if required(meta, _CODEC, Kind.I32) not in _CODECS:
        raise ValueError(f"a chunk of column {leaf.path} is compressed in an unknown way")
    if not _KNOWN_ENCODINGS.issuperset(required_list(meta, _ENCODINGS, Kind.I32)):
        raise ValueError(f"a chunk of column {leaf.path} is encoded in an unknown way")
    for field in (_VALUES, _SIZE, _STORED_SIZE, _DATA_AT):
        _natural(meta, field)
    if _STATISTICS in meta:
        _check_statistics(meta[_STATISTICS].value, leaf)
    if _ENCODING_STATS in meta:
        for each in required_list(meta, _ENCODING_STATS, Kind.STRUCT):
            type_, encoding, _ = [required(each, n, Kind.I32) for n in _ENCODING_STATS_FIELDS]
            if type_ not in _PAGE_TYPES or encoding not in _KNOWN_ENCODINGS:
                raise ValueError(f"column {leaf.path} has pages of an unknown kind")
    if _SIZE_STATISTICS in meta:
        _check_sizes(meta[_SIZE_STATISTICS].value, leaf)


def _check_statistics(statistics: Struct, leaf: _Leaf) -> None:
    _check_kinds(statistics, _STATISTICS_KINDS)
    for field in _BOUNDS if leaf.width is not None else ():
        if field in statistics and len(statistics[field].value) != leaf.width:
            raise ValueError(f"column {leaf.path} has bounds of another type")


def _check_sizes(sizes: Struct, leaf: _Leaf) -> None:
    """Of levels either nothing is counted, or all of them."""
    _check_kinds(sizes, _SIZE_KINDS)
    if _UNENCODED_BYTES in sizes and leaf.type != _BYTE_ARRAY:
        raise ValueError(f"column {leaf.path} has the size of texts")
    for field, most in zip((_REPETITIONS, _DEFINITIONS), leaf.levels, strict=True):
        if field in sizes:
            counts = required_list(sizes, field, Kind.I64)
            if counts and len(counts) != most + 1:
                raise ValueError(f"column {leaf.path} has counts of other levels")


def _check_kinds(fields: Struct, kinds: Mapping[int, Kind]) -> None:
    for field, (kind, _) in fields.items():
        if kinds.get(field, kind) is not kind:
            raise ValueError(f"field {field} is of kind {kind.name} instead of {kinds[field].name}")


def _natural(fields: Struct, field: int) -> int:
    number: int = required(fields, field, Kind.I64)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"field {field} is {number}")
    return number
