"""Plans the files to delete with expiring snapshots and changelogs, before any deletion.

If snapshots b..e-1 expire and e becomes the oldest, the plan deletes:

1. Data files that the deltas of b+1..e delete and do not add again, unless a tag before the
   deleting snapshot still has them.
2. Changelog files of b..e-1.
3. Manifests, lists, index files and statistics of b..e-1 that neither e nor a tag among them names.

That is Java's rule (table/ExpireSnapshotsImpl.java, operation/FileDeletionBase.java). It assumes
that a deleted file never returns, that each snapshot was made from the one before it, and that only
snapshots and tags of the branch need files. Where these assumptions fail, this plan keeps more than
Java:

- a file that a later snapshot adds again (a rollback to an old snapshot as a new one does that), or
  that was added again before: then the nearest tag, the only one that Java checks, may lack a file
  that an older tag has;
- all files of e, unless metadata proves that e descends from all of b+1..e-1: one of them may have
  been replaced after e's writer had read it;
- all files of tags on replaced snapshots, of other branches (for a branch, main is one), and all
  files that readers of long-lived changelogs need.

Changelogs that outlive their snapshots (`ChangelogRetention`) keep these files of b..e-1:

- without a changelog producer, the lists, and the data files that writers added, until the
  changelog of the deleting snapshot expires;
- otherwise the changelog files and lists.

If changelogs b..e-1 expire and e becomes the oldest, the plan deletes:

1. Their changelog files.
2. Data files that their snapshots deleted and did not add again, if the expiry of these snapshots
   kept them. Otherwise the lists that name them no longer exist.
3. Manifests and lists of b..e-1 that no other version names.

As table/ExpireChangelogImpl.java, which checks only changelog e, the oldest snapshot and some tags.
This plan also checks all versions that may have old files: snapshots and changelogs of an overwrite
(a rollback as a new snapshot is one), tags on replaced snapshots, and all other branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from compactord.errors import ObjectNotFound, UnsupportedTable
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, EntryKind, FileKey
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.options.maintenance import ChangelogRetention
from compactord.paimon.snapshot import CommitKind, Snapshot, SnapshotIdentity
from compactord.state.metadata_reader import FileChange, MetadataReader, ReadList

# Creation times of files come from a wall clock of unknown zone and precision.
_CLOCKS_DIFFER_MS = 48 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePlan:
    """Paths to delete, in this order: a list after the manifests that it names.

    `bucket_folders` lose files. Extra files follow the data file or manifest that has them.
    `size_bytes` counts data files, changelog files and manifests.
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
        """Paths to delete first, by the name of their figure."""
        return ("data_files", self.data_files), ("changelog_files", self.changelog_files)

    @property
    def metadata(self) -> tuple[tuple[str, Sequence[str]], ...]:
        """Paths to delete after `files`, by the name of their figure."""
        return (
            ("manifests", self.manifests),
            ("index_files", (*self.index_files, *self.statistics)),
            ("manifests", self.lists),
        )


@dataclass(slots=True)
class Leaves:
    """Names of unneeded metadata files; `lists` have manifest lists and index manifests.

    Manifests with their sizes in bytes, index files with their paths. The extra files of a manifest
    follow it with size 0, as their size is not recorded.
    """

    manifests: dict[str, int] = field(default_factory=dict)
    index_files: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, None] = field(default_factory=dict)
    lists: dict[str, None] = field(default_factory=dict)

    def add_list(self, name: str, manifests: Iterable[ManifestFile], kept: Collection[str]) -> None:
        """Add a list and its manifests, except names in `kept`."""
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
        """Add a snapshot's metadata files, of these of its lists; missing files name none."""
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
    """The tags that may share manifests with snapshots `first` to `end` - 1.

    `tags` in order of id. As findSkippingTags of table/ExpireSnapshotsImpl.java: from the last one
    at or before `first` (the very first, if there is none) to the last one before `end`.
    """
    before_end = sum(tag.id < end for tag in tags)
    at_first = sum(tag.id <= first for tag in tags)
    return tags[max(at_first - 1, 0) : before_end]


def apply_delta(
    changes: Iterable[FileChange], unneeded: dict[FileKey, FileChange]
) -> dict[FileKey, FileChange]:
    """The files that a delta deletes; files that it adds are removed from `unneeded`.

    A file that is both deleted and added, in any order, moves to another level and stays.
    """
    deleted: dict[FileKey, FileChange] = {}
    added: set[FileKey] = set()
    for change in changes:
        if change.kind is EntryKind.ADD:
            added.add(change.key)
        else:
            deleted[change.key] = change
    for key in added:
        deleted.pop(key, None)
        unneeded.pop(key, None)
    return deleted


def spare_tagged(
    reader: MetadataReader, tags: Sequence[Snapshot], deleted: dict[FileKey, FileChange]
) -> None:
    """Remove the files of the last of `tags`, and of tags not older than the oldest file.

    Checks of all tags would read the manifests of all tags.
    """
    oldest_ms = 0
    for tag in reversed(tags):
        if deleted and oldest_ms <= tag.time_ms + _CLOCKS_DIFFER_MS:
            for key in reader.live(tag):
                deleted.pop(key, None)
            oldest_ms = min((file.created_ms for file in deleted.values()), default=0)


def spare_others(
    reader: MetadataReader,
    others: Iterable[Snapshot],
    changelogs: Iterable[Snapshot],
    unneeded: dict[FileKey, FileChange],
) -> None:
    """Remove the files that these versions need; their metadata may be missing."""
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

    `known` are existing snapshots by id, including the newest.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringHistory:
    """The existing snapshots of a table or branch, and all other versions that name files.

    `expiring` are b..e-1 in order, `end` is e, `later` has read the snapshots after e. `others` are
    the snapshots and tags of other branches. `changelogs` are the retained long-lived changelogs of
    all branches. With `retention` the snapshots of `expiring` become changelogs, not listed here.
    """

    expiring: Sequence[Snapshot]
    end: Snapshot
    later: LaterSnapshots
    tags: Sequence[Snapshot]
    others: Sequence[Snapshot]
    changelogs: Sequence[Snapshot] = ()
    retention: ChangelogRetention | None = None

    @property
    def detached_tags(self) -> Sequence[Snapshot]:
        """Tags on snapshots of the table or branch that were replaced or rolled back."""
        known = {each.id: each.identity for each in (*self.expiring, self.end)}
        return detached_tags(self.tags, {**self.later.identities, **known})


def plan_expiry(
    reader: MetadataReader, history: ExpiringHistory, *, bucket_folder: Callable[[BucketId], str]
) -> ExpirePlan:
    """Plan an expiry of snapshots; deletes no file.

    Raises what reading raises, and `UnsupportedTable` for files outside the table. Only metadata of
    expiring snapshots may be missing: an interrupted expiry deletes it after their data files.
    """
    tags = sorted(history.tags, key=lambda tag: tag.id)
    data = _unneeded_data_files(reader, history, tags)
    changelog = _unneeded_changelog_files(reader, history)
    leaves = _unneeded_metadata(reader, history, tags)
    return plan_of(reader, data, changelog, leaves, bucket_folder=bucket_folder)


def _unneeded_data_files(
    reader: MetadataReader, history: ExpiringHistory, tags: Sequence[Snapshot]
) -> dict[FileKey, FileChange]:
    later = history.expiring[1:]
    deltas = list(zip(later, reader.deltas_if_whole(later), strict=True))
    deltas.append((history.end, reader.delta_changes(history.end)))
    reader.look_for(
        change.key
        for snapshot, changes in deltas
        for change in changes
        if change.kind is EntryKind.DELETE and not _outlives(change, snapshot, history.retention)
    )
    unneeded: dict[FileKey, FileChange] = {}
    for snapshot, changes in deltas:
        deleted = {
            key: change
            for key, change in apply_delta(changes, unneeded).items()
            if not _outlives(change, snapshot, history.retention)
        }
        spare_tagged(reader, [tag for tag in tags if tag.id < snapshot.id], deleted)
        unneeded.update(deleted)
    added_again = history.later.needed({key.file_name for key in unneeded})
    for key in [key for key in unneeded if key.file_name in added_again]:
        del unneeded[key]
    keeping = [*history.detached_tags]
    if not _descends(reader, history):
        keeping.append(history.end)
    for snapshot in keeping:
        for key in reader.live(snapshot) if unneeded else ():
            unneeded.pop(key, None)
    spare_others(reader, history.others, history.changelogs, unneeded)
    return unneeded


def _outlives(change: FileChange, deleting: Snapshot, retention: ChangelogRetention | None) -> bool:
    """Whether a changelog keeps a file that this snapshot deletes, as SnapshotDeletion.java."""
    if retention is None:
        return False
    is_appended = retention.from_deltas and not change.is_compacted
    return is_appended or _is_read_overwrite(deleting, retention)


def _descends(reader: MetadataReader, history: ExpiringHistory) -> bool:
    """Whether each snapshot's manifests are in the base list of the next one, up to `end`.

    False is no proof: manifests may have been merged, or removed by an interrupted expiry, which
    keeps manifests of `end`. The first snapshot is not checked: its delta deletes no file here.
    """
    chain = (*history.expiring[1:], history.end)
    try:
        return all(
            after.id == before.id + 1
            and reader.names(reader.base(before)) <= reader.names(reader.base(after))
            and reader.names(reader.delta(before)) <= reader.names(reader.base(after))
            for before, after in pairwise(chain)
        )
    except ObjectNotFound:
        return False


def _unneeded_changelog_files(
    reader: MetadataReader, history: ExpiringHistory
) -> dict[FileKey, FileChange]:
    if history.retention is not None:
        return {}
    return added_changelog_files(
        reader, history.expiring, kept=(*history.others, *history.changelogs)
    )


def _unneeded_metadata(
    reader: MetadataReader, history: ExpiringHistory, tags: Sequence[Snapshot]
) -> Leaves:
    kept: set[str] = set()
    inside = skipping_tags(tags, history.expiring[0].id, history.end.id)
    for snapshot in (history.end, *inside, *history.detached_tags):
        # As in Java, the changelog of a tagged snapshot is deleted with the snapshot.
        kept |= reader.metadata_to_read(snapshot)
    for other in history.others:
        kept |= reader.metadata_named(other)
    for changelog in history.changelogs:
        kept |= reader.changelog_named(changelog)
    # A snapshot that rolled back has the index and the statistics of an old one.
    going: set[str] = set()
    for snapshot in history.expiring:
        going |= reader.index_names(snapshot, missing_ok=True)
        going |= {name for name in (snapshot.statistics,) if name is not None}
    kept |= history.later.needed(going - kept)
    leaves = Leaves()
    # Read concurrently where that is faster, and below from memory.
    deque(reader.bases_if_there(history.expiring), maxlen=0)
    for snapshot in history.expiring:
        lists = _unneeded_lists(reader, snapshot, history.retention)
        leaves.add(reader, snapshot, lists, kept)
    return leaves


def _unneeded_lists(
    reader: MetadataReader, snapshot: Snapshot, retention: ChangelogRetention | None
) -> Iterator[tuple[str, ReadList]]:
    """The lists that the snapshot's changelog does not need after the expiry."""
    if retention is not None and (retention.from_deltas or _is_read_overwrite(snapshot, retention)):
        return
    for name, read in reader.lists(snapshot):
        if retention is None or name != snapshot.changelog_manifest_list:
            yield name, read


def _is_read_overwrite(snapshot: Snapshot, retention: ChangelogRetention) -> bool:
    """Whether readers get the rows that an overwrite removed from the snapshot's delta."""
    return retention.from_overwrites and snapshot.commit_kind is CommitKind.OVERWRITE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringChangelogs:
    """The long-lived changelogs of a table or branch, and all other versions that name files.

    `expiring` are b..e-1 in order, `end` is e, `later` are the changelogs after e. `snapshots` are
    the snapshots of the branch in order, at least one. `others` are the snapshots and tags of other
    branches, `changelogs` their long-lived changelogs.
    """

    expiring: Sequence[Snapshot]
    end: Snapshot
    later: Sequence[Snapshot]
    snapshots: Sequence[Snapshot]
    tags: Sequence[Snapshot]
    others: Sequence[Snapshot]
    changelogs: Sequence[Snapshot]

    @property
    def keeping(self) -> tuple[Snapshot, ...]:
        """The snapshots that may have old files, and tags on replaced snapshots.

        All other snapshots have only new files and files of the oldest one.
        """
        versions = (*self.expiring, self.end, *self.later, *self.snapshots)
        known = {each.id: each.identity for each in versions}
        oldest, *newer = self.snapshots
        return (oldest, *_overwrites(newer), *detached_tags(self.tags, known))

    @property
    def staying(self) -> tuple[Snapshot, ...]:
        """The retained changelogs that may have old files."""
        return (self.end, *_overwrites(self.later), *self.changelogs)


def _overwrites(versions: Sequence[Snapshot]) -> list[Snapshot]:
    return [each for each in versions if each.commit_kind is CommitKind.OVERWRITE]


def plan_changelogs(
    reader: MetadataReader,
    history: ExpiringChangelogs,
    *,
    bucket_folder: Callable[[BucketId], str],
) -> ExpirePlan:
    """Plan an expiry of changelogs; deletes no file.

    Raises what reading raises, and `UnsupportedTable` for files outside the table. Metadata of
    changelogs may be missing.
    """
    tags = sorted(history.tags, key=lambda tag: tag.id)
    data = _files_of_changelogs(reader, history, tags)
    kept = (*history.others, *history.staying, *history.keeping)
    changelog = added_changelog_files(reader, history.expiring, kept=kept)
    leaves = _metadata_of_changelogs(reader, history, tags)
    return plan_of(reader, data, changelog, leaves, bucket_folder=bucket_folder)


def _files_of_changelogs(
    reader: MetadataReader, history: ExpiringChangelogs, tags: Sequence[Snapshot]
) -> dict[FileKey, FileChange]:
    deltas = [(each, reader.delta_if_whole(each)) for each in history.expiring]
    reader.look_for(
        change.key for _, changes in deltas for change in changes if change.kind is EntryKind.DELETE
    )
    unneeded: dict[FileKey, FileChange] = {}
    for changelog, changes in deltas:
        deleted = apply_delta(changes, unneeded)
        spare_tagged(reader, [tag for tag in tags if tag.id < changelog.id], deleted)
        unneeded.update(deleted)
    for snapshot in history.keeping:
        for key in reader.live(snapshot) if unneeded else ():
            unneeded.pop(key, None)
    spare_others(reader, history.others, history.staying, unneeded)
    return unneeded


def _metadata_of_changelogs(
    reader: MetadataReader, history: ExpiringChangelogs, tags: Sequence[Snapshot]
) -> Leaves:
    kept: set[str] = set()
    inside = skipping_tags(tags, history.expiring[0].id, history.end.id)
    for snapshot in (*history.keeping, *inside):
        kept |= reader.metadata_to_read(snapshot)
    for other in history.others:
        kept |= reader.metadata_named(other)
    for changelog in history.staying:
        kept |= reader.changelog_named(changelog)
    leaves = Leaves()
    for changelog in history.expiring:
        for name, read in reader.lists(changelog):
            leaves.add_list(name, reader.if_there(read, changelog), kept)
    return leaves
