"""Converts the columns of a file to the types that output files must have.

Files of older releases and of other writers store the same values in other Arrow types: wider
integers, other decimal widths, other units of time, INT96. A cast never changes a value: a value
that does not fit is an error that names file and column.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from compactord.errors import FormatError
from compactord.formats.parquet.int96 import INT96, convert
from compactord.paimon.wide_timestamps import WIDE_TIMESTAMP


def check_convertible(found: pa.DataType, wanted: pa.DataType, path: str, name: str) -> None:
    """Raise `FormatError` unless type `found` can be cast to `wanted`, value by value."""
    if not _is_convertible(found, wanted):
        raise FormatError(path, f"column {name} is {found} in the file instead of {wanted}")


def converted(batch: pa.RecordBatch, schema: pa.Schema, path: str) -> pa.RecordBatch:
    """The columns of `schema`, in its types and order; `batch` has columns with the same names.

    Raises `FormatError` for a value that does not fit and for a null in a NOT NULL column.
    """
    if batch.schema.equals(schema):
        # Parquet cannot hold nulls in a column that the file itself declares required.
        return batch
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if not column.type.equals(field.type):
            column = _cast(column, field, path)
        if not field.nullable and column.null_count:
            raise FormatError(path, f"column {field.name} is NOT NULL and holds nulls")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    wanted = field.type
    plain = wanted.value_type if t.is_dictionary(wanted) else wanted
    try:
        column = convert(column, plain)
        if t.is_dictionary(wanted) and not t.is_dictionary(column.type):
            column = column.cast(plain).dictionary_encode()
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise FormatError(
            path, f"column {field.name} holds a value that is not a {plain} ({error})"
        ) from error


def _is_int32_based(type_: pa.DataType) -> bool:
    return bool(t.is_date32(type_) or t.is_time32(type_))


def _is_convertible(found: pa.DataType, wanted: pa.DataType) -> bool:
    if t.is_dictionary(found):
        found = found.value_type
    if t.is_dictionary(wanted):
        wanted = wanted.value_type
    if found.equals(wanted):
        return True
    if t.is_struct(wanted):
        return t.is_struct(found) and _have_same_fields(found, wanted)
    if t.is_map(wanted):
        return bool(
            t.is_map(found)
            and _is_convertible(found.key_type, wanted.key_type)
            and _is_convertible(found.item_type, wanted.item_type)
        )
    if t.is_list(wanted):
        return bool(
            (t.is_list(found) or t.is_large_list(found))
            and _is_convertible(found.value_type, wanted.value_type)
        )
    return _is_scalar_convertible(found, wanted)


def _have_same_fields(found: pa.StructType, wanted: pa.StructType) -> bool:
    names = sorted(found.field(i).name for i in range(found.num_fields))
    if names != sorted(wanted.field(i).name for i in range(wanted.num_fields)):
        return False
    return all(_is_convertible(found.field(n).type, wanted.field(n).type) for n in names)


def _is_scalar_convertible(found: pa.DataType, wanted: pa.DataType) -> bool:
    if t.is_timestamp(wanted) or wanted == WIDE_TIMESTAMP:
        return bool(t.is_timestamp(found) or found == INT96)
    if t.is_integer(wanted):
        return bool(t.is_signed_integer(found))
    if _is_int32_based(wanted):
        return bool(t.is_int32(found) or found.id == wanted.id)
    if t.is_floating(wanted):
        return bool(t.is_floating(found))
    if t.is_decimal(wanted):
        return bool(t.is_decimal(found))
    if t.is_string(wanted):
        return bool(t.is_large_string(found) or t.is_string_view(found) or t.is_binary(found))
    if t.is_binary(wanted):
        return _is_bytes(found)
    return False


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        t.is_large_binary(type_) or t.is_fixed_size_binary(type_) or t.is_binary_view(type_)
    )


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
