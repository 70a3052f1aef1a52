"""The columns of one subcompaction: of the rows between readers and writer, and of output files.

Rows have no `_KEY_` columns, because a key is also among the values. It is decoded once, and
written twice if the file has both columns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from compactord.paimon.binary_row import Value
from compactord.paimon.types import (
    BINARIES,
    SEQUENCE_NUMBER,
    TEXTS,
    VALUE_KIND,
    AtomicType,
    DataField,
    arrow_field,
    file_fields,
    value_schema,
)

_BINARY_ROOTS = TEXTS | BINARIES


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`row_fields`: columns of rows. `file_columns`: of a file, each with the row column it copies.

    `key_fields` are the trimmed primary key's value columns; none for append tables. `dictionaries`
    are names of row columns that stay dictionary-encoded between readers and writer. What is only
    read has no `file_columns` and `value_fields`. `partition`: names and values of the partition's
    columns, which files of other writers lack; only for append tables.
    """

    row_fields: tuple[DataField, ...]
    file_columns: tuple[tuple[DataField, str], ...] = ()
    key_fields: tuple[DataField, ...] = ()
    value_fields: tuple[DataField, ...] = ()
    dictionaries: frozenset[str] = frozenset()
    partition: tuple[tuple[str, Value], ...] = ()

    @property
    def row_names(self) -> tuple[str, ...]:
        """The names of `row_fields`, in order."""
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
        """The key columns only, encoded as here: what is read to find rows."""
        keys = self.key_fields
        encoded = self.dictionaries & {field.name for field in keys}
        return Layout(row_fields=keys, key_fields=keys, dictionaries=encoded)

    def without(self, names: Collection[str]) -> Layout:
        """What is read of a file that lacks these row columns."""
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
