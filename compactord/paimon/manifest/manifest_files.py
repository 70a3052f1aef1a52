"""Manifests (data files added and deleted) and manifest lists (which manifests make a snapshot).

Recorded sizes and counts are compared with what is read, so that a truncated file is an error and
does not look like a smaller table. Sources: manifest/{ManifestFile,ManifestList,ManifestEntry,
ManifestFileMeta}.java, io/{DataFileMetaSerializer,RollingFileWriterImpl}.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import (
    AvroSchema,
    Codec,
    Container,
    ContainerWriter,
    encode_record,
    open_container,
)
from compactord.paimon.binary_row import comparable_key, decode_row, encode_row
from compactord.paimon.data_file import (
    ColumnStats,
    DataFile,
    EntryKind,
    FileIdentity,
    ManifestEntry,
)
from compactord.paimon.manifest.foreign import CarriedColumns, ForeignValue, foreign_columns
from compactord.paimon.manifest.schemas import (
    MANIFEST,
    MANIFEST_LIST,
    MANIFEST_LIST_WITH_EXTRA_FILES,
    MANIFEST_VERSION,
    READABLE_MANIFEST_LIST,
    require_readable,
    table_of,
)
from compactord.paimon.types import DataType
from compactord.storage.base import Storage

# Java checks the size of the manifest that it writes once in this many entries.
_ROLL_CHECK_INTERVAL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One row of a manifest list. Sizes in bytes; ranges are inclusive, None: not known.

    `partition_stats` cover the partition columns of all entries, untruncated. `extra_files` are in
    the manifest's folder and belong to it (its index, in tables of release 2.1). `foreign` are
    values of columns of newer releases.
    """

    file_name: str
    file_size: int
    num_added_files: int
    num_deleted_files: int
    partition_stats: ColumnStats
    schema_id: int
    min_bucket: int | None = None
    max_bucket: int | None = None
    min_level: int | None = None
    max_level: int | None = None
    min_row_id: int | None = None
    max_row_id: int | None = None
    extra_files: tuple[str, ...] = ()
    foreign: tuple[ForeignValue, ...] = ()


def read_manifest_list(
    storage: Storage, path: str, size: int | None = None
) -> tuple[ManifestFile, ...]:
    """All rows in order; `size` is the one that the snapshot records, None in old snapshots."""
    data = storage.read(path)
    if size is not None:
        _require_size(path, found=len(data), recorded=size)
    container = open_container(data, path)
    require_readable(container.schema, READABLE_MANIFEST_LIST, path)
    foreign = foreign_columns(container.schema, READABLE_MANIFEST_LIST)
    return tuple(
        _manifest_file(record, path, foreign.values(record, data, path) if foreign else ())
        for record, data in container.encoded_records()
    )


def encode_manifest_list(manifests: Iterable[ManifestFile], codec: Codec) -> bytes:
    """A manifest list file; it never rolls and may be empty. Raises `TypesDiffer`.

    It has the columns of release 2.0.0, and the unknown columns of its rows.
    """
    rows = tuple(manifests)
    carried = CarriedColumns().including(value for row in rows for value in row.foreign)
    has_extra_files = any(row.extra_files for row in rows)
    schema = MANIFEST_LIST_WITH_EXTRA_FILES if has_extra_files else MANIFEST_LIST
    writer = ContainerWriter(carried.added_to(schema), codec)
    for row in rows:
        known = encode_record(schema, _manifest_file_record(row))
        writer.append(known + carried.encoded(row.foreign))
    return writer.finish()


def read_entries(
    storage: Storage, location: str, manifest: ManifestFile
) -> tuple[ManifestEntry, ...]:
    """All entries of a manifest in order, as objects: for small manifests and for rewriting them.

    Raises `FormatError` unless size and counts are as the manifest list records them.
    """
    container = open_manifest(storage, location, manifest)
    found = entries_of(container.schema, container.encoded_records(), container.path)
    entries = tuple(added_once(found, container.path))
    added = sum(entry.kind is EntryKind.ADD for entry in entries)
    require_counts(manifest, container.path, added=added, deleted=len(entries) - added)
    return entries


def open_manifest(storage: Storage, location: str, manifest: ManifestFile) -> Container:
    """The manifest's frame and schema, checked; entries are still encoded."""
    path = paths.manifest_path(location, manifest.file_name)
    return manifest_of(storage.read(path), path, manifest)


def manifest_of(data: bytes, path: str, manifest: ManifestFile) -> Container:
    """As `open_manifest`, of what was read."""
    _require_size(path, found=len(data), recorded=manifest.file_size)
    container = open_container(data, path)
    require_readable(container.schema, MANIFEST, path)
    return container


def require_counts(manifest: ManifestFile, path: str, *, added: int, deleted: int) -> None:
    """Raises `FormatError` unless a manifest's counts are those in its list."""
    if (added, deleted) != (manifest.num_added_files, manifest.num_deleted_files):
        raise FormatError(
            path,
            f"holds {added} added and {deleted} deleted files, its manifest list records "
            f"{manifest.num_added_files} and {manifest.num_deleted_files}",
        )


def roll_entries(
    entries: Iterable[ManifestEntry],
    *,
    names: Iterator[str],
    target_size: int,
    codec: Codec,
    partition_types: Sequence[DataType],
) -> Iterator[tuple[bytes, ManifestFile]]:
    """Manifests with these entries in order, each with its manifest list row.

    A manifest ends at the first 1000th entry at which it has reached `target_size` bytes, as Java's
    rolling writer does it. Without entries there is no manifest. A name is taken only for a
    manifest that is written. At most one manifest is in memory. Raises `TypesDiffer`.
    """
    manifest = _OpenManifest(codec)
    for entry in entries:
        manifest.append(entry)
        count = len(manifest.entries)
        if count % _ROLL_CHECK_INTERVAL == 0 and manifest.flushed_bytes >= target_size:
            yield manifest.finish(names, partition_types)
            manifest = _OpenManifest(codec)
    if manifest.entries:
        yield manifest.finish(names, partition_types)


class _OpenManifest:
    """A manifest under construction: it gets entries, and the foreign columns that these have."""

    def __init__(self, codec: Codec) -> None:
        self.entries: list[ManifestEntry] = []
        self._codec = codec
        self._carried = CarriedColumns()
        self._writer = ContainerWriter(MANIFEST, codec)

    @property
    def flushed_bytes(self) -> int:
        return self._writer.flushed_bytes

    def append(self, entry: ManifestEntry) -> None:
        carried = self._carried.including(entry.file.foreign)
        if carried is not self._carried:
            # Rare: at most once for each such column.
            self._carried = carried
            self._writer = ContainerWriter(carried.added_to(MANIFEST), self._codec)
            for earlier in self.entries:
                self._writer.append(encode_entry(earlier, carried))
        self.entries.append(entry)
        self._writer.append(encode_entry(entry, carried))

    def finish(
        self, names: Iterator[str], partition_types: Sequence[DataType]
    ) -> tuple[bytes, ManifestFile]:
        data = self._writer.finish()
        return data, describe_entries(next(names), len(data), self.entries, partition_types)


def describe_entries(
    file_name: str,
    file_size: int,
    entries: Sequence[ManifestEntry],
    partition_types: Sequence[DataType],
) -> ManifestFile:
    """The manifest list row of a manifest with these entries (at least one)."""
    added = sum(entry.kind is EntryKind.ADD for entry in entries)
    files = [entry.file for entry in entries]
    described = ManifestFile(
        file_name=file_name,
        file_size=file_size,
        num_added_files=added,
        num_deleted_files=len(entries) - added,
        partition_stats=_partition_stats(entries, partition_types),
        schema_id=max(file.schema_id for file in files),
        min_bucket=min(entry.bucket for entry in entries),
        max_bucket=max(entry.bucket for entry in entries),
        min_level=min(file.level for file in files),
        max_level=max(file.level for file in files),
    )
    ranges = [
        (file.first_row_id, file.first_row_id + file.row_count - 1)
        for file in files
        if file.first_row_id is not None
    ]
    if len(ranges) == len(files):
        described = replace(
            described,
            min_row_id=min(first for first, _ in ranges),
            max_row_id=max(last for _, last in ranges),
        )
    return described


def _partition_stats(entries: Sequence[ManifestEntry], types: Sequence[DataType]) -> ColumnStats:
    """Minimum, maximum and null count of each partition column, in full (no truncation)."""
    rows = Counter(entry.partition for entry in entries)
    minimum: list[Any] = []
    maximum: list[Any] = []
    nulls: list[int | None] = []
    decoded = {row: (comparable_key(row, types), decode_row(row, types)) for row in rows}
    for column in range(len(types)):
        present = [
            (key[column], values[column])
            for key, values in decoded.values()
            if values[column] is not None
        ]
        present.sort(key=lambda pair: pair[0])
        minimum.append(present[0][1] if present else None)
        maximum.append(present[-1][1] if present else None)
        nulls.append(sum(n for row, n in rows.items() if decoded[row][1][column] is None))
    return ColumnStats(
        min_values=encode_row(minimum, types),
        max_values=encode_row(maximum, types),
        null_counts=tuple(nulls),
    )


def _require_size(path: str, *, found: int, recorded: int) -> None:
    if found != recorded:
        raise FormatError(path, f"has {found} bytes, but {recorded} are recorded")


def _require_version(record: Mapping[str, Any], path: str) -> None:
    version = record["_VERSION"]
    if version == 1:
        raise UnsupportedTable(
            table_of(path), [f"{path} has entry version 1: the table must be created again"]
        )
    if version != MANIFEST_VERSION:
        raise UnsupportedTable(table_of(path), [f"{path} has entry version {version}"])


def _record_in(record: Mapping[str, Any], column: str, path: str) -> Mapping[str, Any]:
    """A nested record. Raises `FormatError` if it is null, which files of release 0.8 could say."""
    found: Mapping[str, Any] | None = record[column]
    if found is None:
        raise FormatError(path, f"column {column} is null")
    return found


def _stats(record: Mapping[str, Any]) -> ColumnStats:
    return ColumnStats(
        min_values=record["_MIN_VALUES"],
        max_values=record["_MAX_VALUES"],
        null_counts=tuple(record["_NULL_COUNTS"] or ()),
    )


def _stats_record(stats: ColumnStats) -> dict[str, Any]:
    return {
        "_MIN_VALUES": stats.min_values,
        "_MAX_VALUES": stats.max_values,
        "_NULL_COUNTS": list(stats.null_counts),
    }


def _manifest_file(
    record: Mapping[str, Any], path: str, foreign: tuple[ForeignValue, ...]
) -> ManifestFile:
    _require_version(record, path)
    return ManifestFile(
        file_name=paths.checked_name(record["_FILE_NAME"], path),
        file_size=record["_FILE_SIZE"],
        num_added_files=record["_NUM_ADDED_FILES"],
        num_deleted_files=record["_NUM_DELETED_FILES"],
        partition_stats=_stats(_record_in(record, "_PARTITION_STATS", path)),
        schema_id=record["_SCHEMA_ID"],
        min_bucket=record.get("_MIN_BUCKET"),
        max_bucket=record.get("_MAX_BUCKET"),
        min_level=record.get("_MIN_LEVEL"),
        max_level=record.get("_MAX_LEVEL"),
        min_row_id=record.get("_MIN_ROW_ID"),
        max_row_id=record.get("_MAX_ROW_ID"),
        extra_files=tuple(
            paths.checked_name(name or "", path) for name in record.get("_EXTRA_FILES") or ()
        ),
        foreign=foreign,
    )


def _manifest_file_record(manifest: ManifestFile) -> dict[str, Any]:
    return {
        "_VERSION": MANIFEST_VERSION,
        "_FILE_NAME": manifest.file_name,
        "_FILE_SIZE": manifest.file_size,
        "_NUM_ADDED_FILES": manifest.num_added_files,
        "_NUM_DELETED_FILES": manifest.num_deleted_files,
        "_PARTITION_STATS": _stats_record(manifest.partition_stats),
        "_SCHEMA_ID": manifest.schema_id,
        "_MIN_BUCKET": manifest.min_bucket,
        "_MAX_BUCKET": manifest.max_bucket,
        "_MIN_LEVEL": manifest.min_level,
        "_MAX_LEVEL": manifest.max_level,
        "_MIN_ROW_ID": manifest.min_row_id,
        "_MAX_ROW_ID": manifest.max_row_id,
        "_EXTRA_FILES": list(manifest.extra_files) or None,
    }


def entries_of(
    schema: AvroSchema, records: Iterable[tuple[Mapping[str, Any], bytes]], path: str
) -> Iterator[ManifestEntry]:
    """Entries from Avro records under `schema`, each with its encoding.

    Columns that an older Paimon did not write are None. Raises `FormatError`, and
    `UnsupportedTable` for values that we could not carry.
    """
    foreign = foreign_columns(schema, MANIFEST)
    for record, data in records:
        file = _record_in(record, "_FILE", path)
        values = foreign.values(record, data, path) if foreign else ()
        yield _entry(record, file, path, values)


def added_once(entries: Iterable[ManifestEntry], path: str) -> Iterator[ManifestEntry]:
    """The entries of one manifest as they are read.

    Raises `FormatError` for a file that is added twice and not deleted in between, which Java
    refuses when it merges entries (FileEntry.mergeEntries). No writer makes such a manifest; one
    of a few KB may claim a million.
    """
    first: dict[str, ManifestEntry] = {}
    # Of names that occur again, as identities cost more.
    added: dict[str, set[FileIdentity]] = {}
    for entry in entries:
        name = entry.file.file_name
        earlier = first.setdefault(name, entry)
        if earlier is not entry:
            before = {earlier.identity} if earlier.kind is EntryKind.ADD else set()
            same_name = added.setdefault(name, before)
            if entry.kind is EntryKind.DELETE:
                same_name.discard(entry.identity)
            elif entry.identity in same_name:
                raise FormatError(path, f"file {name} is added twice")
            else:
                same_name.add(entry.identity)
        yield entry


def encoded_entries(
    entries: Iterable[ManifestEntry],
) -> Iterator[tuple[AvroSchema, list[ManifestEntry], list[bytes]]]:
    """Entries with their encodings, those with the same foreign columns together."""
    groups: dict[CarriedColumns, list[ManifestEntry]] = {}
    for entry in entries:
        groups.setdefault(CarriedColumns().including(entry.file.foreign), []).append(entry)
    for carried, group in groups.items():
        yield carried.added_to(MANIFEST), group, [encode_entry(entry, carried) for entry in group]


def encode_entry(entry: ManifestEntry, carried: CarriedColumns) -> bytes:
    """Under `MANIFEST` with these columns added."""
    return encode_record(MANIFEST, entry_record(entry)) + carried.encoded(entry.file.foreign)


def _entry(
    record: Mapping[str, Any],
    file: Mapping[str, Any],
    path: str,
    foreign: tuple[ForeignValue, ...],
) -> ManifestEntry:
    _require_version(record, path)
    try:
        kind = EntryKind(record["_KIND"])
    except ValueError as error:
        raise FormatError(path, f"an entry of kind {record['_KIND']}") from error
    return ManifestEntry(
        kind=kind,
        partition=record["_PARTITION"],
        bucket=record["_BUCKET"],
        total_buckets=record["_TOTAL_BUCKETS"],
        file=DataFile(
            file_name=paths.checked_name(file["_FILE_NAME"], path),
            file_size=file["_FILE_SIZE"],
            row_count=file["_ROW_COUNT"],
            min_key=file["_MIN_KEY"],
            max_key=file["_MAX_KEY"],
            key_stats=_stats(_record_in(file, "_KEY_STATS", path)),
            value_stats=_stats(_record_in(file, "_VALUE_STATS", path)),
            min_sequence_number=file["_MIN_SEQUENCE_NUMBER"],
            max_sequence_number=file["_MAX_SEQUENCE_NUMBER"],
            schema_id=file["_SCHEMA_ID"],
            level=file["_LEVEL"],
            extra_files=tuple(paths.checked_name(name, path) for name in file["_EXTRA_FILES"]),
            creation_time_ms=file.get("_CREATION_TIME"),
            delete_row_count=file.get("_DELETE_ROW_COUNT"),
            embedded_file_index=file.get("_EMBEDDED_FILE_INDEX"),
            file_source=file.get("_FILE_SOURCE"),
            value_stats_columns=_texts(file.get("_VALUE_STATS_COLS")),
            external_path=file.get("_EXTERNAL_PATH"),
            first_row_id=file.get("_FIRST_ROW_ID"),
            write_columns=_texts(file.get("_WRITE_COLS")),
            foreign=foreign,
        ),
    )


def entry_record(entry: ManifestEntry) -> dict[str, Any]:
    """The Avro record of an entry in the schema of release 2.0.0."""
    file = entry.file
    return {
        "_VERSION": MANIFEST_VERSION,
        "_KIND": int(entry.kind),
        "_PARTITION": entry.partition,
        "_BUCKET": entry.bucket,
        "_TOTAL_BUCKETS": entry.total_buckets,
        "_FILE": {
            "_FILE_NAME": file.file_name,
            "_FILE_SIZE": file.file_size,
            "_ROW_COUNT": file.row_count,
            "_MIN_KEY": file.min_key,
            "_MAX_KEY": file.max_key,
            "_KEY_STATS": _stats_record(file.key_stats),
            "_VALUE_STATS": _stats_record(file.value_stats),
            "_MIN_SEQUENCE_NUMBER": file.min_sequence_number,
            "_MAX_SEQUENCE_NUMBER": file.max_sequence_number,
            "_SCHEMA_ID": file.schema_id,
            "_LEVEL": file.level,
            "_EXTRA_FILES": list(file.extra_files),
            "_CREATION_TIME": file.creation_time_ms,
            "_DELETE_ROW_COUNT": file.delete_row_count,
            "_EMBEDDED_FILE_INDEX": file.embedded_file_index,
            "_FILE_SOURCE": file.file_source,
            "_VALUE_STATS_COLS": _list(file.value_stats_columns),
            "_EXTERNAL_PATH": file.external_path,
            "_FIRST_ROW_ID": file.first_row_id,
            "_WRITE_COLS": _list(file.write_columns),
        },
    }


def _texts(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _list(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)
