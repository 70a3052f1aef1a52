"""The logical layout of data files: columns, key ranges, bounds and values.

Rows have no `_KEY_` columns, because a key is also among the values. It is decoded once, and
written twice if the file has both columns.

Parts of files outside a key range are not decoded if the format's metadata identifies them. Rows
outside the range are removed from the batches at both ends.

Python values have the form of `paimon.binary_row`: dates as days, times as milliseconds, timestamps
as nanoseconds since the epoch, texts as str, decimals as Decimal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from compactord.errors import UnreadableColumn
from compactord.kernels.keys import slice_range
from compactord.model import KeyRange
from compactord.paimon.binary_row import Value, decode_row, text_of, unscaled
from compactord.paimon.types import (
    BINARIES,
    FLOATS,
    MOMENTS,
    SEQUENCE_NUMBER,
    TEXTS,
    VALUE_KIND,
    WIDE_TIMESTAMP,
    AtomicType,
    DataField,
    DataType,
    TypeRoot,
    arrow_field,
    arrow_type,
    file_fields,
    from_nanoseconds,
    nanoseconds_of,
    value_schema,
)

_BINARY_ROOTS = TEXTS | BINARIES


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns of rows (`row_fields`) and of a file (`file_columns`, each with its source row
    column).

    `key_fields` are the trimmed primary key's value columns; empty for append tables.
    `dictionaries` are names of row columns that stay dictionary-encoded between readers and writer.
    A layout for reading only has no `file_columns` and `value_fields`. `partition`: names and
    values of the partition's columns, which files of other writers lack; only for append tables.
    """

    row_fields: tuple[DataField, ...]
    file_columns: tuple[tuple[DataField, str], ...] = ()
    key_fields: tuple[DataField, ...] = ()
    value_fields: tuple[DataField, ...] = ()
    dictionaries: frozenset[str] = frozenset()
    partition: tuple[tuple[str, Value], ...] = ()

    @property
    def row_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.row_fields)

    @cached_property
    def row_schema(self) -> pa.Schema:
        """Types, nullability and field ids of the columns of rows."""
        fields = value_schema(self.row_fields)
        return pa.schema([_encoded(field, field.name, self.dictionaries) for field in fields])

    @property
    def file_schema(self) -> pa.Schema:
        """Types, nullability and field ids of the columns of a file."""
        return pa.schema(
            [
                _encoded(arrow_field(field), source, self.dictionaries)
                for field, source in self.file_columns
            ]
        )

    @property
    def of_keys(self) -> Layout:
        """The key columns only, encoded as here: the columns to read for finding rows."""
        keys = self.key_fields
        encoded = self.dictionaries & {field.name for field in keys}
        return Layout(row_fields=keys, key_fields=keys, dictionaries=encoded)

    def without(self, names: Collection[str]) -> Layout:
        """The layout for reading a file that lacks these row columns."""
        if not names:
            return self
        kept = tuple(field for field in self.row_fields if field.name not in names)
        return Layout(row_fields=kept, dictionaries=self.dictionaries.difference(names))

    def with_dictionaries(self, names: Collection[str]) -> Layout:
        """The same layout with these row columns dictionary-encoded."""
        return replace(self, dictionaries=frozenset(names))


def _encoded(field: pa.Field, source: str, dictionaries: frozenset[str]) -> pa.Field:
    if source not in dictionaries:
        return field
    return field.with_type(pa.dictionary(pa.int32(), field.type))


def append_layout(
    fields: tuple[DataField, ...], partition: tuple[tuple[str, Value], ...] = ()
) -> Layout:
    """The layout of a table without keys, without dictionaries."""
    columns = tuple((field, field.name) for field in fields)
    return Layout(row_fields=fields, file_columns=columns, value_fields=fields, partition=partition)


def keyed_layout(fields: tuple[DataField, ...], key: Sequence[str], *, thin: bool) -> Layout:
    """The layout of a table with this trimmed primary key, without dictionaries."""
    by_name = {field.name: field for field in fields}
    row_fields = (SEQUENCE_NUMBER, VALUE_KIND, *fields)
    in_file = file_fields(fields, key, thin=thin)
    copies = key if len(in_file) > len(row_fields) else []
    sources = [*copies, *(field.name for field in row_fields)]
    return Layout(
        row_fields=row_fields,
        file_columns=tuple(zip(in_file, sources, strict=True)),
        key_fields=tuple(by_name[name] for name in key),
        value_fields=fields,
    )


def is_binary_like(field: DataField) -> bool:
    """Whether the column has strings or binaries: only these are read dictionary-encoded."""
    return isinstance(field.type, AtomicType) and field.type.root in _BINARY_ROOTS


def cell(column: pa.Array | pa.ChunkedArray, index: int, type_: DataType) -> Value:
    """One value of a column that is not nested."""
    assert isinstance(type_, AtomicType), "nested columns have no values outside data files"
    return scalar_value(column[index], type_)


def scalar_value(scalar: pa.Scalar, type_: AtomicType) -> Value:
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    if not scalar.is_valid:
        return None
    if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
        return scalar.value
    if scalar.type == WIDE_TIMESTAMP:
        return nanoseconds_of(scalar)
    if type_.root in MOMENTS:
        return scalar.value * nanos_per_unit(type_)
    if type_.root in TEXTS:
        return text_of(scalar.as_buffer().to_pybytes())
    return scalar.as_py()


def one_row(values: Sequence[Value], fields: Sequence[DataField]) -> pa.RecordBatch:
    """A batch of one row, the inverse of `cell`."""
    columns = [_single(value, f.type) for value, f in zip(values, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def partition_arrays(layout: Layout, names: Collection[str]) -> dict[str, pa.Array]:
    """Arrays of one row with the partition's values of the columns in `names`."""
    types = {field.name: field.type for field in layout.row_fields}
    return {name: _single(value, types[name]) for name, value in layout.partition if name in names}


def _single(value: Value, type_: DataType) -> pa.Array:
    wanted = arrow_type(type_)
    if isinstance(type_, AtomicType) and value is not None:
        if type_.root in (TypeRoot.DATE, TypeRoot.TIME):
            return pa.array([value], pa.int32()).view(wanted)
        if wanted == WIDE_TIMESTAMP:
            return from_nanoseconds([value])
        if type_.root in MOMENTS:
            return pa.array([value // nanos_per_unit(type_)], pa.int64()).view(wanted)
        if type_.root in TEXTS and isinstance(value, bytes):
            return pa.array([value], pa.binary()).view(wanted)
    return pa.array([value], wanted)


def nanos_per_unit(type_: AtomicType) -> int:
    """Nanoseconds per unit in which timestamps of this precision are compared."""
    precision = type_.precision or 0
    return 1_000_000 if precision <= 3 else 1_000 if precision <= 6 else 1


def value_order(value: Value, type_: AtomicType) -> Any:
    """The sort key of a value in its Python form: bytes, or a number in the column's unit."""
    if type_.root is TypeRoot.DECIMAL:
        return unscaled(value, type_.scale or 0)
    if type_.root in TEXTS:
        return value.encode() if isinstance(value, str) else value
    if type_.root in MOMENTS:
        return value // nanos_per_unit(type_)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """`lower` (inclusive) and `upper` (exclusive) as batches of one row of the key columns.

    `first_lower` and `first_upper` are the bounds of the first key column, as `value_order` returns
    them, to compare with statistics of files; None if statistics cannot be used.
    """

    key_columns: tuple[str, ...]
    lower: pa.RecordBatch | None
    upper: pa.RecordBatch | None
    first_type: AtomicType
    first_lower: Any
    first_upper: Any

    def renamed(self, key_columns: Sequence[str]) -> RowRange:
        """The same range for a file with other names of the key columns, in the same order."""

        def bound(key: pa.RecordBatch | None) -> pa.RecordBatch | None:
            if key is None:
                return None
            return pa.RecordBatch.from_arrays(key.columns, names=list(key_columns))

        return replace(
            self,
            key_columns=tuple(key_columns),
            lower=bound(self.lower),
            upper=bound(self.upper),
        )

    def from_lower(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without rows below the range."""
        return slice_range(batch, self.key_columns, self.lower, None)

    def below_upper(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without rows at or above the end of the range."""
        return slice_range(batch, self.key_columns, None, self.upper)


def row_range(bounds: KeyRange, key_fields: tuple[DataField, ...]) -> RowRange | None:
    """The decoded range of serialised keys; None if it is open at both ends."""
    if bounds.lower is None and bounds.upper is None:
        return None
    types = [field.type for field in key_fields]
    first_type = types[0]
    assert isinstance(first_type, AtomicType), "keys are not nested"

    def decode(key: bytes | None) -> tuple[pa.RecordBatch | None, Any]:
        if key is None:
            return None, None
        values = decode_row(key, types, source="key range")
        # Statistics of floats may exclude NaN.
        order = None if first_type.root in FLOATS else value_order(values[0], first_type)
        return one_row(values, key_fields), order

    lower, first_lower = decode(bounds.lower)
    upper, first_upper = decode(bounds.upper)
    return RowRange(
        key_columns=tuple(field.name for field in key_fields),
        lower=lower,
        upper=upper,
        first_type=first_type,
        first_lower=first_lower,
        first_upper=first_upper,
    )


TextBounds: TypeAlias = tuple[bytes | None, bytes | None]


class FloatBounds:
    """Bounds in the order of Java's Double.compare: -0.0 before 0.0, NaN above all numbers."""

    def __init__(self, type_: Any) -> None:
        single = type_.root is TypeRoot.FLOAT
        self._integer = np.int32 if single else np.int64
        self._float = np.float32 if single else np.float64
        # Crossed while there is no value.
        self._low, self._high = 1 << 63, -(1 << 63) - 1
        self._has_nan = False
        self.nulls = 0

    def add(self, column: pa.Array) -> None:
        """Include the next values (float32 or float64); nulls are counted in `nulls`."""
        self.nulls += column.null_count
        values = (column.drop_null() if column.null_count else column).to_numpy()
        if not values.size:
            return
        # fmin and fmax ignore NaN unless all values are NaN.
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        self._has_nan = self._has_nan or bool(np.isnan(values).any())
        if np.isnan(low):
            return
        if low == 0 or high == 0:
            low, high = self._signed_zeros(values, low, high)
        self._low = min(self._low, self._order(low))
        self._high = max(self._high, self._order(high))

    def _signed_zeros(self, values: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """The bounds with the right sign of zero where they are zero."""
        negative = np.signbit(values[values == 0])
        if low == 0:
            low = self._float(-0.0 if negative.any() else 0.0)
        if high == 0:
            high = self._float(-0.0 if negative.all() else 0.0)
        return low, high

    def _order(self, value: Any) -> int:
        bits = int(np.asarray(value, self._float).view(self._integer))
        return bits if bits >= 0 else bits ^ int(np.iinfo(self._integer).max)

    def _value(self, order: int) -> float:
        bits = order if order >= 0 else order ^ int(np.iinfo(self._integer).max)
        return float(np.asarray(bits, self._integer).view(self._float))

    def result(self) -> tuple[Value, Value]:
        """The smallest and the largest value; NaN counts as largest; both None without values."""
        nan = float("nan")
        if self._low > self._high:
            return (nan, nan) if self._has_nan else (None, None)
        return self._value(self._low), nan if self._has_nan else self._value(self._high)


def text_bounds(column: pa.ChunkedArray) -> TextBounds:
    """Bounds of the values that rows have; both None if all rows are null."""
    if pa.types.is_dictionary(column.type):
        column = column.drop_null().cast(column.type.value_type)
    found = pc.min_max(column.cast(pa.binary()))
    return found["min"].as_py(), found["max"].as_py()


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


def absent_columns(
    layout: Layout,
    schema: pa.Schema,
    path: str,
    check: Callable[[pa.Field, DataField, pa.Field], None],
) -> frozenset[str]:
    """The row columns that are not read from a file with the columns of `schema`.

    Append tables' files may lack columns: they are null, as in Java, or have the partition's value,
    as do partition columns of another type. `check` gets a column of the file and the table's, as
    its field and as Arrow's, and raises `UnreadableColumn` for a type that is not read as the
    table's. Raises `UnreadableColumn` for the first other column that is missing or has such a
    type.
    """
    of_partition = {name for name, _ in layout.partition}
    absent = set()
    for field, wanted in zip(layout.row_fields, layout.row_schema, strict=True):
        name = field.name
        try:
            there = _column_of(schema, name, path, may_lack=not layout.key_fields)
            if there is not None:
                check(there, field, wanted)
                continue
            if not wanted.nullable:
                why = "the file lacks it, in the table it is NOT NULL"
                raise UnreadableColumn(path, f"column {name}: {why}")
        except UnreadableColumn:
            if name not in of_partition:
                raise
        absent.add(name)
    if absent and len(absent) == len(layout.row_fields):
        raise UnreadableColumn(path, "the file has none of the table's columns")
    return frozenset(absent)


def _column_of(schema: pa.Schema, name: str, path: str, *, may_lack: bool) -> pa.Field | None:
    """The file's only column of this name, or None."""
    indices = schema.get_all_field_indices(name)
    if not indices and may_lack:
        others = [other for other in schema.names if other.lower() == name.lower()]
        if not others:
            return None
        raise UnreadableColumn(
            path,
            f"column {name}: the file has {others[0]}, which differs in case. Java reads null there"
            " unless the table has case-sensitive=false, and a rewrite would lose the values",
        )
    if len(indices) != 1:
        raise UnreadableColumn(path, f"the file has {len(indices)} columns named {name}")
    return schema.field(indices[0])


def table_columns(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    path: str,
    partition: Mapping[str, pa.Array],
    cast: Callable[[pa.Array, pa.Field], pa.Array],
) -> pa.RecordBatch:
    """The columns of `schema`, in its types and order; `batch` has columns with the same names.

    Missing columns are null, or have their single value in `partition`. Columns of another type are
    `cast`. Raises what `cast` raises, and `UnreadableColumn` for a null in a NOT NULL column.
    """
    columns = []
    for field in schema:
        if batch.schema.get_field_index(field.name) >= 0:
            column = batch.column(field.name)
        elif field.name in partition:
            column = partition[field.name].take(pa.array(np.zeros(batch.num_rows, np.int32)))
        else:
            column = null_values(batch.num_rows, field.type)
        if not column.type.equals(field.type):
            column = cast(column, field)
        if not field.nullable and column.null_count:
            raise UnreadableColumn(path, f"column {field.name} is NOT NULL and holds nulls")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
