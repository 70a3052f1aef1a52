"""The metadata of an ORC file: its postscript, footer and stripe footers, checked.

Arrow's library ends the process for some damaged metadata, so it only gets files whose metadata fit
the file, each other and the manifest. Source: orc_proto.proto of Apache ORC, ORC's specification.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from compactord.errors import DataFileDamaged, FileNotSupported
from compactord.model import InputFile

_MAGIC = b"ORC"
_POSTSCRIPT_BYTES_MAX = 256
# A chunk of compressed metadata has a header of three bytes: its length, and whether it is stored.
_CHUNK_HEADER = 3
_BLOCK_BYTES_MAX = 1 << 23
_METADATA_BYTES_MAX = 1 << 28
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_DECIMAL_DIGITS_MAX = 38
_ENCODINGS_MAX = 3
_STREAMS_MAX = 10

# The numbers of fields in messages.
_PS_FOOTER, _PS_CODEC, _PS_BLOCK, _PS_METADATA, _PS_MAGIC = 1, 2, 3, 5, 8000
_STRIPES, _TYPES, _ROWS, _ENCRYPTION = 3, 4, 6, 10
_KIND, _SUBTYPES, _NAMES, _PRECISION, _SCALE = 1, 2, 3, 5, 6

_SIMPLE = {
    0: pa.bool_(),
    1: pa.int8(),
    2: pa.int16(),
    3: pa.int32(),
    4: pa.int64(),
    5: pa.float32(),
    6: pa.float64(),
    7: pa.string(),
    8: pa.binary(),
    9: pa.timestamp("ns"),
    15: pa.date32(),
    16: pa.string(),
    17: pa.string(),
    18: pa.timestamp("ns", "UTC"),
}
_LIST, _MAP, _STRUCT, _DECIMAL = 10, 11, 12, 14

_Message = Mapping[int, list[int | bytes]]


class _Broken(Exception):
    """Bytes that do not follow the format."""


def checked_schema(stream: pa.NativeFile, file: InputFile) -> pa.Schema:
    """The columns of an open file as Arrow types. Raises `DataFileDamaged` for damaged metadata.

    Raises `FileNotSupported` for encrypted files and for types that tables cannot have.
    """
    try:
        return _checked(stream, file)
    except _Broken as error:
        raise DataFileDamaged(file.path, f"not a readable ORC file ({error})") from error


def _checked(stream: pa.NativeFile, file: InputFile) -> pa.Schema:
    size = file.size_bytes
    end = _read(stream, max(0, size - _POSTSCRIPT_BYTES_MAX), min(size, _POSTSCRIPT_BYTES_MAX))
    length = end[-1] + 1 if end else 0
    if size < len(_MAGIC) + length or _read(stream, 0, len(_MAGIC)) != _MAGIC:
        raise _Broken("it does not begin with ORC")
    postscript = _parsed(end[len(end) - length : -1], "the postscript")
    if _bytes(postscript, _PS_MAGIC) != [_MAGIC]:
        raise _Broken("its postscript has no magic word")
    codec, block = _number(postscript, _PS_CODEC), _number(postscript, _PS_BLOCK)
    inflate = _inflater(codec, block)
    footer_bytes = _number(postscript, _PS_FOOTER)
    footer_at = size - length - footer_bytes
    content_end = footer_at - _number(postscript, _PS_METADATA)
    if content_end < len(_MAGIC):
        raise _Broken("its footer is longer than the file")
    footer = _parsed(inflate(_read(stream, footer_at, footer_bytes)), "the footer")
    if footer.get(_ENCRYPTION):
        raise FileNotSupported(file.path, "encrypted ORC files are not read")
    types = [_parsed(each, "a type") for each in _bytes(footer, _TYPES)]
    schema = _schema(types, file.path)
    rows = sum(_stripes(stream, footer, len(types), content_end, inflate))
    for what, found in (("stripes", rows), ("footer", _number(footer, _ROWS))):
        if found != file.row_count:
            raise _Broken(f"its {what} count {found} rows, the manifest {file.row_count}")
    return schema


def _stripes(
    stream: pa.NativeFile,
    footer: _Message,
    types: int,
    content_end: int,
    inflate: Callable[[bytes], bytes],
) -> Iterator[int]:
    """The rows of each stripe, once its footer is checked."""
    at = len(_MAGIC)
    for each in _bytes(footer, _STRIPES):
        stripe = _parsed(each, "a stripe")
        begin, index, data, footer_bytes, rows = (_number(stripe, field) for field in range(1, 6))
        if begin < at or begin + index + data + footer_bytes > content_end or not rows:
            raise _Broken(f"a stripe at byte {begin} does not fit the file")
        at = begin + index + data + footer_bytes
        what = f"the footer of the stripe at byte {begin}"
        found = _parsed(inflate(_read(stream, begin + index + data, footer_bytes)), what)
        streams = [_parsed(one, what) for one in _bytes(found, 1)]
        encodings = [_parsed(one, what) for one in _bytes(found, 2)]
        is_sound = (
            len(encodings) == types
            and sum(_number(one, 3) for one in streams) == index + data
            and all(_number(one, 1) <= _STREAMS_MAX for one in streams)
            and all(_number(one, 2) < types for one in streams)
            and all(_number(one, 1) <= _ENCODINGS_MAX for one in encodings)
            # A dictionary in a list may have more words than the stripe has rows.
            and all(_number(one, 2) <= index + data for one in encodings)
        )
        if not is_sound:
            raise _Broken(f"{what} does not fit the stripe")
        yield rows


def _schema(types: Sequence[_Message], path: str) -> pa.Schema:
    """The columns of the file; type 0 is the struct of all of them."""
    used: list[int] = []

    def built(place: int) -> pa.DataType:
        # The types are in preorder, each once.
        if place != len(used) or place >= len(types):
            raise _Broken("its types are no tree")
        used.append(place)
        type_ = types[place]
        kind, inside = _number(type_, _KIND), _numbers(type_, _SUBTYPES)
        names = [each.decode("utf-8", "replace") for each in _bytes(type_, _NAMES)]
        if kind in _SIMPLE and not inside:
            return _SIMPLE[kind]
        if kind == _DECIMAL and not inside:
            digits, scale = _number(type_, _PRECISION), _number(type_, _SCALE)
            if not 1 <= digits <= _DECIMAL_DIGITS_MAX or scale > digits:
                raise _Broken(f"it has a decimal of {digits} digits and scale {scale}")
            return pa.decimal128(digits, scale)
        if kind == _LIST and len(inside) == 1:
            return pa.list_(built(inside[0]))
        if kind == _MAP and len(inside) == 2:
            key = built(inside[0])
            return pa.map_(key, built(inside[1]))
        if kind == _STRUCT and len(inside) == len(names):
            return pa.struct([(n, built(each)) for n, each in zip(names, inside, strict=True)])
        raise FileNotSupported(path, f"it has a type of kind {kind}, which tables cannot have")

    root = built(0)
    if not pa.types.is_struct(root) or len(used) != len(types):
        raise _Broken("its types are no tree")
    return pa.schema([root.field(i) for i in range(root.num_fields)])


def _read(stream: pa.NativeFile, at: int, length: int) -> bytes:
    if length > _METADATA_BYTES_MAX:
        raise _Broken(f"it has metadata of {length:,} bytes")
    stream.seek(at)
    found: bytes = stream.read(length)
    if len(found) != length:
        raise _Broken("it ends early")
    return found


def _parsed(data: bytes, what: str) -> _Message:
    """The fields of a message of protocol buffers by their numbers, each a list."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, what)
        wire, value = tag & 7, b""
        if wire == _VARINT:
            number, at = _varint(data, at, what)
            found.setdefault(tag >> 3, []).append(number)
            continue
        if wire == _BYTES:
            length, at = _varint(data, at, what)
        else:
            length = {_FIXED_64: 8, _FIXED_32: 4}.get(wire, len(data) + 1)
        value, at = data[at : at + length], at + length
        if at > len(data):
            raise _Broken(f"{what} ends early")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
    raise _Broken(f"{what} ends early")


def _number(message: _Message, field: int) -> int:
    """The last number of a field; 0 if it has none."""
    found = message.get(field, [0])[-1]
    if not isinstance(found, int):
        raise _Broken(f"field {field} of its metadata is no number")
    return found


def _numbers(message: _Message, field: int) -> list[int]:
    """All numbers of a field, packed or not."""
    found: list[int] = []
    for each in message.get(field, []):
        if isinstance(each, int):
            found.append(each)
            continue
        at = 0
        while at < len(each):
            number, at = _varint(each, at, "a type")
            found.append(number)
    return found


def _bytes(message: _Message, field: int) -> list[bytes]:
    found = message.get(field, [])
    if not all(isinstance(each, bytes) for each in found):
        raise _Broken(f"field {field} of its metadata is a number")
    return [each for each in found if isinstance(each, bytes)]


def _inflater(codec: int, block: int) -> Callable[[bytes], bytes]:
    """Inflates metadata of a codec by its number."""
    if codec == 0:
        return bytes
    inflate = {1: _zlib, 2: _snappy, 4: _lz4, 5: _zstd}.get(codec)
    if inflate is None or not 0 < block <= _BLOCK_BYTES_MAX:
        raise _Broken(f"codec {codec} with blocks of {block} bytes is not known")

    def inflated(data: bytes) -> bytes:
        parts, at = [], 0
        while at < len(data):
            header = int.from_bytes(data[at : at + _CHUNK_HEADER], "little")
            at += _CHUNK_HEADER
            length = header >> 1
            chunk, at = data[at : at + length], at + length
            if at > len(data):
                raise _Broken("compressed metadata end early")
            try:
                parts.append(chunk if header & 1 else inflate(chunk, block))
            except (zlib.error, OSError, ValueError, IndexError) as error:
                raise _Broken(f"compressed metadata cannot be read: {error}") from error
        return b"".join(parts)

    return inflated


def _zlib(data: bytes, block: int) -> bytes:
    found = zlib.decompressobj(-15).decompress(data, block + 1)
    if len(found) > block:
        raise ValueError("a chunk is larger than the block size")
    return found


def _zstd(data: bytes, block: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        found: bytes = stream.read(block + 1)
    if len(found) > block:
        raise ValueError("a chunk is larger than the block size")
    return found


def _snappy(data: bytes, block: int) -> bytes:
    size, _ = _varint(data, 0, "a chunk")
    if size > block:
        raise ValueError("a chunk is larger than the block size")
    found: bytes = pa.decompress(data, size, codec="snappy", asbytes=True)
    return found


def _lz4(data: bytes, block: int) -> bytes:
    """A block of LZ4 without a frame; Arrow's codec needs to know its size, which ORC omits."""
    found, at = bytearray(), 0

    def length(short: int) -> int:
        nonlocal at
        total = short
        while short == 15 or short == 255:
            short = data[at]
            total, at = total + short, at + 1
        return total

    while at < len(data):
        token = data[at]
        at += 1
        literals = length(token >> 4)
        found += data[at : at + literals]
        at += literals
        if at >= len(data):
            break
        distance = data[at] | data[at + 1] << 8
        at += 2
        if not 0 < distance <= len(found):
            raise ValueError("a match begins before its chunk")
        for _ in range(length(token & 15) + 4):
            found.append(found[-distance])
        if len(found) > block:
            raise ValueError("a chunk is larger than the block size")
    return bytes(found)
