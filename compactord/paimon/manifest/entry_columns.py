"""Manifest entries as columns for planning, and as encoded bytes for everything else.

An entry becomes an object only when its bucket is planned. Until then it is kept as its Avro
encoding, the smallest lossless form available, with numbers for selecting and summing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.columns import (
    NULL,
    Bytes,
    DecodedBlocks,
    Ints,
    Span,
    UnusualEncoding,
    decode_blocks,
)
from compactord.paimon.avro.container import AvroSchema, Block, decode_record, decode_with_bytes
from compactord.paimon.avro.types import Expansion
from compactord.paimon.data_file import DataFile, EntryKind, FileIdentity, ManifestEntry
from compactord.paimon.manifest.entries import (
    Hashes,
    added_once,
    entries_of,
    hash_spans,
    identity_hashes,
    mixed,
)
from compactord.paimon.manifest.foreign import ForeignColumns, foreign_columns
from compactord.paimon.manifest.manifest_files import ManifestFile, manifest_of, require_counts
from compactord.paimon.manifest.schemas import MANIFEST, MANIFEST_VERSION, plain_of, table_of
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently

C = TypeVar("C", bound="Columns")
SmallInts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

# Manifests are decoded together up to this size: more parallel cursors are faster.
_BATCH_BYTES = 32 << 20
# With fewer parallel blocks fastavro is faster than vectors.
MIN_CURSORS = 25
# Vectors take a step for each entry of the longest block. Java's and ours end at 64,000 bytes.
_BLOCK_ENTRIES_MAX = 1000
# The number of equal hashes that are compared, and of rows that have them.
_HASHES_COMPARED, _ROWS_COMPARED = 10, 1000

_FILE = "_FILE."
# Attributes of a `DataFile` that become columns as they are.
_NUMBERS = {
    "schema_id": "_SCHEMA_ID",
    "file_size": "_FILE_SIZE",
    "row_count": "_ROW_COUNT",
    "min_sequence_number": "_MIN_SEQUENCE_NUMBER",
    "max_sequence_number": "_MAX_SEQUENCE_NUMBER",
}
_VALUES = (
    "_VERSION",
    "_KIND",
    "_PARTITION",
    "_BUCKET",
    "_TOTAL_BUCKETS",
    _FILE + "_FILE_NAME",
    _FILE + "_LEVEL",
    _FILE + "_CREATION_TIME",
    _FILE + "_FILE_SOURCE",
    *(_FILE + name for name in _NUMBERS.values()),
)
# The rest of a file's identity.
_EXTRA_FILES = _FILE + "_EXTRA_FILES"
_EMBEDDED_INDEX = _FILE + "_EMBEDDED_FILE_INDEX"
_EXTERNAL_PATH = _FILE + "_EXTERNAL_PATH"


class Columns:
    """Columns of one length, the fields of a dataclass."""

    __slots__: tuple[str, ...] = ()

    def take(self: C, rows: Ints | Mask | slice) -> C:
        """Selected rows; a slice copies nothing."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.__slots__})

    @classmethod
    def concatenated(cls: type[C], parts: Sequence[C]) -> C:
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns(Columns):
    """Files, one array per column.

    `partition` is an index into the list of partitions. `creation_time_ms` and `file_source` are as
    in `DataFile`, or -1 if unknown. `identity_hash` is equal for equal identities.
    """

    partition: SmallInts
    bucket: SmallInts
    total_buckets: SmallInts
    level: SmallInts
    schema_id: Ints
    file_size: Ints
    row_count: Ints
    min_sequence_number: Ints
    max_sequence_number: Ints
    creation_time_ms: Ints
    file_source: SmallInts
    identity_hash: Hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryColumns:
    """Entries in manifest order. `partitions` is the list that `files` refer to.

    `records` are the entries encoded under `schema`. `identities` and `names` (of files) return the
    values of some rows.
    """

    schema: AvroSchema
    kind: Ints
    files: FileColumns
    partitions: tuple[bytes, ...]
    records: pa.LargeBinaryArray
    identities: Callable[[Ints], list[FileIdentity]]
    names: Callable[[Ints], pa.LargeStringArray]


def read_entry_columns(
    storage: Storage,
    location: str,
    manifests: Sequence[ManifestFile],
    *,
    min_cursors: int = MIN_CURSORS,
    kept: Mapping[str, bytes] | None = None,
) -> Iterator[EntryColumns]:
    """The manifests' entries in order, in batches of whole manifests.

    `kept` is the content of manifests by path; without it they are read. Sizes and counts are
    checked as in `manifest_files.read_entries`. One batch is in memory at a time, and in an object
    store a few manifests ahead; its `records` share the memory of the decompressed blocks. A batch
    of no more than `min_cursors` blocks (of the longest one's length) is decoded by fastavro,
    others by vectors.
    """
    pending: list[_Opened] = []
    names = [paths.manifest_path(location, manifest.file_name) for manifest in manifests]
    found = map(kept.__getitem__, names) if kept else map_concurrently(storage, storage.read, names)
    expansion = Expansion()
    for manifest, path, data in zip(manifests, names, found, strict=True):
        opened = _open(data, path, manifest, expansion)
        if pending and opened.layout != pending[0].layout:
            yield _decode(pending, min_cursors)
            pending = []
        pending.append(opened)
        if sum(one.size_bytes for one in pending) >= _BATCH_BYTES:
            yield _decode(pending, min_cursors)
            pending = []
    if pending:
        yield _decode(pending, min_cursors)


@dataclass(frozen=True, slots=True)
class _Opened:
    manifest: ManifestFile
    path: str
    schema: AvroSchema
    # Encoding of the schema and its unknown columns: files with equal layouts are decoded together.
    layout: tuple[Any, ForeignColumns | None]
    blocks: tuple[Block, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(block.data) for block in self.blocks)

    @property
    def entry_count(self) -> int:
        return sum(block.count for block in self.blocks)


def _open(data: bytes, path: str, manifest: ManifestFile, expansion: Expansion) -> _Opened:
    container = manifest_of(data, path, manifest)
    layout = plain_of(container.schema), foreign_columns(container.schema, MANIFEST)
    blocks = tuple(container.blocks(expansion))
    return _Opened(manifest, container.path, container.schema, layout, blocks)


def _decode(opened: Sequence[_Opened], min_cursors: int) -> EntryColumns:
    blocks = [block for one in opened for block in one.blocks]
    total = sum(block.count for block in blocks)
    longest = max((block.count for block in blocks), default=0)
    columns = None
    if total > min_cursors * longest and longest <= _BLOCK_ENTRIES_MAX:
        # Damage is reported with the path of a single manifest, or with the folder of several.
        path = opened[0].path if len(opened) == 1 else opened[0].path.rsplit("/", 1)[0]
        try:
            decoded = decode_blocks(
                opened[0].layout[0],
                blocks,
                values=_VALUES,
                raw=(_EXTRA_FILES, _EMBEDDED_INDEX, _EXTERNAL_PATH),
                path=path,
            )
            columns = _from_vectors(opened, decoded, path)
            _refuse_added_twice(columns, opened)
        except UnusualEncoding:
            pass
    if columns is None:
        columns = _from_objects(opened)
    _check_counts(columns, opened)
    return columns


def _check_counts(columns: EntryColumns, opened: Sequence[_Opened]) -> None:
    first = 0
    for one in opened:
        end = first + one.entry_count
        deleted = int(np.count_nonzero(columns.kind[first:end] == EntryKind.DELETE))
        require_counts(one.manifest, one.path, added=end - first - deleted, deleted=deleted)
        first = end


def _refuse_added_twice(columns: EntryColumns, opened: Sequence[_Opened]) -> None:
    """As `added_once`, before millions of rows are kept. A few equal hashes are enough."""
    hashes = columns.files.identity_hash
    ordered = hashes[columns.kind == EntryKind.ADD]
    ordered.sort()
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return
    rows = np.flatnonzero(np.isin(hashes, twice[:_HASHES_COMPARED]))[:_ROWS_COMPARED]
    of = np.searchsorted(np.cumsum([one.entry_count for one in opened]), rows, side="right")
    added: set[tuple[int, FileIdentity]] = set()
    kinds, identities = columns.kind[rows].tolist(), columns.identities(rows)
    for kind, index, identity in zip(kinds, of.tolist(), identities, strict=True):
        if kind == EntryKind.DELETE:
            added.discard((index, identity))
        elif (index, identity) in added:
            raise FormatError(opened[index].path, f"file {identity.file_name} is added twice")
        else:
            added.add((index, identity))


def _from_vectors(opened: Sequence[_Opened], decoded: DecodedBlocks, path: str) -> EntryColumns:
    schema = opened[0].schema
    ints, spans, data = decoded.integers, decoded.spans, decoded.data
    if (ints["_VERSION"] != MANIFEST_VERSION).any():
        raise UnsupportedTable(table_of(path), [f"{path} has entries of an unknown version"])
    if ((ints["_KIND"] < EntryKind.ADD) | (ints["_KIND"] > EntryKind.DELETE)).any():
        raise FormatError(path, "an entry of an unknown kind")
    encoded = gather(data, spans["_PARTITION"]).dictionary_encode()
    names, bucket, level = spans[_FILE + "_FILE_NAME"], ints["_BUCKET"], ints[_FILE + "_LEVEL"]
    name_hash, suspects = hash_spans(data, names)
    _check_names(opened, suspects, gather(data, names, suspects))
    records, unknown = decoded.records, np.full(len(bucket), NULL)
    offsets = np.append(records.start, records.start[-1:] + records.length[-1:])
    return EntryColumns(
        schema=schema,
        kind=ints["_KIND"],
        files=FileColumns(
            partition=encoded.indices.to_numpy(),
            bucket=bucket.astype(np.int32),
            total_buckets=ints["_TOTAL_BUCKETS"].astype(np.int32),
            level=level.astype(np.int32),
            **{name: ints[_FILE + column] for name, column in _NUMBERS.items()},
            creation_time_ms=ints.get(_FILE + "_CREATION_TIME", unknown),
            file_source=ints.get(_FILE + "_FILE_SOURCE", unknown).astype(np.int32),
            identity_hash=mixed(name_hash, bucket, level),
        ),
        partitions=tuple(encoded.dictionary.to_pylist()),
        records=pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(bucket), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ),
        identities=lambda rows: _identities(decoded, schema, rows, path),
        names=lambda rows: gather(data, names, rows).view(pa.large_string()),
    )


def _check_names(opened: Sequence[_Opened], rows: Ints, names: pa.LargeBinaryArray) -> None:
    """Raises `FormatError` naming the manifest if one of these rows has no plain file name."""
    ends = np.cumsum([one.entry_count for one in opened])
    for index, name in zip(np.searchsorted(ends, rows, side="right"), names, strict=True):
        path = opened[index].path
        try:
            paths.checked_name(name.as_py().decode(), path)
        except UnicodeDecodeError as error:
            raise FormatError(path, "a file name that is not text") from error


def _identities(
    decoded: DecodedBlocks, schema: AvroSchema, rows: Ints, path: str
) -> list[FileIdentity]:
    """Built from columns if the rare parts of the record are empty, otherwise from the whole
    record.
    """
    plain = np.ones(len(rows), np.bool_)
    for name in (_EXTRA_FILES, _EMBEDDED_INDEX, _EXTERNAL_PATH):
        if name in decoded.spans:
            span = decoded.spans[name]
            plain &= (span.length[rows] == 1) & (decoded.data[span.start[rows]] == 0)
    names = decoded.spans[_FILE + "_FILE_NAME"]
    found = [
        FileIdentity(partition, bucket, level, name.decode(), (), None, None)
        for partition, bucket, level, name in zip(
            gather(decoded.data, decoded.spans["_PARTITION"], rows).to_pylist(),
            decoded.integers["_BUCKET"][rows].tolist(),
            decoded.integers[_FILE + "_LEVEL"][rows].tolist(),
            gather(decoded.data, names, rows).to_pylist(),
            strict=True,
        )
    ]
    for index in np.flatnonzero(~plain).tolist():
        row = rows[index]
        start = decoded.records.start[row]
        record = decoded.data[start : start + decoded.records.length[row]].tobytes()
        decoded_record = decode_record(schema, record, path)
        (entry,) = entries_of(schema, [(decoded_record, record)], path)
        found[index] = entry.identity
    return found


def _from_objects(opened: Sequence[_Opened]) -> EntryColumns:
    entries: list[ManifestEntry] = []
    records: list[bytes] = []
    for one in opened:
        decoded = _noting(
            records,
            (
                record
                for block in one.blocks
                for record in decode_with_bytes(one.schema, block, one.path)
            ),
        )
        entries += added_once(entries_of(one.schema, decoded, one.path), one.path)
    return columns_of(entries, opened[0].schema, records)


def _noting(
    records: list[bytes], decoded: Iterable[tuple[dict[str, Any], bytes]]
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Passes records through and appends their encodings to `records`."""
    for record, data in decoded:
        records.append(data)
        yield record, data


def columns_of(
    entries: Sequence[ManifestEntry], schema: AvroSchema, records: Sequence[bytes]
) -> EntryColumns:
    """Columns of entry objects, with their encodings under `schema`."""
    codes: dict[bytes, int] = {}
    identities = [entry.identity for entry in entries]
    files = [entry.file for entry in entries]

    def integers(values: Iterable[int]) -> Ints:
        return np.fromiter(values, np.int64, len(entries))

    def small(values: Iterable[int]) -> SmallInts:
        return np.fromiter(values, np.int32, len(entries))

    return EntryColumns(
        schema=schema,
        kind=integers(int(entry.kind) for entry in entries),
        files=FileColumns(
            partition=small(codes.setdefault(e.partition, len(codes)) for e in entries),
            bucket=small(entry.bucket for entry in entries),
            total_buckets=small(entry.total_buckets for entry in entries),
            level=small(file.level for file in files),
            **{name: integers(map(attrgetter(name), files)) for name in _NUMBERS},
            creation_time_ms=integers(map(attrgetter("created_ms"), files)),
            file_source=small(map(source_code, files)),
            identity_hash=identity_hashes(identities),
        ),
        partitions=tuple(codes),
        records=pa.array(records, pa.large_binary()),
        identities=lambda rows: [identities[row] for row in rows.tolist()],
        names=lambda rows: pa.array([files[r].file_name for r in rows], pa.large_string()),
    )


def source_code(file: DataFile) -> int:
    """`FileColumns.file_source` of one file."""
    return NULL if file.file_source is None else file.file_source


def gather(data: Bytes, span: Span, rows: Ints | None = None) -> pa.LargeBinaryArray:
    """The spans' bytes (of all rows, or of some) as an array. Spans must not be null."""
    if rows is not None:
        span = Span(span.start[rows], span.length[rows])
    offsets = np.zeros(len(span.start) + 1, np.int64)
    np.cumsum(span.length, out=offsets[1:])
    index = np.repeat(span.start - offsets[:-1], span.length)
    index += np.arange(len(index))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(span.start), [None, pa.py_buffer(offsets), pa.py_buffer(data[index])]
    )
