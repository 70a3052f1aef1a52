"""Manifest entries and the hashes of their identities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.columns import Bytes, Ints, Span
from compactord.paimon.avro.container import AvroSchema, encode_record
from compactord.paimon.data_file import (
    ColumnStats,
    DataFile,
    EntryKind,
    FileIdentity,
    ManifestEntry,
)
from compactord.paimon.manifest.foreign import CarriedColumns, ForeignValue, foreign_columns
from compactord.paimon.manifest.schemas import MANIFEST, MANIFEST_VERSION, table_of


def stats_of(record: Mapping[str, Any]) -> ColumnStats:
    return ColumnStats(
        min_values=record["_MIN_VALUES"],
        max_values=record["_MAX_VALUES"],
        null_counts=tuple(record["_NULL_COUNTS"] or ()),
    )


def stats_record(stats: ColumnStats) -> dict[str, Any]:
    return {
        "_MIN_VALUES": stats.min_values,
        "_MAX_VALUES": stats.max_values,
        "_NULL_COUNTS": list(stats.null_counts),
    }


def entries_of(
    schema: AvroSchema, records: Iterable[tuple[Mapping[str, Any], bytes]], path: str
) -> Iterator[ManifestEntry]:
    """Entries from Avro records under `schema`, each with its encoding.

    Columns that an older Paimon did not write are None. Raises `FormatError`, and
    `UnsupportedTable` for values that we could not carry over.
    """
    foreign = foreign_columns(schema, MANIFEST)
    for record, data in records:
        file = record_in(record, "_FILE", path)
        values = foreign.values(record, data, path) if foreign else ()
        yield _entry(record, file, path, values)


def added_once(entries: Iterable[ManifestEntry], path: str) -> Iterator[ManifestEntry]:
    """Checks the entries of one manifest while they are read.

    Raises `FormatError` for a file that is added twice without a delete in between, which Java
    refuses when it merges entries (FileEntry.mergeEntries). No writer makes such a manifest; one of
    a few KB may claim a million.
    """
    first: dict[str, ManifestEntry] = {}
    # Identities of repeated names only: identities cost more than names.
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
    """Entries with their encodings, grouped by their foreign columns."""
    groups: dict[CarriedColumns, list[ManifestEntry]] = {}
    for entry in entries:
        groups.setdefault(CarriedColumns().including(entry.file.foreign), []).append(entry)
    for carried, group in groups.items():
        yield carried.added_to(MANIFEST), group, [encode_entry(entry, carried) for entry in group]


def encode_entry(entry: ManifestEntry, carried: CarriedColumns) -> bytes:
    """An entry encoded under `MANIFEST` with the carried columns."""
    return encode_record(MANIFEST, entry_record(entry)) + carried.encoded(entry.file.foreign)


def _entry(
    record: Mapping[str, Any],
    file: Mapping[str, Any],
    path: str,
    foreign: tuple[ForeignValue, ...],
) -> ManifestEntry:
    require_version(record, path)
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
            key_stats=stats_of(record_in(file, "_KEY_STATS", path)),
            value_stats=stats_of(record_in(file, "_VALUE_STATS", path)),
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
            "_KEY_STATS": stats_record(file.key_stats),
            "_VALUE_STATS": stats_record(file.value_stats),
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


def require_version(record: Mapping[str, Any], path: str) -> None:
    """Raises `UnsupportedTable` unless the entry has the supported version."""
    version = record["_VERSION"]
    if version == 1:
        raise UnsupportedTable(
            table_of(path), [f"{path} has entry version 1: the table must be created again"]
        )
    if version != MANIFEST_VERSION:
        raise UnsupportedTable(table_of(path), [f"{path} has entry version {version}"])


def record_in(record: Mapping[str, Any], column: str, path: str) -> Mapping[str, Any]:
    """A nested record. Raises `FormatError` if it is null, which the schema of release 0.8
    allows.
    """
    found: Mapping[str, Any] | None = record[column]
    if found is None:
        raise FormatError(path, f"column {column} is null")
    return found


Hashes = npt.NDArray[np.uint64]
_ONES, _HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (0x01, 0x80))
_SLASHES, _BACKSLASHES = (np.uint64(ord(c) * 0x0101010101010101) for c in "/\\")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Neighbouring rows are hashed together because their bytes are still in the processor's cache.
_HASHED_TOGETHER = 4096


def identity_hashes(identities: Sequence[FileIdentity]) -> Hashes:
    """`FileColumns.identity_hash` of these identities: by file name, bucket and level."""
    names = [identity.file_name.encode() for identity in identities]
    data = np.frombuffer(b"".join(names) + bytes(8), np.uint8)
    length = np.fromiter((len(name) for name in names), np.int64, len(names))
    bucket = np.fromiter((i.bucket for i in identities), np.int64, len(names))
    level = np.fromiter((i.level for i in identities), np.int64, len(names))
    hashed, _ = hash_spans(data, Span(np.cumsum(length) - length, length))
    return mixed(hashed, bucket, level)


@dataclass(frozen=True, slots=True)
class Deletions:
    """All deletions of several manifests: their names, and the sorted hashes of the deleted
    files.
    """

    manifests: frozenset[str]
    hashes: Hashes

    @staticmethod
    def of(manifests: Iterable[str], identities: Iterable[FileIdentity]) -> Deletions:
        return Deletions(frozenset(manifests), np.sort(identity_hashes(list(identities))))

    def may_have(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """A mask of hashes that may be deleted; hashes of different files may be equal."""
        if not len(self.hashes):
            return np.zeros(len(hashes), np.bool_)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        found: npt.NDArray[np.bool_] = self.hashes[places] == hashes
        return found


def hash_spans(data: Bytes, span: Span) -> tuple[Hashes, Ints]:
    """64 bits of each span's bytes, and the rows that may not be file names.

    These contain a separator, are not ASCII, or have at most two bytes, as `..`. `data` is padded
    by eight bytes.
    """
    words = np.ndarray((len(data) - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    hashed = span.length.astype(np.uint64)
    odd = np.where(span.length <= 2, _HIGH_BITS, np.uint64(0))
    for first in range(0, len(hashed), _HASHED_TOGETHER):
        rows = slice(first, first + _HASHED_TOGETHER)
        _hash_words(words, span.start[rows], span.length[rows], hashed[rows], odd[rows])
    return hashed, np.flatnonzero(odd & _HIGH_BITS)


def _hash_words(
    words: npt.NDArray[np.uint64],
    start: Ints,
    length: Ints,
    hashed: npt.NDArray[np.uint64],
    odd: npt.NDArray[np.uint64],
) -> None:
    """Hashes eight bytes at a time; sets the high bit of each odd byte in `odd`."""
    for offset in range(0, int(length.max(initial=0)), 8):
        left = length - offset
        going = np.flatnonzero(left > 0)
        word = words[start[going] + offset]
        word <<= 64 - 8 * np.minimum(left[going], 8).astype(np.uint64)
        hashed[going] = _mix(hashed[going] ^ word)
        # A byte that equals the separator becomes zero, and the subtraction borrows.
        odd[going] |= ((word ^ _SLASHES) - _ONES) | ((word ^ _BACKSLASHES) - _ONES)


def mixed(hashed: Hashes, bucket: Ints, level: Ints) -> Hashes:
    return _mix(_mix(hashed ^ bucket.astype(np.uint64)) ^ level.astype(np.uint64))


def _mix(hashed: Hashes) -> Hashes:
    hashed = hashed * _MULTIPLIER
    return hashed ^ (hashed >> np.uint64(32))


NO_DELETIONS = Deletions.of((), ())
