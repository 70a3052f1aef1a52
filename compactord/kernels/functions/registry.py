"""The supported merge functions by the name of their merge engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from compactord.errors import TaskError
from compactord.kernels.functions.base import MergeFunction
from compactord.kernels.functions.deduplicate import Deduplicate

MergeFunctions: TypeAlias = Mapping[str, MergeFunction]

MERGE_FUNCTIONS: MergeFunctions = {
    "deduplicate": Deduplicate(),
}


def function_named(name: str, functions: MergeFunctions) -> MergeFunction:
    """The function of the merge engine `name`. Raises `TaskError` when there is none."""
    if name not in functions:
        raise TaskError(f"merge engine {name} is not supported")
    return functions[name]
