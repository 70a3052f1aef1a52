"""Avro object container files: blocks of records under a schema that the file carries itself.

This module reads and writes the container strictly: it checks magic, metadata, sync marks and the
end of every block, because Java reads a truncated file up to the cut without an error. fastavro,
which only this module uses, encodes and decodes records. Logical types are off: a timestamp is the
stored integer.
Sources: format/avro/AvroFileFormat.java, the Avro 1.11 specification (object container files).
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from compactord.errors import FormatError, UsageError
from compactord.paimon.json_text import parse_json

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAGIC = b"Obj\x01"
_SYNC_SIZE = 16
# As Java's DataFileConstants.DEFAULT_SYNC_INTERVAL: a block ends once it has this many bytes.
_BLOCK_BYTES = 64_000
# No writer makes blocks near this size; the bound keeps a damaged block from filling the memory.
_MAX_BLOCK_BYTES = 256 << 20
# How many times larger decompressed blocks may be, and how many bytes more. In manifests as we and
# Java write them, where a block ends at 64,000 bytes, it is 2 to 50 times; 400 to 700 times if each
# entry has the statistics of 1,000 columns that are always null.
_EXPANSION_MAX = 1000
_EXPANSION_FREE_BYTES = 4 << 20
INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1

Json = Any
# Errors that fastavro's reader and the decompressors raise for damaged bytes.
_DAMAGE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    EOFError,
    OverflowError,
    AttributeError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    zstd.ZstdError,
    OSError,
    MemoryError,
)


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """A schema as JSON (written to headers) and as fastavro uses it (without logical types)."""

    json: Json
    parsed: Json = field(repr=False)
    # Where 32-bit integers are, as `_ints_of` says.
    ints: Json = field(repr=False)


def compile_schema(schema: Json) -> AvroSchema:
    """Raises `FormatError` without a path when it is not an Avro schema."""
    try:
        parsed = fastavro.parse_schema(_without_logical_types(schema))
    except (SchemaParseException, UnknownType, *_DAMAGE) as error:
        raise FormatError("", f"not an Avro schema ({error})") from error
    return AvroSchema(schema, parsed, _ints_of(parsed))


def _without_logical_types(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {k: _without_logical_types(v) for k, v in schema.items() if k != "logicalType"}
    return schema


def _ints_of(schema: Json) -> Json:
    """Where a value holds 32-bit integers: "int" for itself, a tuple of (column, where) for a
    record, a list of one for the items of an array, None where there are none.

    Larger unions and maps are not searched: none of our columns is one.
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
    return all(_ints_fit(value[name], where) for name, where in ints)


@dataclass(frozen=True, slots=True)
class Codec:
    """A block compression under its Avro name."""

    name: str
    level: int | None = None


def codec_of(compression: str, level: int | None = None) -> Codec:
    """The codec for a value of `manifest.compression`; `level` counts for zstd only.

    Raises `UsageError` for values that AvroFileFormat.createCodecFactory does not know either.
    """
    name = compression.lower()
    if name in ("zstd", "zstandard"):
        return Codec("zstandard", level)
    if name not in _COMPRESSORS:
        known = ", ".join(("zstd", *sorted(set(_COMPRESSORS) - {"zstandard"})))
        raise UsageError(f"manifest.compression is {compression!r}; expected one of {known}")
    return Codec(name)


class Expansion:
    """How far the blocks of files that are read together may still expand.

    One bound for all: many small files cannot hold more than one that is as large as they are.
    """

    def __init__(self) -> None:
        self._left = _EXPANSION_FREE_BYTES

    def decompressed(self, codec: str, packed: memoryview, path: str) -> bytes:
        """Raises `FormatError` for damage, and for more bytes than files of that size can hold."""
        self._left += _EXPANSION_MAX * len(packed)
        data = _decompress(codec, packed, min(self._left, _MAX_BLOCK_BYTES), path)
        self._left -= len(data)
        return data


@dataclass(frozen=True, slots=True)
class Block:
    """`count` encoded records, back to back, decompressed."""

    count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Container:
    """A file whose frame has been checked; blocks are decompressed on demand."""

    path: str
    schema: AvroSchema
    codec: str
    _blocks: tuple[tuple[int, memoryview], ...] = field(repr=False)

    def blocks(self, expansion: Expansion | None = None) -> Iterator[Block]:
        """In file order. Raises `FormatError` as `expansion` does, None: of this file alone."""
        expansion = expansion or Expansion()
        for count, packed in self._blocks:
            data = expansion.decompressed(self.codec, packed, self.path)
            # Every record of ours takes at least a byte: a larger count is damage.
            if count > len(data):
                raise FormatError(self.path, f"a block of {len(data)} bytes claims {count} records")
            yield Block(count, data)

    def encoded_records(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Every record as fastavro gives it, with its encoding. `FormatError` for damaged ones."""
        for block in self.blocks():
            yield from decode_with_bytes(self.schema, block, self.path)


def open_container(data: bytes, path: str) -> Container:
    """Check the frame of a whole file.

    Raises `FormatError` for anything but a header and complete blocks up to the last byte.
    """
    cursor = _Cursor(data, path)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise FormatError(path, "not an Avro container file (wrong first bytes)")
    metadata = _read_metadata(cursor)
    sync = cursor.take(_SYNC_SIZE)
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    if codec not in _DECOMPRESSORS:
        raise FormatError(path, f"unknown Avro codec {codec!r}")
    try:
        schema = _schema_of_header(metadata.get("avro.schema", b""))
    except FormatError as error:
        raise FormatError(path, error.message) from error
    blocks = []
    while not cursor.at_end:
        count, size = cursor.long(), cursor.long()
        if count < 0:
            raise FormatError(path, f"a block claims {count} records")
        blocks.append((count, cursor.view(size)))
        if cursor.take(_SYNC_SIZE) != sync:
            raise FormatError(path, "a block does not end with the sync mark")
    return Container(path, schema, codec, tuple(blocks))


# Most files of a table have one of a few headers.
@lru_cache(maxsize=16)
def _schema_of_header(text: bytes) -> AvroSchema:
    try:
        schema = parse_json(text)
    except ValueError as error:
        raise FormatError("", f"the Avro header holds no readable schema ({error})") from error
    return compile_schema(schema)


def _read_metadata(cursor: _Cursor) -> dict[str, bytes]:
    metadata: dict[str, bytes] = {}
    while count := cursor.long():
        if count < 0:
            cursor.long()
        for _ in range(abs(count)):
            key = cursor.take(cursor.long()).decode("utf-8", "replace")
            metadata[key] = cursor.take(cursor.long())
    return metadata


class _Cursor:
    """Reads the container's frame. Raises `FormatError` when the bytes end too early."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data = memoryview(data)
        self._path = path
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def view(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._data) - self._at:
            raise FormatError(self._path, f"cut off or damaged at byte {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.view(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise FormatError(self._path, f"no integer at byte {self._at}")


def decode_with_bytes(
    schema: AvroSchema, block: Block, path: str
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The block's records, which must fill it exactly, each with its encoding."""
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
    """One encoded record, which must fill `data` exactly."""
    ((record, _),) = decode_with_bytes(schema, Block(1, data), path)
    return record


def _read_record(schema: AvroSchema, stream: io.BytesIO, path: str) -> dict[str, Any]:
    try:
        record = fastavro.schemaless_reader(stream, schema.parsed, None)
    except _DAMAGE as error:
        raise FormatError(path, f"a damaged Avro record ({error!r})") from error
    if not isinstance(record, dict):
        raise FormatError(path, "an Avro file whose values are not records")
    if schema.ints and not _ints_fit(record, schema.ints):
        raise FormatError(path, "an Avro int of more than 32 bits")
    return record


def encode_record(schema: AvroSchema, record: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema.parsed, record)
    return stream.getvalue()


class ContainerWriter:
    """Builds one container file in memory, with blocks as large as Java's."""

    def __init__(self, schema: AvroSchema, codec: Codec) -> None:
        self._codec = codec
        self._sync = os.urandom(_SYNC_SIZE)
        self._file = io.BytesIO()
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
        return self._file.tell()

    def append(self, record: bytes) -> None:
        """A record that is encoded under the schema."""
        self._block.write(record)
        self._count += 1
        if self._block.tell() >= _BLOCK_BYTES:
            self._flush()

    def finish(self) -> bytes:
        """The whole file; the writer cannot be used afterwards."""
        if self._count:
            self._flush()
        return self._file.getvalue()

    def _flush(self) -> None:
        packed = _COMPRESSORS[self._codec.name](self._block.getvalue(), self._codec.level)
        self._file.write(
            encoded_long(self._count) + encoded_long(len(packed)) + packed + self._sync
        )
        self._block = io.BytesIO()
        self._count = 0


def encoded_long(value: int) -> bytes:
    """Zigzag and variable length, for values of at least 0."""
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _deflate(data: bytes, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _zstandard(data: bytes, level: int | None) -> bytes:
    return bytes(zstd.compress(data, level=level))


def _snappy(data: bytes, level: int | None) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return packed + struct.pack(">I", zlib.crc32(data))


_COMPRESSORS: Mapping[str, Callable[[bytes, int | None], bytes]] = {
    "null": lambda data, level: data,
    "deflate": _deflate,
    "bzip2": lambda data, level: bz2.compress(data),
    "xz": lambda data, level: lzma.compress(data),
    "snappy": _snappy,
    "zstandard": _zstandard,
}


def _un_deflate(packed: memoryview, most: int) -> bytes:
    unpacker = zlib.decompressobj(-15)
    data = unpacker.decompress(packed, most + 1)
    # fastavro leaves part of a zlib checksum after the stream, so trailing bytes are allowed.
    if not unpacker.eof and len(data) <= most:
        raise ValueError("the compressed block is not complete")
    return data


def _un_bzip2(packed: memoryview, most: int) -> bytes:
    unpacker = bz2.BZ2Decompressor()
    return _complete(unpacker.decompress(packed, most + 1), unpacker, most)


def _un_xz(packed: memoryview, most: int) -> bytes:
    unpacker = lzma.LZMADecompressor()
    return _complete(unpacker.decompress(packed, most + 1), unpacker, most)


def _un_zstandard(packed: memoryview, most: int) -> bytes:
    unpacker = zstd.ZstdDecompressor()
    return _complete(unpacker.decompress(packed, most + 1), unpacker, most)


def _un_snappy(packed: memoryview, most: int) -> bytes:
    body, checksum = packed[:-4], packed[-4:]
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise ValueError(f"a block of {size} bytes")
    data: bytes = pa.Codec("snappy").decompress(body, size, asbytes=True)
    if struct.pack(">I", zlib.crc32(data)) != bytes(checksum):
        raise ValueError("the checksum is wrong")
    return data


def _complete(data: bytes, unpacker: Any, most: int) -> bytes:
    if len(data) <= most and (not unpacker.eof or unpacker.unused_data):
        raise ValueError("the compressed block is not complete")
    return data


# With the most bytes that are wanted: a result may have one more, as a sign that there are more.
_DECOMPRESSORS: Mapping[str, Callable[[memoryview, int], bytes]] = {
    "null": lambda packed, most: bytes(packed),
    "deflate": _un_deflate,
    "bzip2": _un_bzip2,
    "xz": _un_xz,
    "snappy": _un_snappy,
    "zstandard": _un_zstandard,
}


def _decompress(codec: str, packed: memoryview, most: int, path: str) -> bytes:
    try:
        data = _DECOMPRESSORS[codec](packed, most)
    except _DAMAGE as error:
        raise FormatError(path, f"a damaged {codec} block ({error})") from error
    if len(data) > most:
        raise FormatError(
            path, f"a {codec} block of {len(packed)} bytes holds more than {most}: no writer's does"
        )
    return data
