"""Deletes files of compactions that were certainly not published, by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from compactord.errors import StorageError
from compactord.ids import owner_of
from compactord.model import BucketChange
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.storage.base import Storage


def discard_outputs(storage: Storage, folder: str, change: BucketChange) -> None:
    """Delete the new files of a change that certainly was not published.

    An upgraded file is also in `before`: it is live and is kept. `folder` is the bucket's.
    """
    before = {file.file_name for file in change.before}
    remove_files(storage, folder, [f for f in change.after if f.file_name not in before])


def remove_files(storage: Storage, folder: str, files: Iterable[DataFile]) -> None:
    """Delete files that workers finished and no commit ever named.

    A later orphan sweep finds the files that cannot be deleted now.
    """
    for file in files:
        if owner_of(file.file_name) is not None:
            with contextlib.suppress(StorageError):
                storage.delete(paths.data_file_path(folder, file))
