"""Tag expiry: deletes expired tags and the files that only they need.

A tag expires once its age exceeds the retention in its file (`tagTimeRetained`), by the writers'
wall clock. As tag/TagTimeExpire.java.

The plan precedes the first deletion: it has the tag's files that no snapshot, other tag, long-lived
changelog or branch references. The tag's file is deleted first, so that no reader or writer can
start from its snapshot. The other files are deleted only if none did so before. Files left by an
interruption have no references, so a sweep finds them.
Agrees with utils/TagManager.java (deleteTag) and operation/TagDeletion.java, which compare only
with the neighbours of the tag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from compactord.clock import local_ms
from compactord.errors import ObjectNotFound
from compactord.maintenance.copied_files import watched
from compactord.maintenance.expire_plan import Leaves, plan_of, spare_others
from compactord.maintenance.kind import Done, OpenedTable, RuledKind, UnderWay
from compactord.maintenance.own_files import own_files
from compactord.maintenance.planned_deletion import Keepers, TableChanged, delete_checked
from compactord.maintenance.rounds import Plan, PlannedKind, RoundResult
from compactord.maintenance.snapshots import Snapshots, other_versions, others_changelogs
from compactord.maintenance.used_names import hint_trouble, main_trouble
from compactord.paimon import paths
from compactord.paimon.data_file import EntryKind, FileKey
from compactord.paimon.options.table_options import ChangelogProducer, parse_options
from compactord.paimon.schema import SchemaHistory, parse_object
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    hinted_snapshot_id,
    parse_snapshot,
    read_changelogs,
    read_snapshot,
    read_tags,
    snapshot_ids,
    still_stands,
    tag_times,
)
from compactord.state.metadata_reader import FileChange, MetadataReader
from compactord.storage.base import require_absent
from compactord.table.opening import OpenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTag:
    """A tag to delete: its snapshot, and when its file changed last."""

    name: str
    path: str
    snapshot: Snapshot
    changed_ms: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPlan:
    """The files to delete with a tag, in this order."""

    data_files: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()


class TagDeletion:
    """Plans the deletion of one tag when constructed; `delete` executes the plan.

    The constructor raises what reading raises, `UnsupportedTable` for files outside of the table,
    and `TableChanged` if snapshots may be missing.
    """

    def __init__(self, table: OpenTable, tag: DueTag, now_ms: int) -> None:
        self._table, self._tag = table, tag
        self._storage, self._root = table.storage, table.ref.root
        self._own = own_files(table)
        hint = hinted_snapshot_id(self._storage, self._root)
        # A new tag with the same name also keeps files.
        own = (tag.path.rpartition("/")[2], tag.changed_ms)
        self._keepers = Keepers(self._storage, table.ref, own)
        snapshots = Snapshots(self._storage, self._root)
        trouble = hint_trouble(self._storage, self._root, hint, snapshots.ids)
        trouble = trouble or main_trouble(self._storage, table.ref, now_ms)
        newest = snapshots.get(snapshots.ids[-1]) if snapshots.ids else None
        if trouble is not None or newest is None:
            raise TableChanged(trouble or "its newest snapshot is missing")
        self._first_id, self._newest = snapshots.ids[0], newest
        tags = {n: s for n, s in read_tags(self._storage, self._root).items() if n != tag.name}
        self.plan = self._planned([*snapshots.within(0), *tags.values()])

    def delete(self, result: RoundResult[DueTag]) -> None:
        """Delete the tag and its files; figures of `result` are named as fields of `TagPlan`.

        Raises `TableChanged` if the table has changed: either the tag still exists, or the files
        that are left have no references. Raises `StorageError` if a deletion fails.
        """
        self._check()
        status = self._storage.status(self._tag.path)
        if status is None or status.changed_ms != self._tag.changed_ms:
            raise TableChanged(f"tag {self._tag.name} was changed meanwhile")
        if self._table.options.maintenance.tags_succeed:
            # Delete it first: no program looks for it without the tag.
            self._own.delete(success_path(self._root, self._tag.name))
        self._own.delete(self._tag.path)
        result.items.append(self._tag)
        self._check()
        self._delete("data_files", self.plan.data_files, result.figures)
        self._check()
        self._delete("metadata", self.plan.metadata, result.figures)

    def _delete(self, what: str, unneeded: Sequence[str], counts: Counter[str]) -> None:
        files = self._storage, self._own, self._keepers
        delete_checked(*files, unneeded, kind=what, counts=counts, check=self._check)

    def _check(self) -> None:
        """Raises `TableChanged` if a new user may need files of the tag's snapshot."""
        ids = snapshot_ids(self._storage, self._root)
        if not ids or ids[0] < self._first_id:
            raise TableChanged("snapshots were rolled back meanwhile")
        if not still_stands(self._storage, self._root, self._newest):
            raise TableChanged(f"snapshot {self._newest.id} was deleted or replaced meanwhile")
        for id_ in (id_ for id_ in ids if id_ > self._newest.id):
            # Only OVERWRITE snapshots may add old files again.
            if read_snapshot(self._storage, self._root, id_).commit_kind is CommitKind.OVERWRITE:
                why = f"the new snapshot {id_} may add old files again"
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
        """The branch's long-lived changelogs from which readers read changes.

        With a changelog producer, readers skip snapshots without a changelog of their own
        (table/source/snapshot/ChangelogFollowUpScanner.java), but may read what an overwrite
        removed. The schema of the snapshot decides: the producer may have been set later.
        """
        schemas = SchemaHistory(self._storage, self._root, self._table.schema)
        for changelog in read_changelogs(self._storage, self._root):
            options = parse_options(schemas.schema(changelog.schema_id))
            is_read = changelog.changelog_manifest_list is not None
            is_read = is_read or changelog.commit_kind is CommitKind.OVERWRITE
            if is_read or options.changelog_producer is ChangelogProducer.NONE:
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
    """Path of a tag's success file (option `tag.create-success-file`)."""
    return paths.join(paths.tag_folder(root), "tag-success-file", f"{name}_SUCCESS")


def due_tags(table: OpenTable, now_ms: int, zone: tzinfo) -> tuple[DueTag, ...]:
    """The tags of the branch that expire now, in the order of their snapshots.

    Raises what reading raises, and `FormatError` for a tag that cannot be parsed.
    """
    if not table.options.maintenance.expires_tags:
        return ()
    found = []
    folder, prefix = paths.tag_folder(table.ref.root), paths.TAG_PREFIX
    for status in table.storage.list(folder):
        if status.is_folder or not status.name.startswith(prefix):
            continue
        path = paths.join(folder, status.name)
        try:
            data = table.storage.read(path)
        except ObjectNotFound:
            require_absent(table.storage, path)
            continue
        end_ms = _end_ms(data, path)
        if end_ms is not None and local_ms(now_ms, zone) > end_ms:
            found.append(
                DueTag(
                    name=status.name[len(prefix) :],
                    path=path,
                    snapshot=parse_snapshot(data, path),
                    changed_ms=status.changed_ms,
                )
            )
    return tuple(sorted(found, key=lambda tag: (tag.snapshot.id, tag.name)))


def _end_ms(data: bytes, path: str) -> int | None:
    """End of a tag's retention in local time as if it were UTC, or None if it never expires."""
    times = tag_times(parse_object(data, path, "a tag"), path)
    return None if times is None else times.made_ms + times.retained_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTags(RuledKind[RoundResult[DueTag]], PlannedKind[DueTag]):
    """Due after a plan, `interval_ms` after the last round, in the windows of expiry.

    Figures count files: `metadata` are manifests, lists, index files and statistics.
    """

    name = choice = key = "tags"
    noun = "tag"
    finished = "tags_expired"
    is_inline = True
    figures = ("data_files", "metadata")
    rule = "expire_tags"
    after_plans = True
    not_requested = "the table's options disable tag expiry"
    counters = (
        ("expired_tags", "Expired and surplus tags deleted."),
        ("expired_tag_files", "Files deleted with expired tags."),
    )

    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[DueTag]:
        """Raises what `due_tags` raises."""
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return Plan(why_not=expiry_blocker)
        now_ms = table.clock.now_ms()
        return self.plan_of(table, due_tags(table.table, now_ms, table.clock.time_zone), now_ms)

    def plan_of(self, table: OpenedTable, tags: Sequence[DueTag], now_ms: int) -> Plan[DueTag]:
        """These tags, unless the table may be under restore."""
        copies = watched(table, self.grace_ms)
        why_not = copies.why_wait(table.table, now_ms) if tags else None
        return Plan(items=() if why_not else tags, why_not=why_not, context=now_ms)

    def apply(self, table: OpenedTable, plan: Plan[DueTag], result: RoundResult[DueTag]) -> None:
        """Read the files of each tag after the previous tag is deleted.

        Raises what `TagDeletion` raises; the next round continues with the remaining tags.
        """
        for tag in plan.items:
            TagDeletion(table.table, tag, plan.context).delete(result)

    def preview(self, table: OpenedTable) -> Done[RoundResult[DueTag]]:
        """A round for each tag, planned as if the other tags stayed."""
        plan = self.plan(table, None)
        rounds, files = [RoundResult.of(plan)], list[str]()
        try:
            for tag in plan.items:
                found = TagDeletion(table.table, tag, plan.context).plan
                figures = Counter(data_files=len(found.data_files), metadata=len(found.metadata))
                rounds.append(RoundResult(items=[tag], figures=figures))
                files += [*found.data_files, tag.path, *found.metadata]
        except TableChanged as changed:
            rounds.append(RoundResult(why_not=str(changed)))
        return Done(rounds=rounds, files=files)

    def fields(self, result: RoundResult[DueTag], seconds: float) -> Mapping[str, Any]:
        return {
            "tags": [each.name for each in result.items],
            "data_files": result.figures["data_files"],
            "metadata": result.figures["metadata"],
        }

    def counted(self, result: RoundResult[DueTag]) -> Mapping[str, int]:
        files = sum(result.figures.values())
        return {"expired_tags": len(result.items), "expired_tag_files": files}
