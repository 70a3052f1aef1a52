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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import tzinfo
from typing import Any

import structlog

from compactord.clock import local_ms
from compactord.errors import CompactordError, ObjectNotFound
from compactord.maintenance.copied_files import NO_WATCH, CopyWatch, watched
from compactord.maintenance.expire_plan import Leaves, plan_of, spare_others
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Report,
    Round,
    RuledKind,
    ShownTable,
    UnderWay,
    because,
)
from compactord.maintenance.own_files import own_files
from compactord.maintenance.planned_deletion import Keepers, TableChanged, delete_checked
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
from compactord.text import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTag:
    """A tag to delete: its snapshot, and when its file changed last."""

    name: str
    path: str
    snapshot: Snapshot
    changed_ms: int


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

    def delete(self, counts: Counter[str]) -> None:
        """Delete the tag and its files; `counts` (by fields of `TagPlan`) are right in any case.

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
        counts["tags"] += 1
        self._check()
        self._delete("data_files", self.plan.data_files, counts)
        self._check()
        self._delete("metadata", self.plan.metadata, counts)

    def _delete(self, what: str, unneeded: Sequence[str], counts: Counter[str]) -> None:
        files = self._storage, self._own, self._keepers
        delete_checked(*files, what, unneeded, counts, self._check)

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


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredTags:
    """Tags deleted in one round; counts are of files.

    `metadata` counts manifests, lists, index files and statistics. `why_not`: the reason why no
    tag, or no further tag, was deleted.
    """

    tags: Sequence[str] = ()
    data_files: int = 0
    metadata: int = 0
    why_not: str | None = None


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


def expire_tags(
    table: OpenTable, now_ms: int, zone: tzinfo, copies: CopyWatch = NO_WATCH
) -> ExpiredTags:
    """Delete the tags that expire now. Raises what `due_tags` and `delete_tags` raise."""
    return delete_tags(table, due_tags(table, now_ms, zone), now_ms, copies)


def delete_tags(
    table: OpenTable, tags: Iterable[DueTag], now_ms: int, copies: CopyWatch = NO_WATCH
) -> ExpiredTags:
    """Delete tags, one after the other, unless `copies` shows a possible restore of the table.

    Raises what `TagDeletion` raises; the next round continues with the remaining tags. Logs the
    deleted tags in any case.
    """
    counts: Counter[str] = Counter()
    deleted: list[str] = []
    why_not = None
    try:
        for tag in _unless_restored(table, tags, now_ms, copies):
            deletion = TagDeletion(table, tag, now_ms)
            try:
                deletion.delete(counts)
            finally:
                if counts["tags"] > len(deleted):
                    deleted.append(tag.name)
    except TableChanged as changed:
        why_not = str(changed)
    finally:
        files = {"data_files": counts["data_files"], "metadata": counts["metadata"]}
        if deleted:
            _log.info("tags_expired", tags=deleted, **files)
    return ExpiredTags(tags=deleted, why_not=why_not, **files)


def _unless_restored(
    table: OpenTable, tags: Iterable[DueTag], now_ms: int, copies: CopyWatch
) -> Iterator[DueTag]:
    """The tags. Raises `TableChanged` before the first if the table may be under restore."""
    for number, tag in enumerate(tags):
        trouble = None if number else copies.why_wait(table, now_ms)
        if trouble is not None:
            raise TableChanged(trouble)
        yield tag


def preview_tags(
    table: OpenTable, tags: Iterable[DueTag], now_ms: int, copies: CopyWatch = NO_WATCH
) -> Done[ExpiredTags]:
    """The tags and files that `delete_tags` would delete; changes nothing.

    Each tag is planned as if the other tags stayed. Raises what `TagDeletion` raises.
    """
    planned: list[ExpiredTags] = []
    files: list[str] = []
    try:
        for tag in _unless_restored(table, tags, now_ms, copies):
            plan = TagDeletion(table, tag, now_ms).plan
            data_files, metadata = len(plan.data_files), len(plan.metadata)
            planned.append(ExpiredTags(tags=[tag.name], data_files=data_files, metadata=metadata))
            files += [*plan.data_files, tag.path, *plan.metadata]
    except TableChanged as changed:
        planned.append(ExpiredTags(why_not=str(changed)))
    return Done(rounds=planned, files=files)


def joined(rounds: Sequence[ExpiredTags], why_not: str | None = None) -> ExpiredTags:
    """The sum of several rounds; `why_not` takes precedence over their own reasons."""
    reasons = [each.why_not for each in rounds if each.why_not is not None]
    return ExpiredTags(
        tags=[name for each in rounds for name in each.tags],
        data_files=sum(each.data_files for each in rounds),
        metadata=sum(each.metadata for each in rounds),
        why_not=why_not or next(iter(reasons), None),
    )


def expired_report(shown: ShownTable, expired: ExpiredTags) -> Report:
    """A report whose data are the fields of `ExpiredTags`."""
    lines = [f"{shown.name}: no tag {shown.expired}"]
    if expired.tags:
        names = f"{count_text(len(expired.tags), 'tag')} ({', '.join(expired.tags)})"
        files = count_text(expired.data_files, "data file")
        others = count_text(expired.metadata, "other file")
        lines = [f"{shown.name}: {shown.expired} {names}: {files}, {others}"]
    lines += because(expired.why_not, has_some=expired.tags)
    return Report(lines=lines, found=asdict(expired))


def expired_counts(done: ExpiredTags) -> dict[str, int]:
    """Values for the counters of `ExpireTags`."""
    return {"expired_tags": len(done.tags), "expired_tag_files": done.data_files + done.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTags(RuledKind[ExpiredTags]):
    """Due after a plan, `interval_ms` after the last round, in the windows of expiry."""

    name = choice = "tags"
    rule = "expire_tags"
    after_plans = True
    not_requested = "the table's options disable tag expiry"
    counters = (
        ("expired_tags", "Expired and surplus tags deleted."),
        ("expired_tag_files", "Files deleted with expired tags."),
    )

    def preview(self, table: OpenedTable) -> Done[ExpiredTags]:
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return Done(why_not=expiry_blocker)
        now_ms = table.clock.now_ms()
        due = due_tags(table.table, now_ms, table.clock.time_zone)
        return preview_tags(table.table, due, now_ms, watched(table, self.grace_ms))

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> ExpiredTags:
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return ExpiredTags(why_not=expiry_blocker)
        copies = watched(table, self.grace_ms)
        return expire_tags(table.table, table.clock.now_ms(), table.clock.time_zone, copies)

    def ended(self, result: ExpiredTags | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("tags_failed", error=str(result))
            return Round(has_failed=True)
        if result.why_not is not None:
            _log.warning("tags_failed", error=result.why_not)
        return Round(counts=expired_counts(result))

    def report(self, shown: ShownTable, done: Done[ExpiredTags], *others: Done[Any]) -> Report:
        return expired_report(shown, joined(done.rounds, done.why_not))
