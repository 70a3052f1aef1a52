"""Values in the judge's JSON form as Arrow arrays, and back."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.paimon.types import (
    BINARIES,
    FLOATS,
    MOMENTS,
    TEXTS,
    AtomicType,
    TypeRoot,
    arrow_type,
)
from compactord.rewrite.casting.moments import Moments, moments_of, stored
from tests.oracle.judge_jvm import Value


def arrow_values(values: Sequence[Value], type_: AtomicType) -> pa.Array:
    """An array of the type's Arrow type."""
    wanted = arrow_type(type_)
    if type_.root in MOMENTS:
        pairs = [(0, 0) if v is None else tuple(map(int, v.split(":"))) for v in values]
        return stored(
            Moments(
                np.array([pair[0] for pair in pairs], np.int64),
                np.array([pair[1] for pair in pairs], np.int64),
                np.array([value is None for value in values], np.bool_),
            ),
            type_,
        )
    if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
        return pa.array(values, pa.int32()).view(wanted)
    return pa.array([_python(value, type_.root) for value in values], wanted)


def _python(value: Value, root: TypeRoot) -> Any:
    if value is None:
        return None
    if root in BINARIES:
        return bytes.fromhex(value.removeprefix("x:"))
    if root in FLOATS:
        return float(value)
    return Decimal(value) if root is TypeRoot.DECIMAL else value


def json_values(array: pa.Array, type_: AtomicType) -> list[Value]:
    """The judge's form of an array; NaN and infinities as texts, and zeros with their sign."""
    if type_.root in MOMENTS:
        moments = moments_of(array)
        return [
            None if null else f"{milli}:{nano}"
            for milli, nano, null in zip(
                moments.millis.tolist(), moments.nanos.tolist(), moments.nulls.tolist(), strict=True
            )
        ]
    if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
        return list(array.view(pa.int32()).to_pylist())
    if type_.root in TEXTS:
        raw = array.view(pa.binary()).to_pylist()
        return [None if value is None else value.decode(errors="replace") for value in raw]
    return [_json(value, type_.root) for value in array.to_pylist()]


def _json(value: Any, root: TypeRoot) -> Value:
    if value is None:
        return None
    if root in BINARIES:
        return f"x:{value.hex()}"
    if root is TypeRoot.DECIMAL:
        return f"{value:f}"
    if root in FLOATS:
        if value != value:
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        return "-0.0" if value == 0 and str(value).startswith("-") else value
    return value
