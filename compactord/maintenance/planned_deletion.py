"""Deletes the files of a plan, as long as the table is as it was when that was made."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from compactord.errors import ObjectNotFound
from compactord.maintenance.expire_files import ExpirePlan
from compactord.maintenance.kind import TableValues
from compactord.maintenance.own_files import OwnFiles, own_files
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
# The files of what expires, the oldest first, after their name in the counts.
Versions: TypeAlias = tuple[str, Sequence[str]]
KEEPERS_CHANGED = "tags or branches were created or deleted meanwhile"


class TableChanged(Exception):
    """Another process has changed the table since it was read."""


class PlannedDeletion:
    """Made before the metadata is read that the plan depends on.

    `require_end` raises `TableChanged` unless the version that becomes the oldest is the same.
    """

    def __init__(self, table: TableValues, require_end: Callable[[], None]) -> None:
        self._storage, self._table = table.storage, table.ref
        self._require_end = require_end
        self._own = own_files(table)
        self._keepers = keepers(self._storage, self._table)

    def check(self) -> None:
        """Raises `TableChanged` if the plan may be wrong by now, and what reading raises."""
        self._require_end()
        if keepers(self._storage, self._table) != self._keepers:
            raise TableChanged(KEEPERS_CHANGED)

    def planned(self, plan: Callable[[], ExpirePlan], versions: Versions) -> ExpirePlan:
        """What `plan` returns, before `versions` go; the table was as it is now all the time.

        Raises as `check`, and `UnsupportedTable` where metadata leads to files of others.
        """
        try:
            found = plan()
        except ObjectNotFound:
            # Another expiry has deleted the file; otherwise the table is damaged.
            self.check()
            raise
        self._require_own(found, versions)
        self.check()
        return found

    def _require_own(self, plan: ExpirePlan, versions: Versions) -> None:
        for path in itertools.chain(
            plan.data_files, plan.changelog_files, plan.index_files, plan.statistics
        ):
            self._own.require_data(path)
        for path in (*plan.manifests, *plan.lists, *versions[1]):
            self._own.require(path)

    def run(
        self,
        plan: ExpirePlan,
        versions: Versions,
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
            self._own.delete(path)
            counts[kind] += 1
        self.check()

    def _delete(self, kind: str, unneeded: Sequence[str], counts: Counter[str]) -> None:
        delete_checked(self._storage, self._own, kind, unneeded, counts, self.check)


def keepers(storage: Storage, table: TableRef) -> frozenset[tuple[str, int]]:
    """Tags by names and modification times, as one may be put on another snapshot; branches."""
    tags = storage.list(paths.tag_folder(table.root))
    files = frozenset((s.name, s.changed_ms) for s in tags if not s.is_folder)
    return files.union((branch, 0) for branch in branch_names(storage, table.location))


def delete_checked(
    storage: Storage,
    own: OwnFiles,
    kind: str,
    unneeded: Sequence[str],
    counts: Counter[str],
    check: Callable[[], None],
) -> None:
    """Delete these files in any order, counted as `kind`.

    Raises what `check`, asked now and then, raises, and `own`, and `StorageError` where a deletion
    fails.
    """
    begun = itertools.count(1)

    def delete(path: str) -> None:
        if next(begun) % _CHECK_INTERVAL == 0:
            check()
        own.delete(path)

    # A disk waits for its journal once for several.
    for _ in done_with(storage, delete, unneeded, on_disks=True):
        counts[kind] += 1
