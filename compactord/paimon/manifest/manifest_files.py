"""Manifests (data files added and deleted) and manifest lists (the manifests of a snapshot).

Recorded sizes and counts are compared with the file: a truncated file must raise an error instead
of looking like a smaller table. Sources: manifest/{ManifestFile,ManifestList,ManifestEntry,
ManifestFileMeta}.java, io/{DataFileMetaSerializer,RollingFileWriterImpl}.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compactord.errors import FormatError
from compactord.paimon import paths
from compactord.paimon.avro.container import (
    AvroSchema,
    Block,
    Container,
    ContainerWriter,
    decode_with_bytes,
    encode_record,
    open_container,
)
from compactord.paimon.avro.types import Codec
from compactord.paimon.binary_row import comparable_key, decode_row, encode_row
from compactord.paimon.data_file import ColumnStats, EntryKind, ManifestEntry
from compactord.paimon.manifest.entries import (
    added_once,
    encode_entry,
    entries_of,
    record_in,
    require_version,
    stats_of,
    stats_record,
)
from compactord.paimon.manifest.foreign import CarriedColumns, ForeignValue, foreign_columns
from compactord.paimon.manifest.schemas import (
    MANIFEST,
    MANIFEST_LIST,
    MANIFEST_LIST_WITH_EXTRA_FILES,
    MANIFEST_VERSION,
    READABLE_MANIFEST_LIST,
    require_readable,
)
from compactord.paimon.snapshot import ManifestListRef
from compactord.paimon.types import DataType
from compactord.storage.base import Storage

# Attributes of a `ManifestFile` that are columns as they are.
_COLUMNS = {
    "file_size": "_FILE_SIZE",
    "num_added_files": "_NUM_ADDED_FILES",
    "num_deleted_files": "_NUM_DELETED_FILES",
    "schema_id": "_SCHEMA_ID",
    "min_bucket": "_MIN_BUCKET",
    "max_bucket": "_MAX_BUCKET",
    "min_level": "_MIN_LEVEL",
    "max_level": "_MAX_LEVEL",
    "min_row_id": "_MIN_ROW_ID",
    "max_row_id": "_MAX_ROW_ID",
}
# Java checks the size of the manifest that it writes once in this many entries.
_ROLL_CHECK_INTERVAL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One row of a manifest list. Sizes in bytes; ranges are inclusive, None if unknown.

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


@dataclass(slots=True)
class ListBlocks:
    """The blocks of the last list read, by their position, with schema and rows.

    The base list of a snapshot begins like the previous one: equal bytes are not decoded again.
    """

    known: dict[int, tuple[AvroSchema, Block, tuple[ManifestFile, ...]]] = field(
        default_factory=dict
    )


def read_manifest_list(
    storage: Storage, path: str, size: int | None = None, *, before: ListBlocks | None = None
) -> tuple[ManifestFile, ...]:
    """All rows in order. `size` is the size in the snapshot, None in old snapshots.

    Rows that the list in `before` has as well are the same objects. `before` is updated to this
    list.
    """
    data = storage.read(path)
    if size is not None:
        _require_size(path, found=len(data), recorded=size)
    container = open_container(data, path)
    require_readable(container.schema, READABLE_MANIFEST_LIST, path)
    known = ListBlocks().known if before is None else before.known
    rows: list[ManifestFile] = []
    for place, block in enumerate(container.blocks()):
        found = _rows_of(container, block, known.get(place))
        known[place] = container.schema, block, found
        rows += found
    return tuple(rows)


def manifests_in(
    storage: Storage, location: str, listed: ManifestListRef, *, before: ListBlocks | None = None
) -> tuple[ManifestFile, ...]:
    """The manifests of a list that a snapshot names. See `read_manifest_list`."""
    path = paths.manifest_path(location, listed.name)
    return read_manifest_list(storage, path, listed.size_bytes, before=before)


def _rows_of(
    container: Container,
    block: Block,
    known: tuple[AvroSchema, Block, tuple[ManifestFile, ...]] | None,
) -> tuple[ManifestFile, ...]:
    schema, path = container.schema, container.path
    foreign = foreign_columns(schema, READABLE_MANIFEST_LIST)
    rows: tuple[ManifestFile, ...] = ()
    if known is not None and known[0] is schema and block.starts_with(known[1]):
        rows, block = known[2], block.without(known[1])
    return rows + tuple(
        _manifest_file(record, path, foreign.values(record, data, path) if foreign else ())
        for record, data in decode_with_bytes(schema, block, path)
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

    Raises `FormatError` unless size and counts match the manifest list.
    """
    path = paths.manifest_path(location, manifest.file_name)
    container = manifest_of(storage.read(path), path, manifest)
    found = entries_of(container.schema, container.encoded_records(), container.path)
    entries = tuple(added_once(found, container.path))
    added = sum(entry.kind is EntryKind.ADD for entry in entries)
    require_counts(manifest, container.path, added=added, deleted=len(entries) - added)
    return entries


def entries_in(
    storage: Storage, location: str, manifests: Iterable[ManifestFile]
) -> tuple[ManifestEntry, ...]:
    """The entries of several manifests, as `read_entries`."""
    return tuple(
        entry for manifest in manifests for entry in read_entries(storage, location, manifest)
    )


def manifest_of(data: bytes, path: str, manifest: ManifestFile) -> Container:
    """The container of a manifest's bytes, with frame and schema checked; entries are still
    encoded.
    """
    _require_size(path, found=len(data), recorded=manifest.file_size)
    container = open_container(data, path)
    require_readable(container.schema, MANIFEST, path)
    return container


def require_counts(manifest: ManifestFile, path: str, *, added: int, deleted: int) -> None:
    """Raises `FormatError` unless a manifest's counts match its list."""
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

    A manifest ends at the first 1000th entry at which it has reached `target_size` bytes, as in
    Java's rolling writer. Without entries it yields nothing. A name is taken only for a manifest
    that is written. At most one manifest is in memory. Raises `TypesDiffer`.
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
    """A manifest under construction: entries and their foreign columns."""

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
            # Rare: at most once for each foreign column.
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
    row_ids = [file.first_row_id for file in files if file.first_row_id is not None]
    has_row_ids = len(row_ids) == len(files)
    return ManifestFile(
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
        min_row_id=min(row_ids) if has_row_ids else None,
        max_row_id=max(
            first + file.row_count - 1 for first, file in zip(row_ids, files, strict=True)
        )
        if has_row_ids
        else None,
    )


def _partition_stats(entries: Sequence[ManifestEntry], types: Sequence[DataType]) -> ColumnStats:
    """Minimum, maximum and null count of each partition column, untruncated."""
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


def _manifest_file(
    record: Mapping[str, Any], path: str, foreign: tuple[ForeignValue, ...]
) -> ManifestFile:
    require_version(record, path)
    columns: dict[str, Any] = {name: record.get(column) for name, column in _COLUMNS.items()}
    return ManifestFile(
        file_name=paths.checked_name(record["_FILE_NAME"], path),
        partition_stats=stats_of(record_in(record, "_PARTITION_STATS", path)),
        **columns,
        extra_files=tuple(
            paths.checked_name(name or "", path) for name in record.get("_EXTRA_FILES") or ()
        ),
        foreign=foreign,
    )


def _manifest_file_record(manifest: ManifestFile) -> dict[str, Any]:
    return {
        "_VERSION": MANIFEST_VERSION,
        "_FILE_NAME": manifest.file_name,
        "_PARTITION_STATS": stats_record(manifest.partition_stats),
        **{column: getattr(manifest, name) for name, column in _COLUMNS.items()},
        "_EXTRA_FILES": list(manifest.extra_files) or None,
    }
