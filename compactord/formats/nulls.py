"""Arrays of nulls, in which NOT NULL fields of a ROW are not null themselves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import types as t


def without_nulls(array: pa.Array) -> pa.Array:
    """The array with undefined values in place of nulls: for NOT NULL fields of ROWs that are null.

    Arrow's writer of data files wants no nulls there.
    """
    if array.offset:
        array = pa.concat_arrays([array, array.slice(0, 0)])
    type_, buffers = array.type, array.buffers()
    if t.is_struct(type_):
        children = [array.field(number) for number in range(type_.num_fields)]
        return pa.Array.from_buffers(type_, len(array), [None], children=children)
    if t.is_map(type_):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=type_)
    if t.is_list(type_):
        return pa.Array.from_buffers(type_, len(array), [None, buffers[1]], children=[array.values])
    return pa.Array.from_buffers(type_, len(array), [None, *buffers[1:]])


def null_values(count: int, wanted: pa.DataType) -> pa.Array:
    """Nulls of a type; NOT NULL fields of a ROW have undefined values, not nulls."""
    if not t.is_struct(wanted):
        return pa.nulls(count, wanted)
    fields = [wanted.field(number) for number in range(wanted.num_fields)]
    children = [null_values(count, field.type) for field in fields]
    return pa.StructArray.from_arrays(
        [
            child if field.nullable else without_nulls(child)
            for child, field in zip(children, fields, strict=True)
        ],
        fields=fields,
        mask=pa.array(np.ones(count, np.bool_)),
    )
