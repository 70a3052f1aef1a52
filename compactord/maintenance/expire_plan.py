"""What goes with expiring snapshots: decided whole, from metadata, before anything is deleted.

Of the snapshots b..e, those before e expire:

1. Data files: what the deltas of b+1..e delete and do not add again, unless a tag before the
   deleting snapshot still has it.
2. Changelog files of b..e-1.
3. Manifests, lists, index files and statistics of b..e-1 that neither e nor a tag among them names.

That is the rule of Java (table/ExpireSnapshotsImpl.java, operation/FileDeletionBase.java). It takes
for granted that a file once deleted never comes back, that each snapshot was made from the one
before it, and that nothing but main's snapshots and tags needs a file. Where that is not so, more
is spared here than Java spares:

- a file that a later snapshot adds again (rolling back to an old snapshot as a new one does so),
  or that had been brought back like that: then the nearest tag, the only one that Java looks at,
  may lack what an older one has;
- whatever e itself has, when metadata does not prove that e descends from all of b+1..e-1: one of
  them may have been replaced after e's writer had read it;
- whatever tags on replaced snapshots, branches and long-lived changelogs lead to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compactord.errors import ObjectNotFound, UnsupportedTable
from compactord.maintenance.expire_reader import FileChange, FileKey, MetadataReader
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.snapshot import CommitKind, Snapshot

# Files say when they were made by a wall-clock whose zone and precision nobody knows.
_CLOCKS_DIFFER_MS = 48 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringHistory:
    """The snapshots of a table, those that are there, and everything else that names files.

    `expiring` are b..e-1 in order, `end` is e, `later` are those after it. `others` are snapshots
    that are kept for other reasons: those of branches, their tags, long-lived changelogs.
    """

    expiring: Sequence[Snapshot]
    end: Snapshot
    later: Sequence[Snapshot]
    tags: Sequence[Snapshot]
    others: Sequence[Snapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePlan:
    """Paths to delete, in this order: a list goes after the manifests that it leads to.

    `bucket_folders` are those that lose files. `manifests` are with what belongs to each of them.
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


def plan_expiry(
    reader: MetadataReader, history: ExpiringHistory, *, bucket_folder: Callable[[BucketId], str]
) -> ExpirePlan:
    """Reads; deletes nothing.

    Raises what reading raises, and `UnsupportedTable` for files outside of the table. Only metadata
    of expiring snapshots may be missing: an expiry that was cut short had begun to delete it, after
    their data files.
    """
    location = reader.location
    tags = sorted(history.tags, key=lambda tag: tag.id)
    doomed = _doomed_data_files(reader, history, tags)
    changelog = _doomed_changelog_files(reader, history)
    files = (*doomed.values(), *changelog.values())
    for file in files:
        _refuse_external(location, file)
    leaves, lists = _doomed_metadata(reader, history, tags)
    folders = {key.bucket: bucket_folder(key.bucket) for key in (*doomed, *changelog)}
    return ExpirePlan(
        data_files=tuple(
            paths.join(folders[file.key.bucket], name)
            for file in doomed.values()
            for name in (file.key.file_name, *file.extra_files)
        ),
        changelog_files=tuple(paths.join(folders[key.bucket], key.file_name) for key in changelog),
        bucket_folders=tuple(folders.values()),
        manifests=tuple(paths.manifest_path(location, name) for name in leaves.manifests),
        index_files=tuple(paths.index_path(location, name) for name in leaves.index_files),
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


def _doomed_data_files(
    reader: MetadataReader, history: ExpiringHistory, tags: Sequence[Snapshot]
) -> dict[FileKey, FileChange]:
    deltas = {s.id: _delta_if_whole(reader, s) for s in history.expiring[1:]}
    deltas[history.end.id] = reader.delta_changes(history.end)
    reader.look_for(
        change.key
        for changes in deltas.values()
        for change in changes
        if change.kind is EntryKind.DELETE
    )
    doomed: dict[FileKey, FileChange] = {}
    for snapshot_id, changes in deltas.items():
        gone = _apply(changes, doomed)
        _spare_tagged(reader, [tag for tag in tags if tag.id < snapshot_id], gone)
        doomed.update(gone)
    for snapshot in history.later:
        # Only these bring files back; what others add is new.
        if doomed and snapshot.commit_kind is CommitKind.OVERWRITE:
            _apply(reader.delta_changes(snapshot), doomed)
    witnesses = _strangers(history)
    if not _descends(reader, history):
        witnesses.append(history.end)
    for witness in witnesses:
        for key in reader.live(witness) if doomed else ():
            doomed.pop(key, None)
    for other in history.others:
        for key in reader.live(other, missing_ok=True) if doomed else ():
            doomed.pop(key, None)
    return doomed


def _spare_tagged(
    reader: MetadataReader, tags: Sequence[Snapshot], gone: dict[FileKey, FileChange]
) -> None:
    """Take out what one of `tags` has: the last one, or one that the oldest file is in time for.

    To ask all tags would be to read the manifests of all of them.
    """
    oldest_ms = 0
    for tag in reversed(tags):
        if gone and oldest_ms <= tag.time_ms + _CLOCKS_DIFFER_MS:
            for key in reader.live(tag):
                gone.pop(key, None)
            oldest_ms = min((file.created_ms for file in gone.values()), default=0)


def _delta_if_whole(reader: MetadataReader, snapshot: Snapshot) -> tuple[FileChange, ...]:
    """Empty when some of it is gone: half of a delta would make upgraded files look deleted."""
    try:
        return reader.delta_changes(snapshot)
    except ObjectNotFound:
        return ()


def _apply(
    changes: Iterable[FileChange], doomed: dict[FileKey, FileChange]
) -> dict[FileKey, FileChange]:
    """Files that this delta deletes for good; those that it adds are doomed no more.

    A file that it deletes and adds moves to another level, whichever is said first.
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
        doomed.pop(key, None)
    return gone


def _strangers(history: ExpiringHistory) -> list[Snapshot]:
    """Tags on snapshots that were replaced or rolled back: no order of ids protects their files."""
    known = {s.id: s.identity for s in (*history.expiring, history.end, *history.later)}
    newest = max(known)
    return [
        tag
        for tag in history.tags
        if tag.id > newest or known.get(tag.id, tag.identity) != tag.identity
    ]


def _descends(reader: MetadataReader, history: ExpiringHistory) -> bool:
    """Whether each snapshot's manifests are found in the next one's base, up to the end.

    False may just mean that manifests were merged, or that an expiry that was cut short has
    removed some: what the end names is never removed. The first one's delta deletes nothing here.
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


def _doomed_changelog_files(
    reader: MetadataReader, history: ExpiringHistory
) -> dict[FileKey, FileChange]:
    doomed = {file.key: file for s in history.expiring for file in _changelog_files(reader, s)}
    if doomed:
        for other in history.others:
            for file in _changelog_files(reader, other):
                doomed.pop(file.key, None)
    return doomed


def _changelog_files(reader: MetadataReader, snapshot: Snapshot) -> Iterator[FileChange]:
    for manifest in reader.if_there(reader.changelog, snapshot):
        with contextlib.suppress(ObjectNotFound):
            yield from (c for c in reader.changes(manifest) if c.kind is EntryKind.ADD)


@dataclass(slots=True)
class _Leaves:
    """Names of metadata that leads to nothing else; manifests with their sizes in bytes.

    What belongs to a manifest follows it, with a size of 0: none is recorded.
    """

    manifests: dict[str, int]
    index_files: dict[str, None]
    statistics: dict[str, None]


def _doomed_metadata(
    reader: MetadataReader, history: ExpiringHistory, tags: Sequence[Snapshot]
) -> tuple[_Leaves, Mapping[str, None]]:
    """Leaves, and the lists and index manifests that lead to them."""
    kept: set[str] = set()
    inside = skipping_tags(tags, history.expiring[0].id, history.end.id)
    for snapshot in (history.end, *inside, *_strangers(history)):
        # As in Java, the changelog of a tagged snapshot goes with the snapshot.
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
                # A list by Java 2.0.0 keeps the manifest and names nothing that belongs to it.
                leaves.manifests.update(
                    (extra, 0) for extra in manifest.extra_files if extra not in kept
                )
            if name not in kept:
                lists[name] = None
        if snapshot.index_manifest is not None and snapshot.index_manifest not in kept:
            lists[snapshot.index_manifest] = None
        leaves.index_files.update(
            (name, None) for name in reader.index_files(snapshot, missing_ok=True) - kept
        )
        if snapshot.statistics is not None and snapshot.statistics not in kept:
            leaves.statistics[snapshot.statistics] = None
    return leaves, lists


def _refuse_external(location: str, file: FileChange) -> None:
    if file.external_path is not None:
        name = file.key.file_name
        raise UnsupportedTable(
            location, [f"file {name} is outside the table, at {file.external_path}"]
        )
