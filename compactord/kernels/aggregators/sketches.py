"""Unions of sketches, byte for byte as Java's (FieldHllSketchAgg.java, FieldThetaSketchAgg.java).

datasketches is a C++ library of the project whose Java library Paimon uses in release 4.2.0. It
reads and writes the same formats; this module corrects the differences. Inputs are checked before,
because damaged bytes of an HLL sketch end the process.
"""

from __future__ import annotations

import importlib
import struct
from abc import abstractmethod
from typing import Any

import numpy as np

from compactord.kernels.aggregators.base import FoldedBytes, Values
from compactord.paimon.options.merge import ColumnRule

# Errors of the library and of struct for invalid bytes.
_UNREADABLE = (ValueError, RuntimeError, IndexError, struct.error)

# Fields of both formats: longs or ints before the data, version, family, sizes, flags.
_PREAMBLE, _VERSION, _FAMILY, _LG_SIZE, _FLAGS = 0, 1, 2, 4, 5
_EMPTY, _COMPACT = 4, 8

_HLL_FAMILY, _LG_K, _COUNT, _MODE = 7, 3, 6, 7
_LIST, _SET, _REGISTERS = 0, 1, 2
_OUT_OF_ORDER = 16
_LIST_MAX = 7
_ACCUMULATOR = slice(8, 16)
_REGISTERS_START = 40
_AUXILIARY = 15

_THETA_TABLES = (1, 2)
_TABLE_PREAMBLE, _TABLE_START = 3, 24
_SINGLE = 32
EMPTY_THETA = bytes([1, 3, 3, 0, 0, 0x1E, 0, 0])
# Java ignores shorter sketches.
_THETA_MIN_BYTES = 16


class _Sketch(FoldedBytes):
    kind: str

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._library = importlib.import_module("datasketches")

    def united(self, before: Any, value: Any) -> Any:
        try:
            return self._union(before, value)
        except _UNREADABLE as error:
            raise ValueError(f"not {self.kind} sketch: {error}") from error

    @abstractmethod
    def _union(self, before: Any, value: Any) -> Any:
        """The union. Raises one of `_UNREADABLE`."""


class _Union(bytes):
    """An HLL sketch that needs no check, as the library has made it."""


def _hll_union(library: Any, before: bytes, value: bytes) -> _Union:
    """The union. Raises one of several errors for bytes that are no HLL sketch.

    Java keeps an accumulator that estimates (HIP) when a sketch is out of order, although it is no
    longer read. The library resets it, so the flag is hidden from the library.
    """
    before, value = _checked_hll(before), _checked_hll(value)
    read = library.hll_sketch.deserialize
    first, second = read(_in_order(before)), read(_in_order(value))
    lg_k = second.lg_config_k
    is_reduced = _mode(before) == _REGISTERS and first.lg_config_k > lg_k
    if is_reduced:
        # The library would add the values of a sketch without registers to this accumulator.
        smaller = library.hll_union(lg_k)
        smaller.update(first)
        first = smaller.get_result(library.tgt_hll_type.HLL_8)
    union = library.hll_union(lg_k)
    union.update(second)
    union.update(first)
    found = bytearray(union.get_result(library.tgt_hll_type.HLL_4).serialize_compact())
    if _is_out_of_order(before) or _is_out_of_order(value):
        found[_FLAGS] |= _OUT_OF_ORDER
    if is_reduced and _is_out_of_order(before):
        # The hidden flag. Java also drops the accumulator of a sketch that becomes smaller.
        found[_ACCUMULATOR] = bytes(8)
    return _Union(found)


def _mode(data: bytes) -> int:
    return data[_MODE] & 3


def _is_out_of_order(data: bytes) -> bool:
    return _mode(data) == _REGISTERS and bool(data[_FLAGS] & _OUT_OF_ORDER)


def _in_order(data: bytes) -> bytes:
    if not _is_out_of_order(data):
        return data
    return data[:_FLAGS] + bytes([data[_FLAGS] & ~_OUT_OF_ORDER]) + data[_FLAGS + 1 :]


def _checked_hll(data: bytes) -> bytes:
    """The bytes if the library can process them. Raises `ValueError` or `IndexError` otherwise."""
    if isinstance(data, _Union):
        return data
    mode, lg_k = _mode(data), data[_LG_K]
    is_known = data[_VERSION] == 1 and data[_FAMILY] == _HLL_FAMILY and data[_MODE] < 12
    if not is_known or mode > _REGISTERS or data[_PREAMBLE] != (2, 3, 10)[mode]:
        raise ValueError(f"it begins with {data[:8].hex()}")
    if not 4 <= lg_k <= 21:
        raise ValueError(f"it has 2^{lg_k} registers")
    if mode == _REGISTERS:
        _check_registers(data)
    elif mode == _LIST:
        _check_coupons(data, 8, data[_COUNT], 3, _LIST_MAX)
    else:
        count = int.from_bytes(data[8:12], "little")
        _check_coupons(data, 12, count, data[_LG_SIZE], 3 << max(lg_k - 5, 0))
    return data


def _check_coupons(data: bytes, start: int, count: int, lg_size: int, most: int) -> None:
    is_compact = bool(data[_FLAGS] & _COMPACT)
    stored = count if is_compact else 1 << min(lg_size, 31)
    if count > most or len(data) < start + 4 * stored:
        raise ValueError(f"it has {len(data)} bytes for {count} of at most {most} coupons")
    # numpy takes longer for a few.
    coupons = struct.unpack_from(f"<{stored}I", data, start) if stored < 64 else None
    if coupons is None:
        known = int(np.count_nonzero(np.frombuffer(data, "<u4", stored, start)))
    else:
        known = stored - coupons.count(0)
    if known != count:
        raise ValueError(f"it has not {count} coupons")
    if lg_size > 19 or (4 * count > 3 << lg_size and start > 8):
        raise ValueError(f"{count} coupons in a table of 2^{lg_size}")


def _check_registers(data: bytes) -> None:
    size, bits = 1 << data[_LG_K], (4, 6, 8)[data[_MODE] >> 2]
    stored = size * bits // 8 + (bits == 6)
    if len(data) < _REGISTERS_START + stored:
        raise ValueError(f"it has {len(data)} bytes for {size} registers")
    registers = np.frombuffer(data, np.uint8, stored, _REGISTERS_START)
    if bits == 8 and registers.max() > 63:
        raise ValueError("it has a register above 63")
    if bits == 4:
        nibbles = np.stack([registers & 15, registers >> 4], axis=1).reshape(-1)
        _check_auxiliary(data, nibbles, _REGISTERS_START + stored)


def _check_auxiliary(data: bytes, nibbles: Any, start: int) -> None:
    """Registers of four bits store larger values in a table."""
    elsewhere = np.flatnonzero(nibbles == _AUXILIARY)
    least = data[_COUNT]
    if least + int(nibbles[nibbles < _AUXILIARY].max(initial=0)) > 63:
        raise ValueError("it has a register above 63")
    count = int.from_bytes(data[36:40], "little")
    if count != len(elsewhere):
        raise ValueError(f"it has {count} registers in a table, and names {len(elsewhere)}")
    if not count:
        return
    stored = count if data[_FLAGS] & _COMPACT else 1 << min(data[_LG_SIZE], 31)
    if len(data) < start + 4 * stored or count > 3 << data[_LG_SIZE] >> 2:
        raise ValueError(f"it has {len(data)} bytes for a table of {stored} registers")
    pairs = np.frombuffer(data, "<u4", stored, start)
    pairs = pairs[pairs != 0]
    if not np.array_equal(np.sort(pairs & (1 << 26) - 1), elsewhere):
        raise ValueError("its table has other registers than it names")


def _theta_union(library: Any, before: Any, value: Any) -> Any:
    """The union of bytes or sketches, a sketch. Raises one of several errors for bytes that are no
    theta sketch.
    """
    union = library.theta_union()
    for given in (before, value):
        if not isinstance(given, bytes):
            union.update(given)
        elif len(given) >= _THETA_MIN_BYTES:
            union.update(library.compact_theta_sketch.deserialize(_without_table(given)))
    return union.get_result()


def _without_table(data: bytes) -> bytes:
    """The sketch without the hash table that it may have had while it grew."""
    if data[_VERSION] != 3 or data[_FLAGS] & _COMPACT:
        return data
    if data[_FAMILY] not in _THETA_TABLES or data[_PREAMBLE] & 63 != _TABLE_PREAMBLE:
        raise ValueError(f"it begins with {data[:8].hex()}")
    if data[_FLAGS] & _EMPTY:
        return EMPTY_THETA
    (theta,) = struct.unpack_from("<q", data, 16)
    size = 1 << min(data[_LG_SIZE], 31)
    if len(data) < _TABLE_START + 8 * size:
        raise ValueError(f"it has {len(data)} bytes for a table of {size} entries")
    hashes = np.frombuffer(data, "<i8", size, _TABLE_START)
    hashes = hashes[(hashes > 0) & (hashes < theta)]
    head = bytes([_TABLE_PREAMBLE, 3, 3, 0, 0, _COMPACT | 2]) + data[6:8]
    return b"".join((head, struct.pack("<Ifq", len(hashes), 1.0, theta), hashes.tobytes()))


class HllSketch(_Sketch):
    """The union has the size of the later sketch, and the type HLL_4."""

    kind = "an HLL"

    def _union(self, before: Any, value: Any) -> _Union:
        return _hll_union(self._library, before, value)


class ThetaSketch(_Sketch):
    """The union has 4,096 entries at most; sketches have the seed 9001."""

    kind = "a theta"

    def _union(self, before: Any, value: Any) -> Any:
        return _theta_union(self._library, before, value)

    def stored(self, union: Any) -> bytes:
        """Java marks a single entry, writes the probability 1.0 of a sketch that does not sample,
        and gives empty sketches no seed.
        """
        if union.is_empty():
            return EMPTY_THETA
        found = bytearray(union.serialize())
        if found[_PREAMBLE] == 1:
            found[_FLAGS] |= _SINGLE
        else:
            found[12:16] = struct.pack("<f", 1.0)
        return bytes(found)
