"""Strategies for Paimon types and values, and the form in which the judge takes values."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from compactord.paimon.types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
)

NUMBERS = {
    TypeRoot.TINYINT: 8,
    TypeRoot.SMALLINT: 16,
    TypeRoot.INT: 32,
    TypeRoot.BIGINT: 64,
    TypeRoot.DATE: 32,
}
TEXTS = (TypeRoot.CHAR, TypeRoot.VARCHAR)
BINARIES = (TypeRoot.BINARY, TypeRoot.VARBINARY)
TIMESTAMPS = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
MS_OF_DAY = 86_400_000


@st.composite
def atomic_types(draw: st.DrawFn) -> AtomicType:
    root = draw(st.sampled_from([r for r in TypeRoot if r.value not in ("VARIANT", "BLOB")]))
    precision = scale = None
    if root is TypeRoot.DECIMAL:
        precision = draw(st.integers(1, 38))
        scale = draw(st.integers(0, precision))
    elif root in (TypeRoot.TIME, *TIMESTAMPS):
        precision = draw(st.integers(0, 9))
    elif root in (*TEXTS, *BINARIES):
        precision = draw(st.sampled_from([64, 2**31 - 1]))
    return AtomicType(root=root, precision=precision, scale=scale)


def nested_types() -> st.SearchStrategy[DataType]:
    def wrap(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
        return st.one_of(
            st.builds(ArrayType, element=inner),
            st.builds(MapType, key=atomic_types(), value=inner),
            st.builds(MultisetType, element=atomic_types()),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda types: RowType(
                    fields=tuple(
                        DataField(id=100 + i, name=f"f{i}", type=t) for i, t in enumerate(types)
                    )
                )
            ),
        )

    return st.recursive(atomic_types(), wrap, max_leaves=4)


def values(type_: DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    present = _present(type_)
    return st.one_of(st.none(), present) if nullable else present


def _present(type_: DataType) -> st.SearchStrategy[Any]:
    match type_:
        case AtomicType():
            return _atomic(type_)
        case ArrayType(element=element):
            return st.lists(values(element), max_size=4)
        case MapType(key=key, value=value):
            pairs = st.tuples(values(key, nullable=False), values(value))
            return st.lists(pairs, max_size=3, unique_by=_first)
        case MultisetType(element=element):
            pairs = st.tuples(values(element, nullable=False), st.integers(1, 9))
            return st.lists(pairs, max_size=3, unique_by=_first)
        case RowType(fields=fields):
            return st.tuples(*(values(field.type) for field in fields))
        case _:
            raise AssertionError(type_)


def _first(pair: tuple[Any, Any]) -> str:
    return repr(pair[0])


def _atomic(type_: AtomicType) -> st.SearchStrategy[Any]:
    root, precision = type_.root, type_.precision or 0
    if root is TypeRoot.BOOLEAN:
        return st.booleans()
    if root in NUMBERS:
        half = 2 ** (NUMBERS[root] - 1)
        return st.integers(-half, half - 1)
    if root is TypeRoot.TIME:
        return st.integers(0, MS_OF_DAY - 1)
    if root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
        return st.floats(width=32 if root is TypeRoot.FLOAT else 64, allow_nan=True)
    if root is TypeRoot.DECIMAL:
        limit = 10**precision - 1
        return st.integers(-limit, limit).map(lambda n: decimal(n, type_.scale or 0))
    if root in TEXTS:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    if root in BINARIES:
        return st.binary(max_size=20)
    unit = 10 ** (9 - precision)
    # Java's local date-times reach ±292 million years; far more than enough is drawn here.
    return st.integers(-(10**21) // unit, 10**21 // unit).map(lambda ticks: ticks * unit)


def decimal(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def same(left: Any, right: Any) -> bool:
    """Equality that tells zeros apart and takes NaN for itself."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)


def judged(value: Any, type_: DataType) -> Any:
    """The value in the form of tests/oracle/judge.py."""
    if value is None:
        return None
    match type_:
        case AtomicType(root=root):
            if root is TypeRoot.DECIMAL:
                return f"{value:f}"
            if root in BINARIES:
                return f"x:{value.hex()}"
            if root in TIMESTAMPS:
                return f"{value // 1_000_000}:{value % 1_000_000}"
            return value
        case ArrayType(element=element):
            return [judged(item, element) for item in value]
        case MapType(key=key, value=item):
            return [[judged(k, key), judged(v, item)] for k, v in value]
        case MultisetType(element=element):
            return [[judged(k, element), count] for k, count in value]
        case RowType(fields=fields):
            pairs = zip(value, fields, strict=True)
            return [judged(item, field.type) for item, field in pairs]
        case _:
            raise AssertionError(type_)
