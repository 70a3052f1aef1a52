"""Encoded footers at the ends of files, and those with INT96 columns as Arrow takes them.

`int96` says why Arrow is told something else of these columns.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet import thrift
from compactord.formats.parquet.int96 import WIDTH
from compactord.formats.parquet.structs import (
    Chunk,
    Element,
    File,
    Group,
    Meta,
    Statistics,
    Type,
)
from compactord.formats.parquet.thrift import Kind, Struct, required, required_list

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
    """The footer without rows of a file that is written, with INT96 in place of its 12 bytes.

    Only timestamps are written as 12 fixed bytes that are declared as nothing else.
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

    The order of the bytes is not that of the values.
    """
    changed = {**meta, Meta.TYPE: _INT96}
    if Meta.STATISTICS in meta:
        found = required(meta, Meta.STATISTICS, Kind.STRUCT)
        counts = {f: v for f, v in found.items() if f == Statistics.NULL_COUNT}
        changed[Meta.STATISTICS] = thrift.struct(counts)
    return changed
