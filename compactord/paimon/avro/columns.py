"""Decodes Avro records into columns, many blocks at a time.

In Avro the position of a field is known only after the field before it has been read. Blocks are
independent, however. So each block has a cursor, and all cursors move over the same field of their
i-th record together, in vector operations. Java's blocks hold about 150 entries and a large table
has thousands of blocks, so a record costs a few hundred nanoseconds.

Every cursor is checked against the end of its block before it is used. Encodings that Avro allows
and no known writer uses (arrays in several or sized blocks) raise `UnusualEncoding`, and so do
values of types that no Paimon column has; the caller then reads the file record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compactord.errors import FormatError
from compactord.paimon.avro.container import INT_MAX, INT_MIN, Block

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_LONGEST_VARINT = 10
# A null integer. Wanted columns in which nulls matter have no negative values.
NULL = -1
# A number that starts at the last byte is still loaded as a whole word, or as ten bytes.
_PADDING = 16
_OVERRUN = "an Avro record runs over the end of its block"
# The bytes of types of a fixed width.
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}
_STOPS = np.uint64(0x8080808080808080)


class UnusualEncoding(Exception):
    """Valid Avro that this decoder does not support."""


@dataclass(frozen=True, slots=True)
class Span:
    start: Ints
    length: Ints


@dataclass(frozen=True, slots=True)
class DecodedBlocks:
    """The wanted columns of all records, in block order.

    `data` is all blocks back to back, padded at the end. `records` are contiguous. Text, bytes and
    `raw` columns are spans; a float, double or boolean is the place of its bytes. `valid` has, for
    columns that may be null, whether each value is not.
    """

    data: Bytes
    records: Span
    integers: dict[str, Ints]
    spans: dict[str, Span]
    places: dict[str, Ints]
    valid: dict[str, npt.NDArray[np.bool_]]


def decode_blocks(
    schema: Any,
    blocks: Sequence[Block],
    *,
    values: Collection[str],
    raw: Collection[str],
    path: str,
) -> DecodedBlocks:
    """Decode records of `schema`, which is a result of `avro.types.plain_type`.

    `values` are dotted names of integers (`NULL` where they are null), and of other columns that
    are not nested. `raw` are dotted names of columns that are returned encoded. Names that the
    schema lacks are missing in the result. Raises `FormatError` if the records do not fill their
    blocks exactly, and `UnusualEncoding`.
    """
    decoder = _Decoder(blocks, frozenset(values), frozenset(raw), path)
    decoder.run(schema)
    return decoder.result()


class _Decoder:
    def __init__(
        self,
        blocks: Sequence[Block],
        values: frozenset[str],
        raw: frozenset[str],
        path: str,
    ) -> None:
        self._path = path
        self._values, self._raw = values, raw
        sizes = np.array([len(block.data) for block in blocks], dtype=np.int64)
        self._counts = np.array([block.count for block in blocks], dtype=np.int64)
        self._total = int(self._counts.sum())
        size = int(sizes.sum())
        self._data: Bytes = np.empty(size + _PADDING, dtype=np.uint8)
        self._data[size:] = 0
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        for block, start, end in zip(blocks, self._starts, self._ends, strict=True):
            self._data[start:end] = np.frombuffer(block.data, dtype=np.uint8)
        # Eight bytes from any position, as one number.
        self._words = np.ndarray(
            (len(self._data) - 7,), dtype="<u8", buffer=self._data.data, strides=(1,)
        )
        self._integers: dict[str, Ints] = {}
        self._spans: dict[str, Span] = {}
        self._places: dict[str, Ints] = {}
        self._valid: dict[str, npt.NDArray[np.bool_]] = {}
        self._records = self._new_span()

    def result(self) -> DecodedBlocks:
        return DecodedBlocks(
            self._data, self._records, self._integers, self._spans, self._places, self._valid
        )

    def run(self, schema: Any) -> None:
        read = self._compile(schema, "")
        # Lanes with most records first: those still active are always a prefix.
        order = np.argsort(-self._counts, kind="stable")
        counts, at, ends = self._counts[order], self._starts[order], self._ends[order]
        first_rows = (np.cumsum(self._counts) - self._counts)[order]
        for index in range(int(counts[0]) if len(counts) else 0):
            active = int(np.searchsorted(-counts, -index, side="left"))
            before = at[:active]
            rows = first_rows[:active] + index
            after = read(before, ends[:active], rows)
            if (after > ends[:active]).any():
                raise FormatError(self._path, _OVERRUN)
            self._records.start[rows] = before
            self._records.length[rows] = after - before
            at[:active] = after
        if not np.array_equal(at, ends):
            raise FormatError(self._path, "a block holds more bytes than its records")

    def _new_span(self) -> Span:
        return Span(np.zeros(self._total, np.int64), np.zeros(self._total, np.int64))

    def _compile(self, schema: Any, name: str) -> _Read:
        """Returns a function that moves cursors over one value and keeps wanted values."""
        read = self._compile_value(schema, name)
        return self._keeping_raw(read, name) if name in self._raw else read

    def _compile_value(self, schema: Any, name: str) -> _Read:
        if schema in ("int", "long"):
            return self._integer(name, narrow=schema == "int")
        if schema in ("bytes", "string"):
            return self._binary(name)
        if schema == "null":
            return lambda at, ends, rows: at
        if isinstance(schema, list):
            return self._union(schema, name)
        if isinstance(schema, dict) and "record" in schema:
            prefix = f"{name}." if name else ""
            return _sequence(
                [
                    self._compile(type_, prefix + column)
                    for column, type_ in schema["record"].items()
                ]
            )
        if isinstance(schema, dict) and "array" in schema:
            return self._array(self._compile(schema["array"], f"{name}[]"))
        if isinstance(schema, dict) and "map" in schema:
            key = self._compile("string", f"{name}{{}}")
            return self._array(_sequence([key, self._compile(schema["map"], f"{name}[]")]))
        if isinstance(schema, str) and schema in _WIDTHS:
            return self._fixed(name, _WIDTHS[schema])
        return _left_to_others

    def _keeping_raw(self, read: _Read, name: str) -> _Read:
        span = self._spans[name] = self._new_span()

        def keep(at: Ints, ends: Ints, rows: Ints) -> Ints:
            after = read(at, ends, rows)
            span.start[rows] = at
            span.length[rows] = after - at
            return after

        return keep

    def _integer(self, name: str, *, narrow: bool) -> _Read:
        if name not in self._values:
            return lambda at, ends, rows: self._longs(at, ends)[1]
        out = self._integers[name] = np.zeros(self._total, np.int64)

        def read(at: Ints, ends: Ints, rows: Ints) -> Ints:
            found, at = self._longs(at, ends)
            if narrow and not INT_MIN <= found.min() <= found.max() <= INT_MAX:
                raise FormatError(self._path, "an Avro int of more than 32 bits")
            out[rows] = found
            return at

        return read

    def _binary(self, name: str) -> _Read:
        span = self._new_span() if name in self._values else None
        if span is not None:
            self._spans[name] = span

        def read(at: Ints, ends: Ints, rows: Ints) -> Ints:
            length, at = self._longs(at, ends)
            if ((length < 0) | (length > ends - at)).any():
                raise FormatError(self._path, _OVERRUN)
            if span is not None:
                span.start[rows] = at
                span.length[rows] = length
            return at + length

        return read

    def _fixed(self, name: str, width: int) -> _Read:
        places = np.zeros(self._total, np.int64) if name in self._values else None
        if places is not None:
            self._places[name] = places

        def read(at: Ints, ends: Ints, rows: Ints) -> Ints:
            if (ends - at < width).any():
                raise FormatError(self._path, _OVERRUN)
            if places is not None:
                places[rows] = at
            return at + width

        return read

    def _union(self, branches: list[Any], name: str) -> _Read:
        others = [branch for branch in branches if branch != "null"]
        null_branch = branches.index("null") if "null" in branches else NULL
        read = self._compile_value(others[0], name) if len(others) == 1 else _left_to_others
        valid = None
        if name in self._values:
            valid = self._valid[name] = np.ones(self._total, np.bool_)
            # Records in which the union is null write no value.
            if name in self._integers:
                self._integers[name].fill(NULL)

        def read_union(at: Ints, ends: Ints, rows: Ints) -> Ints:
            branch, at = self._longs(at, ends)
            if ((branch < 0) | (branch >= len(branches))).any():
                raise FormatError(self._path, f"column {name} has an unknown Avro union branch")
            is_null = branch == null_branch
            null_count = int(np.count_nonzero(is_null))
            if null_count and not name:
                raise FormatError(self._path, "an Avro file whose values are not records")
            if not null_count:
                return read(at, ends, rows)
            if valid is not None:
                valid[rows[is_null]] = False
            if null_count == len(at):
                return at
            present = np.flatnonzero(~is_null)
            at[present] = read(at[present], ends[present], rows[present])
            return at

        return read_union

    def _array(self, read_item: _Read) -> _Read:
        def read(at: Ints, ends: Ints, rows: Ints) -> Ints:
            count, at = self._longs(at, ends)
            if (count < 0).any():
                raise UnusualEncoding
            # A wrong count stops at the end of the block: an item takes at least a byte.
            longest = int(count.max())
            for item in range(longest):
                lanes = np.flatnonzero(count > item)
                if len(lanes) == len(at):
                    at = read_item(at, ends, rows)
                else:
                    at[lanes] = read_item(at[lanes], ends[lanes], rows[lanes])
            if not longest:
                return at
            lanes = np.flatnonzero(count)
            more, at[lanes] = self._longs(at[lanes], ends[lanes])
            if more.any():
                raise UnusualEncoding
            return at

        return read

    def _longs(self, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Zigzag variable-length integers at the cursors, and the cursors after them."""
        if (at >= ends).any():
            raise FormatError(self._path, _OVERRUN)
        first = self._data[at]
        if first.max() < 0x80:
            small = first.astype(np.int64)
            return (small >> 1) ^ -(small & 1), at + 1
        word = self._words[at]
        stops = ~word & _STOPS
        if not stops.all():
            return self._long_varints(at)
        # All bits up to and including the first clear continuation bit.
        mask = stops ^ (stops - np.uint64(1))
        return _unzigzag(_squeezed(np.bitwise_and(word, mask))), at + (np.bitwise_count(mask) >> 3)

    def _long_varints(self, at: Ints) -> tuple[Ints, Ints]:
        """As `_longs` for numbers of up to ten bytes, byte by byte."""
        bits = np.zeros(len(at), np.uint64)
        size = np.zeros(len(at), np.int64)
        going = np.ones(len(at), np.bool_)
        for index in range(_LONGEST_VARINT):
            byte = self._data[at + index].astype(np.uint64)
            bits[going] |= (byte[going] & np.uint64(0x7F)) << np.uint64(7 * index)
            size[going] += 1
            going &= byte >= 0x80
        if going.any():
            raise FormatError(self._path, "an Avro integer of more than ten bytes")
        return _unzigzag(bits), at + size


_Read = Callable[[Ints, Ints, Ints], Ints]


def _left_to_others(at: Ints, ends: Ints, rows: Ints) -> Ints:
    """Reads types that no Paimon column has. Not called where all values are null."""
    raise UnusualEncoding


def _sequence(reads: Sequence[_Read]) -> _Read:
    def read_all(at: Ints, ends: Ints, rows: Ints) -> Ints:
        for read in reads:
            at = read(at, ends, rows)
        return at

    return read_all


def _squeezed(word: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The low seven bits of each byte, joined."""
    u = np.uint64
    word = (word & u(0x007F007F007F007F)) | ((word & u(0x7F007F007F007F00)) >> u(1))
    word = (word & u(0x00003FFF00003FFF)) | ((word & u(0x3FFF00003FFF0000)) >> u(2))
    return (word & u(0x000000000FFFFFFF)) | ((word & u(0x0FFFFFFF00000000)) >> u(4))


def _unzigzag(bits: npt.NDArray[np.uint64]) -> Ints:
    return (bits >> np.uint64(1)).astype(np.int64) ^ -(bits & np.uint64(1)).astype(np.int64)
