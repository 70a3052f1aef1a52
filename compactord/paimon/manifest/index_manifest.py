"""Index manifests: the complete list of index files of a snapshot.

Their contents are not interpreted here. An entry is compared by its canonical bytes: a compaction
is safe only while the entries of its bucket are what they were when it was planned.
Sources: manifest/{IndexManifestEntry,IndexManifestFile,IndexManifestEntrySerializer}.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import encode_record, open_container
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.manifest.foreign import has_unknown_values, unknown_columns
from compactord.paimon.manifest.schemas import (
    INDEX_MANIFEST,
    INDEX_MANIFEST_VERSION,
    plain_of,
    require_readable,
)
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One index file. `canonical` is the whole entry encoded in the schema of release 2.0.0.

    Two entries are the same when their canonical bytes are. An entry with values in columns of
    newer releases has its own encoding behind that. `data_files` are the names of those for which
    a file of deletion vectors has one; `external_path` is set where the file is elsewhere.
    """

    bucket: BucketId
    index_type: str
    file_name: str
    file_size: int
    row_count: int
    canonical: bytes
    data_files: tuple[str, ...] = ()
    external_path: str | None = None


def read_index_entries(storage: Storage, location: str, name: str) -> tuple[IndexEntry, ...]:
    """All entries of the index manifest `name`, in order.

    Raises `FormatError` for damage, `UnsupportedTable` for versions not known.
    """
    path = paths.manifest_path(location, name)
    container = open_container(storage.read(path), path)
    require_readable(container.schema, INDEX_MANIFEST, path)
    known = plain_of(INDEX_MANIFEST)
    has_unknown = any(unknown_columns(plain_of(container.schema), known))
    return tuple(
        _entry(
            record,
            location,
            path,
            foreign=data if has_unknown and has_unknown_values(record, known) else b"",
        )
        for record, data in container.encoded_records()
    )


def _entry(record: Mapping[str, Any], location: str, path: str, *, foreign: bytes) -> IndexEntry:
    if record["_VERSION"] != INDEX_MANIFEST_VERSION:
        raise UnsupportedTable(location, [f"{path} has entry version {record['_VERSION']}"])
    if record["_KIND"] != EntryKind.ADD:
        raise FormatError(path, f"an index manifest with an entry of kind {record['_KIND']}")
    return IndexEntry(
        bucket=BucketId(record["_PARTITION"], record["_BUCKET"]),
        index_type=record["_INDEX_TYPE"],
        file_name=paths.checked_name(record["_FILE_NAME"], path),
        file_size=record["_FILE_SIZE"],
        row_count=record["_ROW_COUNT"],
        canonical=encode_record(INDEX_MANIFEST, record) + foreign,
        data_files=tuple(
            paths.checked_name(vector["f0"], path)
            for vector in record.get("_DELETIONS_VECTORS_RANGES") or ()
            if vector is not None
        ),
        external_path=record.get("_EXTERNAL_PATH"),
    )
