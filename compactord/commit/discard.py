"""Removing the files of compactions that certainly were not published: at once, by their names."""

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

    An upgraded file is in `before`, too: it is live and stays. `folder` is the bucket's.
    """
    before = {file.file_name for file in change.before}
    remove_files(storage, folder, [f for f in change.after if f.file_name not in before])


def remove_files(storage: Storage, folder: str, files: Iterable[DataFile]) -> None:
    """Delete files that workers finished and no commit ever named.

    What cannot be deleted now is found by its name later.
    """
    for file in files:
        if owner_of(file.file_name) is not None:
            with contextlib.suppress(StorageError):
                storage.delete(paths.data_file_path(folder, file))
