"""Finds the file that a compaction reads and that is gone though the newest snapshot needs it."""

from __future__ import annotations

import posixpath

import structlog

from compactord.amounts import count_text
from compactord.errors import CompactordError, DataFileMissing
from compactord.maintenance.expire_reader import FileKey
from compactord.maintenance.rollback import newest_without
from compactord.model import Compaction, MergeCompaction
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.state.table_state import TableState
from compactord.storage.parallel import results_of
from compactord.table.opening import OpenTable

_log = structlog.get_logger()


def files_read(compaction: Compaction) -> tuple[DataFile, ...]:
    """All that a compaction reads: its inputs, then those in which it looks rows up, by name."""
    if not isinstance(compaction, MergeCompaction):
        return compaction.inputs
    above = sorted(compaction.looked_up, key=lambda file: file.file_name)
    return (*compaction.inputs, *above)


def missing_input(
    table: OpenTable, compaction: Compaction, state: TableState
) -> DataFileMissing | None:
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
        version = newest_without(table.storage, table.ref, keys, lost) if gone else None
    except CompactordError as error:
        _log.warning(
            "inputs_not_asked_for",
            partition=table.partition_text(compaction.bucket.partition),
            bucket=compaction.bucket.bucket,
            error=str(error),
        )
        return None
    if not gone:
        return None
    count = len(gone) - 1
    others = f" (and {count_text(count, 'other')} of its bucket)" if count else ""
    whole = f"the newest version without it is {version}" if version else "no version is without it"
    what = "data file" if keys else "index file with deletion vectors"
    message = f"a live {what}{others} does not exist, readers fail, too; {whole}"
    return DataFileMissing(gone[0], message)
