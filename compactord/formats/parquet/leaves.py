"""Leaf columns: Parquet stores only these, and a nested column has several."""

from __future__ import annotations

import pyarrow as pa

from compactord.paimon.types import DataField, arrow_type


def leaf_count(field: DataField) -> int:
    """The number of Parquet columns of a column: more than one if it is nested."""
    return len(leaf_types(arrow_type(field.type)))


def leaf_types(type_: pa.DataType) -> list[pa.DataType]:
    """The types of the Parquet columns of a column, in the order of the file."""
    if pa.types.is_map(type_):
        return leaf_types(type_.key_type) + leaf_types(type_.item_type)
    if pa.types.is_list(type_):
        return leaf_types(type_.value_type)
    if pa.types.is_struct(type_):
        return [leaf for i in range(type_.num_fields) for leaf in leaf_types(type_.field(i).type)]
    return [type_]


def top_column(path: str, names: frozenset[str]) -> str | None:
    """The row column of a leaf with this dotted path; names may contain dots themselves."""
    if path in names:
        return path
    parts = path.split(".")
    return next(
        (top for n in range(len(parts) - 1, 0, -1) if (top := ".".join(parts[:n])) in names), None
    )
