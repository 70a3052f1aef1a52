"""Deletes the files of a plan while the table still matches it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from compactord.errors import ObjectNotFound
from compactord.maintenance.expire_plan import ExpirePlan
from compactord.maintenance.orphan_search import remove_folders
from compactord.maintenance.own_files import OwnFiles, own_files
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, branch_names, read_snapshot, snapshot_files
from compactord.storage.base import Storage
from compactord.storage.calls import for_each_concurrently
from compactord.table.opening import OpenTable

# The table is checked against the plan once in this many deletions.
_CHECK_INTERVAL = 100
# Removes a folder if it is empty; returns whether it was removed.
RemoveFolder = Callable[[str], bool]
# Snapshots of a branch by id: change and size of their files.
_Snapshots: TypeAlias = dict[int, tuple[int, int]]
# The files of expiring versions by id, the oldest first.
Versions: TypeAlias = Mapping[int, str]
_KEEPERS_CHANGED = "tags or branches were created or deleted meanwhile"


class TableChanged(Exception):
    """Another process has changed the table since it was read."""


class Keepers:
    """The tags and branches at the time of creation, which may need expiring files.

    The first and newest snapshots of other branches, main included, count as well. A later commit
    to them needs new files and files of the snapshot before it, unless it is an overwrite. `own` is
    a tag that may be deleted, by its file's name and change.
    """

    def __init__(
        self, storage: Storage, table: TableRef, own: tuple[str, int] | None = None
    ) -> None:
        self._storage, self._table, self._own = storage, table, own
        self._branches = branch_names(storage, table.location)
        self._hints = self._hints_now()
        self._tags, self._snapshots = self._now()

    def check(self) -> None:
        """Raises `TableChanged` if they may need more files now, and what reading raises."""
        hints = self._hints_now()
        if branch_names(self._storage, self._table.location) != self._branches:
            raise TableChanged(_KEEPERS_CHANGED)
        tags, snapshots = self._now()
        if tags != self._tags:
            raise TableChanged(_KEEPERS_CHANGED)
        for root, files in snapshots.items():
            self._check_branch(root, self._snapshots[root], files)
        self._hints, self._snapshots = hints, snapshots

    def moved(self) -> bool:
        """Whether a hint LATEST has changed since the last check: one small request each.

        Writers set the hint after each commit. A fast-forward of a branch deletes it first. Without
        branches no hint is read.
        """
        return bool(self._hints) and self._hints_now() != self._hints

    def _check_branch(self, root: str, before: _Snapshots, now: _Snapshots) -> None:
        ids = sorted(before)
        if not ids and not now:
            return
        if not ids or now.get(ids[-1]) != before[ids[-1]] or min(now) < ids[0]:
            raise TableChanged(f"snapshots of {root} were rolled back or replaced meanwhile")
        for id_ in now:
            if id_ > ids[-1]:
                # Only overwrites add old files again.
                kind = read_snapshot(self._storage, root, id_).commit_kind
                if kind is CommitKind.OVERWRITE:
                    raise TableChanged(
                        f"snapshot {id_} of {root}, made meanwhile, may add old files"
                    )

    def _now(self) -> tuple[frozenset[tuple[str, str, int]], dict[str, _Snapshots]]:
        """Tags by name and change, as a tag may be replaced; snapshots of other branches."""
        tags: set[tuple[str, str, int]] = set()
        snapshots: dict[str, _Snapshots] = {}
        for branch in (paths.MAIN_BRANCH, *self._branches):
            root = paths.branch_root(self._table.location, branch)
            is_own = branch == self._table.branch
            for status in self._storage.list(paths.tag_folder(root)):
                is_spared = is_own and (status.name, status.changed_ms) == self._own
                if not status.is_folder and not is_spared:
                    tags.add((branch, status.name, status.changed_ms))
            if not is_own:
                files = snapshot_files(self._storage, root).items()
                snapshots[root] = {id_: (each.changed_ms, each.size_bytes) for id_, each in files}
        return frozenset(tags), snapshots

    def _hints_now(self) -> dict[str, tuple[int, int] | None]:
        """Change and size of each branch's hint LATEST."""
        found: dict[str, tuple[int, int] | None] = {}
        for branch in (paths.MAIN_BRANCH, *self._branches) if self._branches else ():
            root = paths.branch_root(self._table.location, branch)
            status = self._storage.status(paths.latest_hint(root))
            found[branch] = None if status is None else (status.changed_ms, status.size_bytes)
        return found


class PlannedDeletion:
    """A checked deletion; created before the metadata of its plan is read.

    `require_end` raises `TableChanged` unless the version that becomes the oldest is the same.
    """

    def __init__(self, table: OpenTable, require_end: Callable[[], None]) -> None:
        self._storage, self._table = table.storage, table.ref
        self._require_end = require_end
        self._own = own_files(table)
        self._keepers = Keepers(self._storage, self._table)

    def check(self) -> None:
        """Raises `TableChanged` if the plan may be wrong by now, and what reading raises."""
        self._require_end()
        self._keepers.check()

    def planned(self, plan: Callable[[], ExpirePlan], versions: Versions) -> ExpirePlan:
        """The result of `plan`, before `versions` are deleted; the table did not change meanwhile.

        Raises what `check` raises, and `UnsupportedTable` for files that are not the table's own.
        """
        try:
            found = plan()
        except ObjectNotFound:
            # Another expiry may have deleted the file. Otherwise the table is damaged.
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
        for path in (*plan.manifests, *plan.lists, *versions.values()):
            self._own.require(path)

    def run(
        self,
        plan: ExpirePlan,
        versions: Versions,
        deleted: list[int],
        counts: Counter[str],
        remove_empty_folder: RemoveFolder | None,
    ) -> None:
        """Delete data, then metadata, then `versions` from the oldest; adds their ids to `deleted`.

        `deleted` and `counts` are right even after an error. Raises what `check` raises, and
        `StorageError` if a deletion fails.
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
        for id_, path in versions.items():
            # These files are all that a new tag could still keep.
            if self._keepers.moved():
                self._keepers.check()
            self._require_end()
            self._own.delete(path)
            deleted.append(id_)
        self.check()

    def _delete(self, kind: str, unneeded: Sequence[str], counts: Counter[str]) -> None:
        files = self._storage, self._own, self._keepers
        delete_checked(*files, unneeded, kind=kind, counts=counts, check=self.check)


def delete_checked(
    storage: Storage,
    own: OwnFiles,
    keepers: Keepers,
    unneeded: Sequence[str],
    *,
    kind: str,
    counts: Counter[str],
    check: Callable[[], None],
) -> None:
    """Delete these files in any order, counted as `kind`.

    `check` runs now and then, and once `keepers` have moved. Raises what `check` and `own` raise,
    and `StorageError` if a deletion fails.
    """
    started = itertools.count(1)

    def delete(path: str) -> None:
        # In this order: hints are compared before each deletion.
        if keepers.moved() or next(started) % _CHECK_INTERVAL == 0:
            check()
        own.delete(path)

    # Concurrent deletions on a disk share one wait for its journal.
    for _ in for_each_concurrently(storage, delete, unneeded, on_disks=True):
        counts[kind] += 1
