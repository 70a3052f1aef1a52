"""Avro object container files: blocks of records, preceded by their schema.

Reads and writes containers strictly: it checks magic, metadata, sync marks and the end of every
block, because Java reads a truncated file up to the cut without an error. fastavro, which only this
module uses, encodes and decodes records. Logical types are off: a timestamp is the stored integer.

Sources: format/avro/AvroFileFormat.java, the Avro 1.11 specification (object container files).
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon.avro.types import DAMAGE, Codec, Expansion, is_codec
from compactord.paimon.schema import parse_json

_MAGIC = b"Obj\x01"
# Other values of `manifest.format`, by the first bytes of their files.
_OTHER_FORMATS = {b"ORC": "ORC", b"PAR1": "Parquet"}
_SYNC_SIZE = 16
# As Java's DataFileConstants.DEFAULT_SYNC_INTERVAL: a block ends once it has this many bytes.
_BLOCK_BYTES = 64_000
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1

Json = Any


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """A schema as JSON (written to headers) and as fastavro uses it (without logical types)."""

    json: Json
    parsed: Json = field(repr=False)
    # Positions of 32-bit integers (`_ints_of`).
    ints: Json = field(repr=False)


def compile_schema(schema: Json) -> AvroSchema:
    """Returns a schema for reading and writing. Raises `FormatError` without a path if `schema` is
    no Avro schema.
    """
    try:
        parsed = fastavro.parse_schema(_without_logical_types(schema))
    except (SchemaParseException, UnknownType, *DAMAGE) as error:
        raise FormatError("", f"not an Avro schema ({error})") from error
    return AvroSchema(schema, parsed, _ints_of(parsed))


def _without_logical_types(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return schema


def _ints_of(schema: Json) -> Json:
    """Positions of 32-bit integers in a value: "int" for the value itself, a tuple of (column,
    position) for a record, a list of one for the items of an array, None without any.

    Larger unions and maps are not searched: no Paimon column has one.
    """
    match schema:
        case "int":
            return "int"
        case [*branches]:
            others = [branch for branch in branches if branch != "null"]
            return _ints_of(others[0]) if len(others) == 1 else None
        case {"type": "record", "fields": columns}:
            found = ((column["name"], _ints_of(column["type"])) for column in columns)
            return tuple((name, ints) for name, ints in found if ints) or None
        case {"type": "array", "items": items}:
            ints = _ints_of(items)
            return [ints] if ints else None
        case {"type": type_}:
            return _ints_of(type_)
    return None


def _ints_fit(value: Any, ints: Json) -> bool:
    """Whether all 32-bit integers are within their range, which fastavro does not check."""
    if value is None:
        return True
    if ints == "int":
        return isinstance(value, int) and INT_MIN <= value <= INT_MAX
    if isinstance(ints, list):
        return all(_ints_fit(item, ints[0]) for item in value)
    for name, where in ints:
        found = value[name]
        # Most columns are checked in place: a call takes as long as decoding the record.
        if where == "int" and isinstance(found, int):
            if not INT_MIN <= found <= INT_MAX:
                return False
        elif not _ints_fit(found, where):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Block:
    """`count` encoded records, back to back, decompressed."""

    count: int
    data: bytes

    def starts_with(self, other: Block) -> bool:
        """Whether its first records equal the records of `other`, a block of the same schema."""
        return other.count <= self.count and self.data.startswith(other.data)

    def without(self, beginning: Block) -> Block:
        """The records after `beginning`, a block that this one starts with."""
        return Block(self.count - beginning.count, self.data[len(beginning.data) :])


def checked_block(count: int, data: bytes, path: str) -> Block:
    """A block by its count and decompressed bytes. Raises `FormatError` if they do not fit."""
    # A record takes at least a byte: a larger count is damage.
    if count > len(data):
        raise FormatError(path, f"a block of {len(data)} bytes claims {count} records")
    return Block(count, data)


@dataclass(frozen=True, slots=True)
class Container:
    """A file whose frame has been checked. Blocks are decompressed on demand."""

    path: str
    schema: AvroSchema
    codec: str
    _blocks: tuple[tuple[int, memoryview], ...] = field(repr=False)

    def blocks(self, expansion: Expansion | None = None) -> Iterator[Block]:
        """The blocks in file order. Raises `FormatError` as `expansion` does; its bound defaults to
        this file.
        """
        expansion = expansion or Expansion()
        for count, packed in self._blocks:
            yield checked_block(
                count, expansion.decompressed(self.codec, packed, self.path), self.path
            )

    def encoded_records(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Every record as fastavro decodes it, with its encoding. Raises `FormatError` for
        damage.
        """
        for block in self.blocks():
            yield from decode_with_bytes(self.schema, block, self.path)


class Header(NamedTuple):
    """The first part of a container: the schema, the codec's name, the mark after each block."""

    schema: AvroSchema
    codec: str
    sync: bytes


def open_container(data: bytes, path: str) -> Container:
    """Check the frame of a whole file.

    Raises `FormatError` unless the file is a header and complete blocks up to the last byte, and
    `UnsupportedTable` for another `manifest.format` and for an unknown compression.
    """
    for magic, name in _OTHER_FORMATS.items():
        if data.startswith(magic):
            raise UnsupportedTable(
                path.rsplit("/", 2)[0], [f"{path} has format {name}: manifests are read as Avro"]
            )
    cursor = _Cursor(data, path)
    header = read_header(cursor)
    return Container(path, header.schema, header.codec, tuple(packed_blocks(cursor, header)))


def read_header(cursor: Cursor) -> Header:
    """The header of the container that begins at the cursor. Raises as `open_container`."""
    path = cursor.path
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise FormatError(path, "not an Avro container file (wrong first bytes)")
    metadata = _read_metadata(cursor)
    sync = cursor.take(_SYNC_SIZE)
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    if not is_codec(codec):
        reason = f"{path} is compressed with {codec!r}, which is not supported"
        raise UnsupportedTable(path.rsplit("/", 2)[0], [reason])
    try:
        schema = _schema_of_header(metadata.get("avro.schema", b""))
    except FormatError as error:
        raise FormatError(path, error.message) from error
    return Header(schema, codec, sync)


def packed_blocks(cursor: Cursor, header: Header) -> Iterator[tuple[int, memoryview]]:
    """Each block after the header: the number of its records, and its bytes as stored.

    Raises `FormatError` unless they are complete blocks up to the last byte.
    """
    while not cursor.at_end:
        count, size = cursor.long(), cursor.long()
        if count < 0:
            raise FormatError(cursor.path, f"a block claims {count} records")
        yield count, cursor.view(size)
        if cursor.take(_SYNC_SIZE) != header.sync:
            raise FormatError(cursor.path, "a block does not end with the sync mark")


# Most files of a table have one of a few headers.
@lru_cache(maxsize=16)
def _schema_of_header(text: bytes) -> AvroSchema:
    try:
        schema = parse_json(text)
    except ValueError as error:
        raise FormatError("", f"the Avro header holds no readable schema ({error})") from error
    return compile_schema(schema)


def _read_metadata(cursor: Cursor) -> dict[str, bytes]:
    metadata: dict[str, bytes] = {}
    while count := cursor.long():
        if count < 0:
            cursor.long()
        for _ in range(abs(count)):
            key = cursor.take(cursor.long()).decode("utf-8", "replace")
            metadata[key] = cursor.take(cursor.long())
    return metadata


class Cursor(ABC):
    """Reads the container's frame. Raises `FormatError` if the bytes end too early."""

    def __init__(self, path: str, size: int) -> None:
        self.path = path
        self._size = size
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == self._size

    def view(self, size: int) -> memoryview:
        """The next bytes."""
        if not 0 <= size <= self._size - self._at:
            raise FormatError(self.path, f"cut off or damaged at byte {self._at}")
        self._at += size
        return self._bytes(self._at - size, size)

    @abstractmethod
    def _bytes(self, start: int, size: int) -> memoryview:
        """Bytes of the file, which are read in order."""

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.view(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise FormatError(self.path, f"no integer at byte {self._at}")


class _Cursor(Cursor):
    """A cursor over bytes in memory."""

    def __init__(self, data: bytes, path: str) -> None:
        super().__init__(path, len(data))
        self._data = memoryview(data)

    @property
    def rest(self) -> bytes:
        return bytes(self._data[self._at :])

    def _bytes(self, start: int, size: int) -> memoryview:
        return self._data[start : start + size]


def decode_with_bytes(
    schema: AvroSchema, block: Block, path: str
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The records of the block, each with its encoding. Raises `FormatError` unless they fill it
    exactly.
    """
    stream = io.BytesIO(block.data)
    start = 0
    for _ in range(block.count):
        record = _read_record(schema, stream, path)
        end = stream.tell()
        yield record, block.data[start:end]
        start = end
    if start != len(block.data):
        raise FormatError(path, "a block holds more bytes than its records")


def decode_record(schema: AvroSchema, data: bytes, path: str) -> dict[str, Any]:
    """One decoded record. Raises `FormatError` unless it fills `data` exactly."""
    ((record, _),) = decode_with_bytes(schema, Block(1, data), path)
    return record


def split_values(
    schemas: Iterable[AvroSchema], data: bytes, path: str
) -> Iterator[tuple[Any, bytes]]:
    """Consecutive values of these types, each with its encoding."""
    stream = io.BytesIO(data)
    for schema in schemas:
        start = stream.tell()
        yield _read_value(schema, stream, path), data[start : stream.tell()]


def values_at(
    schema: AvroSchema, data: bytes | memoryview, starts: Iterable[int], path: str
) -> list[Any]:
    """The values of this type that begin at these places. Raises `FormatError` for damage."""
    stream = io.BytesIO(data)
    values = []
    for start in starts:
        stream.seek(start)
        values.append(_read_value(schema, stream, path))
    return values


def _read_value(schema: AvroSchema, stream: io.BytesIO, path: str) -> Any:
    try:
        return fastavro.schemaless_reader(stream, schema.parsed, None)
    except DAMAGE as error:
        raise FormatError(path, f"a damaged Avro record ({error!r})") from error


def _read_record(schema: AvroSchema, stream: io.BytesIO, path: str) -> dict[str, Any]:
    record = _read_value(schema, stream, path)
    if not isinstance(record, dict):
        raise FormatError(path, "an Avro file whose values are not records")
    if schema.ints and not _ints_fit(record, schema.ints):
        raise FormatError(path, "an Avro int of more than 32 bits")
    return record


def encode_record(schema: AvroSchema, record: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema.parsed, record)
    return stream.getvalue()


class BlockWriter:
    """Writes one container to a file that is open, with blocks as large as Java's."""

    def __init__(self, schema: AvroSchema, codec: Codec, file: Any) -> None:
        self._codec = codec
        self._sync = os.urandom(_SYNC_SIZE)
        self._file = file
        self._block = io.BytesIO()
        self._count = 0
        text = json.dumps(schema.json, separators=(",", ":")).encode()
        self._file.write(_MAGIC + encoded_long(2))
        for key, value in ((b"avro.codec", codec.name.encode()), (b"avro.schema", text)):
            self._file.write(encoded_long(len(key)) + key + encoded_long(len(value)) + value)
        self._file.write(encoded_long(0) + self._sync)

    @property
    def flushed_bytes(self) -> int:
        """The size so far without the block that is being filled."""
        size: int = self._file.tell()
        return size

    def append(self, record: bytes) -> None:
        """Add a record that is encoded under the schema."""
        self._block.write(record)
        self._count += 1
        if self._block.tell() >= _BLOCK_BYTES:
            self.flush()

    def extend(self, records: pa.BinaryArray) -> None:
        """Add records that are encoded under the schema."""
        ends = np.frombuffer(records.buffers()[1], np.int32)[records.offset :][: len(records) + 1]
        data = memoryview(records.buffers()[2] or b"")
        first = 0
        while first < len(records):
            # The record that fills the block is its last.
            room = max(1, _BLOCK_BYTES - self._block.tell())
            last = int(np.searchsorted(ends, int(ends[first]) + room))
            last = min(max(last, first + 1), len(records))
            self._block.write(data[ends[first] : ends[last]])
            self._count += last - first
            if self._block.tell() >= _BLOCK_BYTES:
                self.flush()
            first = last

    def flush(self) -> None:
        """Write the records that are not in a block yet."""
        if not self._count:
            return
        packed = self._codec.compressed(self._block.getvalue())
        self._file.write(
            encoded_long(self._count) + encoded_long(len(packed)) + packed + self._sync
        )
        self._block = io.BytesIO()
        self._count = 0


class ContainerWriter(BlockWriter):
    """Builds one container file in memory."""

    def __init__(self, schema: AvroSchema, codec: Codec) -> None:
        self._content = io.BytesIO()
        super().__init__(schema, codec, self._content)

    def finish(self) -> bytes:
        """The whole file. The writer cannot be used afterwards."""
        self.flush()
        return self._content.getvalue()


def encoded_long(value: int) -> bytes:
    """A value of at least 0 in zigzag and variable-length encoding."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def first_long(data: bytes) -> tuple[int, bytes]:
    """The integer that `data` begins with, and the remaining bytes."""
    cursor = _Cursor(data, "")
    return cursor.long(), cursor.rest
