"""Deletes the files of a plan, as long as the table is as it was when that was made."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from compactord.errors import ObjectNotFound
from compactord.maintenance.expire_files import ExpirePlan
from compactord.maintenance.table_files import remove_folders
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage
from compactord.storage.parallel import done_with

# The table is checked against the plan once in this many deletions.
_CHECK_INTERVAL = 100
# Removes a folder unless something is in it; returns whether it is gone.
RemoveFolder = Callable[[str], bool]
KEEPERS_CHANGED = "tags or branches were created or deleted meanwhile"


class TableChanged(Exception):
    """Another process has changed the table since it was read."""


class PlannedDeletion:
    """Made before the metadata is read that the plan depends on.

    `require_end` raises `TableChanged` unless the version that becomes the oldest is the same.
    """

    def __init__(self, storage: Storage, table: TableRef, require_end: Callable[[], None]) -> None:
        self._storage = storage
        self._table = table
        self._require_end = require_end
        self._keepers = keepers(storage, table)

    def check(self) -> None:
        """Raises `TableChanged` if the plan may be wrong by now, and what reading raises."""
        self._require_end()
        if keepers(self._storage, self._table) != self._keepers:
            raise TableChanged(KEEPERS_CHANGED)

    def planned(self, plan: Callable[[], ExpirePlan]) -> ExpirePlan:
        """What `plan` returns; the table was as it is now all the time. Raises as `check`."""
        try:
            found = plan()
        except ObjectNotFound:
            # Another expiry has deleted the file; otherwise the table is damaged.
            self.check()
            raise
        self.check()
        return found

    def run(
        self,
        plan: ExpirePlan,
        versions: tuple[str, Sequence[str]],
        counts: Counter[str],
        remove_empty_folder: RemoveFolder | None,
    ) -> None:
        """Delete data, then metadata, then `versions`, the oldest first, with their name in counts.

        `counts` are right even after an error. Raises as `check`, and `StorageError` where a
        deletion fails.
        """
        for kind, unneeded in plan.files:
            self._delete(kind, unneeded, counts)
        if remove_empty_folder is not None:
            remove_folders([self._table.location], plan.bucket_folders, remove_empty_folder)
        self.check()
        for kind, unneeded in plan.metadata:
            self._delete(kind, unneeded, counts)
        counts["size_bytes"] = plan.size_bytes
        self.check()
        kind, files = versions
        for path in files:
            # Nothing that a tag or a branch may save is left but these files' names.
            self._require_end()
            self._storage.delete(path)
            counts[kind] += 1
        self.check()

    def _delete(self, kind: str, unneeded: Sequence[str], counts: Counter[str]) -> None:
        delete_checked(self._storage, kind, unneeded, counts, self.check)


def keepers(storage: Storage, table: TableRef) -> frozenset[tuple[str, int]]:
    """Tags by names and modification times, as one may be put on another snapshot; branches."""
    tags = storage.list(paths.tag_folder(table.root))
    files = frozenset((s.name, s.changed_ms) for s in tags if not s.is_folder)
    return files.union((branch, 0) for branch in branch_names(storage, table.location))


def delete_checked(
    storage: Storage,
    kind: str,
    unneeded: Sequence[str],
    counts: Counter[str],
    check: Callable[[], None],
) -> None:
    """Delete these files in any order, counted as `kind`.

    Raises what `check`, asked now and then, raises, and `StorageError` where a deletion fails.
    """
    begun = itertools.count(1)

    def delete(path: str) -> None:
        if next(begun) % _CHECK_INTERVAL == 0:
            check()
        storage.delete(path)

    # A disk waits for its journal once for several.
    for _ in done_with(storage, delete, unneeded, on_disks=True):
        counts[kind] += 1
