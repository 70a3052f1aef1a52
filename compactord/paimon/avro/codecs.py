"""The codecs of Avro containers, and by how much a file may grow when it is unpacked."""

from __future__ import annotations

import bz2
import lzma
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from compactord.errors import FormatError, UsageError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


# No writer makes blocks near this size; the bound keeps a damaged block from filling the memory.
_MAX_BLOCK_BYTES = 256 << 20
# How many times larger decompressed blocks may be, and how many bytes more. In manifests as we and
# Java write them, where a block ends at 64,000 bytes, it is 2 to 50 times; 400 to 700 times if each
# entry has the statistics of 1,000 columns that are always null.
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


# With the most bytes that are wanted: a result may have one more, as a sign that there are more.
_DECOMPRESSORS: Mapping[str, Callable[[memoryview, int], bytes]] = {
    "null": lambda packed, most: bytes(packed),
    "deflate": _un_deflate,
    "bzip2": _unpacked_by(bz2.BZ2Decompressor),
    "xz": _unpacked_by(lzma.LZMADecompressor),
    "snappy": _un_snappy,
    "zstandard": _unpacked_by(zstd.ZstdDecompressor),
}


def _decompress(codec: str, packed: memoryview, most: int, path: str) -> bytes:
    try:
        data = _DECOMPRESSORS[codec](packed, most)
    except DAMAGE as error:
        raise FormatError(path, f"a damaged {codec} block ({error})") from error
    if len(data) > most:
        raise FormatError(
            path, f"a {codec} block of {len(packed)} bytes holds more than {most}: no writer's does"
        )
    return data
