"""Rules for casts between column types.

A column keeps its id when its type is altered. Files written before have values of the old type,
which are cast when they are read.

Sources: casting/CastExecutors.java and its rules, schema/SchemaEvolutionUtil.java.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from compactord.formats.layout import null_values, without_nulls
from compactord.paimon.types import (
    BINARIES,
    FLOATS,
    INTEGERS,
    MOMENTS,
    NUMBERS,
    STRING,
    TEXTS,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    RowType,
    TypeRoot,
    arrow_type,
    same_type,
    shares_fields,
    type_text,
)
from compactord.rewrite.casting import moments, texts
from compactord.rewrite.casting.texts import (
    array_texts,
    boolean_to_number,
    decimal_to_decimal,
    decimal_to_number,
    map_texts,
    number_to_boolean,
    number_to_decimal,
    number_to_number,
    row_texts,
)
from compactord.rewrite.casting.values import CastError, Change, nulls_of

Cast: TypeAlias = Callable[[pa.Array, Change], pa.Array]

_BOOLEAN = frozenset({TypeRoot.BOOLEAN})
_DECIMAL = frozenset({TypeRoot.DECIMAL})
_DATE = frozenset({TypeRoot.DATE})
_TIME = frozenset({TypeRoot.TIME})
_CLOCKS = MOMENTS | _DATE | _TIME
_SECONDS = frozenset({TypeRoot.INT, TypeRoot.BIGINT})
_Roots: TypeAlias = frozenset[TypeRoot]

_CASTS: tuple[tuple[_Roots, _Roots, Cast], ...] = (
    (INTEGERS | FLOATS, INTEGERS | FLOATS, number_to_number),
    (INTEGERS | FLOATS, _DECIMAL, number_to_decimal),
    (_DECIMAL, _DECIMAL, decimal_to_decimal),
    (_DECIMAL, INTEGERS | FLOATS, decimal_to_number),
    (_BOOLEAN, NUMBERS, boolean_to_number),
    (INTEGERS, _BOOLEAN, number_to_boolean),
    (NUMBERS | _BOOLEAN, TEXTS, texts.plain_to_text),
    (TEXTS, TEXTS, texts.text_to_text),
    (BINARIES, TEXTS, texts.binary_to_text),
    (TEXTS | BINARIES, BINARIES, texts.to_binary),
    (TEXTS, _BOOLEAN, texts.text_to_boolean),
    (TEXTS, NUMBERS, texts.text_to_number),
    (TEXTS, _DATE | _TIME, texts.text_to_clock),
    (TEXTS, MOMENTS, texts.text_to_moment),
    (MOMENTS, MOMENTS, moments.moment_to_moment),
    (MOMENTS, _DATE, moments.moment_to_date),
    (MOMENTS, _TIME, moments.moment_to_time),
    (MOMENTS, _SECONDS, moments.moment_to_number),
    (MOMENTS, TEXTS, moments.moment_to_text),
    (_SECONDS, MOMENTS, moments.number_to_moment),
    (_DATE, MOMENTS, moments.date_to_moment),
    (_TIME, MOMENTS, moments.time_to_moment),
    (_DATE | _TIME, TEXTS, moments.clock_to_text),
)


def why_not_castable(source: DataType, target: DataType) -> str | None:
    """Why values of `source` cannot be read as `target`, or None if they can."""
    if same_type(source, target):
        return None
    match source, target:
        case RowType(fields=old), RowType(fields=new):
            by_id = {field.id: field.type for field in old}
            reasons = [
                why_not_castable(by_id[field.id], field.type) for field in new if field.id in by_id
            ]
            return next((reason for reason in reasons if reason is not None), None)
        case ArrayType(element=old_element), ArrayType(element=new_element):
            return why_not_castable(old_element, new_element)
        case MapType(key=old_key, value=old_value), MapType(key=new_key, value=new_value):
            if old_key != new_key:
                return f"its map key changed from {type_text(old_key)} to {type_text(new_key)}"
            return why_not_castable(old_value, new_value)
        case AtomicType(), AtomicType():
            if _rule(source, target) is not None:
                return None
        case _, AtomicType(root=root) if root in TEXTS and _is_printable(source):
            return None
    return f"there is no cast from {type_text(source)} to {type_text(target)}"


def _is_printable(source: DataType) -> bool:
    match source:
        case AtomicType():
            return _rule(source, STRING) is not None
        case ArrayType(element=element):
            return _is_printable(element)
        case MapType(key=key, value=value):
            return _is_printable(key) and _is_printable(value)
        case RowType(fields=fields):
            return all(_is_printable(field.type) for field in fields)
        case _:
            return False


def _rule(source: AtomicType, target: AtomicType) -> Cast | None:
    if source.root in _CLOCKS and target.root in TEXTS and target != STRING:
        # Java registers these rules for STRING itself, not for texts of a length or NOT NULL.
        return None
    found = (
        rule
        for sources, targets, rule in _CASTS
        if source.root in sources and target.root in targets
    )
    return next(found, None)


def cast(array: pa.Array, source: DataType, target: DataType, zone: datetime.tzinfo) -> pa.Array:
    """The values in the Arrow type of `target`; values of a missing field are null.

    `array` has the Arrow type of `source` and is not dictionary-encoded. Raises `CastError` for a
    value that cannot be cast, and for null where `target` has a nested NOT NULL.
    """
    if not shares_fields(source, target):
        return null_values(len(array), arrow_type(target))
    match source, target:
        case AtomicType(), AtomicType():
            if same_type(source, target):
                return array
            return _atomic(array, Change(source, target, zone))
        case RowType(), RowType():
            return _row(array, source, target, zone)
        case ArrayType(element=old), ArrayType(element=new):
            array = _aligned(array)
            values = _inside(array.values, old, new, zone, "element")
            nulls = pa.array(nulls_of(array))
            return pa.ListArray.from_arrays(
                array.offsets, values, type=arrow_type(target), mask=nulls
            )
        case MapType(key=key, value=old), MapType(value=new):
            array = _aligned(array)
            keys = cast(array.keys, key, key, zone)
            items = _inside(array.items, old, new, zone, "value")
            return pa.MapArray.from_arrays(
                array.offsets,
                keys,
                items,
                type=arrow_type(target),
                mask=pa.array(nulls_of(array)),
            )
        case _, AtomicType():
            return texts.of_length(_to_text(array, source, zone), target)
    return array


def _aligned(array: pa.Array) -> pa.Array:
    """A copy without an offset: children of a sliced array are not aligned with its rows."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset or len(array) else array


def _row(array: pa.Array, source: RowType, target: RowType, zone: datetime.tzinfo) -> pa.Array:
    array = _aligned(array)
    nulls = nulls_of(array)
    # Values inside of a null ROW are undefined: `flatten` makes them null.
    old = {f.id: (f, child) for f, child in zip(source.fields, array.flatten(), strict=True)}
    wanted = arrow_type(target)
    children = []
    for field in target.fields:
        if field.id in old:
            before, values = old[field.id]
            try:
                child = cast(values, before.type, field.type, zone)
            except CastError as error:
                raise CastError(f"field {field.name}: {error}") from error
        else:
            child = null_values(len(array), wanted.field(field.name).type)
        if not field.type.nullable and child.null_count:
            if (nulls_of(child) & ~nulls).any():
                raise CastError(f"field {field.name} is NOT NULL and its value is null")
            child = without_nulls(child)
        children.append(child)
    return pa.StructArray.from_arrays(
        children,
        fields=[wanted.field(number) for number in range(wanted.num_fields)],
        mask=pa.array(nulls),
    )


def _inside(
    array: pa.Array, source: DataType, target: DataType, zone: datetime.tzinfo, name: str
) -> pa.Array:
    values = cast(array, source, target, zone)
    if not target.nullable and values.null_count:
        raise CastError(f"an {name} is NOT NULL and its value is null")
    return values


def _atomic(array: pa.Array, change: Change) -> pa.Array:
    rule = _rule(change.source, change.target)
    if rule is None:
        source, target = type_text(change.source), type_text(change.target)
        raise CastError(f"there is no cast from {source} to {target}")
    return rule(array, change)


def _to_text(array: pa.Array, source: DataType, zone: datetime.tzinfo) -> pa.Array:
    def inner(values: pa.Array, type_: DataType) -> pa.Array:
        return _to_text(values, type_, zone)

    match source:
        case AtomicType():
            return cast(array, source, STRING, zone)
        case ArrayType(element=element):
            return array_texts(_aligned(array), element, inner)
        case MapType():
            return map_texts(_aligned(array), source, inner)
        case RowType():
            return row_texts(_aligned(array), source, inner)
    raise CastError(f"there is no cast from {type_text(source)} to STRING")
