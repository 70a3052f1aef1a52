"""The index files of the next snapshot: its deletion vectors, made from those of the newest one.

Sorted indexes of a level that gets other files go: each names all files of its level, and Java's
readers and writers take one that does not for no index at all (index/pksorted/
PkSortedBucketIndexState.java). Its next writer of the bucket builds a new one.

Vectors are made anew at each attempt, so that nothing that another writer deleted meanwhile is
lost. In tables with buckets one index file has all vectors of a bucket; elsewhere only those are
replaced that have a vector of a file that goes (deletionvectors/BucketedDvMaintainer.java,
deletionvectors/append/AppendDeleteFileMaintainer.java, manifest/IndexManifestFileHandler.java).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compactord.commit.changes import BucketChange, Conflict, DroppedChange
from compactord.commit.metadata import MetadataFiles
from compactord.errors import FormatError, ObjectNotFound
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.deletion_vectors import (
    INDEX_TYPE,
    VERSION,
    DeletionVector,
    VectorKind,
    VectorRef,
    encode_vector,
    stored_in,
    united,
    vector_of,
)
from compactord.paimon.manifest.index_manifest import (
    VectorRange,
    VectorsFile,
    read_index_entries,
)
from compactord.paimon.options.table_options import VectorOptions
from compactord.paimon.roaring import numbers_of
from compactord.paimon.snapshot import still_stands
from compactord.state.table_state import TableState
from compactord.storage.base import Storage
from compactord.storage.parallel import results_of

_Positions = npt.NDArray[np.int64]


@dataclass(slots=True)
class NextIndex:
    """The index manifest of the next snapshot, and the `changes` that it agrees with.

    `written` are the names of the files that were written for it.
    """

    manifest: str | None
    changes: list[BucketChange]
    dropped: list[DroppedChange] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class _Marking(NamedTuple):
    """A change, and the rows that it marks, as `_marks` returns them."""

    change: BucketChange
    marks: Mapping[str, _Positions]


class _Piece(NamedTuple):
    """A vector in an index file that is to be written; `length` as its entry has it."""

    data_file: str
    stored: bytes
    length: int
    cardinality: int


@dataclass(frozen=True, slots=True)
class _Replacement:
    """The index files of a bucket that go, and the vectors of each that comes in their place."""

    names: frozenset[str]
    files: tuple[tuple[_Piece, ...], ...]


def next_index(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    options: VectorOptions | None,
    files: MetadataFiles,
) -> NextIndex:
    """Write what `changes` do to the index files of `state`; nothing if they do not touch them.

    `options` None: the table has no deletion vectors nor sorted indexes, and no change marks rows.
    Dropped are changes that mark rows of files that are not live or do not have them, and those of
    buckets with a damaged index file. Raises what reading and writing raise, `ObjectNotFound` if
    the snapshot of `state` is gone.
    """
    manifest = state.snapshot.index_manifest if state.snapshot else None
    index = NextIndex(manifest, list(changes))
    if options is None:
        return index
    of_bucket: dict[BucketId, list[_Marking]] = defaultdict(list)
    for change in changes:
        if change.before and (change.marks or state.indexes.of(change.bucket)):
            of_bucket[change.bucket].append(_Marking(change, _marks(change)))
    groups: list[tuple[BucketId, list[_Marking]]] = []
    for bucket, here in of_bucket.items():
        unfit = list(_unfit_marks(state, bucket, here))
        index.dropped += unfit
        fit = [each for each in here if all(each.change is not d.change for d in unfit)]
        groups += [(bucket, fit)] if fit else []
    without: set[str] = set()
    added: list[VectorsFile] = []
    replacements = results_of(storage, partial(_replacement, storage, state, options), groups)
    for (bucket, here), found in zip(groups, replacements, strict=True):
        if isinstance(found, str):
            kind = Conflict.BUCKET_DAMAGED
            index.dropped += (
                DroppedChange(change=each.change, conflict=kind, why=found) for each in here
            )
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
    """Write the index files of `state` without those of the changes' partitions, of any type.

    Raises what reading and writing raise.
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
    """An index file that `state` has.

    Raises `FormatError` if it does not exist, `ObjectNotFound` if its snapshot is gone, too.
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
    state: TableState, bucket: BucketId, markings: Sequence[_Marking]
) -> Iterator[DroppedChange]:
    marked = {name for _, marks in markings for name in marks}
    if not marked:
        return
    live = state.files.named(bucket, marked - _removed(markings))
    for change, marks in markings:
        for name, positions in marks.items():
            kind, why = Conflict.FILE_REMOVED, f"{name}, in which rows were marked, is gone"
            if name in live:
                rows = live[name].row_count
                if positions[-1] < rows:
                    continue
                kind = Conflict.OTHER
                why = f"row {positions[-1]} of {name} was marked, which has {rows} rows"
            yield DroppedChange(change=change, conflict=kind, why=why)
            break


def _removed(markings: Iterable[_Marking]) -> frozenset[str]:
    return frozenset().union(*(change.removed for change, _ in markings))


def _marks(change: BucketChange) -> dict[str, _Positions]:
    """The rows that the change marks: ascending positions, at least one, by data file."""
    decoded = (
        (mark.file_name, numbers_of(mark.positions).astype(np.int64)) for mark in change.marks
    )
    return _all_of((name, positions) for name, positions in decoded if len(positions))


def _all_of(marks: Iterable[tuple[str, _Positions]]) -> dict[str, _Positions]:
    """The positions of each data file, which several parts of a change may have marked."""
    found: dict[str, _Positions] = {}
    for name, positions in marks:
        found[name] = united(found[name], positions) if name in found else positions
    return found


def _replacement(
    storage: Storage,
    state: TableState,
    options: VectorOptions,
    of_bucket: tuple[BucketId, Sequence[_Marking]],
) -> _Replacement | str | None:
    """None: no vector changes. A text: what is damaged."""
    bucket, markings = of_bucket
    marks = _all_of(item for each in markings for item in each.marks.items())
    removed = _removed(markings)
    entries = [each for each in state.indexes.of(bucket) if each.index_type == INDEX_TYPE]
    if options.target_size is not None:
        touched = removed | marks.keys()
        entries = [e for e in entries if any(v.data_file in touched for v in e.vectors)]
    if not (entries or marks):
        return None
    paths = {state.indexes.path(each) for each in entries}
    # A vector that is hidden by one in another file of the bucket goes with its file.
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
    marks: Mapping[str, _Positions],
    kind: VectorKind,
) -> tuple[list[_Piece], bool]:
    """The vectors to be written, and whether a mark is new; `contents` are index files by path."""
    pieces, has_grown = [], False
    for name, ref in kept.items():
        stored, length = stored_in(contents[ref.path], ref), ref.length
        vector = vector_of(stored, ref, live[name].row_count)
        grown = vector.with_marks(marks[name]) if name in marks else vector
        if len(grown.positions) > len(vector.positions):
            has_grown = True
            stored, length = encode_vector(grown)
        pieces.append(_Piece(name, stored, length, len(grown.positions)))
    for name in marks.keys() - kept.keys():
        has_grown = True
        stored, length = encode_vector(DeletionVector(kind, marks[name]))
        pieces.append(_Piece(name, stored, length, len(marks[name])))
    return pieces, has_grown


def _rolled(pieces: Sequence[_Piece], target_size: int | None) -> Iterator[tuple[_Piece, ...]]:
    """The vectors of each index file: one, which may have none, unless there is a target size."""
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
