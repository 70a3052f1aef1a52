"""TIMESTAMP(7) to (9) in memory: 64 bits of nanoseconds would end in 1677 and 2262.

A value is milliseconds since the epoch and nanoseconds of the millisecond, as in Java
(data/Timestamp.java), packed into one integer of a decimal column: `millis << 20 | nanos`. Its
order is that of the values. No decimal of Paimon has more digits behind the point than in total,
so the type tells these columns from all others; precision and scale mean nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WIDE_TIMESTAMP = pa.decimal128(27, 28)
NANOS_PER_MS = 1_000_000
# Of the units in which timestamps of fewer digits are stored: how many make a millisecond.
PER_MS = {"ms": 1, "us": 1000, "ns": NANOS_PER_MS}

# 999,999 takes 20 bits.
_NANO_BITS = 20
_NANO_MASK = (1 << _NANO_BITS) - 1
_EXACT = Context(prec=80)

_Int64s: TypeAlias = npt.NDArray[np.int64]
_Bools: TypeAlias = npt.NDArray[np.bool_]


def from_parts(millis: _Int64s, nanos: _Int64s, nulls: _Bools) -> pa.Array:
    """A column of `WIDE_TIMESTAMP`. `nanos` are 0 to 999,999; parts of nulls may be anything."""
    halves = np.empty((len(millis), 2), np.int64)
    np.left_shift(millis, _NANO_BITS, out=halves[:, 0])
    halves[:, 0] |= nanos & _NANO_MASK
    np.right_shift(millis, 64 - _NANO_BITS, out=halves[:, 1])
    validity = pa.array(~nulls).buffers()[1] if nulls.any() else None
    return pa.Array.from_buffers(WIDE_TIMESTAMP, len(millis), [validity, pa.py_buffer(halves)])


def parts_of(array: pa.Array) -> tuple[_Int64s, _Int64s]:
    """Milliseconds and nanoseconds of timestamps of any type; undefined where they are null."""
    if len(array) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if array.type != WIDE_TIMESTAMP:
        ticks = np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset)
        if array.type.unit == "s":
            return ticks * 1000, np.zeros_like(ticks)
        per_ms = PER_MS[array.type.unit]
        millis, rest = np.divmod(ticks, per_ms)
        return millis, rest * (NANOS_PER_MS // per_ms)
    halves = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset)
    low, high = halves[0::2], halves[1::2]
    millis = (high << (64 - _NANO_BITS)) | (low.view(np.uint64) >> _NANO_BITS).view(np.int64)
    return millis, low & _NANO_MASK


def from_nanoseconds(values: Sequence[int | None]) -> pa.Array:
    """A column of single values: nanoseconds since the epoch, of any size."""
    parts = [divmod(value or 0, NANOS_PER_MS) for value in values]
    millis, nanos = (np.array([part[i] for part in parts], np.int64) for i in (0, 1))
    return from_parts(millis, nanos, np.array([value is None for value in values], np.bool_))


def nanoseconds_of(scalar: pa.Scalar) -> int:
    """The value of a scalar of `WIDE_TIMESTAMP` that is not null, since the epoch."""
    value: Any = scalar.as_py()
    packed = int(value.scaleb(WIDE_TIMESTAMP.scale, _EXACT))
    return (packed >> _NANO_BITS) * NANOS_PER_MS + (packed & _NANO_MASK)


def text_of(scalar: pa.Scalar) -> str:
    """The value of a scalar of `WIDE_TIMESTAMP` that is not null, for people."""
    millis, nanos = divmod(nanoseconds_of(scalar), NANOS_PER_MS)
    return f"{np.datetime64(millis, 'ms')}{nanos:06d}"
