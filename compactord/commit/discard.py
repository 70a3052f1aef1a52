"""Deletes files of compactions that were certainly not published, by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from compactord.errors import StorageError
from compactord.ids import owner_of
from compactord.model import Output
from compactord.paimon import paths
from compactord.storage.base import Storage


def remove_outputs(storage: Storage, folder: str, outputs: Iterable[Output]) -> None:
    """Delete files that workers finished and no commit ever named, of all kinds.

    `folder` is the bucket's. A later orphan sweep finds what cannot be deleted now.
    """
    for output in outputs:
        if owner_of(output.file.file_name) is not None:
            with contextlib.suppress(StorageError):
                storage.delete(paths.join(folder, output.file.file_name))
