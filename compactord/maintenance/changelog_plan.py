"""Which files are deleted with expiring changelogs: decided from metadata before any deletion.

Of the changelogs b..e, those before e expire. Deleted are:

1. Their changelog files.
2. Data files that their snapshots deleted and did not add again, as far as the expiry of these had
   kept them: the lists that name them are gone otherwise.
3. Manifests and lists of b..e-1 that nothing else names.

As table/ExpireChangelogImpl.java, which asks changelog e, the oldest snapshot and some tags alone.
Asked are here also all that may have files of the past: snapshots and changelogs of an overwrite
(a rollback as a new snapshot is one), tags on replaced snapshots, and all other branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from compactord.maintenance.expire_reader import FileChange, FileKey, MetadataReader
from compactord.paimon.data_file import BucketId, EntryKind
from compactord.paimon.snapshot import CommitKind, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringChangelogs:
    """The long-lived changelogs of a table or branch, and everything else that names files.

    `expiring` are b..e-1 in order, `end` is e, `later` are the other changelogs that stay.
    `snapshots` are those of the branch in order, at least one. `others` are the snapshots and tags
    of other branches, `changelogs` their long-lived changelogs.
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
        """The snapshots that may have files of the past: others have those of the oldest, or new.

        With tags on snapshots that were replaced.
        """
        versions = (*self.expiring, self.end, *self.later, *self.snapshots)
        known = {each.id: each.identity for each in versions}
        oldest, *newer = self.snapshots
        return (oldest, *_overwrites(newer), *detached_tags(self.tags, known))

    @property
    def staying(self) -> tuple[Snapshot, ...]:
        """The changelogs that may have files of the past."""
        return (self.end, *_overwrites(self.later), *self.changelogs)


def _overwrites(versions: Sequence[Snapshot]) -> list[Snapshot]:
    return [each for each in versions if each.commit_kind is CommitKind.OVERWRITE]


def plan_changelogs(
    reader: MetadataReader,
    history: ExpiringChangelogs,
    *,
    bucket_folder: Callable[[BucketId], str],
) -> ExpirePlan:
    """Plan the expiry; deletes nothing.

    Raises what reading raises, and `UnsupportedTable` for files outside the table. Metadata of
    changelogs may be missing.
    """
    tags = sorted(history.tags, key=lambda tag: tag.id)
    data = _unneeded_data_files(reader, history, tags)
    kept = (*history.others, *history.staying, *history.keeping)
    changelog = added_changelog_files(reader, history.expiring, kept=kept)
    leaves = _unneeded_metadata(reader, history, tags)
    return plan_of(reader, data, changelog, leaves, bucket_folder=bucket_folder)


def _unneeded_data_files(
    reader: MetadataReader, history: ExpiringChangelogs, tags: Sequence[Snapshot]
) -> dict[FileKey, FileChange]:
    deltas = [(each, reader.delta_if_whole(each)) for each in history.expiring]
    reader.look_for(
        change.key for _, changes in deltas for change in changes if change.kind is EntryKind.DELETE
    )
    unneeded: dict[FileKey, FileChange] = {}
    for changelog, changes in deltas:
        gone = apply_delta(changes, unneeded)
        spare_tagged(reader, [tag for tag in tags if tag.id < changelog.id], gone)
        unneeded.update(gone)
    for snapshot in history.keeping:
        for key in reader.live(snapshot) if unneeded else ():
            unneeded.pop(key, None)
    spare_others(reader, history.others, history.staying, unneeded)
    return unneeded


def _unneeded_metadata(
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
