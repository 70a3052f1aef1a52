"""Matches the columns of a file with the table's columns.

Files of other writers, which Java's `migrate_table` adds, have no field ids, lack columns, and have
other types. Columns are found by name, as in Java (utils/FormatReaderMapping.java). A type is read
if its values have one meaning in the table's type. Java 2.0.0 reads wrong values of some other
types without an error, for example of decimals of another scale: these are refused by name
(docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types as t

from compactord.errors import UnreadableColumn
from compactord.formats.parquet.footer import Footer
from compactord.formats.parquet.int96 import INT96
from compactord.formats.parquet.thrift import Chunk, Meta, Type
from compactord.paimon.types import (
    FIELD_ID,
    WIDE_TIMESTAMP,
    AtomicType,
    DataField,
    TypeRoot,
    type_text,
)

_NANOSECONDS = "ns"
_NO_FIELD_ID = b"-1"


def check_column(footer: Footer, there: pa.Field, field: DataField, wanted: pa.Field) -> None:
    """Raise `UnreadableColumn` unless a column of the file can be read as the table's."""
    own_id, id_ = (there.metadata or {}).get(FIELD_ID), wanted.metadata[FIELD_ID]
    if own_id not in (None, _NO_FIELD_ID, id_):
        # The name belonged to another column when the file was written.
        raise UnreadableColumn(
            footer.path,
            f"column {field.name} has field id {own_id.decode()} instead of {id_.decode()}:"
            " it was written with another schema",
        )
    if not _is_readable(footer, there, field, wanted.type):
        raise UnreadableColumn(
            footer.path,
            f"column {field.name}: the file has {_stored_text(footer, there)}, the table"
            f" {type_text(field.type)}",
        )


def _is_readable(footer: Footer, there: pa.Field, field: DataField, wanted: pa.DataType) -> bool:
    found = there.type
    if t.is_null(found):
        return _is_all_null(footer, there.name)
    if found == INT96 and _is_int96(footer, there.name) != _is_moment(wanted):
        # Arrow sees bytes in either case.
        return False
    if (
        t.is_fixed_size_binary(found)
        and isinstance(field.type, AtomicType)
        and field.type.root is TypeRoot.BINARY
        and field.type.precision != found.byte_width
    ):
        return False
    return is_convertible(found, wanted)


def _is_int96(footer: Footer, name: str) -> bool:
    leaf = footer.leaf(name)
    return any(
        footer.chunk(group, leaf)[Chunk.META].value[Meta.TYPE].value == Type.INT96
        for group in range(len(footer.groups))
    )


def _is_all_null(footer: Footer, name: str) -> bool:
    """Whether statistics report only nulls: Arrow then returns nulls for any page content."""
    leaf = footer.leaf(name)
    for group in range(len(footer.groups)):
        chunk = footer.arrow.row_group(group).column(leaf)
        found = chunk.statistics
        if found is not None and found.has_null_count and found.null_count != chunk.num_values:
            return False
    return True


def is_convertible(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether type `found` of a file can be read as `wanted`, value by value."""
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
            and is_convertible(found.key_type, wanted.key_type)
            and is_convertible(found.item_type, wanted.item_type)
        )
    if t.is_list(wanted):
        return bool(
            (t.is_list(found) or t.is_large_list(found))
            and is_convertible(found.value_type, wanted.value_type)
        )
    return any(is_of(wanted) and reads(found, wanted) for is_of, reads in _SCALARS)


def _have_same_fields(found: pa.StructType, wanted: pa.StructType) -> bool:
    names = sorted(found.field(i).name for i in range(found.num_fields))
    if names != sorted(wanted.field(i).name for i in range(wanted.num_fields)):
        return False
    return all(is_convertible(found.field(n).type, wanted.field(n).type) for n in names)


def _is_moment(wanted: pa.DataType) -> bool:
    return bool(t.is_timestamp(wanted) or wanted == WIDE_TIMESTAMP)


def _as_moment(found: pa.DataType, wanted: pa.DataType) -> bool:
    if not t.is_timestamp(found):
        return bool(found == INT96)
    # Java multiplies the nanoseconds of 64 bits where the pages have a dictionary.
    return bool(wanted == WIDE_TIMESTAMP or found.unit != _NANOSECONDS)


def _as_integer(found: pa.DataType, wanted: pa.DataType) -> bool:
    if t.is_date32(found) or t.is_time32(found):
        return bool(t.is_int32(wanted))
    return bool(t.is_integer(found))


def _as_decimal(found: pa.DataType, wanted: pa.DataType) -> bool:
    if t.is_decimal(found):
        return bool(found.scale == wanted.scale)
    return bool(t.is_signed_integer(found) and wanted.scale == 0)


def _as_int32(found: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(t.is_int32(found) or found.id == wanted.id)


def _as_float(found: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(t.is_float32(found) or t.is_float64(found))


def _as_text(found: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(t.is_large_string(found) or t.is_string_view(found) or t.is_binary(found))


def _as_bytes(found: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(
        t.is_string(found)
        or t.is_large_string(found)
        or t.is_large_binary(found)
        or t.is_fixed_size_binary(found)
        or t.is_binary_view(found)
    )


_Test = Callable[[pa.DataType], bool]
_Reads = Callable[[pa.DataType, pa.DataType], bool]
# For each kind of the table's type, whether another type of a file is read as it.
_SCALARS: tuple[tuple[_Test, _Reads], ...] = (
    (_is_moment, _as_moment),
    (t.is_integer, _as_integer),
    (t.is_date32, _as_int32),
    (t.is_time32, _as_int32),
    (t.is_floating, _as_float),
    (t.is_decimal, _as_decimal),
    (t.is_string, _as_text),
    (t.is_binary, _as_bytes),
)


def _stored_text(footer: Footer, there: pa.Field) -> str:
    """The type of a column in the file for messages: `INT32 (DATE)`."""
    type_ = there.type
    if t.is_nested(type_):
        return str(type_)
    column = footer.arrow.schema.column(footer.leaf(there.name))
    physical = "INT96" if type_ == INT96 and _is_int96(footer, there.name) else column.physical_type
    if t.is_decimal(type_):
        meaning = f"DECIMAL({type_.precision}, {type_.scale})"
    elif t.is_timestamp(type_):
        meaning = f"TIMESTAMP in {type_.unit}"
    elif t.is_time(type_):
        meaning = f"TIME in {type_.unit}"
    else:
        meaning = str(column.logical_type.type)
        if meaning == "INT":
            meaning = str(type_).upper()
    return physical if meaning in ("NONE", physical) else f"{physical} ({meaning})"
