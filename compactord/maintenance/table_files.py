"""Lists the files of a table where any may be left over: by folders, a page at a time.

Folders as in operation/OrphanFilesClean.java. Not looked at are those of schemas, branches and
consumers, what others have in a partition's folder beside its buckets, such as `_SUCCESS`, and in
folders of tags. Nor are folders whose files may be those of another table: what
links lead to, and partition folders and external paths in which a table lies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from compactord.ids import owner_of
from compactord.paimon import paths
from compactord.paimon.snapshot import branch_names
from compactord.storage.base import ObjectStatus, Storage
from compactord.storage.calls import results_of

# Packs of managed blobs (blob/ManagedBlobReferenceFile.java): several data files refer to one.
_SHARED_SUFFIX = ".managed.blob"
# What a store tells of a folder in one answer.
_PAGE = 1_000
_HINTS = (paths.EARLIEST, paths.LATEST)
# A folder with these is that of a table.
_OF_TABLES = ("schema", "snapshot")


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
        return tuple(dict.fromkeys((self.location, *self.other_roots)))


class FileListing:
    """One listing of all files, or of those whose names are wanted.

    Of all of them `empty` are then the bucket and partition folders in which it found none.
    `folders` are those that it has listed so far.
    """

    def __init__(
        self,
        storage: Storage,
        folders: TableFolders,
        is_wanted: Callable[[str], bool] | None = None,
    ) -> None:
        self.empty: list[tuple[str, ObjectStatus]] = []
        self.folders: set[str] = set()
        self._storage = storage
        self._folders = folders
        self._is_wanted = is_wanted

    def files(self) -> Iterator[tuple[str, ObjectStatus]]:
        """Each with its folder. No snapshot, changelog or hint, and nothing that files share."""
        for folder, kept in self._shared_folders():
            for status in self._list(folder):
                is_kept = kept is not None and (
                    status.name.startswith(kept) or status.name in _HINTS
                )
                if not status.is_folder and not is_kept:
                    yield folder, status
        wanted = self._is_wanted
        finds_empty = wanted is None and self._storage.capabilities.has_folders
        for root in self._folders.data_roots:
            # Folders are remembered only where empty ones can be removed.
            inner: dict[str, ObjectStatus] | None = {} if finds_empty else None
            filled: set[str] = set()
            own: list[tuple[str, ObjectStatus]] = []
            buckets = self._buckets(root, inner, own)
            yield from own if wanted is None else [each for each in own if wanted(each[1].name)]
            for folder, listed in self._begun(self._list, buckets):
                for status in listed:
                    if not status.is_folder and not status.name.endswith(_SHARED_SUFFIX):
                        if inner is not None:
                            filled.add(folder)
                        yield folder, status
            if inner is not None:
                filled.update(each for path in tuple(filled) for each in _above(path, root))
                self.empty += [item for item in reversed(inner.items()) if item[0] not in filled]

    def _list(self, folder: str) -> Iterator[ObjectStatus]:
        self.folders.add(folder)
        if self._is_wanted is None:
            return self._storage.list(folder)
        return self._storage.list_some(folder, self._is_wanted)

    def _shared_folders(self) -> Iterator[tuple[str, str | None]]:
        """The folders of all but data files; what begins so, or is a hint, is not to be found."""
        location, of_others = self._folders.location, self._folders.of_others
        yield paths.manifest_folder(location), None
        yield paths.index_folder(location), None
        if of_others:
            yield paths.statistics_folder(location), None
        for branch in (paths.MAIN_BRANCH, *branch_names(self._storage, location)):
            root = paths.branch_root(location, branch)
            yield paths.snapshot_folder(root), paths.SNAPSHOT_PREFIX
            yield paths.changelog_folder(root), paths.CHANGELOG_PREFIX
            if not of_others:
                yield paths.tag_folder(root), paths.TAG_PREFIX

    def _buckets(
        self,
        root: str,
        inner: dict[str, ObjectStatus] | None,
        own: list[tuple[str, ObjectStatus]],
    ) -> Sequence[str]:
        """All bucket folders below a root. `inner` gets them, after those of partitions.

        `own` gets the files that we left beside them: marks and holds that were not renamed.
        """
        level = [root]
        for depth in range(self._folders.partition_depth, -1, -1):
            above, level = level, []
            for folder, listed in self._begun(self._storage.list, above):
                if folder != self._folders.location:
                    listed = list(listed)
                    if _is_of_table(listed):
                        continue
                for status in listed:
                    name = status.name
                    is_inner = "=" in name if depth else name.startswith(paths.BUCKET_PREFIX)
                    if status.is_folder and not status.is_link and is_inner:
                        level.append(paths.join(folder, name))
                        if inner is not None:
                            inner[level[-1]] = status
                    elif not status.is_folder and owner_of(name):
                        own.append((folder, status))
        return level

    def _begun(
        self, listing: Callable[[str], Iterator[ObjectStatus]], folders: Sequence[str]
    ) -> Iterator[tuple[str, Iterable[ObjectStatus]]]:
        """Listings of which a page has been read, of several ahead where that is a request."""

        def begun(folder: str) -> tuple[str, Iterable[ObjectStatus]]:
            listed = listing(folder)
            return folder, chain(list(islice(listed, _PAGE)), listed)

        yield from results_of(self._storage, begun, folders)


def _above(path: str, root: str) -> Iterator[str]:
    while path != root:
        path = path.rpartition("/")[0]
        yield path


def outer_table(storage: Storage, location: str) -> str | None:
    """The table in one of whose partition folders this one lies: its buckets look like the inner's.

    None where there is none. Raises what listing raises.
    """
    folder, _, name = location.rpartition("/")
    while folder and "=" in name:
        if _is_of_table(storage.list(folder)):
            return folder
        folder, _, name = folder.rpartition("/")
    return None


def _is_of_table(listed: Iterable[ObjectStatus]) -> bool:
    return any(each.is_folder and each.name in _OF_TABLES for each in listed)


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
