"""The end of a Parquet file: the footer, its length, the magic."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"PAR1"
_LENGTH_BYTES = 4
# One request to a store brings most footers whole, as Arrow reads them.
_USUAL_BYTES = 64 << 10
_TAIL_BYTES = _LENGTH_BYTES + len(MAGIC)


def footer_bytes(read: Callable[[int, int], bytes | memoryview], size: int) -> bytes | memoryview:
    """The encoded footer of a whole file of `size` bytes; `read` is given an offset and a length.

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
    """What a file ends with."""
    return footer + len(footer).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def as_arrow_reads(footer: bytes) -> pq.FileMetaData:
    """Raises what Arrow raises for a footer that it cannot read."""
    return pq.read_metadata(pa.BufferReader(MAGIC + with_tail(footer)))
