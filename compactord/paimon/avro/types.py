"""Avro types and compression codecs of manifests.

Unknown columns of files by other writers may have any type of the Avro 1.11 specification.
"""

from __future__ import annotations

import bz2
import lzma
import re
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from compactord.errors import FormatError, UsageError

Json = Any
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
# Keys of a schema that change neither the encoding nor the meaning of values.
_DECORATION = frozenset({"doc", "aliases", "namespace", "default", "order"})
_COLUMN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Named types that refer to each other can expand a small schema into a very large one.
_MAX_DEPTH = 16
_MAX_TYPES = 10_000


def resolved_schema(schema: Json, path: str) -> Json:
    """The schema with references replaced by the named types. Logical types and names are kept.

    Raises `FormatError` with `path` for an invalid schema, and for a type within itself: no release
    has one, and its values could be nested deeper than fastavro's stack.
    """
    try:
        return _Resolver(path).resolve(schema, "", 0)
    except (KeyError, TypeError, AttributeError) as error:
        # fastavro accepts records without columns and columns without names.
        raise FormatError(path, f"not an Avro schema ({error!r})") from error


class _Resolver:
    def __init__(self, path: str) -> None:
        self._path = path
        # Full name -> definition and the namespace around it.
        self._known: dict[str, tuple[Json, str]] = {}
        self._open: set[str] = set()
        self._count = 0

    def resolve(self, schema: Json, namespace: str, depth: int) -> Json:
        self._count += 1
        if depth > _MAX_DEPTH or self._count > _MAX_TYPES:
            raise FormatError(self._path, "the Avro schema is nested too deeply")
        if isinstance(schema, str):
            return self._reference(schema, namespace, depth)
        if isinstance(schema, list):
            return [self.resolve(branch, namespace, depth + 1) for branch in schema]
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.resolve(kind, namespace, depth + 1)
        rest = {k: v for k, v in schema.items() if k not in _DECORATION}
        if kind in ("record", "enum", "fixed"):
            return self._definition(schema, rest, namespace, depth)
        if kind == "array":
            return {**rest, "items": self._items(schema["items"], namespace, depth)}
        if kind == "map":
            return {**rest, "values": self.resolve(schema["values"], namespace, depth + 1)}
        found = self.resolve(kind, namespace, depth + 1)
        return {**rest, "type": found} if len(rest) > 1 and isinstance(found, str) else found

    def _reference(self, name: str, namespace: str, depth: int) -> Json:
        if name in _PRIMITIVES:
            return name
        full = _full_name(name, namespace)
        if full in self._open:
            raise FormatError(self._path, f"the Avro type {full} contains itself")
        if full not in self._known:
            raise FormatError(self._path, f"an Avro schema of an unknown kind: {name!r}")
        definition, around = self._known[full]
        return self.resolve(definition, around, depth + 1)

    def _definition(self, schema: Json, rest: Json, around: str, depth: int) -> Json:
        full = _full_name(schema["name"], schema.get("namespace", around))
        self._known[full] = (schema, around)
        if schema["type"] != "record":
            return rest
        namespace = full.rpartition(".")[0]
        self._open.add(full)
        columns = [
            {"name": column["name"], "type": self.resolve(column["type"], namespace, depth + 1)}
            for column in schema["fields"]
        ]
        self._open.remove(full)
        names = [column["name"] for column in columns]
        if len(set(names)) < len(names) or not all(map(_COLUMN_NAME.fullmatch, names)):
            raise FormatError(self._path, f"the Avro record {full} has the columns {names}")
        return {**rest, "fields": columns}

    def _items(self, items: Json, namespace: str, depth: int) -> Json:
        found = self.resolve(items, namespace, depth + 1)
        if not _takes_bytes(plain_type(found)):
            # Otherwise a file of any size could claim any number of items.
            raise FormatError(self._path, "an Avro array of items that take no bytes")
        return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def plain_type(type_: Json) -> Json:
    """A result of `resolved_schema` without names and decoration.

    It has type names, {"record": {name: type}}, {"array": type}, {"map": type}, {"fixed": bytes},
    "enum" and lists (unions).
    """
    if isinstance(type_, str):
        return type_
    if isinstance(type_, list):
        return [plain_type(branch) for branch in type_]
    match type_["type"]:
        case "record":
            return {"record": {c["name"]: plain_type(c["type"]) for c in type_["fields"]}}
        case "array":
            return {"array": plain_type(type_["items"])}
        case "map":
            return {"map": plain_type(type_["values"])}
        case "fixed":
            return {"fixed": type_["size"]}
        case kind:
            return kind


def without_null(type_: Json) -> Json:
    """The other branch if the type is a union of null and one other type, otherwise the type
    itself.

    Releases before 0.9 write every record as a union with null, including the outermost one.
    """
    if isinstance(type_, list) and len(type_) == 2 and "null" in type_:
        return next((branch for branch in type_ if branch != "null"), "null")
    return type_


def _takes_bytes(plain: Json) -> bool:
    match plain:
        case "null" | {"fixed": 0}:
            return False
        case {"record": columns}:
            return any(map(_takes_bytes, columns.values()))
    return True


def renamed(resolved: Json, prefix: str) -> Json:
    """A result of `resolved_schema` with new, unique names for its types.

    Several columns may come from one definition, but Avro allows a name to be defined only once.
    """
    numbers = iter(range(_MAX_TYPES))

    def rename(type_: Json) -> Json:
        if isinstance(type_, list):
            return [rename(branch) for branch in type_]
        if isinstance(type_, str):
            return type_
        out = dict(type_)
        if "name" in out:
            out["name"] = f"{prefix}_{next(numbers)}"
        for key in ("items", "values"):
            if key in out:
                out[key] = rename(out[key])
        if "fields" in out:
            out["fields"] = [{**column, "type": rename(column["type"])} for column in out["fields"]]
        return out

    return rename(resolved)


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


# No writer makes blocks near this size; the bound keeps a damaged block from filling the memory.
BLOCK_BYTES_MAX = 256 << 20
# The largest ratio of decompressed to compressed bytes, and a number of bytes that may be added. In
# manifests as we and Java write them, where a block ends at 64,000 bytes, the ratio is 2 to 50; 400
# to 700 if each entry has the statistics of 1,000 columns that are always null.
_EXPANSION_MAX = 1000
_EXPANSION_FREE_BYTES = 4 << 20
# Errors that fastavro's reader and the decompressors raise for damaged bytes.
DAMAGE = (
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


@dataclass(frozen=True, slots=True)
class Codec:
    """A block compression under its Avro name."""

    name: str
    level: int | None = None

    def compressed(self, block: bytes) -> bytes:
        return _COMPRESSORS[self.name](block, self.level)


def is_codec(name: str) -> bool:
    """Whether blocks of a container with this `avro.codec` can be read."""
    return name in _DECOMPRESSORS


def codec_of(compression: str, level: int | None = None) -> Codec:
    """The codec for a value of `manifest.compression`; `level` applies to zstd only.

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
    """Bounds the decompressed size of files that are read together.

    They share one bound: many small files cannot hold more than one file of their total size.
    """

    def __init__(self) -> None:
        self._left = _EXPANSION_FREE_BYTES

    def decompressed(self, codec: str, packed: memoryview, path: str) -> bytes:
        """The decompressed block. Raises `FormatError` for damage, and for more bytes than the
        bound allows.
        """
        self._left += _EXPANSION_MAX * len(packed)
        data = decompressed(codec, packed, min(self._left, BLOCK_BYTES_MAX), path)
        self._left -= len(data)
        return data


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


def _unpacked_by(unpacker_of: Callable[[], Any]) -> Callable[[memoryview, int], bytes]:
    def unpacked(packed: memoryview, most: int) -> bytes:
        unpacker = unpacker_of()
        data: bytes = unpacker.decompress(packed, most + 1)
        if len(data) <= most and (not unpacker.eof or unpacker.unused_data):
            raise ValueError("the compressed block is not complete")
        return data

    return unpacked


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


# Codecs by name; the argument is the largest wanted size. A result may have one more byte: then the
# block is too large.
_DECOMPRESSORS: Mapping[str, Callable[[memoryview, int], bytes]] = {
    "null": lambda packed, most: bytes(packed),
    "deflate": _un_deflate,
    "bzip2": _unpacked_by(bz2.BZ2Decompressor),
    "xz": _unpacked_by(lzma.LZMADecompressor),
    "snappy": _un_snappy,
    "zstandard": _unpacked_by(zstd.ZstdDecompressor),
}


def decompressed(codec: str, packed: memoryview, most: int, path: str) -> bytes:
    """The decompressed block. Raises `FormatError` for damage and for more bytes than `most`."""
    try:
        data = _DECOMPRESSORS[codec](packed, most)
    except DAMAGE as error:
        raise FormatError(path, f"a damaged {codec} block ({error})") from error
    if len(data) > most:
        raise FormatError(
            path, f"a {codec} block of {len(packed)} bytes holds more than {most}: no writer's does"
        )
    return data
