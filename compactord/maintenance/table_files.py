"""Lists the files of a table where any may be left over: by folders, a page at a time.

Folders as in operation/OrphanFilesClean.java. Not looked at are those of schemas, branches and
consumers, what lies in a partition's folder beside its buckets, such as `_SUCCESS`, and in folders
of tags what others have left there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.storage.base import ObjectStatus, Storage

# Packs of managed blobs (blob/ManagedBlobReferenceFile.java): several data files refer to one.
_SHARED_SUFFIX = ".managed.blob"
_HINTS = (paths.EARLIEST, paths.LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFolders:
    """Where a table's files are.

    Bucket folders are `partition_depth` folders deep, the number of partition keys, below the
    location and each of `other_roots`. `of_others`: also where compactord never writes.
    """

    location: str
    partition_depth: int
    other_roots: tuple[str, ...] = ()
    of_others: bool = False

    @property
    def data_roots(self) -> tuple[str, ...]:
        return (self.location, *self.other_roots)


class FileListing:
    """One listing of all files. `empty` are bucket and partition folders in which it found none."""

    def __init__(self, storage: Storage, folders: TableFolders) -> None:
        self.empty: list[tuple[str, ObjectStatus]] = []
        self._storage = storage
        self._folders = folders

    def files(self) -> Iterator[tuple[str, ObjectStatus]]:
        """Each with its folder. No snapshot, changelog or hint, and nothing that files share."""
        location, of_others = self._folders.location, self._folders.of_others
        folders = [paths.manifest_folder(location), paths.index_folder(location)]
        if of_others:
            folders.append(paths.statistics_folder(location))
        for folder in folders:
            yield from self._in(folder)
        for branch in (paths.MAIN_BRANCH, *branch_names(self._storage, location)):
            root = paths.branch_root(location, branch)
            yield from self._in(paths.snapshot_folder(root), but=paths.SNAPSHOT_PREFIX)
            yield from self._in(paths.changelog_folder(root), but=paths.CHANGELOG_PREFIX)
            if not of_others:
                yield from self._in(paths.tag_folder(root), but=paths.TAG_PREFIX)
        for data_root in self._folders.data_roots:
            yield from self._below(data_root, self._folders.partition_depth)

    def _in(self, folder: str, *, but: str | None = None) -> Iterator[tuple[str, ObjectStatus]]:
        for status in self._storage.list(folder):
            is_kept = but is not None and (status.name.startswith(but) or status.name in _HINTS)
            if not status.is_folder and not is_kept:
                yield folder, status

    def _below(self, folder: str, depth: int) -> Iterator[tuple[str, ObjectStatus]]:
        """The files of all bucket folders that are `depth` folders below this one."""
        for status in self._storage.list(folder):
            is_inner = "=" in status.name if depth else status.name.startswith(paths.BUCKET_PREFIX)
            if not status.is_folder or not is_inner:
                continue
            path = paths.join(folder, status.name)
            found = self._below(path, depth - 1) if depth else self._in_bucket(path)
            is_empty = True
            for each in found:
                is_empty = False
                yield each
            if is_empty:
                self.empty.append((path, status))

    def _in_bucket(self, folder: str) -> Iterator[tuple[str, ObjectStatus]]:
        for status in self._storage.list(folder):
            if not status.is_folder and not status.name.endswith(_SHARED_SUFFIX):
                yield folder, status


def remove_folders(
    roots: Collection[str], buckets: Iterable[str], remove_empty: Callable[[str], bool]
) -> None:
    """Remove bucket folders that have become empty, then their partitions', deepest first.

    None of `roots` goes. As operation/FileDeletionBase.java (cleanEmptyDirectories).
    """
    level = dict.fromkeys(buckets)
    while level:
        above: dict[str, None] = {}
        for folder in level:
            remove_empty(folder)
            parent = folder.rsplit("/", 1)[0]
            if parent not in roots:
                above[parent] = None
        level = above
