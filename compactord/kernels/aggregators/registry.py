"""The registry of aggregators, and reasons why a column cannot have one.

Sources of the reasons: mergetree/compact/aggregate/factory/*.java.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators import inserts
from compactord.kernels.aggregators.base import Accumulator, Values
from compactord.kernels.aggregators.bitmap64_inserts import rbm64_unions
from compactord.kernels.aggregators.bitmap_inserts import rbm32_unions
from compactord.kernels.aggregators.bitmaps import RoaringBitmap32, RoaringBitmap64
from compactord.kernels.aggregators.numbers import BoolAnd, BoolOr, Product, Sum
from compactord.kernels.aggregators.set_unions import united_sets
from compactord.kernels.aggregators.sketch_inserts import hll_unions, theta_unions
from compactord.kernels.aggregators.sketches import HllSketch, ThetaSketch
from compactord.kernels.aggregators.values import (
    Collect,
    FirstNonNullValue,
    FirstValue,
    LastNonNullValue,
    LastValue,
    Listagg,
    Max,
    MergeMap,
    MergeMapWithKeyTime,
    Min,
    NestedPartialUpdate,
    NestedUpdate,
    PrimaryKey,
)
from compactord.paimon.options.merge import AGGREGATION_REMOVES, ColumnRule, MergeRules
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import (
    NUMBERS,
    STRING,
    TEXTS,
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    RowType,
    TypeRoot,
    type_text,
)

INSTALL_SKETCHES = "pip install 'datasketches>=5.2,<6'"
_Check = Callable[[DataType, ColumnRule], str]


def accumulator(values: Values, rule: ColumnRule) -> Accumulator:
    """An accumulator without values. Raises `SubcompactionError` for an unknown aggregator."""
    if rule.aggregator not in AGGREGATORS:
        raise SubcompactionError(f"aggregate function {rule.aggregator} is not supported")
    made, _ = AGGREGATORS[rule.aggregator]
    return made(values, rule)


def rule_reasons(schema: TableSchema, rules: MergeRules, raw: Mapping[str, str]) -> Iterator[str]:
    """Why a column cannot have its aggregator."""
    types = {field.name: field.type for field in schema.fields}
    removes = raw.get(AGGREGATION_REMOVES, "").lower() == "true"
    for rule in rules.columns:
        if rule.aggregator not in AGGREGATORS:
            yield f"column {rule.column}: aggregate function {rule.aggregator} is unknown"
            continue
        _, check = AGGREGATORS[rule.aggregator]
        if problem := check(types[rule.column], rule):
            yield f"column {rule.column}: aggregate function {rule.aggregator} {problem}"
        if rule.ignore_retract and removes:
            yield (
                f"options {AGGREGATION_REMOVES} and fields.{rule.column}.ignore-retract "
                "contradict each other"
            )


def _any_type(type_: DataType, rule: ColumnRule) -> str:
    return ""


def _one_of(what: str, roots: Collection[TypeRoot]) -> _Check:
    def check(type_: DataType, rule: ColumnRule) -> str:
        if isinstance(type_, AtomicType) and type_.root in roots:
            return ""
        return f"needs {what}, not {type_text(type_)}"

    return check


_number = _one_of("a number", NUMBERS)
_boolean = _one_of("a BOOLEAN", {TypeRoot.BOOLEAN})
_bytes = _one_of("a VARBINARY", {TypeRoot.VARBINARY})


def _string(type_: DataType, rule: ColumnRule) -> str:
    # Nullability is ignored.
    is_string = isinstance(type_, AtomicType) and replace(type_, nullable=True) == STRING
    return "" if is_string else f"needs a STRING, not {type_text(type_)}"


def _sketch(type_: DataType, rule: ColumnRule) -> str:
    return _bytes(type_, rule) or missing_package(rule.aggregator)


def missing_package(aggregator: str) -> str:
    """The requirement of an aggregator that this installation lacks, with the remedy; "" without
    one.
    """
    if aggregator not in ("hll_sketch", "theta_sketch") or find_spec("datasketches"):
        return ""
    return f"needs the package datasketches: {INSTALL_SKETCHES}"


def _array(type_: DataType, rule: ColumnRule) -> str:
    return "" if isinstance(type_, ArrayType) else f"needs an ARRAY, not {type_text(type_)}"


def _map(type_: DataType, rule: ColumnRule) -> str:
    return "" if isinstance(type_, MapType) else f"needs a MAP, not {type_text(type_)}"


def _timed_map(type_: DataType, rule: ColumnRule) -> str:
    values = type_.value if isinstance(type_, MapType) else None
    if not isinstance(values, RowType) or len(values.fields) < 2:
        return f"needs a MAP of ROWs with two fields or more, not {type_text(type_)}"
    by_name = {field.name: field.type for field in values.fields}
    name = rule.time_field or values.fields[-1].name
    if name not in by_name:
        return f"has the time field {name}, which the map's values lack"
    time = by_name[name]
    if not isinstance(time, AtomicType) or time.root not in TEXTS:
        return f"compares times as texts, and field {name} has type {type_text(time)}"
    return ""


def _nested(type_: DataType, rule: ColumnRule) -> str:
    rows = type_.element if isinstance(type_, ArrayType) else None
    if not isinstance(rows, RowType):
        return f"needs an ARRAY of ROWs, not {type_text(type_)}"
    names = {field.name for field in rows.fields}
    for name in (*rule.nested_key, *rule.nested_sequence):
        if name not in names:
            return f"names the field {name}, which the array's rows lack"
    if rule.nested_sequence and not rule.nested_key:
        return "has a nested-sequence-field without a nested-key"
    return ""


def _nested_with_key(type_: DataType, rule: ColumnRule) -> str:
    return _nested(type_, rule) if rule.nested_key else "needs a nested-key"


# Aggregators by name, each with a check of the column's type. A check returns the problem or "".
AGGREGATORS: Mapping[str, tuple[Callable[[Values, ColumnRule], Accumulator], _Check]] = {
    "sum": (Sum, _number),
    "product": (Product, _number),
    "max": (Max, _any_type),
    "min": (Min, _any_type),
    "last_value": (LastValue, _any_type),
    "last_non_null_value": (LastNonNullValue, _any_type),
    "first_value": (FirstValue, _any_type),
    "first_non_null_value": (FirstNonNullValue, _any_type),
    "first_not_null_value": (FirstNonNullValue, _any_type),
    "bool_and": (BoolAnd, _boolean),
    "bool_or": (BoolOr, _boolean),
    "listagg": (Listagg, _string),
    "collect": (Collect, _array),
    "merge_map": (MergeMap, _map),
    "merge_map_with_keytime": (MergeMapWithKeyTime, _timed_map),
    "nested_update": (NestedUpdate, _nested),
    "nested_partial_update": (NestedPartialUpdate, _nested_with_key),
    "rbm32": (RoaringBitmap32, _bytes),
    "rbm64": (RoaringBitmap64, _bytes),
    "hll_sketch": (HllSketch, _sketch),
    "theta_sketch": (ThetaSketch, _sketch),
    "primary-key": (PrimaryKey, _any_type),
}
# The aggregators that fold the inserts of all keys at once.
FOLDS: Mapping[str, inserts.Fold] = {
    "listagg": inserts.listagg,
    "collect": inserts.collect,
    "merge_map": inserts.merge_map,
    "merge_map_with_keytime": inserts.merge_map_with_keytime,
    "nested_update": inserts.nested_update,
    "nested_partial_update": inserts.nested_partial_update,
    "rbm32": partial(united_sets, rbm32_unions, RoaringBitmap32),
    "rbm64": partial(united_sets, rbm64_unions, RoaringBitmap64),
    "hll_sketch": partial(united_sets, hll_unions, HllSketch),
    "theta_sketch": partial(united_sets, theta_unions, ThetaSketch),
}
