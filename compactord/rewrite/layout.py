"""The columns of one task: of rows between readers and writer, and of the output files.

Rows carry no `_KEY_` columns: a key stands among the values, so it is decoded once and written
twice where the file wants both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from compactord.model import MergeSpec, Subcompaction
from compactord.paimon.arrow import arrow_field, file_fields, value_schema
from compactord.paimon.types import SEQUENCE_NUMBER, VALUE_KIND, AtomicType, DataField, TypeRoot

_BINARY_ROOTS = (TypeRoot.CHAR, TypeRoot.VARCHAR, TypeRoot.BINARY, TypeRoot.VARBINARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`row_fields`: columns of rows. `file_columns`: of a file, each with the row column it copies.

    `key_fields` are the trimmed primary key's value columns; none for append tables. `dictionaries`
    names row columns that travel dictionary-encoded.
    """

    row_fields: tuple[DataField, ...]
    file_columns: tuple[tuple[DataField, str], ...]
    key_fields: tuple[DataField, ...]
    value_fields: tuple[DataField, ...]
    dictionaries: frozenset[str]

    @property
    def row_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.row_fields)

    @property
    def row_schema(self) -> pa.Schema:
        """Types of rows as the readers hand them out."""
        plain = value_schema(self.row_fields)
        return pa.schema([self._encoded(field, field.name) for field in plain])

    @property
    def file_schema(self) -> pa.Schema:
        """Types, nullability and field ids for the Parquet writer."""
        return pa.schema(
            [self._encoded(arrow_field(field), source) for field, source in self.file_columns]
        )

    def file_table(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows as a table of the file's columns; `schema` is `file_schema`."""
        columns = [rows.column(source) for _, source in self.file_columns]
        return pa.Table.from_arrays(columns, schema=schema)

    def with_dictionaries(self, names: Collection[str]) -> Layout:
        return Layout(
            row_fields=self.row_fields,
            file_columns=self.file_columns,
            key_fields=self.key_fields,
            value_fields=self.value_fields,
            dictionaries=frozenset(names),
        )

    def _encoded(self, field: pa.Field, source: str) -> pa.Field:
        if source not in self.dictionaries:
            return field
        return field.with_type(pa.dictionary(pa.int32(), field.type))


def task_layout(part: Subcompaction) -> Layout:
    """The layout of a part, without dictionaries."""
    fields = part.fields
    if not isinstance(part.source, MergeSpec):
        return Layout(
            row_fields=fields,
            file_columns=tuple((field, field.name) for field in fields),
            key_fields=(),
            value_fields=fields,
            dictionaries=frozenset(),
        )
    by_name = {field.name: field for field in fields}
    keys = tuple(by_name[name] for name in part.source.key_columns)
    row_fields = (SEQUENCE_NUMBER, VALUE_KIND, *fields)
    in_file = file_fields(fields, part.source.key_columns, thin=part.write.thin_mode)
    copies = [key.name for key in keys] if len(in_file) > len(row_fields) else []
    sources = [*copies, *(field.name for field in row_fields)]
    return Layout(
        row_fields=row_fields,
        file_columns=tuple(zip(in_file, sources, strict=True)),
        key_fields=keys,
        value_fields=fields,
        dictionaries=frozenset(),
    )


def is_binary_like(field: DataField) -> bool:
    """Strings and binaries: what Parquet stores as byte arrays."""
    return isinstance(field.type, AtomicType) and field.type.root in _BINARY_ROOTS
