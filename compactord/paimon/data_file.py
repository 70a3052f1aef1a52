"""Metadata of one data file, with its statistics.

Matches io/DataFileMeta.java and manifest/ManifestEntry.java field for field. Serialised rows
(partition, keys, statistics) stay encoded: they are compared, copied and written as bytes.

A wrong bound makes readers skip files that they must read; a missing one only costs time. Sources:
statistics/{StatsCollectorFactories,TruncateSimpleColStatsCollector}.java,
stats/SimpleStatsConverter.java.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from compactord.errors import FormatError
from compactord.paimon.binary_row import Value, encode_row
from compactord.paimon.manifest.foreign import ForeignValue
from compactord.paimon.options.merge import STATS_MODE, FileOptions
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import DataField, DataType, is_system_column


class BucketId(NamedTuple):
    """A bucket of one table: the serialised partition row and the bucket number."""

    partition: bytes
    bucket: int


class FileKey(NamedTuple):
    """A data file, regardless of its level: an upgraded file is the same file."""

    bucket: BucketId
    file_name: str


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
    """A data file's record. None is null in the manifest: unknown or absent.

    `creation_time_ms` is local wall-clock time stored as if it were UTC. If `value_stats_columns`
    is None, statistics cover all columns. Append files have empty keys and level 0. `foreign` are
    values of columns of newer releases, of the file's record and of its entry.
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
        """`creation_time_ms`, or -1 if it is unknown, as in columns of files."""
        return -1 if self.creation_time_ms is None else self.creation_time_ms

    def key_range(self, key_of: Callable[[bytes], Any]) -> tuple[Any, Any]:
        """The smallest and largest key, comparable. Raises `FormatError` with the file's name."""
        try:
            return key_of(self.min_key), key_of(self.max_key)
        except FormatError as error:
            why = f"the keys of the file cannot be read ({error.message})"
            raise FormatError(self.file_name, why) from error

    def identity(self, bucket: BucketId) -> FileIdentity:
        """The identity of the file's entries while it is in this bucket."""
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

    `total_buckets` belongs to the bucket's partition; it may differ from the table's option.
    """

    bucket: BucketId
    total_buckets: int
    files: tuple[DataFile, ...]

    def __len__(self) -> int:
        return len(self.files)


class FileIdentity(NamedTuple):
    """The identity that ADD and DELETE entries of one file share (manifest/FileEntry.java)."""

    partition: bytes
    bucket: int
    level: int
    file_name: str
    extra_files: tuple[str, ...]
    embedded_file_index: bytes | None
    external_path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """A file added to or deleted from a bucket. `total_buckets` belongs to its partition."""

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


class StatsMode(enum.Enum):
    NONE = "none"
    COUNTS = "counts"
    TRUNCATE = "truncate"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatsMode:
    """`length` is set for TRUNCATE only: code points of strings, bytes of binaries."""

    mode: StatsMode
    length: int | None = None


# System columns, and keys in thin mode, ignore the table's mode.
_KEY_MODE = ColumnStatsMode(mode=StatsMode.TRUNCATE, length=128)
_NO_STATS = ColumnStatsMode(mode=StatsMode.NONE)
_LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """Bounds of one column of a file, before its mode is applied.

    `minimum` and `maximum` are whole values, both or neither. `null_count` is None for nested
    types. The maximum of floats is NaN if any value is NaN, and zeros are ordered: −0.0 below 0.0.
    """

    name: str
    type: DataType
    minimum: Value = None
    maximum: Value = None
    null_count: int | None = None


def parse_stats_mode(text: str) -> ColumnStatsMode:
    """The mode `none`, `counts`, `full` or `truncate(n)`, in any case. Raises `ValueError` for
    other texts.
    """
    found = STATS_MODE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a statistics mode")
    if found["length"] is not None:
        return ColumnStatsMode(mode=StatsMode.TRUNCATE, length=int(found["length"]))
    return ColumnStatsMode(mode=StatsMode(text.lower()))


def stats_modes(
    fields: Sequence[DataField], schema: TableSchema, files: FileOptions, level: int
) -> tuple[tuple[str, ColumnStatsMode], ...]:
    """The mode of every column of a file, in file order, including system columns.

    `fields` are the columns of the file (`types.file_fields` for a primary-key table). `level` is
    the file's level in a primary-key table: append tables have one mode for all files.
    """
    per_level = files.stats_mode_per_level if schema.primary_keys else {}
    file_mode = parse_stats_mode(per_level.get(level, files.stats_mode))
    thin_keys = {field.name for field in schema.key_fields} if files.thin_mode else set()
    counted = 0
    modes = []
    for field in fields:
        own = files.stats_mode_per_field.get(field.name)
        if own is None and (is_system_column(field.name) or field.name in thin_keys):
            modes.append((field.name, _KEY_MODE))
            continue
        if own is not None:
            mode = parse_stats_mode(own)
        elif 0 <= files.stats_keep_first <= counted:
            mode = _NO_STATS
        else:
            mode = file_mode
        counted += 1
        modes.append((field.name, mode))
    return tuple(modes)


def build_stats(
    columns: Sequence[ColumnBounds], modes: Mapping[str, ColumnStatsMode], *, dense: bool
) -> tuple[ColumnStats, tuple[str, ...] | None]:
    """Statistics over `columns` and the names that they cover, or None if they cover all columns.

    Dense statistics omit columns without bounds and null count. Key statistics are never dense.
    """
    bounds = [_applied(column, modes[column.name]) for column in columns]
    kept = [column for column in bounds if not dense or column.null_count is not None]
    types = [column.type for column in kept]
    stats = ColumnStats(
        min_values=encode_row([column.minimum for column in kept], types),
        max_values=encode_row([column.maximum for column in kept], types),
        null_counts=tuple(column.null_count for column in kept),
    )
    return stats, None if len(kept) == len(bounds) else tuple(column.name for column in kept)


def _applied(column: ColumnBounds, mode: ColumnStatsMode) -> ColumnBounds:
    minimum, maximum, null_count = column.minimum, column.maximum, column.null_count
    if mode.mode is StatsMode.NONE:
        minimum, maximum, null_count = None, None, None
    elif mode.mode is StatsMode.COUNTS:
        minimum, maximum = None, None
    elif mode.mode is StatsMode.TRUNCATE:
        minimum, maximum = _truncated(minimum, maximum, mode.length or 0)
    return replace(column, minimum=minimum, maximum=maximum, null_count=null_count)


def _truncated(minimum: Value, maximum: Value, length: int) -> tuple[Value, Value]:
    if isinstance(maximum, str):
        above: Value = truncate_text_up(maximum, length)
    elif isinstance(maximum, bytes):
        above = truncate_bytes_up(maximum, length)
    else:
        return minimum, maximum
    return (None, None) if above is None else (minimum[:length], above)


def truncate_text_up(text: str, length: int) -> str | None:
    """A text of at most `length` code points that is not below `text`, or None if none exists."""
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        successor = ord(text[end - 1]) + 1
        if 0xD800 <= successor <= 0xDFFF:
            successor = (
                0xE000  # skips surrogates, which Java writes as '?': the bound would be too low
            )
        if successor <= _LAST_CODE_POINT:
            return text[: end - 1] + chr(successor)
    return None


def truncate_bytes_up(data: bytes, length: int) -> bytes | None:
    """At most `length` bytes that are not below `data`, or None if none exist."""
    if len(data) <= length:
        return data
    kept = data[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
