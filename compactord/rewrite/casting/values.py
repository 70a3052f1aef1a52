"""Casts of single values, applied to the distinct values of an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as t

from compactord.kernels.columns import Bools, fixed_values
from compactord.paimon.types import AtomicType


@dataclass(frozen=True, slots=True)
class Change:
    """Source and target type of a cast; `zone` applies to local times."""

    source: AtomicType
    target: AtomicType
    zone: tzinfo


class CastError(ValueError):
    """A value that cannot be cast; the text has the value and the reason."""


def by_value(array: pa.Array, convert: Callable[[Any], Any], wanted: pa.DataType) -> pa.Array:
    """Apply `convert` to each distinct value; null stays null, and None becomes null.

    Values are Python's int, float, bool, Decimal or bytes (for texts as well); dates and times are
    their numbers. Results have the same form.
    """
    values, indices = _distinct(array)
    made = made_array([convert(value) for value in values.to_pylist()], wanted)
    return made.take(indices)


def _distinct(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    plain = array.type
    if t.is_floating(plain):
        # By bits: zeros of both signs are different values.
        array = array.view(pa.int32() if plain.bit_width == 32 else pa.int64())
    elif t.is_string(plain):
        array = array.view(pa.binary())
    elif t.is_date32(plain) or t.is_time32(plain):
        array = array.view(pa.int32())
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    return (values.view(plain) if t.is_floating(plain) else values), encoded.indices


def made_array(values: Sequence[Any], wanted: pa.DataType) -> pa.Array:
    """An array of values in the form of `by_value`."""
    if t.is_string(wanted):
        return pa.array(values, pa.binary()).view(wanted)
    if t.is_date32(wanted) or t.is_time32(wanted):
        return pa.array(values, pa.int32()).view(wanted)
    return pa.array(values, wanted)


def nulls_of(array: pa.Array) -> Bools:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    found: Bools = array.is_null().to_numpy(zero_copy_only=False)
    return found


def numbers_of(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an integer, float, date, time or timestamp array; undefined where null."""
    kind = "f" if t.is_floating(array.type) else "i"
    return fixed_values(array, np.dtype(f"{kind}{array.type.bit_width // 8}"))


def from_numbers(numbers: npt.NDArray[Any], nulls: Bools, wanted: pa.DataType) -> pa.Array:
    """An array of `wanted` with these stored numbers."""
    stored = pa.array(numbers, mask=nulls if nulls.any() else None)
    return stored if stored.type == wanted else stored.view(wanted)
