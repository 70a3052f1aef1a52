"""Columns of newer releases in manifests and manifest lists: preserved, not interpreted.

They are matched by name. Nulls are ignored. A value is kept as bytes with its type and written
again with every copy of its entry. Code that would have to interpret it raises with its name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from compactord.errors import UnsupportedTable
from compactord.paimon.avro.container import (
    AvroSchema,
    compile_schema,
    encoded_long,
    first_long,
    split_values,
)
from compactord.paimon.avro.types import plain_type, renamed, resolved_schema, without_null
from compactord.paimon.manifest.schemas import plain_of, table_of

Json = Any
# Unknown columns may belong to an entry or list row, or to the file's record in it. That record
# must be the last known column, so that unknown columns are the end of the encoding.
NESTED = "_FILE"
_Path = tuple[str, ...]


class ForeignValue(NamedTuple):
    """A value that is not null. `column` is dotted if it belongs to the file's record.

    `type` is the JSON text of the column's Avro type, a union whose first branch is null; `data` is
    the value encoded as that union. Equal columns and types have equal texts for all writers.
    """

    column: str
    type: str
    data: bytes


class _Column(NamedTuple):
    """A column of one file's schema. `text` is its type if the column is unknown."""

    name: str
    type: Json
    schema: AvroSchema
    text: str | None


@dataclass(frozen=True, slots=True)
class ForeignColumns:
    """The unknown columns of one file's schema.

    `layout` is all columns in file order, including the nested record's. `not_carried` are unknown
    columns that we cannot write again.
    """

    layout: tuple[_Column, ...]
    carried: tuple[_Path, ...]
    not_carried: tuple[_Path, ...]

    def values(self, record: Mapping[str, Any], data: bytes, path: str) -> tuple[ForeignValue, ...]:
        """The foreign values of a record of the file at `path`; `data` is its encoding.

        Raises `UnsupportedTable` for values that could not be carried.
        """
        lost = [".".join(column) for column in self.not_carried if _holds(record, column)]
        if lost:
            reason = f"{path} has values of columns that are not known: {', '.join(lost)}"
            raise UnsupportedTable(table_of(path), [reason])
        if not any(_holds(record, column) for column in self.carried):
            return ()
        encoded = split_values([column.schema for column in self.layout], data, path)
        return tuple(
            sorted(
                ForeignValue(column.name, column.text, _as_union(column.type, value))
                for column, (found, value) in zip(self.layout, encoded, strict=True)
                if column.text is not None and found is not None
            )
        )


def _holds(record: Any, column: _Path) -> bool:
    for name in column:
        record = record[name]
    return record is not None


def _as_union(type_: Json, data: bytes) -> bytes:
    """A value of any type, not null, encoded as a union whose first branch is null."""
    if not isinstance(type_, list):
        return encoded_long(1) + data
    branch, value = first_long(data)
    return encoded_long(1 + sum(other != "null" for other in type_[:branch])) + value


# Files of one release have the same schema; one header is read once (`open_container`).
@lru_cache(maxsize=64)
def foreign_columns(schema: AvroSchema, expected: AvroSchema) -> ForeignColumns | None:
    """The columns of `schema` that `expected` lacks, or None without any.

    `manifest_schema.require_readable` must have accepted `schema`.
    """
    if schema.json == expected.json:
        return None
    found = resolved_schema(schema.json, "")
    known = plain_of(expected)
    unknown = tuple(unknown_columns(plain_type(found), known))
    if not unknown:
        return None
    if any(isinstance(record, list) for record in _records(found)):
        # Releases whose records may be null are older than the columns of 2.0.0.
        return ForeignColumns((), (), unknown)
    layout = tuple(_layout(found, known, ""))
    carried = {column.name for column in layout if column.text is not None}
    able = [path for path in unknown if ".".join(path) in carried]
    return ForeignColumns(layout, tuple(able), tuple(path for path in unknown if path not in able))


def _records(found: Json) -> Iterator[Json]:
    """The type of a row, and of its nested record that may have unknown columns."""
    yield found
    for column in without_null(found)["fields"]:
        if column["name"] == NESTED:
            yield column["type"]


def _layout(found: Json, known: Json, prefix: str) -> Iterator[_Column]:
    for column in found["fields"]:
        name, type_ = prefix + column["name"], column["type"]
        if column["name"] == NESTED and not prefix:
            yield from _layout(type_, known["record"][NESTED], f"{name}.")
        else:
            text = None if column["name"] in known["record"] else _type_text(type_, name)
            yield _Column(name, type_, compile_schema(renamed(type_, "read")), text)


def _type_text(resolved: Json, column: str) -> str:
    branches = resolved if isinstance(resolved, list) else [resolved]
    union = ["null", *(branch for branch in branches if branch != "null")]
    # Differs from every name in Paimon.
    named = renamed(union, "carried_" + column.replace(".", "__"))
    return json.dumps(named, sort_keys=True, separators=(",", ":"))


def unknown_columns(found: Json, known: Json, place: _Path = ()) -> Iterator[_Path]:
    """Paths of columns in plain type `found` that `known` lacks, at any depth."""
    match known:
        case {"record": columns}:
            for name, type_ in without_null(found)["record"].items():
                if name not in columns:
                    yield (*place, name)
                else:
                    yield from unknown_columns(type_, columns[name], (*place, name))
        case {"array": items}:
            yield from unknown_columns(found["array"], items, (*place, "[]"))
        case ["null", type_]:
            others = [b for b in found if b != "null"] if isinstance(found, list) else [found]
            yield from unknown_columns(others[0], type_, place)


def has_unknown_values(value: Any, known: Json) -> bool:
    """Whether a decoded value has a value other than null in a column that plain type `known`
    lacks.
    """
    match known:
        case {"record": columns}:
            return any(
                has_unknown_values(inner, columns[name]) if name in columns else inner is not None
                for name, inner in value.items()
            )
        case {"array": items}:
            return any(has_unknown_values(inner, items) for inner in value)
        case ["null", type_]:
            return value is not None and has_unknown_values(value, type_)
    return False


@dataclass(frozen=True, slots=True)
class CarriedColumns:
    """The foreign columns of a new file: names and types, in order."""

    columns: tuple[tuple[str, str], ...] = ()

    def including(self, values: Iterable[ForeignValue]) -> CarriedColumns:
        """These columns and the columns of `values`. Raises `TypesDiffer`."""
        types = dict(self.columns)
        for value in values:
            if types.setdefault(value.column, value.type) != value.type:
                raise TypesDiffer(
                    f"unknown column {value.column} has two types, "
                    f"{types[value.column]} and {value.type}"
                )
        if len(types) == len(self.columns):
            return self
        # Columns of the nested record are written first.
        return CarriedColumns(tuple(sorted(types.items(), key=lambda c: ("." not in c[0], c[0]))))

    def added_to(self, schema: AvroSchema) -> AvroSchema:
        """The schema, with these columns appended to their records."""
        return _extended(schema, self) if self.columns else schema

    def encoded(self, values: Iterable[ForeignValue]) -> bytes:
        """The encoding of the values, to append to a record without these columns."""
        data = {value.column: value.data for value in values}
        return b"".join(data.get(column, b"\x00") for column, _ in self.columns)


class TypesDiffer(Exception):
    """An unknown column has two types in entries of one file."""


@lru_cache(maxsize=64)
def _extended(schema: AvroSchema, carried: CarriedColumns) -> AvroSchema:
    extended = copy.deepcopy(schema.json)
    for column, type_ in carried.columns:
        record, _, name = column.rpartition(".")
        columns = extended["fields"]
        if record:
            columns = columns[-1]["type"]["fields"]
        columns.append({"name": name, "type": json.loads(type_), "default": None})
    return compile_schema(extended)
