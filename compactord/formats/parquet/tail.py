"""The end of a Parquet file: the footer, its length, the magic."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

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
