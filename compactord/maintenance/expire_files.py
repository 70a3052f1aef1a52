"""What expiring snapshots and expiring changelogs have in common: which files others need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compactord.errors import UnsupportedTable
from compactord.maintenance.expire_reader import FileChange, FileKey, MetadataReader, ReadList
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.snapshot import Snapshot, SnapshotIdentity

# Creation times of files come from a wall clock of unknown zone and precision.
_CLOCKS_DIFFER_MS = 48 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePlan:
    """Paths to delete, in this order: a list after the manifests that it names.

    `bucket_folders` are those that lose files. Extra files follow the data file or manifest that
    has them. `size_bytes` counts data files, changelog files and manifests.
    """

    data_files: tuple[str, ...]
    changelog_files: tuple[str, ...]
    bucket_folders: tuple[str, ...]
    manifests: tuple[str, ...]
    index_files: tuple[str, ...]
    statistics: tuple[str, ...]
    lists: tuple[str, ...]
    size_bytes: int

    @property
    def files(self) -> tuple[tuple[str, Sequence[str]], ...]:
        """What is deleted first, by the name of its count in `Expired`."""
        return ("data_files", self.data_files), ("changelog_files", self.changelog_files)

    @property
    def metadata(self) -> tuple[tuple[str, Sequence[str]], ...]:
        """What is deleted then, in the same way."""
        return (
            ("manifests", self.manifests),
            ("index_files", (*self.index_files, *self.statistics)),
            ("manifests", self.lists),
        )


@dataclass(slots=True)
class Leaves:
    """Names of metadata files that nothing needs; `lists` and index manifests name the others.

    Manifests with their sizes in bytes, index files with their paths. The extra files of a manifest
    follow it, with a size of 0: none is recorded.
    """

    manifests: dict[str, int] = field(default_factory=dict)
    index_files: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, None] = field(default_factory=dict)
    lists: dict[str, None] = field(default_factory=dict)

    def add_list(self, name: str, manifests: Iterable[ManifestFile], kept: Collection[str]) -> None:
        """Add a list and its manifests, but for names in `kept`."""
        for manifest in manifests:
            if manifest.file_name not in kept:
                self.manifests[manifest.file_name] = manifest.file_size
            # A list by Java 2.0.0 keeps the manifest but not the names of its extra files.
            self.manifests.update((extra, 0) for extra in manifest.extra_files if extra not in kept)
        if name not in kept:
            self.lists[name] = None

    def add(
        self,
        reader: MetadataReader,
        snapshot: Snapshot,
        lists: Iterable[tuple[str, ReadList]],
        kept: Collection[str],
    ) -> None:
        """Add what a snapshot leads to, by these of its lists; what is gone names nothing."""
        for name, read in lists:
            self.add_list(name, reader.if_there(read, snapshot), kept)
        if snapshot.index_manifest is not None and snapshot.index_manifest not in kept:
            self.lists[snapshot.index_manifest] = None
        self.index_files.update(
            (name, entry.path(reader.location))
            for name, entry in reader.index_files(snapshot, missing_ok=True).items()
            if name not in kept
        )
        if snapshot.statistics is not None and snapshot.statistics not in kept:
            self.statistics[snapshot.statistics] = None


def plan_of(
    reader: MetadataReader,
    data: Mapping[FileKey, FileChange],
    changelog: Mapping[FileKey, FileChange],
    leaves: Leaves,
    *,
    bucket_folder: Callable[[BucketId], str],
) -> ExpirePlan:
    """The plan that deletes these files. Raises `UnsupportedTable` for files outside the table."""
    location = reader.location
    files = (*data.values(), *changelog.values())
    for file in files:
        if file.external_path is not None:
            name = file.key.file_name
            raise UnsupportedTable(
                location, [f"file {name} is outside the table, at {file.external_path}"]
            )
    folders = {key.bucket: bucket_folder(key.bucket) for key in (*data, *changelog)}
    return ExpirePlan(
        data_files=tuple(
            paths.join(folders[file.key.bucket], name)
            for file in data.values()
            for name in (file.key.file_name, *file.extra_files)
        ),
        changelog_files=tuple(paths.join(folders[key.bucket], key.file_name) for key in changelog),
        bucket_folders=tuple(folders.values()),
        manifests=tuple(paths.manifest_path(location, name) for name in leaves.manifests),
        index_files=tuple(leaves.index_files.values()),
        statistics=tuple(paths.statistics_path(location, name) for name in leaves.statistics),
        lists=tuple(paths.manifest_path(location, name) for name in leaves.lists),
        size_bytes=sum(file.size_bytes for file in files) + sum(leaves.manifests.values()),
    )


def skipping_tags(tags: Sequence[Snapshot], first: int, end: int) -> Sequence[Snapshot]:
    """The tags whose manifests may be those of snapshots `first` to `end` - 1.

    `tags` in order of id. As findSkippingTags of table/ExpireSnapshotsImpl.java: from the last one
    at or before `first` (the very first, if there is none) to the last one before `end`.
    """
    before_end = sum(tag.id < end for tag in tags)
    at_first = sum(tag.id <= first for tag in tags)
    return tags[max(at_first - 1, 0) : before_end]


def apply_delta(
    changes: Iterable[FileChange], unneeded: dict[FileKey, FileChange]
) -> dict[FileKey, FileChange]:
    """Mark the files that this delta deletes, and unmark those that it adds.

    A file that it deletes and adds moves to another level, in whichever order.
    """
    gone: dict[FileKey, FileChange] = {}
    added: set[FileKey] = set()
    for change in changes:
        if change.kind is EntryKind.ADD:
            added.add(change.key)
        else:
            gone[change.key] = change
    for key in added:
        gone.pop(key, None)
        unneeded.pop(key, None)
    return gone


def spare_tagged(
    reader: MetadataReader, tags: Sequence[Snapshot], gone: dict[FileKey, FileChange]
) -> None:
    """Remove the files that the last of `tags` has, or one that is as old as the oldest file.

    Checking all tags would mean to read the manifests of all of them.
    """
    oldest_ms = 0
    for tag in reversed(tags):
        if gone and oldest_ms <= tag.time_ms + _CLOCKS_DIFFER_MS:
            for key in reader.live(tag):
                gone.pop(key, None)
            oldest_ms = min((file.created_ms for file in gone.values()), default=0)


def spare_others(
    reader: MetadataReader,
    others: Iterable[Snapshot],
    changelogs: Iterable[Snapshot],
    unneeded: dict[FileKey, FileChange],
) -> None:
    """Remove the files that these need, of which metadata may be missing; see `ExpiringHistory`."""
    for other in others:
        for key in reader.live(other, missing_ok=True) if unneeded else ():
            unneeded.pop(key, None)
    for changelog in changelogs:
        for key in reader.changelog_files(changelog, from_overwrites=True) if unneeded else ():
            unneeded.pop(key, None)


def detached_tags(
    tags: Iterable[Snapshot], known: Mapping[int, SnapshotIdentity]
) -> list[Snapshot]:
    """Tags on snapshots that were replaced or rolled back: the order of their ids is no history.

    `known` are the snapshots that there are by id, the newest among them.
    """
    newest = max(known)
    return [
        tag for tag in tags if tag.id > newest or known.get(tag.id, tag.identity) != tag.identity
    ]


def added_changelog_files(
    reader: MetadataReader, expiring: Iterable[Snapshot], *, kept: Iterable[Snapshot]
) -> dict[FileKey, FileChange]:
    """The changelog files of `expiring` that none of `kept` has."""
    unneeded = {file.key: file for s in expiring for file in _changelog_files(reader, s)}
    for other in kept if unneeded else ():
        for file in _changelog_files(reader, other):
            unneeded.pop(file.key, None)
    return unneeded


def _changelog_files(reader: MetadataReader, snapshot: Snapshot) -> Iterator[FileChange]:
    for manifest in reader.if_there(reader.changelog, snapshot):
        yield from (c for c in reader.changes_if_there(manifest) if c.kind is EntryKind.ADD)
