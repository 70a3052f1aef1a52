"""Table schemas and identities, and the JSON of metadata files.

A schema is one JSON object in `schema/schema-<id>`. Sources: schema/TableSchema.java,
schema/SchemaSerializer.java, schema/SchemaManager.java.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compactord.errors import FormatError, ObjectNotFound, TableNotFound, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.paths import MAIN_BRANCH, branch_root
from compactord.paimon.types import DataField, UnknownType, bare_field, parse_field
from compactord.storage.base import Storage
from compactord.storage.calls import prefetch

# Columns of rows within rows take three levels each. Code that walks a value recurses several
# functions deep for each level, and Python allows 1,000 calls.
_LEVELS_MAX = 100


def parse_json(data: bytes | str) -> Any:
    """The parsed JSON. Raises `ValueError` for invalid JSON, and for lists and objects nested 100
    deep.
    """
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [found]
    for _ in range(_LEVELS_MAX):
        if not level:
            return found
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    raise ValueError("nested too deeply")


def parse_object(data: bytes | str, path: str, what: str) -> dict[str, Any]:
    """The members of an object. Raises `FormatError` if `path` has none; `what` names the expected
    content.
    """
    try:
        found = parse_json(data)
    except ValueError as error:
        raise FormatError(path, f"{what} that is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise FormatError(path, f"{what} that is not a JSON object")
    return found


CURRENT_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One version of a table's schema; options are text, as written."""

    id: int
    version: int
    fields: tuple[DataField, ...]
    highest_field_id: int
    partition_keys: tuple[str, ...]
    primary_keys: tuple[str, ...]
    options: Mapping[str, str]
    comment: str | None
    time_ms: int

    def fields_named(self, names: tuple[str, ...]) -> tuple[DataField, ...]:
        by_name = {field.name: field for field in self.fields}
        return tuple(by_name[name] for name in names)

    @property
    def partition_fields(self) -> tuple[DataField, ...]:
        return self.fields_named(self.partition_keys)

    @property
    def key_fields(self) -> tuple[DataField, ...]:
        """The trimmed primary key: primary keys without partition keys, in their order."""
        return self.fields_named(
            tuple(name for name in self.primary_keys if name not in self.partition_keys)
        )

    @property
    def partitions_outside_key(self) -> tuple[str, ...]:
        """Partition columns that the primary key lacks; empty for append tables."""
        outside = (name for name in self.partition_keys if name not in self.primary_keys)
        return tuple(outside) if self.primary_keys else ()


def parse_schema(data: bytes, path: str) -> TableSchema:
    """A schema file, with the defaults that its version had when it was written.

    Raises `FormatError` with `path` and the key for an invalid schema, and `UnsupportedTable` for
    columns of a type, or files of a version, that release 2.0.0 lacks.
    """
    members = parse_object(data, path, "a schema")
    version = _integer(members, "version", path, default=1)
    try:
        return _schema(members, version, path)
    except FormatError as error:
        if version > CURRENT_VERSION:
            reason = f"its schema has version {version}, newer than {CURRENT_VERSION}"
            raise UnsupportedTable(paths.table_of_file(path), [reason]) from error
        raise


def _schema(members: dict[str, object], version: int, path: str) -> TableSchema:
    fields = tuple(_column(field, path) for field in _list(members, "fields", path))
    names = {field.name for field in fields}
    if len(names) != len(fields):
        raise FormatError(path, "schema key 'fields' names a column twice")
    return TableSchema(
        id=_integer(members, "id", path),
        version=version,
        fields=fields,
        highest_field_id=_integer(members, "highestFieldId", path),
        partition_keys=_columns(members, "partitionKeys", path, names),
        primary_keys=_columns(members, "primaryKeys", path, names),
        options=_options(members, version, path),
        comment=_comment(members, path),
        time_ms=_integer(members, "timeMillis", path, default=0),
    )


def _column(field: object, path: str) -> DataField:
    try:
        return parse_field(field, path=path)
    except UnknownType as error:
        name = field.get("name") if isinstance(field, dict) else None
        reason = f"column {name} has type {error.type_name}, which is not supported"
        raise UnsupportedTable(paths.table_of_file(path), [reason]) from error


def _options(members: dict[str, object], version: int, path: str) -> dict[str, str]:
    options = members.get("options")
    if not isinstance(options, dict):
        raise FormatError(path, f"schema key 'options' needs an object, found {options!r}")
    texts = {}
    for key, value in options.items():
        if not isinstance(value, str):
            raise FormatError(path, f"schema key 'options' holds {value!r} for {key!r}, not a text")
        texts[key] = value
    # Defaults of Paimon 0.7 and 0.8, which did not store them.
    if version <= 1:
        texts.setdefault("bucket", "1")
    if version <= 2:
        texts.setdefault("file.format", "orc")
    return texts


def _comment(members: dict[str, object], path: str) -> str | None:
    comment = members.get("comment")
    if comment is not None and not isinstance(comment, str):
        raise FormatError(path, f"schema key 'comment' needs a text, found {comment!r}")
    return comment


def _integer(members: dict[str, object], key: str, path: str, default: int | None = None) -> int:
    value = members.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(path, f"schema key {key!r} needs a whole number, found {value!r}")
    return value


def _list(members: dict[str, object], key: str, path: str) -> list[object]:
    value = members.get(key)
    if not isinstance(value, list):
        raise FormatError(path, f"schema key {key!r} needs a list, found {value!r}")
    return value


def _columns(members: dict[str, object], key: str, path: str, names: set[str]) -> tuple[str, ...]:
    columns: list[str] = []
    for name in _list(members, key, path):
        if not isinstance(name, str) or name not in names:
            raise FormatError(path, f"schema key {key!r} names {name!r}, which is not a column")
        columns.append(name)
    return tuple(columns)


def schema_ids(storage: Storage, location: str) -> tuple[int, ...]:
    """Ids of all schemas of a table, ascending. Lists the folder, because there is no hint."""
    ids = (
        paths.id_of(status.name, paths.SCHEMA_PREFIX)
        for status in storage.list(paths.schema_folder(location))
        if not status.is_folder
    )
    return tuple(sorted(id_ for id_ in ids if id_ is not None))


def read_schema(storage: Storage, location: str, id_: int) -> TableSchema:
    """The schema of this id.

    Raises `ObjectNotFound`, and `FormatError` if the file holds no schema or another one.
    """
    path = paths.schema_path(location, id_)
    schema = parse_schema(storage.read(path), path)
    if schema.id != id_:
        raise FormatError(path, f"schema key 'id' holds {schema.id}, the file name {id_}")
    return schema


def has_later_schema(storage: Storage, location: str, id_: int) -> bool:
    """Whether the table has a newer schema than this one. Costs one small request.

    Ids grow by one (schema/SchemaManager.java, commit).
    """
    return storage.status(paths.schema_path(location, id_ + 1)) is not None


def latest_schema(
    storage: Storage, location: str, *, known: TableSchema | None = None
) -> TableSchema:
    """The schema of the largest id. Raises `TableNotFound` if the table has no schema.

    With `known`, reads the schemas after its id one by one. Without it, or if its file is missing
    because a rollback deleted the latest schemas, lists the folder.
    """
    if known is not None:
        newest_id = known.id
        with prefetch(storage, partial(read_schema, storage, location, newest_id)) as same:
            read = same
            while has_later_schema(storage, location, newest_id):
                newest_id += 1
                read = partial(read_schema, storage, location, newest_id)
            with contextlib.suppress(ObjectNotFound):
                return read()
    ids = schema_ids(storage, location)
    if not ids:
        raise TableNotFound(f"not a Paimon table: {location} has no schema")
    return read_schema(storage, location, ids[-1])


class SchemaHistory:
    """The schemas of a table by id. A schema file never changes, so each is read once."""

    def __init__(self, storage: Storage, location: str, latest: TableSchema) -> None:
        self._storage = storage
        self._location = location
        self._known = {latest.id: latest}

    def schema(self, id_: int) -> TableSchema:
        """The schema of this id. Raises as `read_schema`."""
        if id_ not in self._known:
            self._known[id_] = read_schema(self._storage, self._location, id_)
        return self._known[id_]


def same_column(left: DataField, right: DataField) -> bool:
    """Whether files store the two columns alike.

    Ids, names, types and nullability count, at any depth; descriptions and default values do not.
    """
    return bare_field(left) == bare_field(right)


# Separator between the name of a table and of its branch.
BRANCH_MARK = "$branch_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """A table by name, and the URL-like path of its root (without a slash at the end).

    A branch has a name of its own, `t$branch_b`, as in Java (catalog/Identifier.java, object name),
    and the table's location. `identity` distinguishes the table from another of its name and place
    (a uuid, or the time of its creation); it is empty if the catalog keeps none.
    """

    database: str
    name: str
    location: str
    branch: str = MAIN_BRANCH
    identity: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def root(self) -> str:
        """The folder of the branch's schemas, snapshots, tags, consumers and changelogs.

        Manifests, data, index files and statistics are the table's, below `location`.
        """
        return branch_root(self.location, self.branch)


def branch_of(table: TableRef, branch: str) -> TableRef:
    """A branch of `table`, which is a main branch; returns `table` for the main branch."""
    if branch == MAIN_BRANCH:
        return table
    return replace(table, name=f"{table.name}{BRANCH_MARK}{branch}", branch=branch)
