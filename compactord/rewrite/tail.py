"""The end of a Parquet file: the footer, its length, the magic."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"PAR1"
_LENGTH_BYTES = 4
_TAIL_BYTES = _LENGTH_BYTES + len(MAGIC)


def footer_bytes(read: Callable[[int, int], bytes | memoryview], size: int) -> bytes | memoryview:
    """The encoded footer of a whole file of `size` bytes; `read` is given an offset and a length.

    Raises `ValueError` when there is none.
    """
    end = size - _TAIL_BYTES
    length = int.from_bytes(read(end, _LENGTH_BYTES), "little", signed=True) if end >= 0 else -1
    if not 0 <= length <= end:
        raise ValueError("there is no Parquet footer in it")
    return read(end - length, length)


def with_tail(footer: bytes) -> bytes:
    """What a file ends with."""
    return footer + len(footer).to_bytes(_LENGTH_BYTES, "little") + MAGIC


def as_arrow_reads(footer: bytes) -> pq.FileMetaData:
    """Raises what Arrow raises for a footer that it cannot read."""
    return pq.read_metadata(pa.BufferReader(MAGIC + with_tail(footer)))
