"""Expiry of changelogs that outlive their snapshots, as a kind of maintenance.

It can be interrupted at any moment, as the expiry of snapshots: everything is decided before the
first deletion, and a changelog's own file goes last, the oldest first. The changelog that becomes
the oldest is checked repeatedly, as are tags and branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from compactord.maintenance.changelogs import (
    changelog_ids,
    read_changelog,
    require_same,
    write_changelog_hint,
)
from compactord.maintenance.copied_files import watched
from compactord.maintenance.expire_plan import ExpirePlan, ExpiringChangelogs, plan_changelogs
from compactord.maintenance.kind import OpenedTable, UnderWay
from compactord.maintenance.planned_deletion import PlannedDeletion, TableChanged, Versions
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.snapshots import (
    NO_RANGE,
    ExpireRange,
    ExpireVersions,
    ExpiringRound,
    Snapshots,
    changelog_range,
    other_versions,
    others_changelogs,
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
from compactord.state.metadata_reader import MetadataReader
from compactord.table.opening import OpenTable


class _Round:
    """One range of changelogs: read completely, then deleted."""

    def __init__(self, table: OpenTable, wanted: ExpireRange) -> None:
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
    def versions(self) -> Versions:
        return {id_: paths.changelog_path(self._root, id_) for id_ in self._ids}

    def plan(self) -> ExpirePlan:
        reader = MetadataReader(self._storage, self._table.ref.location)
        folder = self._table.bucket_folder
        return self._deletion.planned(
            lambda: plan_changelogs(reader, self._history, bucket_folder=folder), self.versions
        )

    def delete(self, plan: ExpirePlan, result: RoundResult[int]) -> None:
        cleans = self._table.options.expire.clean_empty_directories
        remove = self._storage.remove_empty_folder if cleans else None
        self._deletion.run(plan, self.versions, result.items, result.figures, remove)
        write_changelog_hint(self._storage, self._root, paths.EARLIEST, self._end_id)

    def _require_end(self) -> None:
        require_same(
            self._end, read_changelog(self._storage, self._root, self._end_id), "changelog"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireChangelogs(ExpireVersions):
    """Due after a plan, `interval_ms` after the last round, in the windows of expiry."""

    name = choice = key = "changelogs"
    noun = "changelog"
    finished = "changelogs_expired"
    rule = "expire_changelogs"
    counters = (
        ("expired_changelogs", "Changelogs that expired after their snapshots."),
        ("expired_changelog_files", "Files deleted with expired changelogs."),
    )

    def due(
        self, table: OpenedTable, now_ms: int, under_way: UnderWay | None
    ) -> tuple[ExpireRange, Callable[[], ExpiringRound]]:
        values = table.table
        wanted = _range_of(values, now_ms)
        if not wanted.is_empty:
            trouble = watched(table, self.grace_ms).why_wait(values, now_ms)
            if trouble is not None:
                raise TableChanged(trouble)
        return wanted, lambda: _Round(values, wanted)

    def fields(self, result: RoundResult[int], seconds: float) -> Mapping[str, Any]:
        return {
            "expired_changelogs": len(result.items),
            "first_changelog_id": result.first,
            "earliest_changelog_id": result.end,
            "files": _file_count(result),
            "size_bytes": result.figures["size_bytes"],
        }

    def counted(self, result: RoundResult[int]) -> Mapping[str, int]:
        files = _file_count(result)
        return {"expired_changelogs": len(result.items), "expired_changelog_files": files}


def _file_count(result: RoundResult[int]) -> int:
    return sum(result.figures[name] for name in ("data_files", "changelog_files", "manifests"))


def _range_of(table: OpenTable, now_ms: int) -> ExpireRange:
    """The changelogs that expire now. Raises `TableChanged` if snapshots may be missing."""
    storage, root = table.storage, table.ref.root
    retention = table.options.expire.changelogs
    known = changelog_ids(storage, root)
    hint = hinted_snapshot_id(storage, root)
    snapshots = snapshot_ids(storage, root)
    if retention is None or not known or not snapshots:
        return NO_RANGE
    trouble = hint_trouble(storage, root, hint, snapshots)
    trouble = trouble or main_trouble(storage, table.ref, now_ms)
    if trouble is not None:
        raise TableChanged(trouble)

    def time_ms(id_: int) -> int | None:
        found = read_changelog(storage, root, id_) if id_ in known else None
        return None if found is None else found.time_ms

    return changelog_range(
        retention,
        limit=table.options.expire.limit,
        earliest=known[0],
        latest=known[-1],
        snapshots=(snapshots[0], snapshots[-1]),
        next_of_consumers=min(read_consumers(storage, root).values(), default=None),
        time_of=time_ms,
        now_ms=now_ms,
    )
