"""Deletes a tag with the files that only it needs.

What goes is decided before the first deletion: the tag's files that no snapshot, other tag,
long-lived changelog or branch has. Then the tag's file goes, so that nobody can take its snapshot
up again, and the rest only if nobody had done so before. What an interruption leaves is
named by nothing, so a sweep finds it.
Agrees with utils/TagManager.java (deleteTag) and operation/TagDeletion.java, which ask the
neighbours of the tag alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compactord.maintenance.expire import Snapshots, other_versions, others_changelogs
from compactord.maintenance.expire_files import Leaves, plan_of, spare_others
from compactord.maintenance.expire_reader import FileChange, FileKey, MetadataReader
from compactord.maintenance.kind import TableValues
from compactord.maintenance.own_files import own_files
from compactord.maintenance.planned_deletion import Keepers, TableChanged, delete_checked
from compactord.maintenance.restored import hint_trouble, main_trouble
from compactord.paimon import paths
from compactord.paimon.data_file import EntryKind
from compactord.paimon.options.table_options import ChangelogProducer, parse_options
from compactord.paimon.schema import SchemaHistory
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    hinted_snapshot_id,
    read_changelogs,
    read_snapshot,
    read_tags,
    snapshot_ids,
    still_stands,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTag:
    """A tag that is to go: its snapshot, and when its file changed last."""

    name: str
    path: str
    snapshot: Snapshot
    changed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPlan:
    """The files that go with a tag, in this order."""

    data_files: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()


class TagDeletion:
    """One tag: what goes with it is decided as this is made; `delete` deletes it.

    Raises what reading raises, `UnsupportedTable` for files outside of the table, and
    `TableChanged` where snapshots may be missing: nothing is deleted then.
    """

    def __init__(self, table: TableValues, tag: DueTag, now_ms: int) -> None:
        self._table, self._tag = table, tag
        self._storage, self._root = table.storage, table.ref.root
        self._own = own_files(table)
        hint = hinted_snapshot_id(self._storage, self._root)
        # One that is made anew under the tag's name counts.
        own = (tag.path.rpartition("/")[2], tag.changed_ms)
        self._keepers = Keepers(self._storage, table.ref, own)
        snapshots = Snapshots(self._storage, self._root)
        trouble = hint_trouble(self._storage, self._root, hint, snapshots.ids)
        trouble = trouble or main_trouble(self._storage, table.ref, now_ms)
        newest = snapshots.get(snapshots.ids[-1]) if snapshots.ids else None
        if trouble is not None or newest is None:
            raise TableChanged(trouble or "its newest snapshot is gone")
        self._first_id, self._newest = snapshots.ids[0], newest
        tags = {n: s for n, s in read_tags(self._storage, self._root).items() if n != tag.name}
        self.plan = self._planned([*snapshots.within(0), *tags.values()])

    def delete(self, counts: Counter[str]) -> None:
        """Delete the tag and its files; `counts` (by fields of `TagPlan`) are right in any case.

        Raises `TableChanged` if the table has changed: what is left is named by nothing, or the tag
        is still there. Raises `StorageError` if a deletion fails.
        """
        self._check()
        status = self._storage.status(self._tag.path)
        if status is None or status.changed_ms != self._tag.changed_ms:
            raise TableChanged(f"tag {self._tag.name} was changed meanwhile")
        if self._table.options.maintenance.tags_succeed:
            # Nobody would look for it without the tag.
            self._own.delete(success_path(self._root, self._tag.name))
        self._own.delete(self._tag.path)
        counts["tags"] += 1
        self._check()
        self._delete("data_files", self.plan.data_files, counts)
        self._check()
        self._delete("metadata", self.plan.metadata, counts)

    def _delete(self, what: str, unneeded: Sequence[str], counts: Counter[str]) -> None:
        files = self._storage, self._own, self._keepers
        delete_checked(*files, what, unneeded, counts, self._check)

    def _check(self) -> None:
        """Whether nothing has come that may need files of the tag's snapshot."""
        ids = snapshot_ids(self._storage, self._root)
        if not ids or ids[0] < self._first_id:
            raise TableChanged("snapshots were rolled back meanwhile")
        if not still_stands(self._storage, self._root, self._newest):
            raise TableChanged(f"snapshot {self._newest.id} is gone or was replaced meanwhile")
        for id_ in (id_ for id_ in ids if id_ > self._newest.id):
            # Only these add files again; others add new files.
            if read_snapshot(self._storage, self._root, id_).commit_kind is CommitKind.OVERWRITE:
                why = f"snapshot {id_} was made meanwhile, which may add old files again"
                raise TableChanged(why)
        self._keepers.check()

    def _planned(self, keepers: Sequence[Snapshot]) -> TagPlan:
        snapshot = self._tag.snapshot
        if any(each.identity == snapshot.identity for each in keepers):
            return TagPlan()
        others = tuple(other_versions(self._storage, self._table.ref))
        changelogs = (*self._changelogs(), *others_changelogs(self._storage, self._table.ref))
        reader = MetadataReader(self._storage, self._table.ref.location)
        unneeded = _live_files(reader, snapshot)
        reader.look_for(unneeded)
        kept: set[str] = set()
        for each in keepers:
            kept |= reader.metadata_to_read(each)
            for key in reader.live(each):
                unneeded.pop(key, None)
        for each in others:
            kept |= reader.metadata_named(each)
        for each in changelogs:
            kept |= reader.changelog_named(each)
        spare_others(reader, others, changelogs, unneeded)
        leaves, folder = Leaves(), self._table.bucket_folder
        base, delta = snapshot.base_manifest_list, snapshot.delta_manifest_list
        read = (base, reader.base), (delta, reader.delta)
        leaves.add(reader, snapshot, read, kept)
        plan = plan_of(reader, unneeded, {}, leaves, bucket_folder=folder)
        for path in (*plan.data_files, *plan.index_files, *plan.statistics):
            self._own.require_data(path)
        metadata = tuple(path for _, some in plan.metadata for path in some)
        for path in (self._tag.path, success_path(self._root, self._tag.name), *metadata):
            self._own.require(path)
        return TagPlan(data_files=plan.data_files, metadata=metadata)

    def _changelogs(self) -> Iterator[Snapshot]:
        """The long-lived ones of the branch that readers take changes from.

        With a changelog producer they pass over a snapshot that has no changelog of its own, as
        table/source/snapshot/ChangelogFollowUpScanner.java, but may be told what an overwrite
        removed. The schema of the snapshot counts: the table may have got a producer since.
        """
        schemas = SchemaHistory(self._storage, self._root, self._table.schema)
        for changelog in read_changelogs(self._storage, self._root):
            options = parse_options(schemas.schema(changelog.schema_id))
            is_told = changelog.changelog_manifest_list is not None
            is_told = is_told or changelog.commit_kind is CommitKind.OVERWRITE
            if is_told or options.changelog_producer is ChangelogProducer.NONE:
                yield changelog


def _live_files(reader: MetadataReader, snapshot: Snapshot) -> dict[FileKey, FileChange]:
    times: Counter[FileKey] = Counter()
    files: dict[FileKey, FileChange] = {}
    for manifest in (*reader.base(snapshot), *reader.delta(snapshot)):
        for change in reader.changes(manifest):
            times[change.key] += 1 if change.kind is EntryKind.ADD else -1
            files[change.key] = change
    return {key: file for key, file in files.items() if times[key] > 0}


def success_path(root: str, name: str) -> str:
    """Where a table with `tag.create-success-file` says that a tag was made."""
    return paths.join(paths.tag_folder(root), "tag-success-file", f"{name}_SUCCESS")
