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
- all files of tags on replaced snapshots, of other branches (main is one to them), and what
  readers of long-lived changelogs need.

Where changelogs outlive their snapshots (`ChangelogRetention`), these keep of the snapshots b..e-1:

- without a changelog producer the data files that writers added, until the changelog expires whose
  snapshot deleted them, and the lists;
- otherwise the changelog files and lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compactord.errors import ObjectNotFound
from compactord.maintenance.expire_files import (
    ExpirePlan,
    Leaves,
    added_changelog_files,
    apply_delta,
    detached_tags,
    plan_of,
    skipping_tags,
    spare_others,
    spare_tagged,
)
from compactord.maintenance.expire_reader import FileChange, FileKey, MetadataReader, ReadList
from compactord.maintenance.later_snapshots import LaterSnapshots
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.options.maintenance import ChangelogRetention
from compactord.paimon.snapshot import CommitKind, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringHistory:
    """The existing snapshots of a table or branch, and everything else that names files.

    `expiring` are b..e-1 in order, `end` is e, `later` has read those after it. `others` are the
    snapshots and tags of other branches. `changelogs` are long-lived ones that stay, of all
    branches, but for those of `expiring`, which `retention` keeps; None: it does not.
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
    """Plan an expiry; deletes nothing.

    Raises what reading raises, and `UnsupportedTable` for files outside the table. Only metadata of
    expiring snapshots may be missing: an interrupted expiry had begun to delete it, after their
    data files.
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
        gone = {
            key: change
            for key, change in apply_delta(changes, unneeded).items()
            if not _outlives(change, snapshot, history.retention)
        }
        spare_tagged(reader, [tag for tag in tags if tag.id < snapshot.id], gone)
        unneeded.update(gone)
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
    return is_appended or _is_told(deleting, retention)


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
    # Read at once where that is faster, and again below from memory.
    deque(reader.bases_if_there(history.expiring), maxlen=0)
    for snapshot in history.expiring:
        lists = _unneeded_lists(reader, snapshot, history.retention)
        leaves.add(reader, snapshot, lists, kept)
    return leaves


def _unneeded_lists(
    reader: MetadataReader, snapshot: Snapshot, retention: ChangelogRetention | None
) -> Iterator[tuple[str, ReadList]]:
    """Those that no changelog of the snapshot needs once it has expired."""
    if retention is not None and (retention.from_deltas or _is_told(snapshot, retention)):
        return
    for name, read in reader.lists(snapshot):
        if retention is None or name != snapshot.changelog_manifest_list:
            yield name, read


def _is_told(snapshot: Snapshot, retention: ChangelogRetention) -> bool:
    """Whether readers take from the snapshot's delta what an overwrite removed."""
    return retention.from_overwrites and snapshot.commit_kind is CommitKind.OVERWRITE
