"""Expiry of changelogs that outlive their snapshots, as a kind of maintenance.

It can be interrupted at any moment, as the expiry of snapshots: everything is decided before the
first deletion, and a changelog's own file goes last, the oldest first. The changelog that becomes
the oldest is checked repeatedly, as are tags and branches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import structlog

from compactord.errors import CompactordError
from compactord.maintenance.changelogs import (
    changelog_ids,
    read_changelog,
    require_same,
    write_changelog_hint,
)
from compactord.maintenance.copied_files import NO_WATCH, CopyWatch, watched
from compactord.maintenance.expire_plan import ExpirePlan, ExpiringChangelogs, plan_changelogs
from compactord.maintenance.expire_reader import MetadataReader
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Round,
    RuledKind,
    ShownTable,
    TableValues,
    Told,
    UnderWay,
)
from compactord.maintenance.planned_deletion import PlannedDeletion, TableChanged
from compactord.maintenance.snapshots import (
    Expired,
    ExpireRange,
    Snapshots,
    changelog_range,
    expiry_told,
    other_versions,
    others_changelogs,
    preview_of,
)
from compactord.maintenance.used_names import hint_trouble, main_trouble
from compactord.paimon import paths
from compactord.paimon.snapshot import (
    changelogs_by_name,
    hinted_snapshot_id,
    read_consumers,
    read_tags,
    snapshot_ids,
)

_log = structlog.get_logger()
_NONE = ExpireRange(first=0, end=0, more=False)


def expire_changelogs(table: TableValues, now_ms: int, copies: CopyWatch = NO_WATCH) -> Expired:
    """One round by the table's own options: at most `snapshot.expire.limit` changelogs.

    Raises `FormatError`, `StorageError` or `UnsupportedTable` if any metadata that matters cannot
    be read, and `UsageError` for options that contradict each other: nothing is deleted then.
    Raises `StorageError` if a deletion fails: the next round continues there.
    """
    counts: Counter[str] = Counter()
    why_not = None
    wanted = _NONE
    try:
        wanted = _due(table, now_ms, copies)
        if not wanted.is_empty:
            _Round(table, wanted).delete(counts)
    except TableChanged as changed:
        why_not = str(changed)
    more = wanted.more and why_not is None
    return Expired(first=wanted.first, end=wanted.end, more=more, why_not=why_not, **counts)


def preview_changelogs(
    table: TableValues, now_ms: int, copies: CopyWatch = NO_WATCH
) -> Done[Expired]:
    """What a round would delete; changes nothing.

    Raises what `expire_changelogs` raises before its first deletion.
    """
    wanted = _NONE
    try:
        wanted = _due(table, now_ms, copies)
        if not wanted.is_empty:
            round_ = _Round(table, wanted)
            return preview_of(wanted, round_.plan(), round_.versions)
    except TableChanged as changed:
        kept = Expired(first=wanted.first, end=wanted.end, why_not=str(changed))
        return Done(rounds=[kept], files=())
    none = Expired(first=wanted.first, end=wanted.end, more=wanted.more)
    return Done(rounds=[none], files=())


def _due(table: TableValues, now_ms: int, copies: CopyWatch) -> ExpireRange:
    """The changelogs that expire now. Raises `TableChanged` where snapshots may be missing."""
    storage, root = table.storage, table.ref.root
    retention = table.options.expire.changelogs
    known = changelog_ids(storage, root)
    hint = hinted_snapshot_id(storage, root)
    snapshots = snapshot_ids(storage, root)
    if retention is None or not known or not snapshots:
        return _NONE
    trouble = hint_trouble(storage, root, hint, snapshots)
    trouble = trouble or main_trouble(storage, table.ref, now_ms)
    if trouble is not None:
        raise TableChanged(trouble)

    def time_ms(id_: int) -> int | None:
        found = read_changelog(storage, root, id_) if id_ in known else None
        return None if found is None else found.time_ms

    wanted = changelog_range(
        retention,
        limit=table.options.expire.limit,
        earliest=known[0],
        latest=known[-1],
        snapshots=(snapshots[0], snapshots[-1]),
        next_of_consumers=min(read_consumers(storage, root).values(), default=None),
        time_of=time_ms,
        now_ms=now_ms,
    )
    trouble = None if wanted.is_empty else copies.why_wait(table, now_ms)
    if trouble is not None:
        raise TableChanged(trouble)
    return wanted


class _Round:
    """One range of changelogs: read completely, then deleted."""

    def __init__(self, table: TableValues, wanted: ExpireRange) -> None:
        self._table, self._storage, self._root = table, table.storage, table.ref.root
        deletion = PlannedDeletion(table, self._require_end)
        snapshots = Snapshots(self._storage, self._root).within(0)
        named = dict(changelogs_by_name(self._storage, self._root))
        ids = sorted(id_ for id_ in changelog_ids(self._storage, self._root) if str(id_) in named)
        self._ids = [id_ for id_ in ids if wanted.first <= id_ < wanted.end]
        end_id = next((id_ for id_ in ids if id_ >= wanted.end), None)
        if end_id is None or not self._ids or not snapshots:
            raise TableChanged("they are gone already")
        self._deletion = deletion
        expiring = [named.pop(str(id_)) for id_ in self._ids]
        self._end_id, self._end = end_id, named.pop(str(end_id))
        self._history = ExpiringChangelogs(
            expiring=expiring,
            end=self._end,
            later=tuple(named.values()),
            snapshots=snapshots,
            tags=tuple(read_tags(self._storage, self._root).values()),
            others=tuple(other_versions(self._storage, table.ref)),
            changelogs=tuple(others_changelogs(self._storage, table.ref)),
        )

    @property
    def versions(self) -> tuple[str, tuple[str, ...]]:
        """The files of those that expire, the oldest first, and their name in the counts."""
        return "changelogs", tuple(paths.changelog_path(self._root, id_) for id_ in self._ids)

    def plan(self) -> ExpirePlan:
        """What is deleted; the table is as it was when that was decided."""
        reader = MetadataReader(self._storage, self._table.ref.location)
        folder = self._table.bucket_folder
        return self._deletion.planned(
            lambda: plan_changelogs(reader, self._history, bucket_folder=folder), self.versions
        )

    def delete(self, counts: Counter[str]) -> None:
        """Delete the files; `counts` (by fields of `Expired`) are right in any case."""
        plan = self.plan()
        cleans = self._table.options.expire.clean_empty_directories
        remove = self._storage.remove_empty_folder if cleans else None
        self._deletion.run(plan, self.versions, counts, remove)
        write_changelog_hint(self._storage, self._root, paths.EARLIEST, self._end_id)

    def _require_end(self) -> None:
        require_same(
            self._end, read_changelog(self._storage, self._root, self._end_id), "changelog"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireChangelogs(RuledKind[Expired]):
    """Due after a plan, `interval_ms` after the last round, in the windows of expiry."""

    name = choice = "changelogs"
    rule = "expire_changelogs"
    after_plans = True
    counters = (
        ("expired_changelogs", "Changelogs that expired after their snapshots."),
        ("expired_changelog_files", "Files deleted with expired changelogs."),
    )

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Expired:
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return Expired(why_not=expiry_blocker)
        return expire_changelogs(table.table, table.clock.now_ms(), watched(table, self.grace_ms))

    def preview(self, table: OpenedTable) -> Done[Expired]:
        expiry_blocker = table.expiry_blocker()
        if expiry_blocker is not None:
            return Done(why_not=expiry_blocker)
        return preview_changelogs(table.table, table.clock.now_ms(), watched(table, self.grace_ms))

    def ended(self, result: Expired | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("changelogs_failed", error=str(result))
            return Round(has_failed=True)
        if result.why_not is not None:
            _log.warning("changelogs_failed", error=result.why_not)
        files = result.data_files + result.changelog_files + result.manifests
        if result.changelogs:
            _log.info(
                "changelogs_expired",
                expired_changelogs=result.changelogs,
                first_changelog_id=result.first,
                earliest_changelog_id=result.end,
                files=files,
                size_bytes=result.size_bytes,
            )
        counts = {"expired_changelogs": result.changelogs, "expired_changelog_files": files}
        return Round(counts=counts, more=result.more)

    def told(self, shown: ShownTable, done: Done[Expired], *others: Done[Any]) -> Told:
        return expiry_told(shown, done, "changelog")
