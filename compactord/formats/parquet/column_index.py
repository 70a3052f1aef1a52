"""The bounds of the values in each page, by the column index of a chunk.

No checksum covers it: who relies on it proves it by what is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from compactord.formats.parquet import thrift
from compactord.formats.parquet.statistics import statistics_order
from compactord.formats.parquet.structs import Chunk, ColumnIndex
from compactord.formats.parquet.thrift import Kind, Struct, required, required_list
from compactord.paimon.types import AtomicType

# A damaged footer may say anything.
_MOST_BYTES = 1 << 20

# Bytes of a file from an offset on; None where they are not known.
ReadIndex: TypeAlias = Callable[[int, int], bytes | memoryview | None]


class Bounds(NamedTuple):
    """Bounds of a chunk or page, encoded as PLAIN; None if all values are null."""

    low: bytes | None
    high: bytes | None
    nulls: int | None


def indexed_bounds(chunk: Struct, read: ReadIndex, pages: int) -> list[Bounds] | None:
    """The bounds of a chunk's pages; None if it has no usable index, or `read` not its bytes."""
    try:
        at = required(chunk, Chunk.COLUMN_INDEX_AT, Kind.I64)
        size = required(chunk, Chunk.COLUMN_INDEX_LENGTH, Kind.I32)
        encoded = read(at, size) if at >= 0 and 0 < size <= _MOST_BYTES else None
        index, _ = thrift.decode(encoded or b"")
        is_null = required_list(index, ColumnIndex.NULL_PAGES, Kind.TRUE, Kind.FALSE)
        lows = required_list(index, ColumnIndex.LOWS, Kind.BINARY)
        highs = required_list(index, ColumnIndex.HIGHS, Kind.BINARY)
        nulls: list[int | None] = [None] * pages
        if ColumnIndex.NULL_COUNTS in index:
            nulls = required_list(index, ColumnIndex.NULL_COUNTS, Kind.I64)
    except ValueError:
        return None
    if any(len(column) != pages for column in (is_null, lows, highs, nulls)):
        return None
    return [
        Bounds(None, None, count) if null == Kind.TRUE else Bounds(low, high, count)
        for null, low, high, count in zip(is_null, lows, highs, nulls, strict=True)
    ]


def bound_order(bound: bytes, physical_type: str, type_: AtomicType) -> Any:
    """The sort key of an encoded bound, comparable with `value_order` of a value."""
    if physical_type in ("INT32", "INT64", "BOOLEAN"):
        return int.from_bytes(bound, "little", signed=physical_type != "BOOLEAN")
    return statistics_order(bound, type_)
