"""Finds the data file of a compaction's inputs that is gone though the newest snapshot needs it."""

from __future__ import annotations

import structlog

from compactord.errors import CompactordError, DataFileMissing
from compactord.maintenance.expire_reader import FileKey
from compactord.maintenance.rollback import newest_without
from compactord.model import Compaction
from compactord.paimon import paths
from compactord.storage.parallel import results_of
from compactord.table.opening import OpenTable
from compactord.table.report import count_text

_log = structlog.get_logger()


def missing_input(table: OpenTable, compaction: Compaction) -> DataFileMissing | None:
    """The first of its inputs that does not exist, with what could be rolled back to.

    For inputs that are live in the newest snapshot, where one was not found: each is asked for.
    None when all exist, or the store does not answer.
    """
    folder = table.bucket_folder(compaction.bucket)
    inputs = [paths.join(folder, file.file_name) for file in compaction.inputs]
    try:
        found = zip(
            compaction.inputs,
            results_of(table.storage, table.storage.status, inputs),
            strict=True,
        )
        gone = [file.file_name for file, status in found if status is None]
        keys = [FileKey(compaction.bucket, name) for name in gone]
        version = newest_without(table.storage, table.ref, keys) if gone else None
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
    message = f"a live data file{others} does not exist, readers fail, too; {whole}"
    return DataFileMissing(paths.join(folder, gone[0]), message)
