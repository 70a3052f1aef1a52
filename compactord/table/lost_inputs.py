"""Finds the file that a compaction cannot read though the newest snapshot needs it."""

from __future__ import annotations

import posixpath
from functools import partial

import structlog

from compactord.errors import CompactordError, DataFileDamaged, ObjectNotFound
from compactord.maintenance.damage import VECTORS_FILE, Damage, DamageKind, version_without
from compactord.maintenance.expire_reader import FileKey
from compactord.model import Compaction, MergeCompaction, SubcompactionFailure
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.paimon.deletion_vectors import read_deleted_rows
from compactord.state.table_state import TableState
from compactord.storage.calls import results_of
from compactord.storage.ranges import read_twice
from compactord.table.opening import OpenTable
from compactord.text import count_text

_log = structlog.get_logger()
# What becomes of a compaction whose bucket a commit has found to be damaged.
DROPPED = ObjectNotFound("", "dropped by the commit")


def files_read(compaction: Compaction) -> tuple[DataFile, ...]:
    """All that a compaction reads: its inputs, then those in which it looks rows up, by name."""
    if not isinstance(compaction, MergeCompaction):
        return compaction.inputs
    above = sorted(compaction.looked_up, key=lambda file: file.file_name)
    return (*compaction.inputs, *above)


def missing_input(table: OpenTable, compaction: Compaction, state: TableState) -> Damage | None:
    """The first file that it needs and that does not exist, with what could be rolled back to.

    For files that are live in the newest snapshot, where one was not found: each that it reads is
    asked for, then those with deletion vectors of its bucket's files in `state`, which its commit
    reads. None when all exist, the store does not answer, or the bucket's entries are damaged.
    """
    folder = table.bucket_folder(compaction.bucket)
    data_files = [paths.join(folder, file.file_name) for file in files_read(compaction)]
    try:
        vectors = state.indexes.vectors(compaction.bucket)
        live = state.files.named(compaction.bucket, vectors.keys())
        index_files = dict.fromkeys(vectors[name].path for name in live)
        asked = [*data_files, *index_files]
        found = zip(asked, results_of(table.storage, table.storage.status, asked), strict=True)
        gone = [path for path, status in found if status is None]
        named = [posixpath.basename(path) for path in gone]
        keys = [
            FileKey(compaction.bucket, name)
            for name, path in zip(named, gone, strict=True)
            if path not in index_files
        ]
        lost = frozenset(named[len(keys) :])
    except CompactordError as error:
        _not_asked_for(table, compaction, error)
        return None
    if not gone:
        return None
    count = len(gone) - 1
    others = f" (and {count_text(count, 'other')} of its bucket)" if count else ""
    what = "data file" if keys else VECTORS_FILE
    version, whole = version_without(table.storage, table.ref, keys, lost)
    return Damage(
        path=gone[0],
        kind=DamageKind.MISSING,
        message=f"a live {what}{others} does not exist, {whole}",
        bucket=compaction.bucket,
        version=version,
    )


def at_input(failure: SubcompactionFailure) -> ObjectNotFound | DataFileDamaged | None:
    """The error of a worker that could not read an input; None for any other failure."""
    message = failure.message.removesuffix(f": {failure.path}")
    for kind in (ObjectNotFound, DataFileDamaged):
        if failure.error == kind.__name__:
            return kind(failure.path, message)
    return None


def lost_input(
    table: OpenTable,
    compaction: Compaction,
    state: TableState,
    error: ObjectNotFound | DataFileDamaged,
) -> Damage | None:
    """The live file that a compaction cannot read, after this error; `state` is the newest."""
    found = None
    if isinstance(error, DataFileDamaged):
        found = _damaged_input(table, compaction, error)
    found = found or missing_input(table, compaction, state)
    if found is None and error is DROPPED:
        found = _damaged_vectors(table, compaction, state)
    return found


def _damaged_vectors(table: OpenTable, compaction: Compaction, state: TableState) -> Damage | None:
    """The first index file of the bucket whose deletion vectors cannot be read."""
    bucket = compaction.bucket
    try:
        vectors = state.indexes.vectors(bucket)
        for name, file in state.files.named(bucket, vectors.keys()).items():
            read_twice(partial(read_deleted_rows, table.storage, vectors[name], file.row_count))
    except DataFileDamaged as error:
        return _damaged_input(table, compaction, error)
    except CompactordError as error:
        _not_asked_for(table, compaction, error)
    return None


def _damaged_input(
    table: OpenTable, compaction: Compaction, error: DataFileDamaged
) -> Damage | None:
    """What a compaction found to be wrong with the bytes of a live file, as `missing_input`.

    None when it does not exist any more, or the store does not answer.
    """
    name = posixpath.basename(error.path)
    try:
        there = table.storage.status(error.path)
    except CompactordError as why:
        _not_asked_for(table, compaction, why)
        return None
    if there is None:
        return None
    keys = [FileKey(compaction.bucket, name)]
    version, whole = version_without(table.storage, table.ref, keys, frozenset([name]))
    return Damage(
        path=error.path,
        kind=DamageKind.CONTENT,
        message=f"{error.message}, {whole}",
        bucket=compaction.bucket,
        version=version,
        size_bytes=there.size_bytes,
    )


def _not_asked_for(table: OpenTable, compaction: Compaction, error: CompactordError) -> None:
    _log.warning(
        "inputs_not_asked_for",
        partition=table.partition_text(compaction.bucket.partition),
        bucket=compaction.bucket.bucket,
        error=str(error),
    )
