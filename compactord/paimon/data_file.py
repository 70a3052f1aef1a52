"""One data file as the manifests describe it, and the manifest entry that adds or deletes it.

Field for field io/DataFileMeta.java and manifest/ManifestEntry.java. Serialised rows (partition,
keys, statistics) stay encoded bytes: they are compared, copied and written without being decoded.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from compactord.errors import FormatError
from compactord.paimon.manifest.foreign import ForeignValue


class BucketId(NamedTuple):
    """A bucket of one table: the serialised partition row and the bucket number."""

    partition: bytes
    bucket: int


class FileSource(enum.IntEnum):
    APPEND = 0
    COMPACT = 1


class EntryKind(enum.IntEnum):
    ADD = 0
    DELETE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStats:
    """Minimum row, maximum row (serialised) and null counts over one list of columns."""

    min_values: bytes
    max_values: bytes
    null_counts: tuple[int | None, ...]


# A serialised row without fields: arity 0, then an empty null part.
EMPTY_ROW = bytes(12)
EMPTY_STATS = ColumnStats(min_values=EMPTY_ROW, max_values=EMPTY_ROW, null_counts=())


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file's record. None means the same as null in the manifest: unknown or absent.

    `creation_time_ms` is local wall-clock stored as if it were UTC. `value_stats_columns` None:
    statistics cover all columns. Append files have empty keys and level 0. `foreign` are values of
    columns of newer releases, of the file's record and of its entry.
    """

    file_name: str
    file_size: int
    row_count: int
    min_key: bytes
    max_key: bytes
    key_stats: ColumnStats
    value_stats: ColumnStats
    min_sequence_number: int
    max_sequence_number: int
    schema_id: int
    level: int
    extra_files: tuple[str, ...] = ()
    creation_time_ms: int | None = None
    delete_row_count: int | None = None
    embedded_file_index: bytes | None = None
    file_source: int | None = None
    value_stats_columns: tuple[str, ...] | None = None
    external_path: str | None = None
    first_row_id: int | None = None
    write_columns: tuple[str, ...] | None = None
    foreign: tuple[ForeignValue, ...] = ()

    @property
    def created_ms(self) -> int:
        """`creation_time_ms`, -1 where it is unknown, as columns of files have it."""
        return -1 if self.creation_time_ms is None else self.creation_time_ms

    def key_range(self, key_of: Callable[[bytes], Any]) -> tuple[Any, Any]:
        """The smallest and largest key, comparable. Raises `FormatError` that names the file."""
        try:
            return key_of(self.min_key), key_of(self.max_key)
        except FormatError as error:
            why = f"the keys of the file cannot be read ({error.message})"
            raise FormatError(self.file_name, why) from error

    def identity(self, bucket: BucketId) -> FileIdentity:
        """What the entries of the file have in common while it is in this bucket."""
        return FileIdentity(
            bucket.partition,
            bucket.bucket,
            self.level,
            self.file_name,
            self.extra_files,
            self.embedded_file_index,
            self.external_path,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFiles:
    """The live files of one bucket in one snapshot, in any order.

    `total_buckets` is that of the bucket's partition, which may differ from the table's option.
    """

    bucket: BucketId
    total_buckets: int
    files: tuple[DataFile, ...]

    def __len__(self) -> int:
        return len(self.files)


class FileIdentity(NamedTuple):
    """What ADD and DELETE entries of one file have in common (manifest/FileEntry.java)."""

    partition: bytes
    bucket: int
    level: int
    file_name: str
    extra_files: tuple[str, ...]
    embedded_file_index: bytes | None
    external_path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """A file added to or deleted from a bucket; `total_buckets` is that of its partition."""

    kind: EntryKind
    partition: bytes
    bucket: int
    total_buckets: int
    file: DataFile

    @property
    def bucket_id(self) -> BucketId:
        return BucketId(self.partition, self.bucket)

    @property
    def identity(self) -> FileIdentity:
        return self.file.identity(self.bucket_id)
