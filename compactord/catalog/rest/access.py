"""Tables of a REST catalog, whose server holds schemas and snapshots of internal tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compactord.catalog.access import TableAccess
from compactord.catalog.rest.client import (
    PAGE_BYTES_MAX,
    TABLE_BYTES_MAX,
    NoSuchResource,
    RestClient,
    is_text,
)
from compactord.errors import (
    CatalogUnavailable,
    FormatError,
    ObjectNotFound,
    TableNotFound,
)
from compactord.paimon import paths
from compactord.paimon.catalog_partitions import PartitionEvents, PartitionSpec
from compactord.paimon.schema import (
    BRANCH_MARK,
    CURRENT_VERSION,
    TableRef,
    TableSchema,
    parse_schema,
    read_schema,
    same_column,
)
from compactord.paimon.snapshot import Snapshot, parse_snapshot
from compactord.state.loading import read_newest
from compactord.state.table_state import Refreshed, TableState, load_at, refresh_to
from compactord.storage.base import Storage

_SNAPSHOT = "SNAPSHOT"
_SHOWN_MAX = 100
# Limit for all options of a table, which are kept while the table is served.
_OPTIONS_MAX = 256 << 10
# Limit of one request (rest/RESTApi.java, `listPartitionsByNames`).
_SPECS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTable:
    """A table as the server returns it; `path` is its URL (rest/GetTableResponse)."""

    id: str
    name: str
    path: str
    is_external: bool
    schema_id: int
    schema: Mapping[str, Any]

    @property
    def type(self) -> str:
        """`table`, or another type for files of other kinds."""
        options = self.schema.get("options")
        return str((options.get("type") if isinstance(options, dict) else None) or "table")


def served_table(found: object, url: str) -> ServedTable:
    """The table in an answer. Raises `CatalogUnavailable` if it describes none."""
    if not isinstance(found, dict):
        raise CatalogUnavailable(url, "answered with something that is not a table")
    kinds = {"id": str, "name": str, "path": str, "isExternal": bool, "schemaId": int}
    for key, kind in {**kinds, "schema": dict}.items():
        if type(found.get(key)) is not kind or (kind is str and not is_text(found[key])):
            name, shown = (repr(found.get(each))[:_SHOWN_MAX] for each in ("name", key))
            raise CatalogUnavailable(url, f"answered with a table {name} whose {key} is {shown}")
    options = found["schema"].get("options")
    if len(str(options)) > _OPTIONS_MAX:
        raise CatalogUnavailable(url, f"answered with options of more than {_OPTIONS_MAX:,} bytes")
    return ServedTable(
        id=found["id"],
        name=found["name"],
        path=found["path"],
        is_external=found["isExternal"],
        schema_id=found["schemaId"],
        schema=found["schema"],
    )


class TableOnServer(PartitionEvents):
    """One table on the server. It also records which partitions are done."""

    def __init__(self, client: RestClient, database: str, name: str) -> None:
        self.client = client
        self._full_name = f"{database}.{name}"
        self._parts = ("databases", database, "tables", name)

    def load(self) -> ServedTable:
        """The table as it is now. Raises `TableNotFound`, and as `RestClient.get`."""
        try:
            answer = self.client.get(*self._parts, bytes_max=TABLE_BYTES_MAX)
            found = served_table(answer, self._url())
        except NoSuchResource as error:
            raise self._missing() from error
        # The server may answer with the table's name for a branch.
        asked = self._parts[-1].casefold()
        if found.name.casefold() not in (asked, asked.partition(BRANCH_MARK)[0]):
            shown = repr(found.name)[:_SHOWN_MAX]
            raise CatalogUnavailable(self._url(), f"answered with the table {shown}")
        return found

    def newest_snapshot(self) -> Snapshot | None:
        """The newest snapshot, or None before the first. Raises as `load`, and `FormatError`."""
        try:
            found = self.client.get(*self._parts, "snapshot")
        except NoSuchResource as error:
            if error.kind.upper() == _SNAPSHOT:
                return None
            raise self._missing() from error
        inner = found.get("snapshot")
        snapshot = inner.get("snapshot") if isinstance(inner, dict) else None
        return parse_snapshot(json.dumps(snapshot).encode(), self._url("snapshot"))

    def commit(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a commit. Raises as `RestClient.post`."""
        return self.client.post(*self._parts, "commit", body=dict(body))

    def mark_done(self, spec: PartitionSpec) -> None:
        """See `PartitionEvents`. Raises as `RestClient.post`."""
        self.client.post(*self._parts, "partitions", "mark", body={"specs": [dict(spec)]})

    def are_done(self, specs: Sequence[PartitionSpec]) -> Sequence[bool]:
        """See `PartitionEvents`. Raises as `RestClient.post`, and `CatalogUnavailable`."""
        parts = (*self._parts, "partitions", "list-by-names")
        done: list[object] = []
        for first in range(0, len(specs), _SPECS_MAX):
            asked = [dict(spec) for spec in specs[first : first + _SPECS_MAX]]
            answer = self.client.post(*parts, body={"specs": asked}, bytes_max=PAGE_BYTES_MAX)
            found = answer.get("partitions") or []
            if not (isinstance(found, list) and all(isinstance(one, dict) for one in found)):
                url = self._url("partitions", "list-by-names")
                raise CatalogUnavailable(url, "answered with something other than partitions")
            done += [one.get("spec") for one in found if one.get("done") is True]
        return [dict(spec) in done for spec in specs]

    def _url(self, *more: str) -> str:
        return "/".join((self.client.uri, *self._parts, *more))

    def _missing(self) -> TableNotFound:
        return TableNotFound(f"table {self._full_name} does not exist in {self.client.uri}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestTable(TableAccess):
    """An external table: its writers rename snapshots in its store (catalog/CatalogUtils.java).

    `opened` is the schema that it was opened with.
    """

    server: TableOnServer
    opened: TableSchema

    def newest_schema(self, known: TableSchema | None = None) -> TableSchema:
        if known is None:
            return self.opened
        return served_schema(self._loaded(), self.storage, self.ref)

    def has_later_schema(self, known: TableSchema) -> bool:
        return self._loaded().schema_id != known.id

    def keeps_schema(self, known: TableSchema) -> bool:
        """See `TableAccess`. An older schema exists while the table is the same."""
        found = self._loaded()
        if found.schema_id != known.id:
            return known.id < found.schema_id
        return served_schema(found, self.storage, self.ref) == known

    def _loaded(self) -> ServedTable:
        found = self.server.load()
        if found.id != self.ref.identity:
            raise TableNotFound(f"table {self.ref.full_name} was dropped and created again")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTable(RestTable):
    """A table whose snapshots the server stores."""

    def newest_state(self) -> Refreshed:
        return read_newest(self.server.newest_snapshot, partial(load_at, self.storage, self.ref))

    def refreshed_state(self, known: TableState, *, checks_hint: bool = False) -> Refreshed:
        return read_newest(self.server.newest_snapshot, partial(refresh_to, self.storage, known))


def served_schema(found: ServedTable, storage: Storage, ref: TableRef) -> TableSchema:
    """The server's schema, if the schema file with its id has the same columns and keys.

    Raises the errors of reading the file, including `ObjectNotFound` and `FormatError`.
    """
    path = paths.schema_path(ref.root, found.schema_id)
    options = {key: text for key, text in _options(found).items() if key != "path"}
    members = {"version": CURRENT_VERSION, "id": found.schema_id, "highestFieldId": 0}
    text = json.dumps({**found.schema, **members, "options": options})
    served = parse_schema(text.encode(), path)
    try:
        stored = read_schema(storage, ref.root, found.schema_id)
    except ObjectNotFound as error:
        why = f"schema {found.schema_id}, the newest that the catalog names, is not there"
        raise ObjectNotFound(path, why) from error
    if not _agree(served, stored):
        raise FormatError(path, "the file has other columns or keys than the catalog's schema")
    return replace(stored, options=options)


def _options(found: ServedTable) -> Mapping[str, str]:
    options = found.schema.get("options")
    return options if isinstance(options, dict) else {}


def _agree(served: TableSchema, stored: TableSchema) -> bool:
    keys = (served.partition_keys, served.primary_keys)
    return (
        len(served.fields) == len(stored.fields)
        and all(map(same_column, served.fields, stored.fields))
        and keys == (stored.partition_keys, stored.primary_keys)
    )
