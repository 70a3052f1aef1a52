"""Removes what a search found in a table's folders, files of others included.

They are deleted, or moved to the same place below a folder of the trash; folders that are empty go
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from compactord import ids
from compactord.errors import UsageError
from compactord.maintenance.orphan_files import Orphan, OrphanSearch
from compactord.maintenance.table_files import TableFolders, remove_folders
from compactord.paimon import paths
from compactord.storage.base import Storage

_log = structlog.get_logger()
_COPIED_AT_ONCE = 8 << 20


def remove_found(
    storage: Storage,
    folders: TableFolders,
    search: OrphanSearch,
    found: Sequence[Orphan],
    *,
    trash: str | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Sequence[Orphan]:
    """Remove the files that `search` found, and folders that are empty; returns those files.

    `trash` is a folder of the same store, in which this call makes one of its own. Ends early once
    `is_stopped`. Raises what `OrphanSearch.removed` raises: some are gone then, which are logged.
    """
    delete = None
    if trash is not None:
        trash = paths.join(trash, ids.random_uuid())
        delete = partial(_move, storage, folders, trash)
    removed: list[Orphan] = []
    try:
        for orphan in search.removed(found, delete, is_stopped):
            removed.append(orphan)  # noqa: PERF402 - what came before an error stays
        if not is_stopped():
            _remove_empty(storage, folders, search.empty_folders, removed)
    finally:
        if removed:
            _log.info(
                "foreign_files_removed",
                files=len(removed),
                size_bytes=sum(orphan.size_bytes for orphan in removed),
                trash=trash,
            )
    return removed


def trash_of(folders: TableFolders, table: str, given: str, path: str | None) -> str:
    """The folder of the table in the trash, which is `path` in the table's store; None: elsewhere.

    `table` is its full name. Raises `UsageError`, which begins with `given`, for a folder of
    another store or inside the table.
    """
    if path is None:
        raise UsageError(f"{given}: expected a folder of the store of {table}")
    if any(f"{path}/".startswith(f"{root}/") for root in folders.data_roots):
        raise UsageError(f"{given}: expected a folder outside {table}")
    return paths.join(path, table)


def trash_path(folders: TableFolders, trash: str, path: str) -> str:
    """Where a file of the table goes below the trash folder."""
    for number, root in enumerate(folders.data_roots):
        if path.startswith(f"{root}/"):
            below = (f"external-{number}",) if number else ()
            return paths.join(trash, *below, path[len(root) + 1 :])
    raise AssertionError(f"{path} is in no folder of the table")


def _move(storage: Storage, folders: TableFolders, trash: str, orphan: Orphan) -> None:
    """Copy the file, then delete it.

    A copy of another sweep is not relied upon: where that fails, it removes its copy, however
    whole it looked.
    """
    with storage.open_output(trash_path(folders, trash, orphan.path)) as stream:
        for data in _parts(storage, orphan.path, orphan.size_bytes):
            stream.write(data)
    storage.delete(orphan.path)


def _parts(storage: Storage, path: str, size_bytes: int) -> Iterator[bytes]:
    for start in range(0, size_bytes, _COPIED_AT_ONCE):
        yield storage.read_range(path, start, min(_COPIED_AT_ONCE, size_bytes - start))


def _remove_empty(
    storage: Storage, folders: TableFolders, empty: Sequence[str], removed: Sequence[Orphan]
) -> None:
    """Remove the bucket folders that lost files, and what was empty, with their partitions'."""
    if not storage.capabilities.has_folders:
        return
    for folder in empty:
        storage.remove_empty_folder(folder)
    emptied = dict.fromkeys(orphan.path.rpartition("/")[0] for orphan in removed)
    buckets = [path for path in emptied if path.rsplit("/", 1)[1].startswith(paths.BUCKET_PREFIX)]
    remove_folders(folders.data_roots, buckets, storage.remove_empty_folder)
