"""Index files of the next snapshot: its deletion vectors, based on the newest snapshot's.

Sorted indexes of a level whose files change are removed: each names all files of its level, and
Java's readers and writers ignore an incomplete one (index/pksorted/PkSortedBucketIndexState.java).
The bucket's next writer builds a new one.

Each attempt rebuilds the vectors, so no concurrent deletion of another writer is lost. In tables
with buckets one index file has all vectors of a bucket; in other tables only files with a vector of
a removed file are replaced (deletionvectors/BucketedDvMaintainer.java,
deletionvectors/append/AppendDeleteFileMaintainer.java, manifest/IndexManifestFileHandler.java).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from compactord.commit.changes import BucketChange, DroppedChange
from compactord.commit.metadata import MetadataFiles
from compactord.errors import FormatError, ObjectNotFound
from compactord.model import Conflict
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.deletion_vectors import (
    INDEX_TYPE,
    VERSION,
    DeletedRows,
    VectorKind,
    VectorRef,
    deleted_rows_in,
    encode_vector,
    kind_of,
    last_of,
    stored_in,
)
from compactord.paimon.manifest.index_manifest import (
    VectorRange,
    VectorsFile,
    read_index_entries,
)
from compactord.paimon.options.table_options import VectorOptions
from compactord.paimon.snapshot import still_stands
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently


@dataclass(slots=True)
class NextIndex:
    """The index manifest of the next snapshot, and the `changes` that it agrees with.

    `written` are the names of its new files.
    """

    manifest: str | None
    changes: list[BucketChange]
    dropped: list[DroppedChange] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class _Piece(NamedTuple):
    """A vector in a new index file; `length` as in its entry."""

    data_file: str
    stored: bytes
    length: int
    cardinality: int


@dataclass(frozen=True, slots=True)
class _Replacement:
    """The removed index files of a bucket, and the vectors of each file that replaces them."""

    names: frozenset[str]
    files: tuple[tuple[_Piece, ...], ...]


def next_index(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    options: VectorOptions | None,
    files: MetadataFiles,
) -> NextIndex:
    """Write the index files of `state` after `changes`; none if they are not affected.

    `options` is None for a table without deletion vectors and sorted indexes, where no change marks
    rows. Changes are dropped if they mark rows of files that are not live or lack these rows, and
    for buckets with a damaged index file. Raises the errors of reading and writing, and
    `ObjectNotFound` if the snapshot of `state` no longer exists.
    """
    manifest = state.snapshot.index_manifest if state.snapshot else None
    index = NextIndex(manifest, list(changes))
    if options is None:
        return index
    of_bucket: dict[BucketId, list[BucketChange]] = defaultdict(list)
    for change in changes:
        if change.before and (change.marks or state.indexes.of(change.bucket)):
            of_bucket[change.bucket].append(change)
    groups: list[tuple[BucketId, list[BucketChange]]] = []
    for bucket, here in of_bucket.items():
        unfit = list(_unfit_marks(state, bucket, here))
        index.dropped += unfit
        fit = [each for each in here if all(each is not drop.change for drop in unfit)]
        groups += [(bucket, fit)] if fit else []
    without: set[str] = set()
    added: list[VectorsFile] = []
    replacements = map_concurrently(storage, partial(_replacement, storage, state, options), groups)
    for (bucket, here), found in zip(groups, replacements, strict=True):
        if isinstance(found, str):
            kind = Conflict.BUCKET_DAMAGED
            index.dropped += (DroppedChange(change=each, conflict=kind, why=found) for each in here)
        elif found is not None:
            without |= found.names
            added += (_written(files, bucket, pieces) for pieces in found.files)
    gone = {id(each.change) for each in index.dropped}
    index.changes = [each for each in changes if id(each) not in gone]
    without |= {name for change in index.changes for name in _without_files(state, change)}
    if without or added:
        index.manifest = files.write_index_manifest(manifest, without=without, added=added)
        index.written = [index.manifest, *(each.file_name for each in added)]
    return index


def index_without(
    storage: Storage, state: TableState, changes: Sequence[BucketChange], files: MetadataFiles
) -> NextIndex:
    """Write the index files of `state` without the partitions of the changes, for all types.

    Raises the errors of reading and writing.
    """
    manifest = state.snapshot.index_manifest if state.snapshot else None
    index = NextIndex(manifest, list(changes))
    partitions = {change.bucket.partition for change in changes}
    if manifest is None or not partitions:
        return index
    entries = read_index_entries(storage, state.table.location, manifest)
    without = {each.file_name for each in entries if each.bucket.partition in partitions}
    if without:
        index.manifest = files.write_index_manifest(manifest, without=without, added=())
        index.written = [index.manifest]
    return index


def read_index_file(storage: Storage, state: TableState, path: str) -> bytes:
    """An index file of `state`.

    Raises `FormatError` if it does not exist, `ObjectNotFound` if its snapshot is also missing.
    """
    try:
        return storage.read(path)
    except ObjectNotFound as error:
        assert state.snapshot is not None, "it has index files"
        if still_stands(storage, state.table.root, state.snapshot):
            raise FormatError(path, "the index file does not exist") from error
        raise


def _without_files(state: TableState, change: BucketChange) -> Iterator[str]:
    """The sorted indexes that would not name all files of their level after `change`."""
    levels = {file.level for file in (*change.before, *change.after)}
    for entry in state.indexes.of(change.bucket):
        if entry.level in levels:
            yield entry.file_name


def _unfit_marks(
    state: TableState, bucket: BucketId, changes: Sequence[BucketChange]
) -> Iterator[DroppedChange]:
    marked = {mark.file_name for change in changes for mark in change.marks}
    if not marked:
        return
    live = state.files.named(bucket, marked - _removed(changes))
    for change in changes:
        for name, bitmap in change.marks:
            kind, why = Conflict.FILE_REMOVED, f"{name}, in which rows were marked, is gone"
            if name in live:
                rows, last = live[name].row_count, last_of(bitmap)
                if last < rows:
                    continue
                kind = Conflict.OTHER
                why = f"row {last} of {name} was marked, which has {rows} rows"
            yield DroppedChange(change=change, conflict=kind, why=why)
            break


def _removed(changes: Iterable[BucketChange]) -> frozenset[str]:
    return frozenset().union(*(change.removed for change in changes))


def _replacement(
    storage: Storage,
    state: TableState,
    options: VectorOptions,
    of_bucket: tuple[BucketId, Sequence[BucketChange]],
) -> _Replacement | str | None:
    """The replacement, None if no vector changes, or a text that describes damage."""
    bucket, changes = of_bucket
    # Several parts of a change may have marked rows of one file.
    marks: dict[str, list[bytes]] = defaultdict(list)
    for mark in (mark for change in changes for mark in change.marks):
        marks[mark.file_name].append(mark.positions)
    removed = _removed(changes)
    entries = [each for each in state.indexes.of(bucket) if each.index_type == INDEX_TYPE]
    if options.target_size is not None:
        touched = removed | marks.keys()
        entries = [e for e in entries if any(v.data_file in touched for v in e.vectors)]
    if not (entries or marks):
        return None
    paths = {state.indexes.path(each) for each in entries}
    # A vector hidden by one in another file of the bucket is removed with its file.
    refs = {name: ref for name, ref in state.indexes.vectors(bucket).items() if ref.path in paths}
    live = state.files.named(bucket, (refs.keys() | marks.keys()) - removed)
    kept = {name: ref for name, ref in refs.items() if name in live}
    try:
        wanted = {ref.path for ref in kept.values()}
        contents = {path: read_index_file(storage, state, path) for path in wanted}
        pieces, has_grown = _pieces(contents, kept, live, marks, options.kind)
    except FormatError as error:
        return str(error)
    if not has_grown and kept.keys() == {v.data_file for each in entries for v in each.vectors}:
        return None
    names = frozenset(each.file_name for each in entries)
    return _Replacement(names, tuple(_rolled(pieces, options.target_size)))


def _pieces(
    contents: Mapping[str, bytes],
    kept: Mapping[str, VectorRef],
    live: Mapping[str, DataFile],
    marks: Mapping[str, Sequence[bytes]],
    kind: VectorKind,
) -> tuple[list[_Piece], bool]:
    """The vectors to write, and whether a mark is new; `contents` are index files by path."""
    pieces, has_grown = [], False
    for name in dict.fromkeys((*kept, *marks)):
        ref, rows = kept.get(name), live[name].row_count
        if ref is None:
            stored, length, its_kind, deleted = b"", 0, kind, DeletedRows.none_of(rows)
        else:
            stored, length = stored_in(contents[ref.path], ref), ref.length
            its_kind, deleted = kind_of(stored), deleted_rows_in(stored, ref, rows)
        before = deleted.count()
        for bitmap in marks.get(name, ()):
            deleted.add_bitmap(bitmap)
        count = deleted.count()
        if count > before:
            has_grown = True
            stored, length = encode_vector(its_kind, deleted)
        # Marks without rows need no vector.
        if stored:
            pieces.append(_Piece(name, stored, length, count))
    return pieces, has_grown


def _rolled(pieces: Sequence[_Piece], target_size: int | None) -> Iterator[tuple[_Piece, ...]]:
    """The vectors of each index file: one, possibly empty, unless there is a target size."""
    if target_size is None:
        yield tuple(pieces)
        return
    here: list[_Piece] = []
    size = len(VERSION)
    for piece in pieces:
        here.append(piece)
        size += len(piece.stored)
        if size > target_size:
            yield tuple(here)
            here, size = [], len(VERSION)
    if here:
        yield tuple(here)


def _written(files: MetadataFiles, bucket: BucketId, pieces: Iterable[_Piece]) -> VectorsFile:
    data, vectors = bytearray(VERSION), []
    for piece in pieces:
        place = VectorRange(piece.data_file, len(data), piece.length, piece.cardinality)
        vectors.append(place)
        data += piece.stored
    name = files.write_index_file(bytes(data))
    return VectorsFile(bucket, name, len(data), tuple(vectors))
