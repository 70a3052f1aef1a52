"""Finds the file that a compaction reads and that is gone though the newest snapshot needs it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

import structlog

from compactord.errors import CompactordError, DataFileMissing
from compactord.maintenance.expire_reader import FileKey
from compactord.maintenance.rollback import newest_without
from compactord.model import Compaction
from compactord.paimon import paths
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef
from compactord.storage.parallel import results_of
from compactord.table.opening import OpenTable
from compactord.table.report import count_text

_log = structlog.get_logger()


def missing_input(
    table: OpenTable, compaction: Compaction, vectors: Mapping[str, VectorRef] = NO_VECTORS
) -> DataFileMissing | None:
    """The first file that it reads and that does not exist, with what could be rolled back to.

    For files that are live in the newest snapshot, where one was not found: each is asked for, then
    those of their deletion vectors. None when all exist, or the store does not answer.
    """
    folder = table.bucket_folder(compaction.bucket)
    above = sorted(getattr(compaction, "looked_up", ()), key=lambda file: file.file_name)
    reads = (*compaction.inputs, *above)
    data_files = [paths.join(folder, file.file_name) for file in reads]
    names = (file.file_name for file in reads)
    index_files = dict.fromkeys(vectors[name].path for name in names if name in vectors)
    asked = [*data_files, *index_files]
    try:
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
