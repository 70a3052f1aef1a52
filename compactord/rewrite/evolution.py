"""The evolution of a file's rows to the latest schema.

Columns are matched by field id between the file's schema and the latest; in the file itself they
have the names of the file's schema. Missing columns are null, dropped ones are not read, and values
of a column whose type has changed are cast. Default values do not matter here: writers apply them.
Sources: utils/FormatReaderMapping.java, schema/SchemaEvolutionUtil.java.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from compactord.errors import UnreadableColumn
from compactord.formats.base import InputProfile
from compactord.formats.layout import Layout, RowRange, is_binary_like, null_values
from compactord.paimon.schema import TableSchema, same_column
from compactord.paimon.types import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    DataField,
    arrow_type,
    same_type,
    shares_fields,
    type_text,
)
from compactord.rewrite.casting.rules import cast, why_not_castable
from compactord.rewrite.casting.values import CastError

_SYSTEM = (SEQUENCE_NUMBER, VALUE_KIND)
# Assumed bytes of a text that values are cast to.
_TEXT_BYTES = 24
_OFFSET_BYTES = 5


class _Column(NamedTuple):
    """A column of rows and its source column in the file, None if the file lacks it."""

    wanted: DataField
    stored: DataField | None

    @property
    def is_unchanged(self) -> bool:
        """Whether values are unchanged; names and nullability may differ."""
        return self.stored is not None and same_type(self.stored.type, self.wanted.type)


@dataclass(frozen=True, slots=True)
class Evolution:
    """How files of one older schema are read: in `layout`, then converted to the rows' layout."""

    layout: Layout
    columns: tuple[_Column, ...]
    target: Layout
    zone: datetime.tzinfo

    def stored(self, column: DataField) -> DataField:
        """The file's column of a key column."""
        found = next(c.stored for c in self.columns if c.wanted.id == column.id)
        assert found is not None, "keys are never added to a table"
        return found

    def row_range(self, bounds: RowRange | None) -> RowRange | None:
        """The same range, in the names of the file."""
        if bounds is None:
            return None
        by_name = {c.wanted.name: c.stored.name for c in self.columns if c.stored is not None}
        return bounds.renamed([by_name[name] for name in bounds.key_columns])

    def converted(self, batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
        """Rows of the file in the latest schema.

        Raises `UnreadableColumn` for a value that cannot be cast, and without a key for null in a
        column that has become NOT NULL. With a key, only the result of a merge matters, as in Java:
        a newer row may have replaced the null.
        """
        schema = self.target.row_schema
        arrays = [
            self._array(column, field.type, batch, path)
            for column, field in zip(self.columns, schema, strict=True)
        ]
        for field, array in zip(schema, arrays, strict=True):
            if not self.target.key_fields and not field.nullable and array.null_count:
                raise UnreadableColumn(
                    path,
                    f"column {field.name} is NOT NULL in the latest schema; read from this file,"
                    " which has an older one, it holds nulls",
                )
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(
        self, column: _Column, wanted: pa.DataType, batch: pa.RecordBatch, path: str
    ) -> pa.Array:
        if column.stored is None:
            return null_values(batch.num_rows, wanted)
        array = batch.column(column.stored.name)
        if column.is_unchanged and array.type == wanted:
            return array
        try:
            array = cast(array, column.stored.type, column.wanted.type, self.zone)
        except (CastError, pa.ArrowInvalid) as error:
            old, new = type_text(column.stored.type), type_text(column.wanted.type)
            raise UnreadableColumn(
                path,
                f"column {column.wanted.name} cannot be cast from {old} to {new}: {error}",
            ) from error
        return array.dictionary_encode() if pa.types.is_dictionary(wanted) else array

    def profile(self, found: InputProfile) -> InputProfile:
        """Facts about files of this schema, in the names and types of the rows."""
        names = {
            column.stored.name: column.wanted.name
            for column in self.columns
            if column.stored is not None and column.is_unchanged
        }
        missing = {c.wanted.name for c in self.columns if c.stored is None}
        texts = {c.wanted.name for c in self.columns if is_binary_like(c.wanted)}
        return InputProfile(
            row_bytes=found.row_bytes + sum(map(_added_bytes, self.columns)),
            columns=found.columns,
            dictionaries=frozenset(
                {names[name] for name in found.dictionaries if name in names} | (missing & texts)
            ),
            dictionary_paths=tuple(names[p] for p in found.dictionary_paths if p in names),
        )


def _added_bytes(column: _Column) -> float:
    """By how much a row of the latest schema is larger in memory."""
    if column.is_unchanged:
        return 0.0
    before = 0.0 if column.stored is None else _width(arrow_type(column.stored.type))
    return max(0.0, _width(arrow_type(column.wanted.type)) - before)


def _width(type_: pa.DataType) -> float:
    try:
        return float(type_.bit_width) / 8
    except ValueError:
        return float(_OFFSET_BYTES + _TEXT_BYTES)


def evolution(
    fields: tuple[DataField, ...], zone: datetime.tzinfo, target: Layout
) -> Evolution | None:
    """The evolution of files of an older schema, or None if they have the layout's columns
    unchanged.
    """
    by_id = {field.id: field for field in (*_SYSTEM, *fields)}
    columns = tuple(
        _Column(field, _source(by_id.get(field.id), field)) for field in target.row_fields
    )
    if all(c.stored is not None and same_column(c.stored, c.wanted) for c in columns):
        return None
    stored = tuple(column.stored for column in columns if column.stored is not None)
    keys = tuple(by_id[field.id] for field in target.key_fields)
    dictionaries = {
        column.stored.name
        for column in columns
        if column.stored is not None
        and column.is_unchanged
        and column.wanted.name in target.dictionaries
    }
    of_partition = dict(target.partition)
    layout = Layout(
        row_fields=stored,
        key_fields=keys,
        dictionaries=frozenset(dictionaries),
        partition=tuple(
            (column.stored.name, of_partition[column.wanted.name])
            for column in columns
            if column.stored is not None and column.wanted.name in of_partition
        ),
    )
    return Evolution(layout, columns, target, zone)


def _source(stored: DataField | None, wanted: DataField) -> DataField | None:
    if stored is None or not shares_fields(stored.type, wanted.type):
        return None
    return stored


def reasons_in_files(latest: TableSchema, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
    """Why live files, whose schemas are `schemas`, cannot be rewritten."""
    return tuple(reason for schema in schemas for reason in _evolution_reasons(schema, latest))


def _evolution_reasons(schema: TableSchema, latest: TableSchema) -> Iterator[str]:
    """Why rows of files with `schema` cannot become rows of `latest`."""
    for what, old, new in (
        ("primary key", schema.key_fields, latest.key_fields),
        ("partition columns", schema.partition_fields, latest.partition_fields),
    ):
        if [(f.id, f.type) for f in old] != [(f.id, f.type) for f in new]:
            yield f"files of schema {schema.id} have another {what} than schema {latest.id}"
    by_id = {field.id: field for field in schema.fields}
    for field in latest.fields:
        if field.id in by_id:
            why = why_not_castable(by_id[field.id].type, field.type)
            if why is not None:
                yield f"files of schema {schema.id} have another type of column {field.name}: {why}"
