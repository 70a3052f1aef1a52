"""Types and values of ORC files, as Arrow reads and writes them.

Arrow's ORC library has no times of day and no timestamps but of nanoseconds, which end in 1677 and
2262. Some timestamps cannot be exchanged with Java's library. A column with such a value is
refused, in both directions: a rewrite would change it, or make a file that Java cannot read.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.types import (
    BINARIES,
    FIELD_ID,
    TICKS_PRECISION_MAX,
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    MultisetType,
    RowType,
    TypeRoot,
)

_ID = b"paimon.id"
_NANOS = pa.timestamp("ns")
_SECOND, _MILLI = 10**9, 10**6
# Both libraries add or subtract a second around the epoch, in the time zone of the writer.
_DAY = 86_400 * _SECOND


def holds(type_: DataType) -> bool:
    """Whether columns of the type are read and written.

    The meaning of TIMESTAMP WITH LOCAL TIME ZONE depends on the time zone of the JVM that wrote it,
    and Arrow does not show that zone.
    """
    match type_:
        case AtomicType(root=TypeRoot.TIMESTAMP):
            return (type_.precision or 0) <= TICKS_PRECISION_MAX
        case AtomicType(root=root):
            return root not in (TypeRoot.TIMESTAMP_LTZ, TypeRoot.VARIANT, TypeRoot.BLOB)
        case ArrayType(element=element) | MultisetType(element=element):
            return holds(element)
        case MapType(key=key, value=value):
            return holds(key) and holds(value)
        case RowType(fields=fields):
            return all(holds(field.type) for field in fields)
        case _:
            return False


def stored_field(field: pa.Field) -> pa.Field:
    """The column in a file; Java finds columns by the attribute `paimon.id`."""
    own = (field.metadata or {}).get(FIELD_ID)
    metadata = None if own is None else {_ID: own}
    return pa.field(field.name, stored_type(field.type), True, metadata)


def stored_type(type_: pa.DataType) -> pa.DataType:
    """The type in a file; all values may be null there."""
    if t.is_time(type_):
        return pa.int32()
    if t.is_timestamp(type_):
        return _NANOS
    if t.is_map(type_):
        keys = stored_field(type_.key_field).with_nullable(False)
        return pa.map_(keys, stored_field(type_.item_field))
    if t.is_list(type_):
        return pa.list_(stored_field(type_.value_field).with_name("element"))
    if t.is_struct(type_):
        return pa.struct([stored_field(type_.field(i)) for i in range(type_.num_fields)])
    return type_


def without_ids(type_: pa.DataType) -> pa.DataType:
    """The type without the ids and nullability of its inside, to compare types."""
    if t.is_map(type_):
        return pa.map_(without_ids(type_.key_type), without_ids(type_.item_type))
    if t.is_list(type_):
        return pa.list_(without_ids(type_.value_type))
    if t.is_struct(type_):
        fields = (type_.field(i) for i in range(type_.num_fields))
        return pa.struct([(field.name, without_ids(field.type)) for field in fields])
    return type_


def trimmed(column: pa.Array, field: DataField) -> pa.Array:
    """Values of a CHAR column without the blanks to its length, which Java's readers remove."""
    if isinstance(field.type, AtomicType) and field.type.root is TypeRoot.CHAR:
        return pc.ascii_rtrim(column, characters=" ")
    return column


def recorded(bounds: ColumnBounds) -> ColumnBounds:
    """The bounds as Java records them for an ORC file: binary columns have none.

    Bounds of CHAR have no blanks to its length, as Java would not find empty texts otherwise.
    """
    if isinstance(bounds.type, AtomicType) and bounds.type.root in BINARIES:
        return replace(bounds, minimum=None, maximum=None)
    return bounds


def unusable_moment(column: pa.Array, *, written: bool) -> str | None:
    """Why a timestamp in a column of a file cannot be read, or `written`; None if all can.

    Looks into nested columns.
    """
    if t.is_timestamp(column.type):
        return _unusable(column.cast(pa.int64()).drop_null(), written=written)
    if t.is_map(column.type):
        inside = [column.keys, column.items]
    elif t.is_list(column.type) or t.is_struct(column.type):
        inside = column.flatten() if t.is_struct(column.type) else [column.flatten()]
    else:
        return None
    found = (unusable_moment(each, written=written) for each in inside)
    return next((why for why in found if why is not None), None)


def _unusable(column: pa.Array, *, written: bool) -> str | None:
    nanos = column.to_numpy(zero_copy_only=False)
    if not len(nanos):
        return None
    for is_unusable, why in (
        (
            (np.abs(nanos) < _DAY) & (nanos % _SECOND != 0),
            "within a day of 1970-01-01 with a fraction of a second",
        ),
        (
            written & (nanos < 0) & (nanos % _MILLI != 0),
            "before 1970 with a fraction of a millisecond",
        ),
    ):
        if is_unusable.any():
            first = np.datetime64(int(nanos[np.argmax(is_unusable)]), "ns")
            return f"{first} is {why}, where the ORC libraries of Java and Arrow differ"
    return None
