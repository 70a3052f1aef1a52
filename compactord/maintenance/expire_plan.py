"""Which files are deleted with expiring snapshots: decided from metadata before any deletion.

Of the snapshots b..e, those before e expire. Deleted are:

1. Data files that the deltas of b+1..e delete and do not add again, unless a tag before the
   deleting snapshot still has them.
2. Changelog files of b..e-1.
3. Manifests, lists, index files and statistics of b..e-1 that neither e nor a tag among them names.

That is Java's rule (table/ExpireSnapshotsImpl.java, operation/FileDeletionBase.java). It assumes
that a deleted file never comes back, that each snapshot was made from the one before it, and that
only snapshots and tags of the branch need files. Where these assumptions fail, more is kept here
than by Java:

- a file that a later snapshot adds again (a rollback to an old snapshot as a new one does that), or
  that was added again before: then the nearest tag, the only one that Java checks, may lack a file
  that an older one has;
- all files of e, unless metadata proves that e descends from all of b+1..e-1: one of them may have
  been replaced after e's writer had read it;
- all files of tags on replaced snapshots, of other branches (main is one to them), of long-lived
  changelogs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compactord.errors import ObjectNotFound, UnsupportedTable
from compactord.maintenance.expire_reader import FileChange, FileKey, MetadataReader
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.snapshot import CommitKind, Snapshot

# Creation times of files come from a wall clock of unknown zone and precision.
_CLOCKS_DIFFER_MS = 48 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringHistory:
    """The existing snapshots of a table or branch, and everything else that names files.

    `expiring` are b..e-1 in order, `end` is e, `later` are those after it. `others` are snapshots
    that are kept for other reasons: those of other branches, their tags, long-lived changelogs.
    """

    expiring: Sequence[Snapshot]
    end: Snapshot
    later: Sequence[Snapshot]
    tags: Sequence[Snapshot]
    others: Sequence[Snapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePlan:
    """Paths to delete, in this order: a list after the manifests that it names.

    `bucket_folders` are those that lose files. `manifests` include the extra files of each.
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


def plan_expiry(
    reader: MetadataReader, history: ExpiringHistory, *, bucket_folder: Callable[[BucketId], str]
) -> ExpirePlan:
    """Plan an expiry; deletes nothing.

    Raises what reading raises, and `UnsupportedTable` for files outside the table. Only metadata of
    expiring snapshots may be missing: an interrupted expiry had begun to delete it, after their
    data files.
    """
    location = reader.location
    tags = sorted(history.tags, key=lambda tag: tag.id)
    unneeded = _unneeded_data_files(reader, history, tags)
    changelog = _unneeded_changelog_files(reader, history)
    files = (*unneeded.values(), *changelog.values())
    refuse_external(location, files)
    leaves, lists = _unneeded_metadata(reader, history, tags)
    folders = {key.bucket: bucket_folder(key.bucket) for key in (*unneeded, *changelog)}
    return ExpirePlan(
        data_files=data_paths(unneeded.values(), folders),
        changelog_files=tuple(paths.join(folders[key.bucket], key.file_name) for key in changelog),
        bucket_folders=tuple(folders.values()),
        manifests=tuple(paths.manifest_path(location, name) for name in leaves.manifests),
        index_files=tuple(leaves.index_files.values()),
        statistics=tuple(paths.statistics_path(location, name) for name in leaves.statistics),
        lists=tuple(paths.manifest_path(location, name) for name in lists),
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


def _unneeded_data_files(
    reader: MetadataReader, history: ExpiringHistory, tags: Sequence[Snapshot]
) -> dict[FileKey, FileChange]:
    deltas = {s.id: reader.delta_if_whole(s) for s in history.expiring[1:]}
    deltas[history.end.id] = reader.delta_changes(history.end)
    reader.look_for(
        change.key
        for changes in deltas.values()
        for change in changes
        if change.kind is EntryKind.DELETE
    )
    unneeded: dict[FileKey, FileChange] = {}
    for snapshot_id, changes in deltas.items():
        gone = _apply(changes, unneeded)
        _spare_tagged(reader, [tag for tag in tags if tag.id < snapshot_id], gone)
        unneeded.update(gone)
    for snapshot in history.later:
        # Only these add files again; others add new files.
        if unneeded and snapshot.commit_kind is CommitKind.OVERWRITE:
            _apply(reader.delta_changes(snapshot), unneeded)
    keeping = _detached_tags(history)
    if not _descends(reader, history):
        keeping.append(history.end)
    for snapshot in keeping:
        for key in reader.live(snapshot) if unneeded else ():
            unneeded.pop(key, None)
    for other in history.others:
        for key in reader.live(other, missing_ok=True) if unneeded else ():
            unneeded.pop(key, None)
    return unneeded


def _spare_tagged(
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


def _apply(
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


def _detached_tags(history: ExpiringHistory) -> list[Snapshot]:
    """Tags on snapshots that were replaced or rolled back: the order of their ids is no history."""
    known = {s.id: s.identity for s in (*history.expiring, history.end, *history.later)}
    newest = max(known)
    return [
        tag
        for tag in history.tags
        if tag.id > newest or known.get(tag.id, tag.identity) != tag.identity
    ]


def _descends(reader: MetadataReader, history: ExpiringHistory) -> bool:
    """Whether each snapshot's manifests are found in the next one's base, up to the end.

    False may only mean that manifests were merged, or that an interrupted expiry has removed some:
    manifests of the end are never removed. The first one's delta deletes nothing here.
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
    unneeded = {file.key: file for s in history.expiring for file in _changelog_files(reader, s)}
    if unneeded:
        for other in history.others:
            for file in _changelog_files(reader, other):
                unneeded.pop(file.key, None)
    return unneeded


def _changelog_files(reader: MetadataReader, snapshot: Snapshot) -> Iterator[FileChange]:
    for manifest in reader.if_there(reader.changelog, snapshot):
        yield from (c for c in reader.changes_if_there(manifest) if c.kind is EntryKind.ADD)


@dataclass(slots=True)
class _Leaves:
    """Names of metadata files that name no other metadata.

    Manifests with their sizes in bytes, index files with their paths. The extra files of a manifest
    follow it, with a size of 0: none is recorded.
    """

    manifests: dict[str, int]
    index_files: dict[str, str]
    statistics: dict[str, None]


def _unneeded_metadata(
    reader: MetadataReader, history: ExpiringHistory, tags: Sequence[Snapshot]
) -> tuple[_Leaves, Mapping[str, None]]:
    """Leaves, and the lists and index manifests that name them."""
    kept: set[str] = set()
    inside = skipping_tags(tags, history.expiring[0].id, history.end.id)
    for snapshot in (history.end, *inside, *_detached_tags(history)):
        # As in Java, the changelog of a tagged snapshot is deleted with the snapshot.
        kept |= reader.metadata_to_read(snapshot)
    for other in history.others:
        kept |= reader.metadata_named(other)
    has_indexes = any(s.index_manifest is not None for s in history.expiring)
    for snapshot in history.later:
        # A snapshot that rolled back has the index and the statistics of an old one.
        kept |= {name for name in (snapshot.statistics,) if name is not None}
        kept |= reader.index_names(snapshot) if has_indexes else set()
    leaves, lists = _Leaves({}, {}, {}), dict[str, None]()
    for snapshot in history.expiring:
        for name, read in reader.lists(snapshot):
            for manifest in reader.if_there(read, snapshot):
                if manifest.file_name not in kept:
                    leaves.manifests[manifest.file_name] = manifest.file_size
                # A list by Java 2.0.0 keeps the manifest but not the names of its extra files.
                leaves.manifests.update(
                    (extra, 0) for extra in manifest.extra_files if extra not in kept
                )
            if name not in kept:
                lists[name] = None
        if snapshot.index_manifest is not None and snapshot.index_manifest not in kept:
            lists[snapshot.index_manifest] = None
        leaves.index_files.update(
            (name, entry.path(reader.location))
            for name, entry in reader.index_files(snapshot, missing_ok=True).items()
            if name not in kept
        )
        if snapshot.statistics is not None and snapshot.statistics not in kept:
            leaves.statistics[snapshot.statistics] = None
    return leaves, lists


def refuse_external(location: str, files: Iterable[FileChange]) -> None:
    """Raises `UnsupportedTable` for files that are not in the table's own folders."""
    for file in files:
        if file.external_path is not None:
            name = file.key.file_name
            raise UnsupportedTable(
                location, [f"file {name} is outside the table, at {file.external_path}"]
            )


def data_paths(files: Iterable[FileChange], folders: Mapping[BucketId, str]) -> tuple[str, ...]:
    """The data files, each followed by its extra files, in the folders of their buckets."""
    return tuple(
        paths.join(folders[file.key.bucket], name)
        for file in files
        for name in (file.key.file_name, *file.extra_files)
    )
