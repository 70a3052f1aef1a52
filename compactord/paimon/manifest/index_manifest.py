"""Index manifests: the complete list of index files of a snapshot.

A commit that changes deletion vectors writes a new one and carries all other entries over. HASH
indexes list the keys of dynamic buckets; compactions neither change nor read them.
Sources: manifest/{IndexManifestEntry,IndexManifestFile,IndexManifestEntrySerializer}.java.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import (
    AvroSchema,
    Container,
    ContainerWriter,
    decode_record,
    decode_with_bytes,
    encode_record,
    open_container,
)
from compactord.paimon.avro.types import Codec
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.deletion_vectors import INDEX_TYPE
from compactord.paimon.manifest.foreign import has_unknown_values, unknown_columns
from compactord.paimon.manifest.schemas import (
    INDEX_MANIFEST,
    INDEX_MANIFEST_VERSION,
    plain_of,
    require_readable,
)
from compactord.storage.base import Storage

HASH_INDEX = "HASH"
# Indexes of one column of a primary-key table, for all files of one level of a bucket.
SORTED_INDEXES = ("bitmap", "btree")
# Version and level, before the names and row counts of the files.
_SOURCES = struct.Struct(">ii")
_SOURCES_VERSION = 1


def _sized(longest: int) -> bytes:
    """Matches bytes or a string of up to `longest` bytes with its encoded length."""
    sizes = (re.escape(bytes([2 * n])) + b"[\\x00-\\xff]{%d}" % n for n in range(longest + 1))
    return b"(?:" + b"|".join(sizes) + b")"


# Lengths whose encoding is one byte.
_TEXT = _sized(63)
_NUMBER = rb"[\x80-\xff]*[\x00-\x7f]"
# An entry of INDEX_MANIFEST as Avro encodes it, added, of type HASH, whose last columns are null.
_HASH_ENTRY = re.compile(
    rb"\x02\x00" + _TEXT + _NUMBER + rb"\x08HASH" + _TEXT + _NUMBER + _NUMBER + rb"\x00\x00\x00"
)


class VectorRange(NamedTuple):
    """The vector of a data file in an index file, with the fields of
    `deletion_vectors.VectorRef`.
    """

    data_file: str
    offset: int
    length: int
    cardinality: int | None


class VectorsFile(NamedTuple):
    """A new index file of deletion vectors, which are in the order of the file."""

    bucket: BucketId
    file_name: str
    file_size: int
    vectors: tuple[VectorRange, ...]


class IndexFile(NamedTuple):
    """The location of an index file. For ten thousand files, entries take a hundred times the
    memory.
    """

    index_type: str
    file_name: str
    external_path: str | None
    is_global: bool

    def path(self, location: str) -> str:
        """The file's path (`FileStorePathFactory.globalIndexFileFactory`).

        Raises `UnsupportedTable` if the file is in another store, or has another name there.
        """
        name, elsewhere = self.file_name, self.external_path
        if elsewhere is None:
            return paths.index_path(location, name)
        found = paths.external_path(location, elsewhere)
        if found is None:
            reason = f"index file {name} is in another store, at {elsewhere}"
            raise UnsupportedTable(location, [reason])
        if found.rpartition("/")[2] != name:
            reason = f"index file {name} has another name where it is, at {elsewhere}"
            raise UnsupportedTable(location, [reason])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One index file. `canonical` is the whole entry encoded in the schema of release 2.0.0.

    Two entries are equal if their canonical bytes are. An entry with values in columns of newer
    releases has its own encoding appended. `vectors` belong to an index file of deletion vectors.
    Sorted indexes have `level`, the level of the files that they cover, `field_id`, the column, and
    `sources`, the files as stored. `is_global` marks the index of a column (globalindex/*.java).
    `external_path` is set if the file is outside of the table's folders.
    """

    bucket: BucketId
    index_type: str
    file_name: str
    file_size: int
    row_count: int
    canonical: bytes
    vectors: tuple[VectorRange, ...] = ()
    level: int | None = None
    field_id: int | None = None
    sources: bytes = b""
    is_global: bool = False
    external_path: str | None = None

    def path(self, location: str) -> str:
        file = IndexFile(self.index_type, self.file_name, self.external_path, self.is_global)
        return file.path(location)

    def is_served(self, *, has_vectors: bool) -> bool:
        """Whether a compaction can handle it, in a table with deletion vectors or without.

        Java has sorted indexes in tables with vectors only.
        """
        return self.index_type == INDEX_TYPE or (has_vectors and self.level is not None)


def read_index_entries(storage: Storage, location: str, name: str) -> tuple[IndexEntry, ...]:
    """All entries of the index manifest `name`, in order.

    Raises `FormatError` for damage, `UnsupportedTable` for unknown versions.
    """
    path = paths.manifest_path(location, name)
    container = _opened(storage.read(path), path)
    return tuple(_entries(container, container.encoded_records(), location))


def read_index_files(storage: Storage, location: str, name: str) -> Iterator[IndexFile]:
    """The files of all entries of the index manifest `name`, one by one, in order.

    Raises as `read_index_entries`.
    """
    path = paths.manifest_path(location, name)
    container = _opened(storage.read(path), path)
    for record, _ in container.encoded_records():
        _require_known(record, location, path)
        yield IndexFile(
            record["_INDEX_TYPE"],
            paths.checked_name(record["_FILE_NAME"], path),
            record.get("_EXTERNAL_PATH"),
            record.get("_GLOBAL_INDEX") is not None,
        )


def read_entries_but_hash(storage: Storage, location: str, name: str) -> tuple[IndexEntry, ...]:
    """All entries of the index manifest `name` except HASH indexes, in order.

    A table of 10,000 dynamic buckets has as many HASH entries, and each commit that adds keys
    replaces the manifest: 4 ms in place of 160. Raises as `read_index_entries`.
    """
    path = paths.manifest_path(location, name)
    container = _opened(storage.read(path), path)
    is_known = plain_of(container.schema) == plain_of(INDEX_MANIFEST)
    records = (
        record
        for block in container.blocks()
        # Removing the HASH entries leaves nothing: the manifest has only these.
        if not is_known or _HASH_ENTRY.subn(b"", block.data) != (b"", block.count)
        for record in decode_with_bytes(container.schema, block, path)
    )
    entries = _entries(container, records, location)
    return tuple(entry for entry in entries if entry.index_type != HASH_INDEX)


def with_vectors_files(
    storage: Storage,
    location: str,
    name: str | None,
    *,
    without: Collection[str],
    added: Sequence[VectorsFile],
    codec: Codec,
) -> bytes:
    """The index manifest `name`, or an empty one for None, with other index files of deletion
    vectors.

    `without` are the names of index files to remove, of any type. All other entries are carried
    over. Raises as `read_index_entries`, and `UnsupportedTable` if entries have columns of a newer
    release that cannot be written together with the new ones.
    """
    path = paths.manifest_path(location, name or "")
    schema, kept = INDEX_MANIFEST, []
    if name is not None:
        container = _opened(storage.read(path), path)
        records = [
            (record, data)
            for record, data in container.encoded_records()
            if record["_FILE_NAME"] not in without
        ]
        schema = _schema_for(container, [record for record, _ in records])
        is_same = plain_of(schema) == plain_of(container.schema)
        kept = [data if is_same else encode_record(schema, record) for record, data in records]
    writer = ContainerWriter(schema, codec)
    for data in (*kept, *(_encoded(file, schema, location, path) for file in added)):
        writer.append(data)
    return writer.finish()


def _schema_for(container: Container, records: Iterable[Mapping[str, Any]]) -> AvroSchema:
    """Our schema, or the file's if its records have values in columns that ours lacks."""
    known = plain_of(INDEX_MANIFEST)
    is_foreign = any(unknown_columns(plain_of(container.schema), known)) and any(
        has_unknown_values(record, known) for record in records
    )
    return container.schema if is_foreign else INDEX_MANIFEST


def _encoded(file: VectorsFile, schema: AvroSchema, location: str, path: str) -> bytes:
    record = {
        "_VERSION": INDEX_MANIFEST_VERSION,
        "_KIND": int(EntryKind.ADD),
        "_PARTITION": file.bucket.partition,
        "_BUCKET": file.bucket.bucket,
        "_INDEX_TYPE": INDEX_TYPE,
        "_FILE_NAME": file.file_name,
        "_FILE_SIZE": file.file_size,
        "_ROW_COUNT": len(file.vectors),
        "_DELETIONS_VECTORS_RANGES": [
            {
                "f0": vector.data_file,
                "f1": vector.offset,
                "f2": vector.length,
                "_CARDINALITY": vector.cardinality,
            }
            for vector in file.vectors
        ],
        "_EXTERNAL_PATH": None,
        "_GLOBAL_INDEX": None,
    }
    if schema is INDEX_MANIFEST:
        return encode_record(schema, record)
    try:
        data = encode_record(schema, record)
        is_whole = _entry(decode_record(schema, data, path), location, path, foreign=b"") == _entry(
            record, location, path, foreign=b""
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UnsupportedTable(location, [f"{path} needs values of columns: {error}"]) from error
    if not is_whole:
        raise UnsupportedTable(location, [f"{path} lacks columns that new entries need"])
    return data


def _opened(data: bytes, path: str) -> Container:
    container = open_container(data, path)
    require_readable(container.schema, INDEX_MANIFEST, path)
    return container


def _entries(
    container: Container, records: Iterable[tuple[dict[str, Any], bytes]], location: str
) -> Iterator[IndexEntry]:
    known = plain_of(INDEX_MANIFEST)
    has_unknown = any(unknown_columns(plain_of(container.schema), known))
    for record, data in records:
        foreign = data if has_unknown and has_unknown_values(record, known) else b""
        yield _entry(record, location, container.path, foreign=foreign)


def sources_of(level: int, row_counts: Mapping[str, int]) -> bytes:
    """`IndexEntry.sources` of the files of one level, by name (PrimaryKeyIndexSourceMeta.java)."""
    found = bytearray(_SOURCES.pack(_SOURCES_VERSION, level) + struct.pack(">i", len(row_counts)))
    for name, rows in sorted(row_counts.items()):
        text = name.encode()
        found += struct.pack(">H", len(text)) + text + struct.pack(">q", rows)
    return bytes(found)


def _require_known(record: Mapping[str, Any], location: str, path: str) -> None:
    if record["_VERSION"] != INDEX_MANIFEST_VERSION:
        raise UnsupportedTable(location, [f"{path} has entry version {record['_VERSION']}"])
    if record["_KIND"] != EntryKind.ADD:
        raise FormatError(path, f"an index manifest with an entry of kind {record['_KIND']}")


def _entry(record: Mapping[str, Any], location: str, path: str, *, foreign: bytes) -> IndexEntry:
    _require_known(record, location, path)
    level, indexed = None, record.get("_GLOBAL_INDEX") or {}
    sources = indexed.get("_SOURCE_META") or b""
    if record["_INDEX_TYPE"] in SORTED_INDEXES and len(sources) >= _SOURCES.size:
        version, found = _SOURCES.unpack_from(sources)
        level = found if version == _SOURCES_VERSION else None
    return IndexEntry(
        bucket=BucketId(record["_PARTITION"], record["_BUCKET"]),
        index_type=record["_INDEX_TYPE"],
        file_name=paths.checked_name(record["_FILE_NAME"], path),
        file_size=record["_FILE_SIZE"],
        row_count=record["_ROW_COUNT"],
        canonical=encode_record(INDEX_MANIFEST, record) + foreign,
        vectors=tuple(
            VectorRange(
                paths.checked_name(vector["f0"], path),
                vector["f1"],
                vector["f2"],
                vector.get("_CARDINALITY"),
            )
            for vector in record.get("_DELETIONS_VECTORS_RANGES") or ()
            if vector is not None
        ),
        level=level,
        field_id=indexed.get("_INDEX_FIELD_ID"),
        sources=b"" if level is None else sources,
        is_global=record.get("_GLOBAL_INDEX") is not None,
        external_path=record.get("_EXTERNAL_PATH"),
    )
