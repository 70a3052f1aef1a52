"""The supported merge functions by the name of their merge engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators.registry import missing_package
from compactord.kernels.functions.base import DEDUPLICATE, FirstRow, MergeFunction
from compactord.kernels.functions.folding import Aggregation
from compactord.kernels.functions.partial_update import PartialUpdate
from compactord.paimon.options.merge import MergeRules

# What makes the function of an engine from the rules of a table.
MergeFunctions: TypeAlias = Mapping[str, Callable[[MergeRules], MergeFunction]]

# The engine that keeps the last record of each key.
LAST_RECORD = "deduplicate"

MERGE_FUNCTIONS: MergeFunctions = {
    LAST_RECORD: lambda _: DEDUPLICATE,
    "partial-update": PartialUpdate,
    "aggregation": Aggregation,
    "first-row": lambda _: FirstRow(),
}


def function_named(name: str, rules: MergeRules, functions: MergeFunctions) -> MergeFunction:
    """The function of the merge engine `name`.

    Raises `SubcompactionError` when there is none, or when this process lacks a package for an
    aggregator.
    """
    if name not in functions:
        raise SubcompactionError(f"merge engine {name} is not supported")
    for rule in rules.columns:
        why = missing_package(rule.aggregator)
        if why:
            raise SubcompactionError(
                f"column {rule.column}: aggregate function {rule.aggregator} {why}"
            )
    return functions[name](rules)
