"""The supported merge functions by the name of their merge engine.

A registry of its own: it imports what it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from compactord.errors import SubcompactionError
from compactord.kernels.aggregators.registry import missing_package
from compactord.kernels.functions.base import DEDUPLICATE, FirstRow, MergeFunction
from compactord.kernels.functions.folding import Aggregation
from compactord.kernels.functions.partial_update import PartialUpdate
from compactord.paimon.options.merge import MergeRules

# Merge engine -> constructor of its function from a table's rules.
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

    Raises `SubcompactionError` for an unknown engine, or if this process lacks a package for an
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
