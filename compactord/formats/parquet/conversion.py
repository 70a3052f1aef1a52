"""Converts Parquet's columns to the Arrow types of a table.

Files of older releases and of other writers store the same values in other Arrow types: wider
integers, other decimal widths, other units of time, INT96. A cast never changes a value: a value
that does not fit is an error that names file and column. Parquet stores leaf columns only; a nested
column has several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from compactord.errors import FormatError, UnreadableColumn
from compactord.formats.layout import null_values, table_columns
from compactord.formats.parquet.int96 import convert
from compactord.paimon.types import DataField, arrow_type

_NONE: Mapping[str, pa.Array] = {}
# Holds any integer.
_WHOLE = pa.decimal128(20, 0)


def converted(
    batch: pa.RecordBatch, schema: pa.Schema, path: str, partition: Mapping[str, pa.Array] = _NONE
) -> pa.RecordBatch:
    """As `table_columns`. Raises `UnreadableColumn` also for a value that does not fit."""
    if batch.schema.equals(schema):
        # Parquet cannot hold nulls in a column that the file itself declares required.
        return batch
    return table_columns(batch, schema, path, partition, partial(_cast, path=path))


def _cast(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    wanted = field.type
    plain = wanted.value_type if t.is_dictionary(wanted) else wanted
    if t.is_null(column.type):
        return null_values(len(column), wanted)
    try:
        if t.is_decimal(plain) and t.is_integer(column.type):
            column = column.cast(_WHOLE)
        column = convert(column, plain)
        if t.is_dictionary(wanted) and not t.is_dictionary(column.type):
            column = column.cast(plain).dictionary_encode()
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise UnreadableColumn(
            path, f"column {field.name} holds a value that is not a {plain} ({error})"
        ) from error


def check_indices(batch: pa.RecordBatch, dictionaries: Iterable[str], path: str) -> None:
    """Raise `FormatError` for indices outside a column's dictionary.

    Arrow does not check the bounds of indices when a header understates the dictionary's size.
    """
    for name in dictionaries:
        column = batch.column(name)
        if not isinstance(column, pa.DictionaryArray):
            continue
        indices, size = column.indices, len(column.dictionary)
        # Indices at null rows may have any value, but are rarely out of bounds.
        if not (_are_below(size, indices) or _are_below(size, indices.drop_null())):
            raise FormatError(path, f"column {name} has values outside of its dictionary")


def _are_below(size: int, indices: pa.Array) -> bool:
    """Whether all int32 indices, null or not, are in 0..`size` - 1; much faster than with Arrow."""
    numbers = np.frombuffer(indices.buffers()[1] or b"", np.uint32)
    numbers = numbers[indices.offset : indices.offset + len(indices)]
    return not numbers.size or bool(numbers.max() < size)


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


def leaf_paths(name: str, type_: pa.DataType) -> list[str]:
    """The dotted paths of the same columns."""
    if pa.types.is_map(type_):
        keys = leaf_paths(f"{name}.key_value.key", type_.key_type)
        return keys + leaf_paths(f"{name}.key_value.value", type_.item_type)
    if pa.types.is_list(type_):
        return leaf_paths(f"{name}.list.element", type_.value_type)
    if pa.types.is_struct(type_):
        fields = (type_.field(i) for i in range(type_.num_fields))
        return [path for each in fields for path in leaf_paths(f"{name}.{each.name}", each.type)]
    return [name]


def top_column(path: str, names: frozenset[str]) -> str | None:
    """The row column of a leaf with this dotted path; names may contain dots themselves."""
    if path in names:
        return path
    parts = path.split(".")
    return next(
        (top for n in range(len(parts) - 1, 0, -1) if (top := ".".join(parts[:n])) in names), None
    )
