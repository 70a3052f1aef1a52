"""Manifests and lists with columns that release 2.0.0 does not know, as others write them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from compactord.paimon import paths
from compactord.paimon.avro.container import (
    AvroSchema,
    compile_schema,
    encode_record,
    open_container,
)
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.manifest.entries import entry_record
from compactord.paimon.manifest.foreign import ForeignValue
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    encode_manifest_list,
)
from compactord.paimon.manifest.schemas import MANIFEST
from tests.containers import encode_container, records_of
from tests.unit.paimon.table_builder import CODEC, MemoryStorage

ROOT = "/w/db.db/t"
# The column that pypaimon 2.1 has in every manifest.
SEQUENCES = "_WRITE_COLS_SEQUENCES"
SEQUENCES_TYPE = ["null", {"type": "array", "items": "long"}]
# Where columns may be added: the names of the records around them.
ENTRY, FILE, STATS = (), ("_FILE",), ("_FILE", "_VALUE_STATS")


class Added(NamedTuple):
    """A column that is put before that of the number, with its value in each record."""

    place: tuple[str, ...]
    name: str
    type: Any
    values: Sequence[Any]
    number: int = 1000


def with_columns(json: Any, columns: Sequence[Added]) -> AvroSchema:
    changed = copy.deepcopy(json)
    for column in columns:
        fields = changed["fields"]
        for name in column.place:
            fields = next(f for f in fields if f["name"] == name)["type"]["fields"]
        fields.insert(column.number, {"name": column.name, "type": column.type})
    return compile_schema(changed)


def filled(records: Sequence[Mapping[str, Any]], columns: Sequence[Added]) -> list[dict[str, Any]]:
    out = [copy.deepcopy(dict(record)) for record in records]
    for column in columns:
        for record, value in zip(out, column.values, strict=True):
            for name in column.place:
                record = record[name]
            record[column.name] = value
    return out


def manifest_of(
    entries: Sequence[ManifestEntry], *columns: Added
) -> tuple[MemoryStorage, ManifestFile]:
    """A store with the manifest `m`, and the manifest's list row."""
    records = filled([entry_record(entry) for entry in entries], columns)
    data = encode_container(with_columns(MANIFEST.json, columns), records, CODEC)
    storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
    return storage, describe_entries("m", len(data), entries, [])


def list_of(manifests: Sequence[ManifestFile], *columns: Added) -> bytes:
    container = open_container(encode_manifest_list(manifests, CODEC), "list")
    schema = with_columns(container.schema.json, columns)
    return encode_container(schema, filled(records_of(container), columns), CODEC)


def sequences(*values: int) -> ForeignValue:
    """A value of `SEQUENCES` as it is carried."""
    item = {"name": "v", "type": SEQUENCES_TYPE}
    schema = compile_schema({"type": "record", "name": "r", "fields": [item]})
    data = encode_record(schema, {"v": list(values)})
    return ForeignValue(f"_FILE.{SEQUENCES}", '["null",{"items":"long","type":"array"}]', data)
