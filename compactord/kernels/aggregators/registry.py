"""The aggregators by the names that tables give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compactord.errors import TaskError
from compactord.kernels.aggregators.base import Accumulator, Values
from compactord.kernels.aggregators.bitmaps import RoaringBitmap32, RoaringBitmap64
from compactord.kernels.aggregators.collections import Collect, MergeMap, MergeMapWithKeyTime
from compactord.kernels.aggregators.extremes import Max, Min
from compactord.kernels.aggregators.nested import NestedPartialUpdate, NestedUpdate
from compactord.kernels.aggregators.numbers import BoolAnd, BoolOr, Product, Sum
from compactord.kernels.aggregators.selecting import (
    FirstNonNullValue,
    FirstValue,
    LastNonNullValue,
    LastValue,
    PrimaryKey,
)
from compactord.kernels.aggregators.sketches import HllSketch, ThetaSketch
from compactord.kernels.aggregators.texts import Listagg
from compactord.paimon.merge_rules import ColumnRule

ACCUMULATORS: Mapping[str, Callable[[Values, ColumnRule], Accumulator]] = {
    "sum": Sum,
    "product": Product,
    "max": Max,
    "min": Min,
    "last_value": LastValue,
    "last_non_null_value": LastNonNullValue,
    "first_value": FirstValue,
    "first_non_null_value": FirstNonNullValue,
    "first_not_null_value": FirstNonNullValue,
    "bool_and": BoolAnd,
    "bool_or": BoolOr,
    "listagg": Listagg,
    "collect": Collect,
    "merge_map": MergeMap,
    "merge_map_with_keytime": MergeMapWithKeyTime,
    "nested_update": NestedUpdate,
    "nested_partial_update": NestedPartialUpdate,
    "rbm32": RoaringBitmap32,
    "rbm64": RoaringBitmap64,
    "hll_sketch": HllSketch,
    "theta_sketch": ThetaSketch,
    "primary-key": PrimaryKey,
}


def accumulator(values: Values, rule: ColumnRule) -> Accumulator:
    """An accumulator without values. Raises `TaskError` for an unknown aggregator."""
    if rule.aggregator not in ACCUMULATORS:
        raise TaskError(f"aggregate function {rule.aggregator} is not supported")
    return ACCUMULATORS[rule.aggregator](values, rule)
