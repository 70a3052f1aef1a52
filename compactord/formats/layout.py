"""The columns of one subcompaction: of the rows between readers and writer, and of output files.

Rows have no `_KEY_` columns, because a key is also among the values. It is decoded once, and
written twice if the file has both columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from compactord.paimon.arrow import arrow_field, file_fields, value_schema
from compactord.paimon.types import (
    BINARIES,
    SEQUENCE_NUMBER,
    TEXTS,
    VALUE_KIND,
    AtomicType,
    DataField,
)

_BINARY_ROOTS = TEXTS | BINARIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`row_fields`: columns of rows. `file_columns`: of a file, each with the row column it copies.

    `key_fields` are the trimmed primary key's value columns; none for append tables. `dictionaries`
    are names of row columns that stay dictionary-encoded between readers and writer.
    """

    row_fields: tuple[DataField, ...]
    file_columns: tuple[tuple[DataField, str], ...]
    key_fields: tuple[DataField, ...]
    value_fields: tuple[DataField, ...]
    dictionaries: frozenset[str]
    row_schema: pa.Schema

    @property
    def row_names(self) -> tuple[str, ...]:
        """The names of `row_fields`, in order."""
        return tuple(field.name for field in self.row_fields)

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
        """The key columns only, encoded as here: what is read to find rows."""
        keys = self.key_fields
        return file_layout(keys, keys, self.dictionaries & {field.name for field in keys})

    def with_dictionaries(self, names: Collection[str]) -> Layout:
        """The same layout with these row columns dictionary-encoded."""
        return _layout(
            self.row_fields, self.file_columns, self.key_fields, self.value_fields, names
        )


def _layout(
    row_fields: tuple[DataField, ...],
    file_columns: tuple[tuple[DataField, str], ...],
    key_fields: tuple[DataField, ...],
    value_fields: tuple[DataField, ...],
    dictionaries: Collection[str] = (),
) -> Layout:
    names = frozenset(dictionaries)
    schema = [_encoded(field, field.name, names) for field in value_schema(row_fields)]
    return Layout(
        row_fields=row_fields,
        file_columns=file_columns,
        key_fields=key_fields,
        value_fields=value_fields,
        dictionaries=names,
        row_schema=pa.schema(schema),
    )


def _encoded(field: pa.Field, source: str, dictionaries: frozenset[str]) -> pa.Field:
    if source not in dictionaries:
        return field
    return field.with_type(pa.dictionary(pa.int32(), field.type))


def append_layout(fields: tuple[DataField, ...]) -> Layout:
    """The layout of a table without keys, without dictionaries."""
    return _layout(fields, tuple((field, field.name) for field in fields), (), fields)


def keyed_layout(fields: tuple[DataField, ...], key: Sequence[str], *, thin: bool) -> Layout:
    """The layout of a table with this trimmed primary key, without dictionaries."""
    by_name = {field.name: field for field in fields}
    row_fields = (SEQUENCE_NUMBER, VALUE_KIND, *fields)
    in_file = file_fields(fields, key, thin=thin)
    copies = key if len(in_file) > len(row_fields) else []
    sources = [*copies, *(field.name for field in row_fields)]
    keys = tuple(by_name[name] for name in key)
    return _layout(row_fields, tuple(zip(in_file, sources, strict=True)), keys, fields)


def file_layout(
    row_fields: tuple[DataField, ...],
    key_fields: tuple[DataField, ...],
    dictionaries: Collection[str],
) -> Layout:
    """The layout in which the files of an older schema are read, before rows are converted."""
    return _layout(row_fields, (), key_fields, (), dictionaries)


def key_layout(keys: tuple[DataField, ...]) -> Layout:
    """A layout with the key columns only, to read keys."""
    return _layout(keys, (), keys, keys)


def is_binary_like(field: DataField) -> bool:
    """Whether the column has strings or binaries: only these are read dictionary-encoded."""
    return isinstance(field.type, AtomicType) and field.type.root in _BINARY_ROOTS
